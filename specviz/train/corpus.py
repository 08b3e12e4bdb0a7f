"""Texts to learn from, as token ids: plain text, JSON Lines, or answers that a model wrote, stored as ids.

.txt      the whole file is one text
.jsonl    one {"text": ...} or {"prompt": ...} a line, each a text of its own
.npz      tokens [t], offsets [n + 1], prompt_len [n], perhaps topic [n]: n sequences end to end, each a prompt with
          its answer. Only the answers are learned; the prompts are context.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.errors import ConfigError

__all__ = ["HELD_OUT_EVERY", "Corpus", "read_corpus"]

HELD_OUT_EVERY = 8
"""Every eighth topic is kept from training, so that figures are made on topics the draft has not met."""

_Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Sequences of ids, end to end.

    tokens: [t] uint64. offsets: [n + 1] int64, where sequences begin and end. prompt_len: [n] ids at the start of each
    that are context only. topic: [n], -1 where a text has none. names: of the files.
    """

    tokens: _Array
    offsets: _Array
    prompt_len: _Array
    topic: _Array
    names: tuple[str, ...]

    @property
    def places(self) -> _Array:
        """[t] index of every token within its sequence."""
        starts: _Array = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return np.arange(len(self.tokens)) - starts

    @property
    def learned(self) -> _Array:
        """[t] bool: tokens to learn, those behind the prompts."""
        learned: _Array = self.places >= np.repeat(self.prompt_len, np.diff(self.offsets))
        return learned

    @property
    def held_topics(self) -> _Array:
        """Every eighth of the topics, in the order of their numbers; none where there are fewer than eight."""
        topics: _Array = np.unique(self.topic)
        return topics[topics >= 0][HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]

    @property
    def held_out(self) -> _Array:
        """[t] bool: tokens of the topics kept from training."""
        return self.of_topics(self.held_topics)

    def of_topics(self, topics: Sequence[int] | _Array) -> _Array:
        """[t] bool: tokens of these topics."""
        return np.repeat(np.isin(self.topic, topics), np.diff(self.offsets))


def read_corpus(
    files: Sequence[Path], encode: Callable[[str], Sequence[int]], vocab_size: int, report: Callable[[str, float], None]
) -> Corpus:
    """All files, one after the other.

    Args:
        encode: text -> ids, without control tokens of its own.
        report: told about every file, with the part done.
    Raises:
        ConfigError: no tokens; or a file that is missing, damaged, of another kind, or of ids the vocabulary lacks.
    """
    parts: list[Corpus] = []
    for done, path in enumerate(files):
        report(f"Reading {path.name}", done / len(files))
        reader = {".txt": _read_text, ".jsonl": _read_lines, ".npz": _read_ids}.get(path.suffix.lower())
        if reader is None:
            raise ConfigError(f"{path.name} is no corpus: give files that end in .txt, .jsonl or .npz.")
        try:
            part = reader(path, encode)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The corpus {path.name} cannot be read: {error}.") from error
        if len(part.tokens) and int(part.tokens.max()) >= vocab_size:
            raise ConfigError(
                f"{path.name} holds the id {int(part.tokens.max())}, and this pair's vocabulary ends at "
                f"{vocab_size - 1}. It was made with another tokenizer; choose its pair with --pair."
            )
        parts.append(part)
    corpus = _join(parts)
    if not corpus.learned.any():
        raise ConfigError("The corpus is empty: there are no tokens to count.")
    return corpus


def _read_text(path: Path, encode: Callable[[str], Sequence[int]]) -> Corpus:
    return _of_texts(path, [path.read_text(encoding="utf-8")], encode)


def _read_lines(path: Path, encode: Callable[[str], Sequence[int]]) -> Corpus:
    texts: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            text = entry.get("text", entry.get("prompt"))
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"Line {number} of {path.name} is not a JSON object.") from error
        if not isinstance(text, str):
            raise ConfigError(f'Line {number} of {path.name} has no text under "text" or "prompt".')
        texts.append(text)
    return _of_texts(path, texts, encode)


def _of_texts(path: Path, texts: Sequence[str], encode: Callable[[str], Sequence[int]]) -> Corpus:
    ids = [np.asarray(encode(text), dtype=np.uint64) for text in texts]
    lengths = np.array([len(part) for part in ids], dtype=np.int64)
    return Corpus(
        np.concatenate([*ids, np.zeros(0, np.uint64)]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.zeros(len(ids), np.int64),
        np.full(len(ids), -1, np.int64),
        (path.name,),
    )


def _read_ids(path: Path, encode: Callable[[str], Sequence[int]]) -> Corpus:
    try:
        with np.load(path, allow_pickle=False) as data:
            found = {name: data[name] for name in ("tokens", "offsets", "prompt_len", "topic") if name in data}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path.name} is damaged, or no .npz file: {error}.") from error
    lacking = {"tokens", "offsets", "prompt_len"} - found.keys()
    if lacking:
        raise ConfigError(f"{path.name} has no array {sorted(lacking)[0]!r}; it needs tokens, offsets and prompt_len.")
    arrays = {name: array.astype(np.int64) for name, array in found.items() if array.dtype.kind in "iu"}
    ok = len(arrays) == len(found) and all(array.ndim == 1 for array in arrays.values())
    if ok:
        n = len(arrays["prompt_len"])
        offsets = arrays["offsets"]
        arrays.setdefault("topic", np.full(n, -1, np.int64))
        ok = len(offsets) == n + 1 and len(arrays["topic"]) == n and int(offsets[0]) == 0
        ok = ok and int(offsets[-1]) == len(arrays["tokens"]) and bool((np.diff(offsets) >= 0).all())
        ok = ok and bool((arrays["tokens"] >= 0).all()) and bool((arrays["prompt_len"] >= 0).all())
    if not ok:
        raise ConfigError(
            f"The arrays of {path.name} do not fit each other: tokens [t], offsets [n + 1] from 0 to t, prompt_len [n] "
            "and, where there is one, topic [n], whole numbers all."
        )
    tokens = arrays["tokens"].astype(np.uint64)
    return Corpus(tokens, arrays["offsets"], arrays["prompt_len"], arrays["topic"], (path.name,))


def _join(parts: Sequence[Corpus]) -> Corpus:
    starts = np.cumsum([0, *(len(part.tokens) for part in parts)])
    offsets = [part.offsets[1:] + start for part, start in zip(parts, starts, strict=False)]
    return Corpus(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([np.zeros(1, np.int64), *offsets]),
        np.concatenate([part.prompt_len for part in parts]),
        np.concatenate([part.topic for part in parts]),
        tuple(name for part in parts for name in part.names),
    )
