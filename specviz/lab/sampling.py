"""The sampling half of the exactness panel: many short answers, compared with the target's own distribution."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specviz.config import MAX_SEED, RunConfig, SamplingParams
from specviz.errors import ConfigError
from specviz.events import RunFinished
from specviz.lab.experiment import Ask, Check, Finding, Report, about, breaking_off, needs_draft
from specviz.lab.goodness import LEAST_EXPECTED, fit, stands_out_from
from specviz.models.chat import encode_prompt
from specviz.models.session import Session
from specviz.sampling import probabilities

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["STUB", "enumerate_stub", "measure_sampling"]

NAME = "sampling"
STUB = 2
"""Tokens of an outcome. One more is asked for, so that the first step may draft both."""

WHEN_GREEDY = 1.0
"""Temperature of the test where the settings are greedy: without a draw there is no distribution to test."""

UPDATE_EVERY = 20

Outcome = tuple[int, ...]


def measure_sampling(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """`ask.num_samples` runs of three tokens, each with a seed of its own, against the enumerated first two.

    Raises:
        ConfigError: nothing drafts, or a run fails.
    """
    needs_draft(ask)
    loaded = engine.loaded
    sampling = ask.config.sampling
    if sampling.is_greedy:
        sampling = replace(sampling, temperature=WHEN_GREEDY)
    seed = sampling.seed if sampling.seed is not None else secrets.randbelow(1 << 31)
    config = replace(
        ask.config, sampling=sampling, max_new_tokens=STUB + 1, stop=(), time_limit_s=0.0, detail=False,
        gamma=max(1, ask.config.gamma),
    )  # fmt: skip
    ids, _ = encode_prompt(loaded.tokenizer, ask.prompt, config.raw)
    base = about(engine, replace(ask, config=config))
    probs: dict[Outcome, float] = {}
    for fraction, newest in enumerate_stub(engine, ids, sampling, LEAST_EXPECTED / ask.num_samples):
        check()
        probs = newest
        yield Report("Enumerating the target’s own two-token answers", 0.1 * fraction)
    through = breaking_off(check)
    counts: Counter[Outcome] = Counter()
    accepted = tested = 0
    for number in range(1, ask.num_samples + 1):
        one = replace(config, sampling=replace(sampling, seed=(seed + number) % MAX_SEED))
        outcome, kept, tried = _sample(engine, ids, one, through)
        counts[outcome] += 1
        accepted, tested = accepted + kept, tested + tried
        done = 0.1 + 0.9 * number / ask.num_samples
        finding = None
        if number % UPDATE_EVERY == 0 or number == ask.num_samples:
            more = {"num_accepted": accepted, "num_tested": tested, "seed": seed, "verify": config.verify}
            finding = _finding(engine, base, probs, counts, number == ask.num_samples, more)
        yield Report(f"Sample {number} of {ask.num_samples}", done, finding)


def enumerate_stub(
    engine: SpeculativeGenerator, ids: Sequence[int], sampling: SamplingParams, least: float
) -> Iterator[tuple[float, dict[Outcome, float]]]:
    """Probabilities of the first two tokens, from one-row passes of the target, one a likely first token.

    Args:
        least: outcomes less likely than this are left out.
    Yields:
        The part done, and the same growing table of outcome -> probability. An end token is an outcome by itself.
    """
    loaded = engine.loaded
    table: dict[Outcome, float] = {}
    session = Session(loaded.target, capacity=len(ids) + 1)
    try:
        first = probabilities(session.extend(ids)[0, : loaded.vocab_size].cpu(), sampling, ids)
        session.mark()
        likely = (first >= least).nonzero().flatten().tolist()
        for number, token in enumerate(likely, 1):
            p = float(first[token])
            if token in loaded.eos_ids:
                table[(token,)] = p
            else:
                logits = session.extend([token])[0, : loaded.vocab_size].cpu()
                session.roll_back(len(ids))
                second = probabilities(logits, sampling, [*ids, token])
                for place in (p * second >= least).nonzero().flatten().tolist():
                    table[(token, place)] = p * float(second[place])
            yield number / len(likely), table
    finally:
        session.close()


def _sample(
    engine: SpeculativeGenerator, ids: Sequence[int], config: RunConfig, through: Any
) -> tuple[Outcome, int, int]:
    """First tokens of one run, and how many of its drafted tokens were kept and tested."""
    kept = tried = 0
    for event in through(engine.stream(ids, config)):
        if isinstance(event, RunFinished):
            if event.reason == "error":
                raise ConfigError(event.message)
            return event.token_ids[:STUB], kept, tried
        kept += getattr(event, "num_accepted", 0)
        tried += sum(token.fate in ("accepted", "rejected") for token in getattr(event, "drafted", ()))
    raise AssertionError("a run ends in RunFinished")


def _finding(
    engine: SpeculativeGenerator,
    base: dict[str, Any],
    probs: dict[Outcome, float],
    counts: Counter[Outcome],
    whole: bool,
    more: dict[str, Any],
) -> Finding:
    total = sum(counts.values())
    result = fit(probs, counts)
    decode = engine.loaded.tokenizer.decode
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "outcome": "all others" if cell.outcome is None else decode(list(cell.outcome)),
            "ids": "" if cell.outcome is None else " ".join(map(str, cell.outcome)),
            "expected": cell.expected,
            "observed": cell.observed,
            "probability": cell.expected / total,
            "share": cell.observed / total,
        }
        for cell in result.cells
    )
    facts = {
        "num_samples": total,
        "p_value": result.p_value,
        "chi_square": result.chi_square,
        "degrees": result.degrees,
        "named": sum(row["probability"] for row in rows if row["ids"]),
        "stands_out": max(stands_out_from(row["probability"], total) for row in rows),
    }
    return Finding(NAME, base, rows, facts | more, whole)
