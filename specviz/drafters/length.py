"""How many tokens to draft next. State lives for one run, and no clock decides: the same run again drafts the same."""

from __future__ import annotations

from typing import Protocol

from specviz.theory import best_gamma

__all__ = ["BestLength", "DraftLength", "FixedLength", "HeuristicLength"]

RETRY_EVERY = 16
PRIOR_ALPHA, PRIOR_WEIGHT = 0.7, 6.0
"""What `BestLength` believes before it has seen anything, and how many tested tokens that belief is worth."""


class DraftLength(Protocol):
    """Chooses gamma for each step."""

    def next(self) -> int:
        """Tokens to draft in the coming step, 0 to the run's gamma."""
        ...

    def observe(self, num_drafted: int, num_accepted: int, refused: bool) -> None:
        """Learn what became of the step: drafted and accepted tokens, and whether a drafted token was refused."""
        ...


class FixedLength:
    """Always gamma."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def next(self) -> int:
        return self._gamma

    def observe(self, num_drafted: int, num_accepted: int, refused: bool) -> None:
        pass


class HeuristicLength:
    """Two more after a fully kept draft, one less after a refusal, within 1..gamma; starts in the middle.

    Source: the schedule of transformers' assisted generation.
    """

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._now = (gamma + 1) // 2

    def next(self) -> int:
        return self._now

    def observe(self, num_drafted: int, num_accepted: int, refused: bool) -> None:
        if refused:
            self._now = max(1, self._now - 1)
        elif num_drafted and num_accepted == num_drafted:
            self._now = min(self._gamma, self._now + 2)


class BestLength:
    """The gamma with the highest theoretical speed-up for the acceptance seen so far.

    c and v are measured once for a pair, not in the run. Where no gamma gains, nothing is drafted; every 16th such step
    tries one token again, since text changes.
    """

    def __init__(self, gamma: int, c: float, v: list[float]) -> None:
        """
        Args:
            c: seconds of one drafted token over seconds of a plain step.
            v: [gamma + 1], v[n] = seconds of a pass that checks n drafted tokens over seconds of a plain step.
        """
        self._gamma, self._c, self._v = gamma, c, v
        self._accepted, self._tested = PRIOR_ALPHA * PRIOR_WEIGHT, PRIOR_WEIGHT
        self._idle = 0

    def next(self) -> int:
        best, _ = best_gamma(self._accepted / self._tested, self._c, self._v, max_gamma=self._gamma)
        if best or not self._gamma:
            self._idle = 0
            return best
        self._idle += 1
        return 1 if self._idle % RETRY_EVERY == 0 else 0

    def observe(self, num_drafted: int, num_accepted: int, refused: bool) -> None:
        self._accepted += num_accepted
        self._tested += num_accepted + refused
