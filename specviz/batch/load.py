"""How much to draft when others share the pass: the fuller a pass, the dearer each row that is only checked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from specviz.drafters.length import PRIOR_ALPHA, PRIOR_WEIGHT, RETRY_EVERY, DraftLength
from specviz.theory import best_gamma

__all__ = ["Load", "LoadLength"]


class Load:
    """What a pass costs by its rows. num_running: sequences that share the next passes."""

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        """rows: ascending; seconds: of a pass of so many."""
        assert len(rows) == len(seconds) > 1
        self._rows, self._seconds = list(rows), list(seconds)
        self.num_running = 1

    def pass_s(self, rows: float) -> float:
        """Seconds of a pass, on the straight lines between those that were measured."""
        i = min(max(1, bisect_left(self._rows, rows)), len(self._rows) - 1)
        (r0, r1), (s0, s1) = self._rows[i - 1 : i + 1], self._seconds[i - 1 : i + 1]
        return max(self._seconds[0], s0 + (s1 - s0) * (rows - r0) / (r1 - r0))

    def best(self, alpha: float, token_s: float, most: int) -> int:
        """The number of drafted tokens that makes most of a pass if every sequence drafted so many, 0 to `most`.

        token_s: of one drafted token. Drafts are made one after another, so n sequences pay it n times.
        """
        n = self.num_running
        plain = self.pass_s(n)
        v = [self.pass_s(n * (gamma + 1)) / plain for gamma in range(most + 1)]
        return best_gamma(alpha, n * token_s / plain, v, max_gamma=most)[0]


class LoadLength:
    """Another draft length, shortened to what the load makes worth while. Only where the text cannot depend on it."""

    def __init__(self, inner: DraftLength, load: Load) -> None:
        self._inner, self._load = inner, load
        self._accepted, self._tested = PRIOR_ALPHA * PRIOR_WEIGHT, PRIOR_WEIGHT
        self._draft_s, self._num_drafted, self._idle = 0.0, 0, 0

    def next(self) -> int:
        wanted = self._inner.next()
        if wanted < 1 or self._load.num_running < 2:
            return wanted
        token_s = self._draft_s / self._num_drafted if self._num_drafted else 0.0
        best = self._load.best(min(1.0, self._accepted / self._tested), token_s, wanted)
        self._idle = 0 if best else self._idle + 1
        return best or int(self._idle % RETRY_EVERY == 0)  # text changes: one token is tried now and then

    def most_nodes(self, ask: int) -> int | None:
        """How many nodes a tree may have that was asked for `ask` tokens; None where it is not the load's affair."""
        return ask if self._load.num_running > 1 else None

    def paid(self, num_drafted: int, seconds: float) -> None:
        """Learn what drafting costs."""
        self._draft_s += seconds
        self._num_drafted += num_drafted

    def observe(self, num_drafted: int, num_accepted: int, refused: bool) -> None:
        self._accepted += num_accepted
        self._tested += num_accepted + refused
        self._inner.observe(num_drafted, num_accepted, refused)
