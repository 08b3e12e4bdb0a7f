"""The stops of the guided tour: words around recorded real runs. Every number in them is read from a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specviz.errors import TraceError
from specviz.theory import expected_tokens
from specviz.ui.tour.blocks import Block, bars, fates, milliseconds, paragraph, pending, quoted, share, words
from specviz.ui.tour.run import TourRun, choose_coin, choose_refusal, choose_step

__all__ = ["NEEDED", "Stop", "tour_stops"]

NEEDED = ("facts", "copying", "sampled", "early-exit")
"""Runs of the gallery that the tour cannot do without."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop. short: what a link calls it. answer: number of the right option. see: {tab, trace, step} to go "
    "on to."""

    title: str
    short: str
    before: Sequence[Block]
    question: str
    options: Sequence[str]
    answer: int
    after: Sequence[Block]
    see: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def tour_stops(runs: Mapping[str, TourRun]) -> list[Stop]:
    """The ten stops, from the gallery's runs by name; those of NEEDED must be among them.

    Raises:
        TraceError: a run is missing, or shows nothing of what its stop is about.
    """
    for name in NEEDED:
        if name not in runs:
            raise TraceError(f"The tour needs the recorded run {name!r}.")
    facts, copying, sampled, losing = (runs[name] for name in NEEDED)
    return [
        _why_slow(facts),
        _drafting(copying, facts),
        _one_check(copying),
        _refused(copying),
        _bonus(copying),
        _rollback(copying),
        _acceptance(sampled),
        _losing(losing),
        _other_ways(list(runs.values())),
        _sampling(sampled),
    ]


def _why_slow(run: TourRun) -> Stop:
    target = run.trace.started.target
    rows = round(statistics.median(step.rows for step in run.steps if step.num_drafted))
    c = run.counters
    wide_s = c.drafting_verify_s / c.num_drafting_steps
    ratio = wide_s / run.plain_s
    return Stop(
        "Why is writing slow?",
        "why it is slow",
        [
            paragraph("A language model writes one token at a time, and a token is a word or a piece of one."),
            paragraph(
                f"For every token the processor reads all weights of the model: {target.num_bytes / 1e6:,.0f} MB here."
            ),
            bars([("one token", run.plain_s, milliseconds(run.plain_s), "plain")], f"Measured on {run.machine}."),
        ],
        f"The model can look at {rows} tokens in one pass instead of one. How much longer does that take?",
        ["Hardly longer", "About twice as long", f"{rows} times as long"],
        0 if ratio < 1.5 else 1 if ratio < (2 + rows) / 2 else 2,
        [
            bars(
                [
                    ("one token", run.plain_s, milliseconds(run.plain_s), "plain"),
                    (f"{rows} tokens", wide_s, milliseconds(wide_s), "verify"),
                ]
            ),
            paragraph(
                f"{ratio:.2f} times as long. Reading the weights takes the time; a few tokens more to multiply them "
                "with cost little. Speculative decoding exploits this difference."
            ),
        ],
        {"tab": "lab"},
    )


def _drafting(run: TourRun, other: TourRun) -> Stop:
    step = choose_step(run, lambda step: len(step.drafted) >= 3 and step.num_accepted == len(step.drafted))
    cost = run.draft_cost
    return Stop(
        "Let something cheap guess",
        "drafting",
        [
            paragraph(
                "If the model were given the next words, it could check them all at once. So something cheap guesses "
                "them. Here it looks for the same words earlier in the text and copies what followed them there."
            ),
            words([*run.context(step), *pending(step)], f"Step {step.index} of a recorded run. Dashed: only guessed."),
        ],
        "What does one guess cost, against one token of plain decoding?",
        ["As much", "About a tenth", "Next to nothing"],
        2 if cost < 0.03 else 1 if cost < 0.5 else 0,
        [
            paragraph(f"{share(cost)} of a token of plain decoding, in this run. Copying needs no model."),
            paragraph(
                f"A small trained network guesses well where there is nothing to copy, and costs more: "
                f"{share(other.draft_cost)} "
                "a guess in another recorded run. The cost of a guess is called c."
            ),
        ],
        run.link(step, "methods"),
    )


def _one_check(run: TourRun) -> Stop:
    step = choose_step(run, lambda step: len(step.drafted) >= 3 and step.num_accepted == len(step.drafted))
    count = len(step.drafted)
    alone = count * run.plain_s
    return Stop(
        "One check for all",
        "one check for all",
        [
            paragraph(
                "The target, the model whose text we want, now reads the guesses and says what it would write "
                "at each place."
            ),
            words([*run.context(step), *pending(step)]),
        ],
        f"How many passes of the target does it take to check {count} guesses?",
        [f"{count}, one for each", "One for all of them", "No pass: the draft is trusted"],
        1,
        [
            bars(
                [
                    (f"{count} passes", alone, f"{count} × {milliseconds(run.plain_s)}", "plain"),
                    ("one check", step.verify_s, milliseconds(step.verify_s), "verify"),
                ]
            ),
            paragraph(
                "One. In a pass, every place sees the words before it, guessed ones too, so all answers come "
                "out together. "
                "Nothing is taken on trust: no guess enters the text unless the target agrees."
            ),
        ],
        run.link(step),
    )


