"""Counting a corpus into an n-gram table, and measuring the table on topics it has not seen.

The same corpus and settings give the same file, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.config import check_int, check_number
from specviz.drafters.ngram_table import LONGEST_CONTEXT, TABLE_FILE, Level, NgramTable, NgramTableDrafter, context_key
from specviz.models.catalog import ModelPair, get_pair
from specviz.models.convert import Progress
from specviz.models.fetch import fetch_pair, part_folder, read_provenance, silent
from specviz.models.stored import own_folder
from specviz.train.corpus import Corpus, read_corpus

__all__ = ["Score", "build_table", "measure", "shrink", "target_reader", "train_ngrams"]

CARD_FILE = "card.md"
MAX_FILE_MB = 9.0
_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Score:
    """How the table does on text it was not made from.

    context: tokens of context that matched. num_tokens: predicted with that context. num_right: equal to the text's.
    """

    context: int
    num_tokens: int
    num_right: int


def build_table(
    corpus: Corpus, rows: _Array, vocab_size: int, *, min_count: int = 1, target_sha256: str = ""
) -> NgramTable:
    """Count what follows each context of 1 to 4 tokens, and keep the most frequent; ties take the smaller id.

    Contexts do not reach across the start of a sequence.

    Args:
        rows: [t] bool, the tokens to count as followers.
        min_count: contexts whose best follower was seen less often are left out.
    """
    levels = []
    for n in range(1, LONGEST_CONTEXT + 1):
        level = _count(*_followers(corpus, rows, n, vocab_size))
        levels.append(level.keep(np.flatnonzero(level.counts >= min_count)))
    return NgramTable(vocab_size, tuple(levels), target_sha256)


def shrink(table: NgramTable, max_bytes: int) -> tuple[NgramTable, tuple[int, ...]]:
    """Leave out what helps least until the arrays fit: the rarest entries first, of these the longest contexts first.

    Whole classes go (all contexts of n tokens whose best follower was seen c times), so a table says in a line what it
    lacks.

    Returns:
        The table, and the smallest count left for each context length.
    """
    levels = list(table.levels)
    floors = [1] * len(levels)
    while sum(level.num_bytes for level in levels) > max_bytes:
        rarest = [(int(level.counts.min()), -n) for n, level in enumerate(levels) if len(level)]
        if not rarest:
            break
        count, n = min(rarest)
        levels[-n] = levels[-n].keep(np.flatnonzero(levels[-n].counts > count))
        floors[-n] = count + 1
    return NgramTable(table.vocab_size, tuple(levels), table.target_sha256, table.about), tuple(floors)


def measure(table: NgramTable, corpus: Corpus, rows: _Array) -> list[Score]:
    """Predict every token of `rows` from the true tokens before it. One score a context length, the longest first."""
    index = np.flatnonzero(rows)
    guess = np.full(len(corpus.tokens), -1, np.int64)
    context = np.zeros(len(corpus.tokens), np.int64)
    for n in range(len(table.levels), 0, -1):
        level = table.levels[n - 1]
        if not len(level):
            continue
        keys, _, at = _followers(corpus, rows & (context == 0), n, table.vocab_size)
        row = np.minimum(level.keys.searchsorted(keys), len(level) - 1)
        found = level.keys[row] == keys
        guess[at[found]] = level.next_ids[row[found]]
        context[at[found]] = n
    right = guess == corpus.tokens.astype(np.int64)
    return [
        Score(n, int((context[index] == n).sum()), int((right[index] & (context[index] == n)).sum()))
        for n in range(len(table.levels), 0, -1)
    ]


def train_ngrams(
    files: Sequence[Path],
    pair: str,
    out: Path | None = None,
    *,
    min_count: int = 1,
    max_mb: float = 4.0,
    hold_out: Sequence[int] = (),
    progress: Progress | None = None,
) -> Path:
    """Make a pair's table and its card.

    Args:
        files: the corpus, see `specviz.train.corpus`.
        out: folder to write into; None for the one in the cache where runs look first.
        min_count: leave out contexts whose best follower was seen less often.
        max_mb: 10^6 bytes the table may have.
        hold_out: topics to leave uncounted besides every eighth.
    Returns:
        The folder.
    Raises:
        ConfigError: a setting out of range, an unknown pair, a corpus that cannot be read.
        ModelLoadError: the pair's tokenizer cannot be fetched.
    """
    min_count = check_int("min-count", min_count, 1, 1_000_000)
    max_mb = check_number("max-mb", max_mb, 0.01, MAX_FILE_MB)
    entry = get_pair(pair)
    report = progress or silent
    tokenizer, vocab_size, sha256 = target_reader(entry, report)

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    corpus = read_corpus(files, encode, vocab_size, lambda text, part: report(text, 0.3 * part))
    held = corpus.learned & corpus.held_out
    shown = corpus.learned & ~held & ~corpus.of_topics(hold_out)
    report(f"Counting {int(shown.sum())} tokens", 0.3)
    full = build_table(corpus, shown, vocab_size, min_count=min_count, target_sha256=sha256)
    table, floors = shrink(full, int(max_mb * 1e6) - 4096)  # the file's head takes up to 4 kB
    report("Measuring on the topics kept back", 0.8)
    scores = measure(table, corpus, held) if held.any() else []
    about = {
        "corpus": ", ".join(corpus.names),
        "pair": pair,
        "num_tokens": int(shown.sum()),
        "num_entries": [len(level) for level in table.levels],
        "min_counts": [max(min_count, floor) for floor in floors],
        "held_topics": corpus.held_topics.tolist(),
        "num_held_tokens": int(held.sum()),
        "scores": [asdict(score) for score in scores],
    }
    table = NgramTable(table.vocab_size, table.levels, sha256, about)
    folder = own_folder(pair, NgramTableDrafter.name) if out is None else out
    table.save(folder / TABLE_FILE)
    (folder / CARD_FILE).write_text("\n".join(_card(entry, table, scores)) + "\n", encoding="utf-8")
    report(f"{len(table)} contexts from {about['num_tokens']} tokens", 1.0)
    return folder


def target_reader(pair: ModelPair, report: Progress) -> tuple[Any, int, str]:
    """The target's tokenizer, its number of ids as a loaded pair counts them, and the SHA-256 of its weights."""
    from transformers import AutoConfig, AutoTokenizer

    fetch_pair(pair, progress=lambda text, _: report(text, None))
    folder = part_folder(pair, "target")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    known = max(tokenizer.get_vocab().values(), default=-1) + 1
    found = read_provenance(folder)
    return (
        tokenizer,
        min(known, int(config.get_text_config(decoder=True).vocab_size)),
        found.sha256 if found else "",
    )


