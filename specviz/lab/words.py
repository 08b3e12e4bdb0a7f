"""What a finding says, in sentences: the answer first, then what stands beside it. Pure functions of findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specviz.config import APPROXIMATE_RULES
from specviz.lab.experiment import Finding
from specviz.lab.gamma import as_good, best_of
from specviz.models.exactness import MAX_EXACT_COST
from specviz.words import EQUAL_WITHIN

__all__ = ["answer", "measured_where"]

DOUBTFUL = 0.01
"""A p-value under this is called a difference; chance alone brings one in a hundred tests there."""

HOPELESS = 1e-6
"""A p-value under this is not chance, however often the test is run."""

ROOFLINE_NEAR = 0.6
"""From this part of memory's speed on, a one-row pass is called bound by memory alone."""


def answer(finding: Finding) -> tuple[str, str]:
    """The finding in a sentence, and what a reader should know beside it."""
    return _ANSWERS[finding.name](finding)


def measured_where(finding: Finding, *, recorded: bool) -> str:
    """With what, where and when a finding was measured."""
    about = finding.about
    threads = "1 thread" if about["threads"] == 1 else f"{about['threads']} threads"
    what = f"{about['title']}, {about['dtype']}, {about['method_title']}"
    if recorded:
        return f"Recorded on {about['date'][:10]} ({about['machine']}, {threads}), not measured here: {what}."
    unfinished = "" if finding.is_whole else " Not measured to the end."
    return f"Measured here: {what}, {threads}.{unfinished}"


def _gamma(finding: Finding) -> tuple[str, str]:
    rows, facts = finding.rows, finding.facts
    best = best_of(rows)
    if best is None:
        return "No draft length has a speed yet.", ""
    gamma, s, low = best["gamma"], best["speed_up"], best["speed_up_low"]
    if s <= 1.0 - EQUAL_WITHIN:
        nearest = f"Nearest: {_tokens(gamma)} a step, {s:.2f} times the speed of plain."
        return "Do not speculate here: γ 0, plain decoding, is the fastest.", f"{nearest} {facts.get('reason', '')}"
    if s < 1.0 + EQUAL_WITHIN or (low is not None and low <= 1.0):
        return (
            f"No gain here: the best length, {_tokens(gamma)} a step, is {s:.2f} times as fast as plain.",
            "That is within the spread of 1, so γ 0, plain decoding, does as well with less memory.",
        )
    return f"Draft {_tokens(gamma)} a step: {s:.2f} times as fast as plain.", _others(rows, gamma)


def _others(rows: Sequence[dict[str, Any]], best: int) -> str:
    """Which lengths are as good as the best one, and how the rest falls off."""
    good = as_good(rows)
    lengths = [row["gamma"] for row in rows]
    sentences = []
    if len(good) == len(lengths) > 1:
        return "All lengths are as good, within the spread: more rounds would tell them apart."
    if len(good) > 1:
        inside = [gamma for gamma in lengths if good[0] <= gamma <= good[-1]]
        named = f"{good[0]} to {good[-1]}" if inside == good and len(good) > 2 else _listed(good)
        sentences.append(f"Lengths {named} are as good, within the spread.")
    last = rows[-1]
    if last["gamma"] not in good and last["speed_up"] is not None and last["acceptance_rate"] is not None:
        lost = 1.0 - last["acceptance_rate"]
        sentences.append(f"At {last['gamma']} it is {last['speed_up']:.2f}×: {100 * lost:.0f} % of the draft is lost.")
    return " ".join(sentences)


def _passes(finding: Finding) -> tuple[str, str]:
    rows, facts = finding.rows, finding.facts
    cheap = [row["rows"] for row in rows if row["v"] <= MAX_EXACT_COST]
    dear = next((row for row in rows if row["v"] >= 2.0), None)
    headline = (
        f"Memory-bound up to {cheap[-1]} rows: checking that many costs at most {MAX_EXACT_COST:.2f} of one."
        if cheap[-1] > 1
        else f"Compute-bound from the start: {rows[1]['rows']} rows cost {rows[1]['v']:.2f} of one."
    )
    if dear is not None:
        headline += f" At {dear['rows']} arithmetic sets the price: {dear['v']:.1f} times."
    part = facts["of_roofline"]
    size, rate = facts["weights_bytes"] / 1e6, facts["bandwidth_bytes_per_s"] / 1e9
    rest = (
        f"Memory was read at {rate:.0f} GB/s, so reading the {size:,.0f} MB of weights once takes "
        f"{1000 * facts['floor_s']:.1f} ms: no one-row pass can be faster. Measured: "
        f"{1000 * rows[0]['pass_s']:.1f} ms, {100 * part:.0f} % of that roofline"
    )
    why = "." if part >= ROOFLINE_NEAR else "; the rest goes into small operations and calls between them."
    return headline, rest + why


