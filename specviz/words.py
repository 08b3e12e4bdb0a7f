"""The sentences of the page: everyday words first, the symbol after. Pure functions of counters."""

from __future__ import annotations

from typing import Any

from specviz.events import FinishReason, RunFinished, RunStarted
from specviz.metrics import Baseline, Counters

__all__ = ["EQUAL_WITHIN", "finish_sentence", "gap_in_words", "progress_sentence", "verdict"]

EQUAL_WITHIN = 0.03
"""Speed-ups within 3 % of 1 read as "as fast as plain": two runs of the same work differ by as much here."""

BUSY_FROM = 1.25
"""A speed-up this many times over the tokens of a pass is no gain of the method: a pass cannot get so much cheaper."""

_ROUNDING = "Passes of another size round differently."

_REASONS: dict[FinishReason, str] = {
    "eos": "The model ended its answer.",
    "stop": "A stop string was reached.",
    "length": "The length limit was reached.",
    "context": "The model's context is full.",
    "time": "The time limit was reached. Everything so far is kept.",
    "cancelled": "Everything so far is kept.",
    "error": "The run ended early.",
}


def progress_sentence(counters: Counters) -> str:
    """ "45 tokens in 14 steps" while a run goes on."""
    return f"{_count(counters.num_tokens, 'token')} in {_count(counters.num_steps, 'step')}"


def finish_sentence(finished: RunFinished) -> str:
    """ "Finished: 106 tokens in 34 steps, 1.74 s. The model ended its answer." """
    size = f"{_count(finished.num_tokens, 'token')} in {_count(finished.num_steps, 'step')}"
    if finished.reason != "cancelled":
        size += f", {finished.decode_s:.2f} s"
    heads = {"cancelled": "Stopped after", "error": "Failed after", "time": "Stopped after"}
    head = heads.get(finished.reason, "Finished:")
    return f"{head} {size}. {finished.message or _REASONS[finished.reason]}"


def verdict(
    started: RunStarted,
    counters: Counters,
    plain: Baseline | None,
    *,
    recorded: bool = False,
    plain_follows: bool = False,
) -> dict[str, Any]:
    """The answer of the page in words.

    recorded: it was measured elsewhere and earlier, and the words say so. plain_follows: the baseline is under way.

    Returns:
        kind: faster, equal, slower or none; speed_up: run tokens/s over plain tokens/s, or None; headline, rest and
        detail: three texts; reason: why a slowdown is one, else "".
    """
    rate = counters.decode_tokens_per_s
    if started.exactness == "unchecked":
        return _of_a_server(started, counters)
    base = plain.tokens_per_s if plain else None
    how = f"{_how(started)} {_promise(started)}"
    if rate is None:
        return _verdict("none", None, "No tokens", "", how)
    if base is None:
        what = "This is the baseline." if started.method == "plain" else _no_baseline(recorded, plain_follows)
        return _verdict("none", None, f"{rate:.1f} tokens a second", "", f"{what} {how}")
    ratio = rate / base
    assert plain is not None
    how = f"{_how(started)} {_text_check(started, plain)}"
    where = "the machine of the recording" if recorded else "this machine"
    detail = f"{rate:.1f} against {base:.1f} tokens a second, measured one after the other on {where}. {how}"
    if abs(ratio - 1.0) <= EQUAL_WITHIN:
        return _verdict("equal", ratio, f"{ratio:.2f}×", "as fast as plain decoding of the same prompt", detail)
    if ratio > 1.0:
        detail = f"{_why_fast(counters, plain)}{detail}{_why_too_fast(ratio, counters)}"
        return _verdict("faster", ratio, f"{ratio:.2f}× faster", "than plain decoding of the same prompt", detail)
    reason = _why_slow(counters, plain)
    return _verdict("slower", ratio, f"{ratio:.2f}×: slower", "than plain decoding of the same prompt", detail, reason)


def _of_a_server(started: RunStarted, counters: Counters) -> dict[str, Any]:
    """A serving engine's run has no baseline here, and nothing here has checked its text."""
    rate, tau = counters.decode_tokens_per_s, counters.acceptance_length
    if rate is None:
        return _verdict("none", None, "No tokens", "", started.exactness_reason)
    at_least = "at least " if counters.is_bound else ""
    kept = "" if tau is None else f" A drafting step wrote on average {at_least}{tau:.2f} tokens (τ)."
    headline, rest = f"{rate:.1f} tokens a second", f"as they arrived from {started.pair}"
    detail = f"{started.exactness_reason} {_how(started)}{kept}"
    return _verdict("none", None, headline, rest, detail)


def _why_fast(counters: Counters, plain: Baseline) -> str:
    """What a step brought and what it cost: the one divided by the other is the speed-up."""
    step_s, plain_s = counters.s_per_step, plain.s_per_token
    if step_s is None or not plain_s:
        return ""
    tokens = counters.num_timed_tokens / counters.num_timed_steps
    return f"A step wrote {tokens:.2f} tokens in the time plain decoding takes for {step_s / plain_s:.2f}. "