def _followers(corpus: Corpus, rows: _Array, n: int, vocab_size: int) -> tuple[_Array, _Array, _Array]:
    """Of every token in `rows` with n tokens before it: the context's key, the token, and its index. [m] each."""
    index = np.flatnonzero(rows & (corpus.places >= n))
    columns = [corpus.tokens[index - back] for back in range(n, 0, -1)]
    return np.asarray(context_key(columns, vocab_size), dtype=np.uint64), corpus.tokens[index], index


def _count(keys: _Array, followers: _Array, _: _Array) -> Level:
    """The most frequent follower of each key."""
    order = np.lexsort((followers, keys))
    keys, followers = keys[order], followers[order]
    first = np.flatnonzero(_changes(keys) | _changes(followers))  # of each (key, follower)
    counts = np.diff(np.append(first, len(keys)))
    keys, followers = keys[first], followers[first]
    group = np.cumsum(_changes(keys)) - 1
    totals = np.bincount(group, weights=counts).astype(np.int64)
    best = np.lexsort((followers, -counts, group))
    best = best[_changes(group[best])]
    small = [_small(array) for array in (followers[best], counts[best], totals)]
    return Level(keys[best], *small)


def _changes(values: _Array) -> _Array:
    """[m] bool: the first of each run of equal values."""
    out = np.ones(len(values), dtype=bool)
    out[1:] = values[1:] != values[:-1]
    return out


def _small(values: _Array) -> _Array:
    """The same numbers in 16 bits where they fit, else in 32."""
    return values.astype(np.uint16 if int(values.max(initial=0)) < 1 << 16 else np.uint32)


def _card(pair: ModelPair, table: NgramTable, scores: Sequence[Score]) -> Iterator[str]:
    about = table.about
    yield f"# N-gram table of {pair.name}"
    yield ""
    yield f"For `{NgramTableDrafter.name}`: what most often follows 1 to {len(table.levels)} tokens of context."
    yield ""
    yield f"- Target: {pair.target.name}, weights {table.target_sha256 or 'without a recorded hash'}"
    yield f"- Vocabulary: {table.vocab_size} ids"
    yield f"- Corpus: {about['corpus']}, {about['num_tokens']} tokens counted"
    yield "- Of each context the most frequent next token, its count and the context's total; ties take the smaller id"
    yield f"- Arrays: {table.num_bytes / 1e6:.2f} MB"
    yield ""
    yield "| tokens of context | entries | smallest count kept |"
    yield "|---|---|---|"
    for n, (entries, floor) in enumerate(zip(about["num_entries"], about["min_counts"], strict=True), start=1):
        yield f"| {n} | {entries} | {floor} |"
    yield ""
    if not scores:
        yield "The corpus has no topics to keep back, so there are no figures on text the table has not seen."
        return
    topics = ", ".join(map(str, about["held_topics"]))
    total = about["num_held_tokens"]
    yield f"Topics {topics} were kept back: {total} tokens of answers."
    yield "Each was predicted from the true tokens before it, by the longest context that the table knows:"
    yield ""
    yield "| matched context | share of tokens | right |"
    yield "|---|---|---|"
    for score in scores:
        yield f"| {score.context} | {_share(score.num_tokens, total)} | {_share(score.num_right, score.num_tokens)} |"
    predicted = sum(score.num_tokens for score in scores)
    right = sum(score.num_right for score in scores)
    yield f"| any (coverage) | {_share(predicted, total)} | {_share(right, predicted)} |"
    yield ""
    yield f"Of all tokens kept back, {_share(right, total)} are predicted right."


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
