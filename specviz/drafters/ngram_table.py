"""A static n-gram table: what most often followed the last few tokens in a corpus read beforehand. Needs no model.

The file holds, for contexts of 1 to 4 tokens, the most frequent next token with its count and the context's total. The
longest context that the table knows decides; unknown ones back off to one token less.

Source: the back-off is Katz (1987), without its discounts: only the most frequent continuation is wanted, and a wrong
one costs a row of a pass, never text. Drafting from a static table: Ou et al. (2024), ANPD, arXiv 2404.08698; the
static cache of llama.cpp's `lookup-create`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.options import Option
from specviz.errors import ConfigError, ModelLoadError
from specviz.events import DraftNote, ModelInfo
from specviz.models.loader import LoadedPair
from specviz.models.session import Session
from specviz.models.stored import draft_folder
from specviz.proposal import Proposal

__all__ = [
    "LONGEST_CONTEXT",
    "MIN_COUNT",
    "Level",
    "Match",
    "NgramTable",
    "NgramTableDrafter",
    "context_key",
    "load_for",
]

LONGEST_CONTEXT = 4
"""Tokens of context at most, so 5-grams."""

TABLE_FILE = "table.safetensors"
FORMAT = "specviz n-gram table 1"

MIN_COUNT = Option(
    "min_count", 1, "how often the corpus must have gone on that way; rarer entries are passed over", 1, 1_000_000
)

_MASK = (1 << 64) - 1
_PRIME = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: spreads neighbouring ids over all 64 bits
_Array = NDArray[Any]


def context_key(columns: Sequence[Any], vocab_size: int) -> Any:
    """One 64-bit key of a context, by packing its ids where they fit, else by hashing them.

    A pack is one to one. Of a million hashed contexts two share a key with odds of 1 in 37 million, and what follows is
    a wrong guess, which costs a row.

    Args:
        columns: the context's ids, the oldest first: plain ints, or one uint64 array a place, for many at once.
    Returns:
        An int in [0, 2^64), or a uint64 array.
    """
    bits = max(1, (vocab_size - 1).bit_length())
    key = columns[0]
    if bits * len(columns) <= 64:
        for column in columns[1:]:
            key = (key << bits) | column
        return key
    for column in columns[1:]:
        key = (key ^ (key >> 29)) * _PRIME & _MASK  # arrays wrap around by themselves, Python's ints by the mask
        key = (key + column) & _MASK
    key = (key ^ (key >> 32)) * _PRIME & _MASK
    return key ^ (key >> 29)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """All contexts of one length.

    keys: [m] uint64, ascending. next_ids, counts, totals: [m], the most frequent next token, how often it followed, and
    how often the context was seen.
    """

    keys: _Array
    next_ids: _Array
    counts: _Array
    totals: _Array

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, key: int) -> int | None:
        """The row of a key."""
        row = int(self.keys.searchsorted(np.uint64(key)))  # a plain int would turn the whole array into floats
        return row if row < len(self.keys) and int(self.keys[row]) == key else None

    def keep(self, rows: _Array) -> Level:
        return Level(self.keys[rows], self.next_ids[rows], self.counts[rows], self.totals[rows])

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self.keys, self.next_ids, self.counts, self.totals))


@dataclass(frozen=True, slots=True)
class Match:
    """What the table knows about a context: `match_len` of its last tokens were found; `token_id` followed `count` of
    `total` times."""

    match_len: int
    token_id: int
    count: int
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class NgramTable:
    """The table in memory.

    levels: contexts of 1, 2, ... tokens. target_sha256: of the weights whose text it continues, "" where unknown.
    about: corpus and figures, as the card tells them.
    """

    vocab_size: int
    levels: tuple[Level, ...]
    target_sha256: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.levels))

    @property
    def num_bytes(self) -> int:
        return sum(level.num_bytes for level in self.levels)

    def find(self, ids: Sequence[int], min_count: int = 1) -> Match | None:
        """The entry of the longest known suffix of `ids` whose count is at least `min_count`."""
        known = 0  # ids behind the last one that this vocabulary lacks: such an id would be packed into another's key
        while known < min(len(self.levels), len(ids)) and 0 <= ids[-known - 1] < self.vocab_size:
            known += 1
        for n in range(known, 0, -1):
            level = self.levels[n - 1]
            row = level.find(context_key([int(token) for token in ids[-n:]], self.vocab_size))
            if row is not None and (count := int(level.counts[row])) >= min_count:
                return Match(n, int(level.next_ids[row]), count, int(level.totals[row]))
        return None

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all. The same table gives the same bytes."""
        from safetensors.numpy import save_file

        arrays = {
            f"{name}_{n}": np.ascontiguousarray(getattr(level, name))
            for n, level in enumerate(self.levels, start=1)
            for name in ("keys", "next_ids", "counts", "totals")
        }
        head = {
            "format": FORMAT,
            "vocab_size": self.vocab_size,
            "target_sha256": self.target_sha256,
            "about": dict(self.about),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        # One entry, for safetensors writes several in an order that changes from run to run.
        save_file(arrays, part, metadata={"specviz": json.dumps(head, sort_keys=True)})
        part.chmod(0o644)
        os.replace(part, path)

    @classmethod
    def load(cls, path: Path) -> NgramTable:
        """Read and check a file.

        Raises:
            ModelLoadError: no such file, damaged, or not an n-gram table.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "np") as file:
                head = json.loads((file.metadata() or {})["specviz"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {str(head['format'])[:40]!r}, not {FORMAT!r}")
            table = cls(int(head["vocab_size"]), _levels(arrays), str(head["target_sha256"]), dict(head["about"]))
            _check(table)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            why = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
            raise ModelLoadError(
                f"The n-gram table {path.name} in the folder {path.parent.parent.name}/{path.parent.name} cannot be "
                f"used ({why[:200]}). Make it anew with `python -m specviz train ngrams`, or delete it."
            ) from error
        return table


def load_for(loaded: LoadedPair) -> tuple[NgramTable, ModelInfo, tuple[str, ...]]:
    """The pair's table, where it came from, and what a reader of its runs has to know about it.

    Raises:
        ConfigError: the pair has no table, or one of another vocabulary.
        ModelLoadError: the file is damaged.
    """
    pair = loaded.pair.name
    folder = draft_folder(pair, NgramTableDrafter.name)
    if folder is None:
        raise ConfigError(
            f"The pair {pair} has no n-gram table. "
            f"Make one with `python -m specviz train ngrams --pair {pair} --corpus FILE`, or choose prompt-lookup."
        )
    path = folder / TABLE_FILE
    table, sha256 = _load_once(path, *_stamp(path))
    if table.vocab_size != loaded.vocab_size:
        raise ConfigError(
            f"The n-gram table of {pair} counts in a vocabulary of {table.vocab_size} tokens, and this target has "
            f"{loaded.vocab_size}: the same ids mean other text. Make a table for this target with "
            f"`python -m specviz train ngrams --pair {pair} --corpus FILE`, or choose prompt-lookup."
        )
    notes: tuple[str, ...] = ()
    ours = loaded.target_info.sha256
    if ours and table.target_sha256 and ours != table.target_sha256:
        notes = (
            f"The n-gram table was made for other weights ({table.target_sha256[:8]}…) than this target's "
            f"({ours[:8]}…). The text stays right; fewer drafts are accepted.",
        )
    corpus = str(table.about.get("corpus", ""))
    info = ModelInfo("n-gram table", source=corpus, sha256=sha256, num_bytes=table.num_bytes)
    return table, info, notes


class NgramTableDrafter:
    """Looks up the last tokens, appends what followed most often, and looks up again."""

    name = "ngram-table"
    needs: frozenset[Need] = frozenset({Need.TRAINED})
    num_bytes = 0

    def __init__(
        self, table: NgramTable, *, min_count: int = 1, stop_below: float = 0.0, notes: tuple[str, ...] = ()
    ) -> None:
        """
        Args:
            min_count: entries seen less often are passed over, and a shorter context decides.
            stop_below: drafting stops behind a token whose share of its context's total is under this.
            notes: sentences about the run, for the page.
        """
        self.notes = notes
        self._table = table
        self._min_count = min_count
        self._stop_below = stop_below

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        pass

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        ids = [int(token) for token in context.token_ids[-LONGEST_CONTEXT:]]
        start = len(ids)
        matches: list[Match] = []
        while len(matches) < max_tokens and (match := self._table.find(ids, self._min_count)) is not None:
            matches.append(match)
            ids.append(match.token_id)
            if match.count < self._stop_below * match.total:
                break
        if not matches:
            return Proposal.empty(DraftNote("table", "the corpus does not tell what follows the last token"))
        shares = [match.count / match.total for match in matches]
        return Proposal.chain(ids[start:], confidence=shares, note=self._note(ids[:start], matches))

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        pass

    def _note(self, ids: list[int], matches: list[Match]) -> DraftNote:
        """The first lookup in words; of every token the length of its context, its count and the context's total."""
        first = matches[0]
        n = first.match_len
        words = f"after the same {n} tokens" if n > 1 else "after the same token"
        text = f"{words} the corpus went on like this {first.count} of {first.total} times"
        if self.notes:
            text += "; the table was made for another target"
        data = {
            "match_len": n,
            "context_ids": ids[-n:],
            "count": first.count,
            "total": first.total,
            "match_lens": [match.match_len for match in matches],
            "counts": [match.count for match in matches],
            "totals": [match.total for match in matches],
        }
        return DraftNote("table", text, data)


def _stamp(path: Path) -> tuple[int, int]:
    """What changes when the file does: time of writing in ns, and size. (0, 0) where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=2)
def _load_once(path: Path, modified_ns: int, size: int) -> tuple[NgramTable, str]:
    """(table, SHA-256 of its file), kept while the file stays as it is."""
    import hashlib

    table = NgramTable.load(path)
    return table, hashlib.sha256(path.read_bytes()).hexdigest()


def _levels(arrays: Mapping[str, _Array]) -> tuple[Level, ...]:
    num = len(arrays) // 4
    if not 1 <= num <= LONGEST_CONTEXT:
        raise ValueError(f"it has {len(arrays)} arrays, four for each of 1 to {LONGEST_CONTEXT} lengths are expected")
    names = ("keys", "next_ids", "counts", "totals")
    return tuple(Level(*(arrays[f"{name}_{n}"] for name in names)) for n in range(1, num + 1))


def _check(table: NgramTable) -> None:
    """Raises ValueError where a lookup could go wrong, or a figure would be none."""
    if table.vocab_size < 1:
        raise ValueError("its vocabulary is empty")
    for n, level in enumerate(table.levels, start=1):
        arrays = (level.keys, level.next_ids, level.counts, level.totals)
        if level.keys.dtype != np.uint64 or any(array.dtype.kind != "u" for array in arrays):
            raise ValueError(f"contexts of {n}: not unsigned integers")
        if any(array.shape != (len(level),) for array in arrays):
            raise ValueError(f"contexts of {n}: arrays of different lengths")
        if bool((level.keys[1:] <= level.keys[:-1]).any()):
            raise ValueError(f"contexts of {n}: not in ascending order")
        if len(level) and int(level.next_ids.max()) >= table.vocab_size:
            raise ValueError(f"contexts of {n}: a token beyond the vocabulary")
        if bool((level.counts < 1).any()) or bool((level.totals < level.counts).any()):
            raise ValueError(f"contexts of {n}: impossible counts")
