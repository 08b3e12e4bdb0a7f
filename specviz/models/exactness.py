"""Asked of a machine when a pair loads: is checking several tokens exact to the bit here, and what does it cost?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specviz.models.session import Session

__all__ = ["MAX_EXACT_COST", "ExactnessReport", "check_exactness", "pass_seconds", "time_passes"]

MAX_EXACT_COST = 1.25
"""exact is on by default where a pass of the full width costs at most this much of a one-row pass. A draft of four is
checked in five rows anyway, so exactness itself costs less than that; and a limit near what common machines need would
let noise decide the word."""

SHORT_CONTEXTS = range(36, 53)
LONG_CONTEXT = 503  # odd: at multiples of 8, blocks of 8 look exact even where they are not


@dataclass(frozen=True, slots=True)
class ExactnessReport:
    """What the self-test found for one model, dtype, machine and width.

    num_equal of num_positions logits rows were equal to the bit. cost: seconds of a `width`-row pass over a one-row
    pass, medians. seconds: how long the test took.
    """

    width: int
    num_positions: int
    num_equal: int
    one_row_s: float
    width_s: float
    seconds: float

    @property
    def passed(self) -> bool:
        return self.num_equal == self.num_positions > 0

    @property
    def cost(self) -> float:
        return self.width_s / self.one_row_s

    @property
    def is_default(self) -> bool:
        """Whether exact runs are the default on this machine."""
        return self.passed and self.cost <= MAX_EXACT_COST

    @property
    def sentence(self) -> str:
        found = f"{self.num_equal} of {self.num_positions} positions equal to the bit at {self.width} rows"
        price = f"a pass of {self.width} rows costs {self.cost:.2f} of a one-row pass"
        return f"Self-test when the pair was loaded: {found}; {price}."


def check_exactness(
    model: Any, width: int, vocab_size: int, max_context: int, progress: Callable[[float], None] | None = None
) -> ExactnessReport:
    """Compare passes with 1, 3 and `width` real rows at contexts 36 to 52 and one long one.

    Every row is compared with the same position computed as the only real row of its pass, on a cache that was itself
    written by blocks, so an inexact key or value shows as well.
    """
    began = time.perf_counter()
    longest = min(LONG_CONTEXT, max_context - 2 * width)
    short = [context for context in SHORT_CONTEXTS if context <= longest]
    groups = [short] if short else []
    if longest > 0 and (not short or longest > short[-1] + width):
        groups.append([longest])
    contexts = [context for group in groups for context in group]
    last = max(contexts, default=0) + width
    ids = torch.randint(vocab_size, (last + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    session = Session(model, capacity=last + width, width=width)
    equal = total = 0
    try:
        done = 0
        for group in groups:
            first = group[0]
            session.roll_back(done)
            session.extend(ids[done:first])
            reference = []
            for place in range(first, group[-1] + width):
                reference.append(_score(session, ids[place : place + 1]))
                session.keep_path(())
            for context in group:
                for rows in (min(3, width), width):
                    session.roll_back(context)
                    block = _score(session, ids[context : context + rows])
                    for row in range(rows):
                        total += 1
                        equal += torch.equal(block[row], reference[context - first + row][0])
                    session.keep_path(tuple(range(rows - 1)))
                if progress is not None:
                    progress((contexts.index(context) + 1) / len(contexts))
            done = group[-1]
        one, wide = pass_seconds(model, (1, width), vocab_size)
    finally:
        session.close()
    return ExactnessReport(width, total, equal, one, wide, time.perf_counter() - began)


def pass_seconds(
    model: Any, rows: Sequence[int], vocab_size: int, *, context: int = 100, repeat: int = 9
) -> list[float]:
    """Median seconds of a pass at each number of rows, see `time_passes`."""
    *_, times = time_passes(model, rows, vocab_size, context=context, repeat=repeat)
    return [statistics.median(t) for t in times]


def time_passes(
    model: Any, rows: Sequence[int], vocab_size: int, *, context: int = 100, repeat: int = 9
) -> Iterator[list[list[float]]]:
    """Seconds of passes behind `context` random tokens, measured in turns so that a slow moment hits all of them.

    Yields:
        After every turn the same growing lists, one a number of rows; empty for the first two turns, which warm up.
    """
    ids = torch.randint(vocab_size, (context + max(rows),), generator=torch.Generator().manual_seed(1)).tolist()
    session = Session(model, capacity=context + max(rows))
    times: list[list[float]] = [[] for _ in rows]
    try:
        session.extend(ids[:context])
        for turn in range(repeat + 2):
            for i, count in enumerate(rows):
                began = time.perf_counter()
                _score(session, ids[context : context + count])
                if torch.cuda.is_available():
                    torch.cuda.synchronize()  # a pass is over when the device says so
                if turn >= 2:
                    times[i].append(time.perf_counter() - began)
            yield times
    finally:
        session.close()


def _score(session: Session, ids: Sequence[int]) -> torch.Tensor:
    """Logits of `ids` as root and chain."""
    chain = torch.tensor(ids[1:], dtype=torch.int64)
    return session.score(ids[0], chain, tuple(range(-1, len(chain) - 1)))
