"""The same questions as to an index of texts, put to the run itself: prompt and answer so far, token by token.

Entering a token costs the same however long the text is; a question compares the latest places of the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.drafters.suffix_index import LONGEST_MATCH, Followers

__all__ = ["Places", "RunText"]

MAX_PLACES = 256
"""The latest places of a token that are looked at: a text of one token over and over stays cheap."""

_Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """What follows one phrase stands at these places of the run, ascending: [count] int64. length: of the phrase."""

    at: _Array
    length: int

    @property
    def count(self) -> int:
        return len(self.at)


class RunText:
    """One run's tokens, and for each token the places behind it. Belongs to one drafter and forgets with `clear`."""

    def __init__(self) -> None:
        self._ids: _Array = np.empty(1024, np.int64)
        self._length = 0
        self._behind: dict[int, list[int]] = {}  # token -> where something follows it, ascending

    def __len__(self) -> int:
        return self._length

    @property
    def num_bytes(self) -> int:
        """Of ids and places."""
        return 16 * self._length

    def clear(self) -> None:
        self._length = 0
        self._behind.clear()

    def extend(self, ids: Sequence[int]) -> None:
        """Enter what `ids`, the whole text, has more than before."""
        new = np.asarray(ids[self._length :], np.int64)
        end = self._length + len(new)
        if end > len(self._ids):
            self._ids = np.concatenate((self._ids[: self._length], np.empty(2 * end - self._length, np.int64)))
        self._ids[self._length : end] = new
        for place in range(max(1, self._length), end):
            self._behind.setdefault(int(self._ids[place - 1]), []).append(place)
        self._length = end

    def matches(self, longest: int = LONGEST_MATCH, most: int = 6) -> list[Places]:
        """As `SuffixIndex.matches`, for the text's own last tokens."""
        if not self._length:
            return []
        ids, end = self._ids, self._length
        at = np.asarray(self._behind.get(int(ids[end - 1]), ())[-MAX_PLACES:], np.int64)
        found: list[Places] = []
        length = 1
        while len(at) and length <= longest:
            if found and len(found[-1].at) == len(at):
                found.pop()
            found.append(Places(at, length))
            length += 1
            at = at[at >= length]
            at = at[ids[at - length] == ids[end - length]]
        return found[: -most - 1 : -1]

    def followers(self, places: Places, most: int) -> Followers:
        """The `most` most frequent tokens; of two equally frequent ones the later first."""
        seen = self._ids[places.at].tolist()
        counts: dict[int, int] = {}
        for token in reversed(seen):
            counts[token] = counts.get(token, 0) + 1
        best = sorted(counts.items(), key=lambda entry: -entry[1])[:most]
        out: Followers = []
        for token, count in best:
            at = places.at[self._ids[places.at] == token] + 1
            out.append((token, count, Places(at[at < self._length], places.length + 1)))
        return out
