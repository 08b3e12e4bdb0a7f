"""Batches of a corpus with the target's states: the same ones for the same seed, whenever training begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specviz.train.corpus import Corpus
from specviz.train.states import States

__all__ = ["Batch", "Batches"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sequences side by side, padded on the right.

    ids: [b, t] int64. chosen: [b, t] bool, where the target's next token belongs to an answer: there drafts learn.
    last: [b, t, d_model]; taps: [b, t, k, d_model]: the target's states, bfloat16.
    """

    ids: Tensor
    chosen: Tensor
    last: Tensor
    taps: Tensor

    @property
    def num_tokens(self) -> int:
        return int(self.chosen.sum())


class Batches:
    """Every sequence once an epoch, in an order that depends on the seed and the epoch alone."""

    def __init__(
        self,
        corpus: Corpus,
        states: States,
        sequences: Sequence[int],
        *,
        size: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            sequences: their numbers in the corpus. size: sequences a batch; the last of an epoch may be smaller.
            device: where batches are put.
        """
        assert sequences, "no sequence to learn from"
        self._corpus = corpus
        self._states = states
        self._sequences = np.asarray(sequences)
        self._size = min(size, len(sequences))
        self._seed = seed
        self._device = device

    @property
    def per_epoch(self) -> int:
        return -(-len(self._sequences) // self._size)

    def __getitem__(self, step: int) -> Batch:
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._sequences))
        return self.of(self._sequences[order[place * self._size : (place + 1) * self._size]].tolist())

    def of(self, sequences: Sequence[int]) -> Batch:
        """The batch of these sequences."""
        offsets = self._corpus.offsets
        spans = [(int(offsets[i]), int(offsets[i + 1])) for i in sequences]
        longest = max(end - start for start, end in spans)
        ids = torch.zeros(len(spans), longest, dtype=torch.int64)
        chosen = torch.zeros(len(spans), longest, dtype=torch.bool)
        last = torch.zeros(len(spans), longest, self._states.last.shape[-1], dtype=torch.bfloat16)
        taps = torch.zeros(len(spans), longest, *self._states.taps.shape[1:], dtype=torch.bfloat16)
        for row, (i, (start, end)) in enumerate(zip(sequences, spans, strict=True)):
            ids[row, : end - start] = torch.from_numpy(self._corpus.tokens[start:end].astype(np.int64))
            chosen[row, max(0, int(self._corpus.prompt_len[i]) - 1) : end - start] = True
            last[row, : end - start] = self._states.last[start:end]
            taps[row, : end - start] = self._states.taps[start:end]
        return Batch(*(part.to(self._device) for part in (ids, chosen, last, taps)))
