"""Asked of a machine when a pair loads: is checking several tokens exact to the bit here, and what does it cost?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specviz.models.session import Session
from specviz.models.states import has_states

__all__ = ["MAX_EXACT_COST", "ExactnessReport", "check_exactness", "pass_seconds", "time_passes"]

MAX_EXACT_COST = 1.25
"""exact is on by default where it makes a pass for one token cost at most this much of a one-row pass. A draft of four
is checked in five rows anyway, so exactness itself costs less than that; and a limit near what common machines need
would let noise decide the word."""

MAX_FREE_COST = 1.05
"""Up to this much of a one-row pass, which is the clock's noise, exact passes are every run's passes."""

TWO_ROWS = 2
"""What a library does otherwise for one row than for several, it does not do for two."""

NUM_TIMED = 15
"""Passes of each size that the self-test times."""

SHORT_CONTEXTS = range(46, 68)  # on both sides of a multiple of the key block
LONG_CONTEXT = 503  # odd: at multiples of 8, blocks of 8 look exact even where they are not


@dataclass(frozen=True, slots=True)
class ExactnessReport:
    """What the self-test found for one model, dtype, machine and width.

    width: most rows of a pass that were compared. min_rows: passes padded to at least so many rows agree, whether they
        have that many or more up to `width`; equal to `width` where only passes of one size do.
    num_equal of num_positions logits rows were equal to the bit. padded_s: seconds of a pass of `min_rows` rows, cost:
    that over a one-row pass, the shortest of several. seconds: how long the test took.
    """

    width: int
    min_rows: int
    num_positions: int
    num_equal: int
    one_row_s: float
    padded_s: float
    seconds: float

    @property
    def passed(self) -> bool:
        return self.num_equal == self.num_positions > 0

    @property
    def cost(self) -> float:
        return self.padded_s / self.one_row_s

    @property
    def is_default(self) -> bool:
        """Whether exact runs are the default on this machine."""
        return self.passed and self.cost <= MAX_EXACT_COST

    @property
    def is_free(self) -> bool:
        """Whether exact passes cost nothing here, so that plain decoding makes its passes so as well."""
        return self.passed and self.cost <= MAX_FREE_COST

    @property
    def sentence(self) -> str:
        if not self.num_positions:
            return "No self-test: a recurrent state rounds differently with the number of tokens it reads at once."
        found = f"{self.num_equal} of {self.num_positions} positions equal to the bit"
        if self.min_rows == self.width:
            return (
                f"Self-test when the pair was loaded: {found} at {self.width} rows; "
                f"a pass of {self.width} rows costs {self.cost:.2f} of a one-row pass."
            )
        price = "" if self.min_rows == 1 else f"; {self.min_rows} cost {self.cost:.2f} of one"
        return (
            f"Self-test when the pair was loaded: {found}, however many of {self.min_rows} to {self.width} rows a pass "
            f"has{price}."
        )


def check_exactness(
    model: Any, width: int, vocab_size: int, max_context: int, progress: Callable[[float], None] | None = None
) -> ExactnessReport:
    """Find the cheapest number of rows that passes have to be padded to for a position's logits to be the same bits,
    with however many others up to `width` it shares the pass.

    One row would be no padding at all; `width` makes all passes the same size, which is the surest and the dearest. At
    contexts on both sides of a key block's end and at a long one, passes with 1 to `width` real rows are compared with
    passes for one token, on a cache that was itself written by blocks, so an inexact key or value shows as well.
    """
    began = time.perf_counter()
    rows = sorted({1, min(TWO_ROWS, width), width})
    *_, lists = time_passes(model, rows, vocab_size, repeat=NUM_TIMED)
    # The shortest of each: what else runs on the machine must not decide which passes are made.
    times = {count: min(seconds) for count, seconds in zip(rows, lists, strict=True)}
    if has_states(model):  # padding cannot be taken out of a state again, so there is nothing to compare
        return ExactnessReport(width, width, 0, 0, times[1], times[width], time.perf_counter() - began)
    found: dict[int, tuple[int, int]] = {}
    for min_rows in sorted(times, key=lambda rows: times[rows]):
        equal, total = found[min_rows] = _compare(model, min_rows, width, vocab_size, max_context, progress)
        if equal == total:
            break
    else:
        min_rows = width
    equal, total = found[min_rows]
    return ExactnessReport(width, min_rows, total, equal, times[1], times[min_rows], time.perf_counter() - began)


def _compare(
    model: Any, min_rows: int, width: int, vocab_size: int, max_context: int, progress: Callable[[float], None] | None
) -> tuple[int, int]:
    """How many positions were equal, and of how many; no more of them than it takes to see that not all are."""
    longest = min(LONG_CONTEXT, max_context - 2 * width)
    short = [context for context in SHORT_CONTEXTS if context <= longest]
    groups = [short] if short else []
    if longest > 0 and (not short or longest > short[-1] + width):
        groups.append([longest])
    contexts = [context for group in groups for context in group]
    last = max(contexts, default=0) + width
    ids = torch.randint(vocab_size, (last + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    session = Session(model, capacity=last + width, min_rows=min_rows)
    equal = total = done = 0
    try:
        for group in groups:
            first = group[0]
            session.roll_back(done)
            session.extend(ids[done:first])
            reference = []
            for place in range(first, group[-1] + width):
                reference.append(_score(session, ids[place : place + 1]))
                session.keep_path(())
            for context in group:
                for rows in {1 + context % width, width}:  # every number of rows comes up
                    session.roll_back(context)
                    block = _score(session, ids[context : context + rows])
                    for row in range(rows):
                        total += 1
                        equal += torch.equal(block[row], reference[context - first + row][0])
                    session.keep_path(tuple(range(rows - 1)))
                if equal < total:
                    return equal, total
                if progress is not None:
                    progress((contexts.index(context) + 1) / len(contexts))
            done = group[-1]
    finally:
        session.close()
    return equal, total


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
        session.mark()
        for turn in range(repeat + 2):
            for i, count in enumerate(rows):
                began = time.perf_counter()
                _score(session, ids[context : context + count])
                if torch.cuda.is_available():
                    torch.cuda.synchronize()  # a pass is over when the device says so
                if turn >= 2:
                    times[i].append(time.perf_counter() - began)
                session.roll_back(context)
            yield times
    finally:
        session.close()


def _score(session: Session, ids: Sequence[int]) -> torch.Tensor:
    """Logits of `ids` as root and chain."""
    chain = torch.tensor(ids[1:], dtype=torch.int64)
    return session.score(ids[0], chain, tuple(range(-1, len(chain) - 1)))