def _refused(run: TourRun) -> Stop:
    step = choose_refusal(run)
    refused = next(token for token in step.drafted if token.fate == "rejected")
    behind = sum(token.fate == "discarded" for token in step.drafted)
    own = step.emitted[-1]
    guesses, are, were = (
        (f"the {behind} guesses", "They are", "They were") if behind > 1 else ("the guess", "It is", "It was")
    )
    return Stop(
        "Keep it, or refuse it?",
        "keep or refuse",
        [
            paragraph(
                "The target goes through the guesses from left to right. It keeps those it would have written itself."
            ),
            words([*run.context(step), *fates(step, until="rejected")]),
            paragraph(f"It refuses {quoted(refused)}: not its first choice."),
        ],
        f"What becomes of {guesses} behind it?",
        [f"{are} tested too", f"{are} dropped untested", f"{are} kept"],
        1,
        [
            words([*run.context(step), *fates(step)], "Kept guesses are underlined, the refused one is struck."),
            paragraph(
                f"{were} guessed for a text that goes on with {quoted(refused)}, and this one does not. What "
                f"the target wants there "
                f"instead is known from the same pass: {quoted(own)}. So a refusal costs no pass, and every "
                f"step brings at "
                "least one token."
            ),
        ],
        run.link(step),
    )


def _bonus(run: TourRun) -> Stop:
    step = choose_step(
        run, lambda s: len(s.drafted) >= 3 and s.num_accepted == len(s.drafted) and s.emitted[-1].origin == "bonus"
    )
    count = len(step.drafted)
    return Stop(
        "All right, and one more",
        "the bonus",
        [
            paragraph(f"In step {step.index} the target kept all {count} guesses."),
            words([*run.context(step), *fates(step, until="bonus")]),
        ],
        "How many tokens did this step bring?",
        [str(count - 1), str(count), str(count + 1)],
        2,
        [
            words([*run.context(step), *fates(step)]),
            paragraph(
                f"{count + 1}. Behind its last guess the pass has also computed what comes next: "
                f"{quoted(step.emitted[-1])}. "
                "It is called the bonus."
            ),
            paragraph(
                f"Over the whole run a pass brought {run.counters.block_efficiency:.2f} tokens, where plain "
                f"decoding brings 1."
            ),
        ],
        run.link(step),
    )


def _rollback(run: TourRun) -> Stop:
    step = choose_refusal(run)
    before, checked = run.steps[step.index - 2].cache_len, 1 + len(step.drafted)
    cut = len(step.drafted) - step.num_accepted
    return Stop(
        "Taking words back",
        "rolling back",
        [
            paragraph(
                "The target remembers each token that it has read as an entry of its cache, the keys and "
                "values. To check guesses it "
                "had to read them, the refused ones too."
            ),
            paragraph(
                f"Before step {step.index} the cache held {before} entries. The check read {checked} tokens: "
                f"the last one written and "
                f"{len(step.drafted)} guesses, of which {step.num_accepted} "
                f"{'was' if step.num_accepted == 1 else 'were'} kept."
            ),
        ],
        "How many entries stay?",
        [str(before + checked), str(step.cache_len), str(before)],
        1,
        [
            {"cache": {"before": before, "checked": before + checked, "after": step.cache_len}},
            paragraph(
                f"{step.cache_len}: {cut} are rolled back, as if they had never been read. The target's own "
                f"word {quoted(step.emitted[-1])} has no "
                "entry yet; it is read in the next step."
            ),
        ],
        run.link(step),
    )


def _acceptance(run: TourRun) -> Stop:
    c = run.counters
    alpha, gamma = c.alpha, run.trace.started.gamma
    if alpha is None:
        raise TraceError(f"The run {run.name!r} tested nothing.")
    now, longer = expected_tokens(alpha, gamma), expected_tokens(alpha, 2 * gamma)
    lengths = sorted({1, 2, gamma, 2 * gamma})
    return Stop(
        "How far ahead?",
        "how far ahead",
        [
            paragraph(
                f"In this run a small draft model guessed up to γ = {gamma} tokens a step. Of {c.num_tested} "
                f"guesses that the target "
                f"tested it kept {c.num_accepted}: α = {alpha:.2f}."
            ),
            paragraph(
                f"If each guess is kept with that chance, a step brings {now:.2f} tokens on average; "
                f"{c.num_tokens / c.num_steps:.2f} were counted."
            ),
        ],
        f"And if it guessed twice as far, {2 * gamma} tokens?",
        [
            f"{2 * round(now, 2):.2f}, twice as many",
            f"{longer:.2f}, {'as many' if f'{longer:.2f}' == f'{now:.2f}' else 'more'}",
            f"{now - (longer - now) - 0.2:.2f}, fewer",
        ],
        1,
        [
            bars(
                [(f"γ = {n}", expected_tokens(alpha, n), f"{expected_tokens(alpha, n):.2f}", "run") for n in lengths],
                "Tokens a step, computed from the run’s α: (1 − α^(γ+1)) / (1 − α), for independent guesses.",
            ),
            paragraph(
                "A guess only counts if all before it were right, so each further one brings less, and costs as "
                "much as the first. "
                "The best γ depends on α and on the price of a guess; the Lab measures it."
            ),
        ],
        {"tab": "lab"},
    )


