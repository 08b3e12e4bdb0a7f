"""N-gram tables of ids made up in a test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specviz.drafters.ngram_table import NgramTable
from specviz.train.corpus import Corpus
from specviz.train.ngrams import build_table


def corpus_of(*sequences: Sequence[int], prompt_len: int = 0, topics: Sequence[int] | None = None) -> Corpus:
    """Each sequence a text of its own, its first `prompt_len` ids context only."""
    lengths = [len(ids) for ids in sequences]
    return Corpus(
        np.array([token for ids in sequences for token in ids], dtype=np.uint64),
        np.cumsum([0, *lengths]),
        np.full(len(lengths), prompt_len),
        np.array(topics if topics is not None else [-1] * len(lengths)),
        ("made in a test",),
    )


def table_of(*sequences: Sequence[int], vocab: int = 260, min_count: int = 1, sha256: str = "") -> NgramTable:
    corpus = corpus_of(*sequences)
    return build_table(corpus, corpus.learned, vocab, min_count=min_count, target_sha256=sha256)


def tiny_table(vocab: int = 260) -> NgramTable:
    """Knows a follower of every id, and longer contexts of a few."""
    rng = np.random.default_rng(0)
    every = rng.permutation(vocab).tolist()
    letters = [byte % vocab for byte in b"abcabcabcabd"]
    return table_of([*every, *every], letters * 3, rng.integers(0, min(20, vocab), 2000).tolist(), vocab=vocab)
