"""Runs contestants in turns and folds their results: medians with their spread, regime by regime."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specviz.bench.contest import Contestant, Result
from specviz.metrics import Counters

__all__ = ["Entry", "Score", "Turn", "contest", "geometric_mean", "take_turns"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt of the bench: ids with the chat template, or for a serving engine its text, and its regime."""

    name: str
    regime: str
    token_ids: tuple[int, ...] = ()
    prompt: str = ""

    @property
    def asked(self) -> Sequence[int] | str:
        """What a contestant is given."""
        return self.prompt or self.token_ids


@dataclass(slots=True)
class Score:
    """All results of one contestant. rates: tokens a second by prompt, one a repeat.

    counters: of all repeats, by prompt. totals: of all prompts. memory_bytes: the most that a run ended with.
    """

    name: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    prefills: list[float] = field(default_factory=list)
    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    counters: dict[str, Counters] = field(default_factory=dict)
    totals: Counters = field(default_factory=Counters)
    has_counters: bool = False
    memory_bytes: int | None = None

    def add(self, entry: Entry, result: Result) -> None:
        if result.tokens_per_s is not None:
            self.rates.setdefault(entry.name, []).append(result.tokens_per_s)
        self.prefills.append(result.prefill_s)
        self.answers[entry.name] = result.token_ids
        if result.counters is not None:
            self.has_counters = True
            self.counters.setdefault(entry.name, Counters()).merge(result.counters)
            self.totals.merge(result.counters)
        if result.memory_bytes is not None:
            self.memory_bytes = max(self.memory_bytes or 0, result.memory_bytes)

    def speed_up(self, base: Score, names: Sequence[str]) -> float | None:
        """Geometric mean over prompts of the ratio of median rates; None where one of them has no rate."""
        pairs = [(self.rates.get(name), base.rates.get(name)) for name in names]
        ratios = [statistics.median(mine) / statistics.median(theirs) for mine, theirs in pairs if mine and theirs]
        return geometric_mean(ratios) if len(ratios) == len(names) and names else None

    @property
    def spread(self) -> float | None:
        """Median over prompts of (highest - lowest) / median rate: the noise of the figures above."""
        widths = [(max(r) - min(r)) / statistics.median(r) for r in self.rates.values() if len(r) > 1]
        return statistics.median(widths) if widths else None


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a contest stands. entry: "" during warm-up, which has just begun; else that run is done.

    number: of the round over all prompts, from 1. fraction: runs done of all.
    """

    contestant: str
    entry: str
    number: int
    fraction: float


def contest(
    contestants: Sequence[Contestant],
    entries: Sequence[Entry],
    *,
    limit: int,
    repeat: int,
    progress: Callable[[str, float], None] = lambda text, fraction: None,
) -> list[Score]:
    """Every contestant on every prompt, see `take_turns`."""
    scores = [Score(contestant.name) for contestant in contestants]
    for turn in take_turns(contestants, entries, scores, limit=limit, repeat=repeat):
        text = f"{turn.entry}, {turn.contestant}" if turn.entry else f"warm-up of {turn.contestant}"
        progress(text, turn.fraction)
    return scores


def take_turns(
    contestants: Sequence[Contestant], entries: Sequence[Entry], scores: Sequence[Score], *, limit: int, repeat: int
) -> Iterator[Turn]:
    """Every contestant on every prompt, `repeat` times, in turns whose order alternates; may be closed at any yield.

    A run that nobody counts comes first for each: the first passes of a process pay for what later ones find ready.

    Args:
        scores: one a contestant; they grow run by run.
    """
    for contestant in contestants:
        yield Turn(contestant.name, "", 1, 0.0)
        contestant.run(entries[0].asked, min(limit, 16))
    total = repeat * len(entries) * len(contestants)
    done = 0
    for turn in range(repeat):
        for place, entry in enumerate(entries):
            order = list(range(len(contestants)))
            if (turn + place) % 2:
                order.reverse()
            for index in order:
                scores[index].add(entry, contestants[index].run(entry.asked, limit))
                done += 1
                yield Turn(contestants[index].name, entry.name, turn + 1, done / total)


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean of ratios under which 2x and 0.5x cancel."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