def _why_too_fast(ratio: float, counters: Counters) -> str:
    """A machine that was busy while plain decoding ran shows as a speed-up that no draft can give."""
    tokens = counters.block_efficiency
    if tokens is None or ratio <= BUSY_FROM * tokens:
        return ""
    return (
        f" A pass wrote {tokens:.2f} tokens, so the method alone cannot be this fast: "
        "the machine was busier during plain decoding. Run it again."
    )


def _why_slow(counters: Counters, plain: Baseline | None) -> str:
    """The largest of the three costs that can eat the gain, in the run's own numbers."""
    plain_s = plain.s_per_token if plain else None
    if not counters.num_drafting_steps:
        return "Nothing was drafted, so every step wrote one token."
    alpha, counts = counters.alpha, f"{counters.num_accepted} of {counters.num_tested} tested tokens were kept"
    kept = "" if alpha is None else f"{counts} (α {alpha:.2f})"
    if plain_s is None or counters.draft_s_per_token is None:
        return f"{kept}." if kept else ""
    c = counters.draft_s_per_token / plain_s
    v = counters.verify_s / counters.num_timed_steps / plain_s
    drafting = counters.draft_s / counters.num_timed_steps / plain_s
    if drafting > 0.5 * (counters.acceptance_length or 1.0) or c >= 0.9:
        return (
            f"Drafting costs too much: {c:.2f} plain steps a token, "
            f"so the {counters.num_drafted / counters.num_steps:.1f} tokens drafted in a step cost {drafting:.1f}. "
            f"{kept}."
        )
    if (counters.coverage or 0.0) < 0.5:
        few = f"Only {counters.num_drafting_steps} of {counters.num_steps} steps had anything to draft"
        return f"{few}, and checking costs {v:.2f} plain steps."
    if alpha is not None and alpha < 0.5:
        return f"Too many guesses are wrong: {kept}, and checking costs {v:.2f} plain steps."
    return f"Checking costs {v:.2f} plain steps and drafting {drafting:.2f}; {kept}."


def _no_baseline(recorded: bool, plain_follows: bool) -> str:
    if plain_follows:
        return "The speed-up appears here once plain decoding has run too."
    return "Plain decoding was not recorded." if recorded else "Measure plain decoding to see the speed-up."


def _how(started: RunStarted) -> str:
    chosen = "Greedy" if _is_greedy(started) else f"Sampled at T = {started.settings['temperature']:g}"
    return f"{chosen}, {started.dtype}." if started.dtype else f"{chosen}."


def _is_greedy(started: RunStarted) -> bool:
    temperature = started.settings.get("temperature", 0)
    return not temperature or temperature < 1e-3


def _at_width(started: RunStarted) -> str:
    """Rows of a pass belong to the promise where passes of another size round differently."""
    return f" at {_count(started.fixed_rows, 'row')} a pass" if started.fixed_rows else ""


def own_passes(started: RunStarted) -> str:
    """What sets the passes of an exact run apart, for plain decoding that makes the same ones."""
    return f"at {started.fixed_rows} rows a pass" if started.fixed_rows else "in passes padded as this run's are"


def _promise(started: RunStarted) -> str:
    if started.exactness == "lossless" and _is_greedy(started):  # where nothing is drawn there is no distribution
        return "Lossless: the target's own choices; near-ties may resolve differently."
    return {
        "exact": f"Exact: the text of plain decoding to the bit{_at_width(started)}.",
        "lossless": "Lossless: the target's own distribution.",
        "approximate": "Approximate: the rule changes the target's distribution.",
    }[started.exactness]


def _text_check(started: RunStarted, plain: Baseline) -> str:
    """What the comparison with the measured plain run says about the promise; the promise alone where there is none."""
    if plain.same_text is None:
        return _promise(started)
    if plain.same_text:
        return f"{_promise(started)} Plain decoding wrote the same {_count(plain.num_tokens, 'token')} here."
    place = (plain.first_difference or 0) + 1
    gap = "" if plain.gap is None else f", where the two best logits are {gap_in_words(plain.gap)}"
    differs = f"Plain decoding at one token a pass differs at token {place}{gap}"
    if plain.width_same:
        own = own_passes(started)
        return f"{_promise(started)} {own[0].upper()}{own[1:]} it wrote the same text. {differs}. {_ROUNDING}"
    if plain.width_same is False:
        return f"Not exact: plain decoding {own_passes(started)} wrote another text, so this is a fault. {differs}."
    return f"{_promise(started)} {differs}. {_ROUNDING}"


def gap_in_words(gap: float) -> str:
    """ "0.012 apart", of the two best logits where two texts first differ."""
    return "equal" if gap == 0 else "less than 0.001 apart" if gap < 0.001 else f"{gap:.3f} apart"


def _verdict(kind: str, ratio: float | None, headline: str, rest: str, detail: str, reason: str = "") -> dict[str, Any]:
    return {"kind": kind, "speed_up": ratio, "headline": headline, "rest": rest, "detail": detail, "reason": reason}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
