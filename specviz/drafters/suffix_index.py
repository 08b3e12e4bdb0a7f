"""An index of texts read beforehand: which ones hold the last tokens of a run, and how often each went on how.

A suffix array: the places of all tokens, sorted by the tokens that stand there. All places of one phrase lie side by
side, so a phrase is found by bisection, and what follows it is counted by bisection too. Only tokens are stored in the
file; sorting them again takes 0.3 s for 1.9 million, 1.4 s for 5 million.

Source: Manber and Myers (1993), suffix arrays; the use for drafting is Oliaro et al. (2024), SuffixDecoding,
arXiv 2411.04975, section 3, which keeps a suffix tree with the same counts.
"""

from __future__ import annotations

import json
import os
import zipfile
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.errors import ModelLoadError

__all__ = ["LONGEST_MATCH", "Followers", "Span", "SuffixIndex", "sort_suffixes"]

LONGEST_MATCH = 24
"""Tokens that are compared at most, as in the paper's implementation."""

SORTED_TOKENS = 64
"""Suffixes are sorted by this many tokens: a match of LONGEST_MATCH and the longest draft fit."""

MAX_COUNTED = 1024
"""Places looked at to find the followers of a phrase. Of a more frequent one every k-th is: equal followers stand side
by side, so none with a share of 1 % is overlooked. Those that are found are then counted exactly."""

FORMAT = "specviz suffix index 1"
_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Span:
    """All places behind one phrase: rows `first` to `last` (exclusive) of the order, `length` tokens of phrase."""

    first: int
    last: int
    length: int

    @property
    def count(self) -> int:
        """How often the phrase goes on."""
        return self.last - self.first


Followers = list[tuple[int, int, Any]]
"""(token, how often it follows, where the phrase with it stands), the most frequent first."""