def _losing(run: TourRun) -> Stop:
    found = run.verdict
    step = max(run.steps, key=lambda step: sum(token.text.strip().isalpha() for token in step.drafted))
    exit_layer = (step.note.data if step.note else {}).get("exit_layer")
    layers = f"first {exit_layer} of its {run.trace.started.num_layers}" if isinstance(exit_layer, int) else "first"
    return Stop(
        "Does it always pay?",
        "does it always pay",
        [
            paragraph(f"Here no other model guesses: the target’s own {layers} layers do, and all layers check."),
            words([*run.context(step), *fates(step)], f"Step {step.index} of a recorded run."),
        ],
        "Was that faster than plain decoding?",
        ["Faster", "As fast, give or take", "Slower"],
        {"faster": 0, "equal": 1}.get(found["kind"], 2),
        [
            bars(
                [
                    ("plain", run.plain.tokens_per_s or 0.0, f"{run.plain.tokens_per_s:.1f}", "plain"),
                    (
                        "this run",
                        run.counters.decode_tokens_per_s or 0.0,
                        f"{run.counters.decode_tokens_per_s:.1f}",
                        "run",
                    ),
                ],
                "Tokens a second, same prompt, same machine.",
            ),
            paragraph(found["reason"] or found["detail"]),
            paragraph("Drafting pays only if kept guesses save more passes than guessing and checking cost."),
        ],
        run.link(tab="watch"),
    )


def _other_ways(runs: Sequence[TourRun]) -> Stop:
    ranked = sorted(runs, key=lambda run: -(run.verdict["speed_up"] or 0.0))
    best = ranked[0]
    offered = sorted({best.title, ranked[1].title, ranked[len(ranked) // 2].title, ranked[-1].title})
    rows = [
        {
            "title": run.title,
            "text": f"{run.verdict['speed_up']:.2f}×, α {_rate(run.counters.alpha)}",
            "trace": run.name,
        }
        for run in ranked
    ]
    return Stop(
        "Many ways to guess",
        "many ways to guess",
        [
            paragraph(
                "Guesses can be copied from the text, looked up in a table, come from a small model, from extra "
                "heads on the target, or "
                "from the target itself, rather roughly. They can form a chain or a tree of alternatives."
            ),
        ],
        "Which of these recorded runs was the fastest, against its own plain decoding?",
        offered,
        offered.index(best.title),
        [
            {
                "runs": rows,
                "caption": "Speed against plain decoding, and the share α of tested guesses kept. Prompts differ.",
            },
            paragraph(
                "No method is best everywhere: copying wins where the answer repeats the prompt, and has nothing "
                "to say elsewhere."
            ),
        ],
        {"tab": "race"},
    )


def _sampling(run: TourRun) -> Stop:
    step, token = choose_coin(run)
    p, q, chance, coin = token.target_prob, token.draft_prob, token.accept_prob, token.coin
    assert p is not None and q is not None and chance is not None and coin is not None
    tenths = min(9, max(1, round(10 * chance)))
    kept = token.fate == "accepted"
    end = (
        f"It is under {chance:.2f}, so {quoted(token)} stayed."
        if kept
        else f"It is over {chance:.2f}: {quoted(token)} went, and the target wrote {quoted(step.emitted[-1])} instead."
    )
    return Stop(
        "And with dice?",
        "with dice",
        [
            paragraph(
                f"At temperature {run.trace.started.settings['temperature']:g} the target does not take its "
                f"first choice, it draws. Then "
                "“would have written it” is no yes or no."
            ),
            words([*run.context(step), *fates(step, until=token)]),
            bars(
                [("the draft gave it", q, f"{q:.2f}", "draft"), ("the target gives it", p, f"{p:.2f}", "verify")],
                f"Probability of {quoted(token)} at this place, step {step.index} of a recorded run.",
            ),
            paragraph(
                "If every guess were kept, the text would slowly turn into the draft’s. So a guess that the "
                "draft likes too much is kept "
                "only some of the time."
            ),
        ],
        f"How often is {quoted(token)} kept here?",
        ["Never", f"{tenths} times in 10", "Always"],
        1,
        [
            {"coins": {"kept": round(100 * chance), "coin": min(99, int(100 * coin))}},
            paragraph(
                f"The chance is p / q = {p:.3f} / {q:.3f} = {chance:.2f}. In this run the coin fell at "
                f"{coin:.2f}, the outlined one. {end}"
            ),
            paragraph(
                "A refused word is replaced by one drawn from what the target wanted more than the draft did: p "
                "− q where that is positive, "
                "rescaled to sum to 1. Both together give each word exactly the target’s probability p."
            ),
        ],
        run.link(step),
    )


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
