"""The greedy half of the exactness panel: a run's text beside plain decoding's, token by token, and what backs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specviz.baseline import explain_difference
from specviz.errors import ConfigError
from specviz.events import EmittedToken, Event, RunFinished, RunStarted, StepDone
from specviz.lab.experiment import Ask, Check, Finding, Report, about, breaking_off, needs_draft
from specviz.metrics import Baseline
from specviz.models.exactness import LONG_CONTEXT, SHORT_CONTEXTS
from specviz.words import own_passes

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["measure_greedy"]

NAME = "greedy"


def measure_greedy(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """The method's run at temperature 0, then plain decoding at one token a pass, then the reason for a difference.

    Raises:
        ConfigError: nothing drafts, or a run fails.
    """
    needs_draft(ask)
    config = replace(ask.config, sampling=replace(ask.config.sampling, temperature=0.0), time_limit_s=0.0)
    base = about(engine, replace(ask, config=config))
    through = breaking_off(check)
    limit = config.max_new_tokens
    run: list[Event] = []
    for event in through(engine.stream(ask.prompt, config)):
        run.append(event)
        if isinstance(event, StepDone):
            yield Report("Running the method", 0.4 * min(1.0, _num_tokens(run) / limit))
    plain: list[Event] = []
    length = _end(run).num_tokens
    same_length = replace(config, max_new_tokens=min(limit, length))
    for event in through(engine.stream_plain(ask.prompt, same_length)):
        plain.append(event)
        if isinstance(event, StepDone):
            yield Report("Plain decoding, one token a pass", 0.4 + 0.5 * min(1.0, len(plain) / length))
    started, baseline = run[0], Baseline.of(plain, run)
    assert isinstance(started, RunStarted)
    if baseline is None or baseline.same_text is None:
        raise ConfigError(_end(plain).message or "Plain decoding wrote nothing to compare with.")
    yield Report("Looking at where and why they differ", 0.9)
    baseline = explain_difference(engine, ask.prompt, same_length, run, baseline, through)
    report = engine.exactness_report(config.width)
    longest = engine.loaded.max_context - 2 * config.width
    facts = {
        "exactness": started.exactness,
        "reason": started.exactness_reason,
        "width": started.width,
        "own_passes": own_passes(started),
        "num_compared": _end(plain).num_tokens,
        "first_difference": baseline.first_difference,
        "gap": baseline.gap,
        "width_same": baseline.width_same,
        "positions": report.num_positions,
        "positions_equal": report.num_equal,
        "min_rows": report.min_rows,
        "tested_width": config.width,
        "tested_contexts": [SHORT_CONTEXTS[0], min(SHORT_CONTEXTS[-1], longest)],
        "tested_long": min(LONG_CONTEXT, longest),
    }
    finding = Finding(NAME, base, tuple(_side_by_side(_tokens(run), _tokens(plain))), facts, True)
    yield Report("Compared", 1.0, finding)


def _side_by_side(run: Sequence[EmittedToken], plain: Sequence[EmittedToken]) -> Iterator[dict[str, Any]]:
    """One row a token of plain decoding; behind the first difference the two texts go their own ways."""
    for place, theirs in enumerate(plain):
        mine = run[place] if place < len(run) else None
        yield {
            "place": place + 1,
            "plain": theirs.label or theirs.text,
            "run": "" if mine is None else mine.label or mine.text,
            "origin": "" if mine is None else mine.origin,
            "plain_id": theirs.token_id,
            "run_id": None if mine is None else mine.token_id,
            "is_same": mine is not None and mine.token_id == theirs.token_id,
        }


def _tokens(events: Sequence[Event]) -> list[EmittedToken]:
    return [token for event in events if isinstance(event, StepDone) for token in event.emitted]


def _num_tokens(events: Sequence[Event]) -> int:
    return sum(len(event.emitted) for event in events if isinstance(event, StepDone))


def _end(events: Sequence[Event]) -> RunFinished:
    end = events[-1]
    assert isinstance(end, RunFinished)
    if end.reason == "error":
        raise ConfigError(end.message)
    return end