def _memory(finding: Finding) -> tuple[str, str]:
    facts, last = finding.facts, finding.rows[-1]
    plain = last["target_bytes"] + last["target_cache_bytes"]
    draft = last["draft_bytes"] + last["draft_cache_bytes"]
    at = f"at {last['context']:,} tokens of context"
    if not draft:
        why = "it shares the target’s weights" if facts["is_shared"] else "it needs no model"
        headline = f"This draft takes no memory of its own: {why}."
    else:
        more = f"{draft / 1e6:,.0f} MB on top of the target’s {plain / 1e6:,.0f}, {100 * draft / plain:.0f} % more"
        headline = f"The draft costs {more}, {at}."
    per_token = facts["target_bytes_per_token"] / 1000
    rest = f"The target’s cache grows by {per_token:.1f} kB a token"
    if facts["draft_bytes_per_token"]:
        rest += f", the draft’s by {facts['draft_bytes_per_token'] / 1000:.1f} kB"
    share = last["target_cache_bytes"] / plain
    rest += f"; {at} its cache is {100 * share:.0f} % of the target’s memory. All figures are of the loaded objects."
    return headline, rest


def _precision(finding: Finding) -> tuple[str, str]:
    timed = [row for row in finding.rows if row.get("speed_up") is not None]
    if not timed:
        return "No format has a speed yet.", ""
    best = max(timed, key=lambda row: row["speed_up"])
    smallest = min(timed, key=lambda row: row["num_bytes"])
    s = best["speed_up"]
    headline = f"Held as {best['format']} this draft is fastest: {s:.2f} times plain decoding."
    if s < 1.0:
        headline = f"No format of this draft pays: the nearest is {best['format']}, {s:.2f} times the speed of plain."
    rest = ""
    if smallest is not best:
        rest = (
            f"{smallest['format']} is the smallest, not the fastest: a pass takes {1000 * smallest['pass_s']:.1f} ms "
            f"against {1000 * best['pass_s']:.1f} ms."
        )
    agreements = [row["agreement"] for row in timed]
    if len(timed) > 1:
        spread = f"{100 * min(agreements):.0f} to {100 * max(agreements):.0f} %"
        if max(agreements) - min(agreements) < 0.005:
            spread = f"{100 * agreements[0]:.0f} % in every format"
        rest += f" The same first choice as the target: {spread} of {finding.facts['num_compared']} tokens."
    return headline, rest.strip()


def _length(finding: Finding) -> tuple[str, str]:
    rows, facts = finding.rows, finding.facts
    first, last = rows[0], rows[-1]
    if first is last:
        return f"A plain token costs {1000 * first['target_s']:.1f} ms at {first['context']:,} tokens of context.", ""
    ratio = last["target_s"] / first["target_s"]
    headline = (
        f"A plain token costs {1000 * first['target_s']:.1f} ms behind {first['context']:,} tokens and "
        f"{1000 * last['target_s']:.1f} ms behind {last['context']:,}: {ratio:.2f} times."
    )
    rest = ""
    if "check_s" in last:
        v0, v1 = (row["check_s"] / row["target_s"] for row in (first, last))
        rest = f"A check of {facts['rows']} tokens goes from {v0:.2f} to {v1:.2f} plain tokens"
        both = [row["draft_s"] / row["target_s"] for row in (first, last) if "draft_s" in row]
        rest += f", a drafted token from {both[0]:.2f} to {both[1]:.2f}." if len(both) == 2 else "."
    return headline, rest


