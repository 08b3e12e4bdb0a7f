"""What it costs to look closely: runs with a trace file and with details; and what a long context costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.bench.contest import Contestant, Result, specviz_method
from specviz.bench.runner import Entry, contest
from specviz.config import RunConfig
from specviz.events import Event, RunFinished, StepDone
from specviz.generator import SpeculativeGenerator
from specviz.trace import write_events

__all__ = ["LONG", "SHORT", "Overheads", "measure_overheads"]

SHORT, LONG = 256, 4096
"""Tokens of context between which the cost of a token is compared."""
NUM_TIMED = 32


@dataclass(frozen=True, slots=True)
class Overheads:
    """Ratios of medians. traced, detailed: speed with it over speed without, of the same method in the same turns.

    long_context: seconds a token of plain decoding at LONG tokens of context over those at SHORT; None where the
    target does not read so many.
    """

    traced: float
    detailed: float
    long_context: float | None

    @property
    def sentence(self) -> str:
        looking = f"Writing a trace file leaves {100 * self.traced:.0f} % of the speed, recording details "
        looking += f"{100 * self.detailed:.0f} %."
        if self.long_context is None:
            return looking
        times = f"{self.long_context:.2f} times what it costs at {SHORT}"
        return f"{looking} At {LONG} tokens of context a token of plain decoding costs {times}."


def measure_overheads(
    engine: SpeculativeGenerator,
    entries: Sequence[Entry],
    config: RunConfig,
    *,
    limit: int,
    repeat: int,
    progress: Callable[[str, float], None] = lambda text, fraction: None,
) -> Overheads:
    """Speeds are taken by the wall clock from the first step to the end: what a step's own times leave out counts."""
    contestants = [
        _watched(engine, config, "bare"),
        _watched(engine, config, "trace file", _traced),
        _watched(engine, replace(config, detail=True), "details"),
    ]
    bare, traced, detailed = contest(contestants, entries, limit=limit, repeat=repeat, progress=progress)
    names = list(bare.rates)
    ratios = [score.speed_up(bare, names) for score in (traced, detailed)]
    assert ratios[0] is not None and ratios[1] is not None
    return Overheads(ratios[0], ratios[1], _long_context(engine, entries[0].token_ids, repeat, progress))


def _watched(
    engine: SpeculativeGenerator,
    config: RunConfig,
    name: str,
    through: Callable[[Iterator[Event]], Iterator[Event]] = iter,
) -> Contestant:
    """A method whose events pass `through` something; its speed is the wall clock's."""

    def run(ids: Sequence[int], limit: int) -> Result:
        began = time.perf_counter()
        first_at, num_first = began, 0
        for event in through(engine.stream(ids, replace(config, max_new_tokens=limit))):
            if isinstance(event, StepDone) and event.index == 1:
                first_at, num_first = time.perf_counter(), len(event.emitted)
        assert isinstance(event, RunFinished)
        ended = time.perf_counter()
        return Result(event.token_ids, first_at - began, ended - first_at, event.num_tokens - num_first)

    return Contestant(name, run)


def _traced(events: Iterator[Event]) -> Iterator[Event]:
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:
        yield from write_events(events, file)


def _long_context(
    engine: SpeculativeGenerator, ids: Sequence[int], repeat: int, progress: Callable[[str, float], None]
) -> float | None:
    if engine.loaded.max_context < LONG:
        return None
    plain = specviz_method(engine, RunConfig("plain", gamma=0))
    seconds: dict[int, list[float]] = {SHORT: [], LONG: []}
    for turn in range(repeat):
        for context in (SHORT, LONG) if turn % 2 else (LONG, SHORT):
            progress(f"a context of {context} tokens", turn / repeat)
            prompt = (list(ids) * (context // len(ids) + 1))[: context - NUM_TIMED]
            result = plain.run(prompt, NUM_TIMED)
            if result.num_rest:
                seconds[context].append(result.rest_s / result.num_rest)
    if not all(seconds.values()):  # the answer was over with its first token
        return None
    return statistics.median(seconds[LONG]) / statistics.median(seconds[SHORT])
