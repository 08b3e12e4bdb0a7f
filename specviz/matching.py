"""Which messages of a serving engine were which of its drafting steps. Pure: numbers in, numbers out.

A stream tells how many tokens each message wrote; a recent vLLM also lists, in order, what each drafting step drafted
and kept, and leaves the steps without a draft out. A message of n > 1 tokens kept n - 1; one of a single token either
had its draft refused or had none. Every way to lay the list over the messages in order is looked at, and what is the
same in all of them is known. Sets of ways are the bits of whole numbers: bit j, the first j of the list are used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from specviz.events import Origin

__all__ = ["Told", "match_steps"]

_MAX_MERGED = 64
"""A longer message is not taken apart."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a message after all: tokens drafted and kept in it. Of a step, not of merged ones, also whose
    its last token is."""

    num_drafted: int
    num_accepted: int
    own: Origin | None


def match_steps(sizes: Sequence[int], drafted: Sequence[int], accepted: Sequence[int]) -> list[Told | None]:
    """[messages] what each was, None where the order leaves it open.

    Args:
        sizes: [messages] tokens of each, at least 1, without the first, which came with the prompt.
        drafted, accepted: [drafting steps] tokens, in order, of one length.
    """
    if not sizes:
        return []
    strict = _Ways(sizes, drafted, accepted, merged=False)
    if strict.exist:
        return [strict.step(i) for i in range(len(sizes))]
    merged = _Ways(sizes, drafted, accepted, merged=True)
    if not merged.exist:
        return [None] * len(sizes)
    return [merged.step(i) if size == 1 else merged.message(i) for i, size in enumerate(sizes)]


class _Ways:
    """merged: whether a message may carry several steps."""

    def __init__(self, sizes: Sequence[int], drafted: Sequence[int], accepted: Sequence[int], *, merged: bool) -> None:
        self.sizes, self.drafted, self.accepted, self.merged = sizes, drafted, accepted, merged
        self.kept: dict[int, int] = {}
        self.kinds: dict[tuple[int, int], int] = {}
        for j, kind in enumerate(zip(drafted, accepted, strict=True)):
            self.kept[kind[1]] = self.kept.get(kind[1], 0) | 1 << j
            self.kinds[kind] = self.kinds.get(kind, 0) | 1 << j

    @property
    def exist(self) -> bool:
        return bool(self.before[-1] >> len(self.drafted) & 1)

    @cached_property
    def before(self) -> list[int]:
        """[messages + 1] how much of the list can be used up before each."""
        found = [1]
        for i in range(len(self.sizes)):
            inner = [found[-1]] + [0] * self.sizes[i]
            for start, end in self._steps(i):
                inner[end] |= (inner[start] & self._fits(i, start, end)) << 1
                inner[end] |= inner[start] if end - start == 1 else 0
            found.append(inner[-1])
        return found

    @cached_property
    def after(self) -> list[int]:
        """[messages + 1] how much must be used up before each, so that the rest fits behind."""
        found = [1 << len(self.drafted)]
        for i in reversed(range(len(self.sizes))):
            inner = [0] * self.sizes[i] + [found[-1]]
            for start, end in reversed(self._steps(i)):
                inner[start] |= (inner[end] >> 1) & self._fits(i, start, end)
                inner[start] |= inner[end] if end - start == 1 else 0
            found.append(inner[0])
        return found[::-1]

    def _steps(self, i: int) -> list[tuple[int, int]]:
        """Where steps can lie within a message, by their last token."""
        size = self.sizes[i]
        if not self.merged or size > _MAX_MERGED:
            return [(0, size)]
        return [(start, end) for end in range(1, size + 1) for start in range(end)]

    def _fits(self, i: int, start: int, end: int) -> int:
        """The drafting steps that can have written these tokens. The end of the answer cuts the last one short."""
        own = end - start - 1
        if i == len(self.sizes) - 1 and end == self.sizes[i]:
            return sum(bits for kept, bits in self.kept.items() if kept >= own)
        return self.kept.get(own, 0)

    def step(self, i: int) -> Told | None:
        size = self.sizes[i]
        used = self.before[i] & self._fits(i, 0, size) & self.after[i + 1] >> 1
        found = {kind for kind, bits in self.kinds.items() if used & bits}
        if size == 1 and self.before[i] & self.after[i + 1]:
            found.add((0, 0))
        if len(found) != 1:
            return None
        drafted, accepted = found.pop()
        own: Origin = "target"
        if drafted:
            own = "accepted" if accepted >= size else "corrected" if accepted < drafted else "bonus"
        return Told(drafted, min(accepted, size), own)

    def message(self, i: int) -> Told | None:
        """Of one that may carry several steps: known where the list's part in it is. The last one may be cut short, so
        what its last token is stays open."""
        first, last = (self.before[j] & self.after[j] for j in (i, i + 1))
        if first.bit_count() != 1 or last.bit_count() != 1:
            return None
        part = slice(first.bit_length() - 1, last.bit_length() - 1)
        drafted, accepted = sum(self.drafted[part]), sum(self.accepted[part])
        is_one_step = part.stop == part.start + 1 and accepted + 1 == self.sizes[i] and i + 1 < len(self.sizes)
        own: Origin | None = ("corrected" if accepted < drafted else "bonus") if is_one_step else None
        return Told(drafted, min(self.sizes[i], accepted), own)