def _greedy(finding: Finding) -> tuple[str, str]:
    facts = finding.facts
    total, place = facts["num_compared"], facts["first_difference"]
    if place is None:
        headline = f"Identical: all {total} tokens are those of plain decoding at one token a pass."
    elif facts["width_same"]:
        headline = f"Identical, bit by bit, to plain decoding {facts['own_passes']}."
    elif facts["width_same"] is False:
        headline = f"Not exact: plain decoding {facts['own_passes']} wrote another text. This is a fault."
    else:
        headline = f"The same for {place} tokens, then another way: a near-tie fell differently."
    sentences = []
    if place is not None:
        gap = f"{facts['gap']:.3f}" if facts["gap"] else "0"
        sentences.append(
            f"Against plain decoding at one token a pass the first difference is token {place + 1} of {total}. There "
            f"the target’s two best logits are {gap} apart, and passes of another size round differently."
        )
    return headline, " ".join([*sentences, _self_test(facts)])


def _self_test(facts: dict[str, Any]) -> str:
    width, least = facts["tested_width"], facts["min_rows"]
    low, high = facts["tested_contexts"]
    padded = f"padded to {width}" if least == width else f"padded to {least} where there are fewer"
    found = (
        f"The self-test compared all logits of passes for 1 to {width} tokens, {padded}, at contexts {low} to {high} "
        f"and {facts['tested_long']}: {facts['positions_equal']} of {facts['positions']} positions were equal to the "
        "bit."
    )
    if facts["width"]:
        return found
    return f"{found} This run did not use such passes; “Exact passes” under “More settings” turns them on."


def _sampling(finding: Finding) -> tuple[str, str]:
    facts, rows = finding.facts, finding.rows
    total, p = facts["num_samples"], facts["p_value"]
    if p is None:
        return "Nothing to test: one outcome has nearly all the probability.", "Raise the temperature, then test again."
    approximate = facts["verify"] in APPROXIMATE_RULES
    number = f"p = {p:.2g}" if p < DOUBTFUL else f"p = {p:.2f}"
    if p < HOPELESS:
        headline = f"Another distribution than the target’s: {number}. This is not chance."
        if approximate:
            headline = f"Another distribution than the target’s, as this approximate rule says: {number}."
    elif p < DOUBTFUL:
        headline = f"Doubtful: {number}. Chance alone goes this far once in {1 / p:,.0f} tests; test again."
    else:
        headline = f"{total:,} samples agree with the target’s own distribution: {number}."
    named = sum(1 for row in rows if row["ids"])
    rest = (
        f"Chi-square {facts['chi_square']:.1f} with {facts['degrees']} degrees of freedom, over the {named} likeliest "
        f"two-token beginnings and all others as one. T = {finding.about['temperature']:g}; "
        f"{facts['num_accepted']} of {facts['num_tested']} tested drafts were kept. "
        f"A shift of {100 * facts['stands_out']:.0f} percentage points in one of them would stand out; a smaller one, "
        "or one that shows only later in a text, would not. Agreement is no proof: the proof is the rule itself."
    )
    return headline, rest


def _rules(finding: Finding) -> tuple[str, str]:
    facts = finding.facts
    token, block, n = facts["token"], facts["block"], facts["num_drafts"]
    gain = 100 * (block / token - 1.0) if token > 0 else 0.0
    if gain < 0.05:
        headline = f"No difference here: {block:.2f} drafted tokens are kept a step under either rule."
    else:
        headline = (
            f"As a block {block:.2f} drafted tokens are kept a step, token by token {token:.2f}: {gain:.1f} % more."
        )
    rest = (
        f"Means over {n:,} drafts, weighed with the same p and q: no coin decides. In {facts['num_better']:,} of them "
        "the block is worth more, in the others as much. With the target’s own token a step writes "
        f"{1 + block:.2f} against {1 + token:.2f}. What is neither draft nor check, this rule included, took "
        f"{100 * facts['other_share']:.1f} % of the time."
    )
    return headline, rest


_ANSWERS: dict[str, Callable[[Finding], tuple[str, str]]] = {
    "gamma": _gamma,
    "passes": _passes,
    "memory": _memory,
    "precision": _precision,
    "length": _length,
    "greedy": _greedy,
    "sampling": _sampling,
    "rules": _rules,
}


def _tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


def _listed(numbers: Sequence[int]) -> str:
    """ "3, 4 and 6" """
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