class SuffixIndex:
    """Texts and the order of their suffixes. Read only, so all runs share one.

    A text ends at a separator, the largest number of the tokens' type; no match and no draft reaches across.
    """

    def __init__(
        self,
        tokens: _Array,
        vocab_size: int,
        *,
        target_sha256: str = "",
        about: Mapping[str, Any] | None = None,
        order: _Array | None = None,
    ) -> None:
        """
        Args:
            tokens: [t] uint16 or uint32, texts end to end, a separator behind each.
            vocab_size: ids are smaller than this. target_sha256: of the weights that wrote the texts, "" if unknown.
            about: corpus and figures, as the card tells them.
            order: [t] what `sort_suffixes` gives, where it is known already.
        """
        self.tokens = tokens
        self.vocab_size = vocab_size
        self.target_sha256 = target_sha256
        self.about = dict(about or {})
        self.separator = int(np.iinfo(tokens.dtype).max)
        self.order = sort_suffixes(tokens) if order is None else order
        self._size = tokens.dtype.itemsize
        self._bytes = tokens.astype(tokens.dtype.newbyteorder(">")).tobytes()  # big-endian: bytes sort as ids do
        self._places = self.order.data  # a memoryview: its items are plain ints, at half the price of an array's

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return int(self.tokens.nbytes + self.order.nbytes + len(self._bytes))

    def matches(self, ids: Sequence[int], longest: int = LONGEST_MATCH, most: int = 6) -> list[Span]:
        """Where the last tokens stand: the longest phrase that goes on somewhere, and up to `most` - 1 shorter ones.

        A shorter phrase that stands in the same places as a longer one tells nothing new and is left out.
        """
        known = 0
        while known < min(longest, len(ids)) and 0 <= ids[-known - 1] < self.vocab_size:
            known += 1
        if not known:
            return []
        text = np.asarray(ids[-known:], self.tokens.dtype.newbyteorder(">")).tobytes()
        low, high, best = 0, known, None  # a phrase that is found holds only shorter ones that are found
        while low < high:
            middle = (low + high + 1) // 2
            span = self._find(text, middle)
            if span.count:
                low, best = middle, span
            else:
                high = middle - 1
        if best is None:
            return []
        found = [best]
        for length in range(best.length - 1, max(0, best.length - most), -1):
            span = self._find(text, length)
            if span.count > found[-1].count:
                found.append(span)
        return found

    def followers(self, span: Span, most: int) -> Followers:
        """The `most` most frequent tokens behind a phrase; of equally frequent ones the smaller id first."""
        first, last, length = span.first, span.last, span.length
        if span.count < 1:
            return []
        if span.count == 1:
            token = int(self.tokens[self._places[first] + length])
            return [(token, 1, self._within(first, last, length + 1))]
        step = -(-span.count // MAX_COUNTED)
        seen = self.tokens[self.order[first:last:step] + length]  # ascending
        starts = np.flatnonzero(np.concatenate(([True], seen[1:] != seen[:-1])))
        counts = np.diff(np.append(starts, len(seen)))
        best = np.argsort(-counts, kind="stable")[:most]
        out: Followers = []
        for i in best.tolist():
            token = int(seen[starts[i]])
            if step == 1:
                begin = first + int(starts[i])
                end = begin + int(counts[i])
            else:
                begin = bisect_left(self._places, token, first, last, key=lambda place: self._at(place + length))
                end = bisect_right(self._places, token, begin, last, key=lambda place: self._at(place + length))
            out.append((token, end - begin, self._within(begin, end, length + 1)))
        if step > 1:
            out.sort(key=lambda entry: (-entry[1], entry[0]))
        return out

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all. The same index gives the same bytes."""
        head = {
            "format": FORMAT,
            "vocab_size": self.vocab_size,
            "target_sha256": self.target_sha256,
            "about": self.about,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        words = np.frombuffer(json.dumps(head, sort_keys=True).encode(), np.uint8)
        with part.open("wb") as file:
            np.savez_compressed(file, tokens=self.tokens, head=words)
        part.chmod(0o644)
        os.replace(part, path)

    @classmethod
    def load(cls, path: Path) -> SuffixIndex:
        """Read, check and sort.

        Raises:
            ModelLoadError: no such file, damaged, or not a suffix index.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                tokens, words = data["tokens"], data["head"]
            head = json.loads(words.astype(np.uint8).tobytes())
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {str(head['format'])[:40]!r}, not {FORMAT!r}")
            vocab_size = int(head["vocab_size"])
            _check(tokens, vocab_size)
            return cls(tokens, vocab_size, target_sha256=str(head["target_sha256"]), about=dict(head["about"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            why = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
            raise ModelLoadError(
                f"The suffix index {path.name} in the folder {path.parent.parent.name}/{path.parent.name} cannot be "
                f"used ({why[:200]}). Make it anew with `python -m specviz train suffix`, or delete it."
            ) from error

    def _at(self, place: int) -> int:
        return int.from_bytes(self._bytes[place * self._size : (place + 1) * self._size], "big")

    def _find(self, text: bytes, length: int) -> Span:
        """The places of the last `length` tokens of `text` that something follows."""
        data, size = self._bytes, self._size
        wanted = text[len(text) - length * size :]
        width = length * size
        first = bisect_left(self._places, wanted, key=lambda place: data[place * size : place * size + width])
        last = bisect_right(self._places, wanted, first, key=lambda place: data[place * size : place * size + width])
        return self._within(first, last, length)

    def _within(self, first: int, last: int, length: int) -> Span:
        """The rows without those where the text ends, which stand last."""
        if last > first and self._at(self._places[last - 1] + length) == self.separator:
            last = bisect_left(self._places, self.separator, first, last, key=lambda place: self._at(place + length))
        return Span(first, last, length)


def sort_suffixes(tokens: _Array) -> _Array:
    """[t] int32: places in ascending order of the next SORTED_TOKENS tokens; equal ones in the order of the text.

    Doubling: suffixes sorted by k tokens are sorted by 2k when each carries its own rank and that of the suffix k
    further on. Only those that are still equal to a neighbour are sorted again.

    Args:
        tokens: [t] unsigned, with a separator last.
    """
    n = len(tokens)
    known = 4 if tokens.dtype.itemsize == 2 else 2  # ids that fit into 64 bits
    bits = 8 * tokens.dtype.itemsize
    padded = np.concatenate((tokens, np.full(known, np.iinfo(tokens.dtype).max, tokens.dtype)))
    key = np.zeros(n, np.uint64)
    for i in range(known):
        key = key << np.uint64(bits) | padded[i : i + n].astype(np.uint64)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    new = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    heads = np.flatnonzero(new)
    rank = np.empty(n, np.int64)
    rank[order] = np.repeat(heads, np.diff(np.append(heads, n)))  # a group's rank is the row where it begins
    rows = np.arange(n)
    while known < SORTED_TOKENS:
        tied = ~(new & np.append(new[1:], True))
        rows = rows[tied]
        if not len(rows):
            break
        order_here = order[rows]
        further = order_here + known
        behind = np.where(further < n, rank[np.minimum(further, n - 1)], n)
        key = rank[order_here].astype(np.uint64) << np.uint64(32) | behind.astype(np.uint64)
        again = np.argsort(key, kind="stable")
        order_here, key = order_here[again], key[again]
        order[rows] = order_here
        new = np.concatenate(([True], key[1:] != key[:-1]))
        heads = np.flatnonzero(new)
        rank[order_here] = np.repeat(rows[heads], np.diff(np.append(heads, len(rows))))
        known *= 2
    return order.astype(np.int32)


def _check(tokens: _Array, vocab_size: int) -> None:
    """Raises ValueError where a lookup could go wrong."""
    if tokens.dtype not in (np.uint16, np.uint32) or tokens.ndim != 1 or not len(tokens):
        raise ValueError("its tokens are no list of unsigned integers")
    separator = int(np.iinfo(tokens.dtype).max)
    if not 1 <= vocab_size <= separator:
        raise ValueError("its vocabulary does not fit its tokens")
    if int(tokens[-1]) != separator:
        raise ValueError("its last text does not end")
    if len(tokens) >= 1 << 31:
        raise ValueError("it has too many tokens")
    if bool(((tokens >= vocab_size) & (tokens != separator)).any()):
        raise ValueError("a token beyond the vocabulary")
