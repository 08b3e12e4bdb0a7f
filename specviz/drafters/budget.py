"""What a draft costs on this machine, and how large a draft pays.

A step is worth its expected tokens less the time that it takes, that time in tokens at the run's own rate. A candidate,
a level or a whole draft is worth having where it adds more expected tokens than its share of the time would bring
otherwise: at the best choice of all sizes the rate is highest (Dinkelbach's method for a ratio).

Costs are measured once for target, draft and number of threads, and kept, so that two equal runs draft alike.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from specviz.config import SamplingParams
from specviz.drafters.base import DraftContext, Drafter, Need
from specviz.models.loader import LoadedPair
from specviz.models.session import Session
from specviz.sampling import uniform_generator

__all__ = ["Budget", "Costs", "costs_of"]

ROWS = (1, 2, 4, 6, 8, 10, 12, 16, 24, 32)
"""Rows of a pass that are timed; those between lie on a line."""

SHALLOW, DEEP = 1, 5
"""Levels of the drafts that are timed."""

TURNS = 7
FIRST_RATE, FIRST_WEIGHT = 1.5, 6.0
"""Tokens in the time of a plain step that a run begins with, and how many plain steps that belief is worth."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Times over that of a plain step.

    passes: of a target pass, by ROWS. draft: of a draft of one level. level: of each level behind the first.
    """

    passes: tuple[float, ...]
    draft: float
    level: float

    def of_pass(self, rows: int) -> float:
        """Of a pass of so many rows, >= 1; behind the last that was timed it grows as it did before."""
        last = len(ROWS) - 1
        upper = min(next((i for i, known in enumerate(ROWS) if known >= rows), last), last) or 1
        low, high = ROWS[upper - 1], ROWS[upper]
        slope = (self.passes[upper] - self.passes[upper - 1]) / (high - low)
        return self.passes[upper - 1] + slope * (rows - low)

    def of_draft(self, levels: int) -> float:
        return self.draft + self.level * (levels - 1) if levels else 0.0


class Budget:
    """What one run can afford.

    rate: tokens in the time of a plain step, from the costs of the steps so far; no clock, so it repeats.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.reset()

    def reset(self) -> None:
        self._tokens, self._spent = FIRST_RATE * FIRST_WEIGHT, FIRST_WEIGHT

    @property
    def rate(self) -> float:
        return max(1.0, self._tokens / self._spent)  # under 1 nothing is drafted, and a step costs 1

    def spend(self, num_tokens: int, rows: int, levels: int) -> None:
        """A step is over: tokens that it wrote, rows of its pass, levels of its draft."""
        self._tokens += num_tokens
        self._spent += self.costs.of_pass(rows) + self.costs.of_draft(levels)

    def pays_level(self, expected: float) -> bool:
        """Whether one more level of a draft, which would add so many expected tokens, is worth its time."""
        return expected > self.rate * self.costs.level

    def best_size(self, odds: Sequence[float]) -> int:
        """How many candidates to check, 0 to all.

        Args:
            odds: of each to be kept, the likeliest first. Parents come before their children.
        """
        worth = best = 0.0
        size, rate, plain = 0, self.rate, self.costs.of_pass(1)
        for number, chance in enumerate(odds, 1):
            worth += chance
            gain = worth - rate * (self.costs.of_pass(number + 1) - plain)
            if gain > best:
                best, size = gain, number
        return size


_measured: weakref.WeakKeyDictionary[Any, dict[tuple[str, str, int], Costs]] = weakref.WeakKeyDictionary()


def costs_of(loaded: LoadedPair, drafter: Drafter, key: str) -> Costs:
    """Measured on first demand and kept with the target.

    Args:
        drafter: one that offers a tree or chain of any depth. key: tells its kinds apart.
    """
    kept = _measured.setdefault(loaded.target, {})
    name = (drafter.name, key, torch.get_num_threads())
    if name not in kept:
        kept[name] = _measure(loaded, drafter)
    return kept[name]


def _measure(loaded: LoadedPair, drafter: Drafter) -> Costs:
    """Passes and drafts in turns, each draft behind a pass as in a run, since a pass empties the processor's caches."""
    rng = uniform_generator(1)
    room = min(100, loaded.max_context - 4 * TURNS - max(ROWS))
    draw = torch.Generator().manual_seed(1)
    length = max(2, room)
    ids = torch.randint(loaded.vocab_size, (length + 4 * (TURNS + 2),), generator=draw).tolist()
    taps = getattr(drafter, "taps", None) if Need.STATES in drafter.needs else None
    session = Session(loaded.target, capacity=len(ids) + max(ROWS), taps=taps, keep_hidden=Need.HIDDEN in drafter.needs)
    passes: list[list[float]] = [[] for _ in ROWS]
    drafts: dict[int, list[float]] = {SHALLOW: [], DEEP: []}
    try:
        session.extend(ids[: length - 1])
        drafter.reset(ids[:length], session)
        for turn in range(TURNS + 2):  # the first two warm up
            for times, rows in zip(passes, ROWS, strict=True):
                times.append(_timed(partial(_check, session, ids[length - 1], ids[1:rows])))
            for levels, times in drafts.items():
                _check(session, ids[length - 1], ids[length : length + 1])
                session.keep_path((0,))
                length += 2
                context = DraftContext(ids[:length], SamplingParams(), session.tail, session)
                times.append(_timed(partial(drafter.propose, context, levels, rng)))
            if turn == 1:
                for kept in (*passes, *drafts.values()):
                    kept.clear()
    finally:
        session.close()
        drafter.close()
    # The shortest time is that without anybody else: what a browser takes at its start must not shape every later run.
    alone = [min(times) for times in passes]
    shallow, deep = min(drafts[SHALLOW]), min(drafts[DEEP])
    level = max(0.0, deep - shallow) / (DEEP - SHALLOW)
    return Costs(tuple(seconds / alone[0] for seconds in alone), shallow / alone[0], level / alone[0])


def _check(session: Session, root: int, ids: Sequence[int]) -> None:
    chain = torch.tensor(ids, dtype=torch.int64)
    session.score(root, chain, tuple(range(-1, len(chain) - 1)))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
