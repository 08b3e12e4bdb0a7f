"""What a trained draft chooses among: its own output ids, and the ids that the run's text holds besides.

A trimmed output layer makes a small draft cheap, and costs it every token it cannot name. Rare names and words are
mostly those that the prompt or the answer has used already, so the rows of the target's output layer for these join.

Source: trimming as in Zhao et al. (2025), FR-Spec, arXiv 2502.14856; what joins from the text is our own addition.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.models.decoder import LeanDecoder

__all__ = ["ContextHead"]


class ContextHead:
    """Logits over `ids`, which grow with the text that is read.

    ids: [v] int64, what the logits stand for: the draft's own output ids first, then those of the text.
    """

    def __init__(self, decoder: LeanDecoder, own_ids: Tensor, output_layer: Tensor | None, *, vocab_size: int) -> None:
        """
        Args:
            decoder: of the draft, whose own head stands for `own_ids`.
            output_layer: [vocab, d_model] the target's, which the decoder's head is some rows of; None for a head with
                an output layer of its own, where no row can join.
            vocab_size: ids at or above never join.
        """
        self.ids = own_ids
        self._decoder = decoder
        self._own_ids = own_ids
        self._output_layer = output_layer
        self._vocab_size = vocab_size
        self.reset()

    def reset(self) -> None:
        """Forget the text."""
        self.ids = self._own_ids
        self._known = set(self._own_ids.tolist())
        self._num_read = 0
        self._rows: Tensor | None = None

    def read(self, text: Sequence[int]) -> None:
        """Take over ids that the text holds; it must go on where the text of the call before ended."""
        if self._output_layer is None:
            return
        new = dict.fromkeys(token for token in text[self._num_read :] if token < self._vocab_size)
        self._num_read = len(text)
        fresh = [token for token in new if token not in self._known]
        if not fresh:
            return
        self._known.update(fresh)
        added = torch.tensor(fresh)
        rows = self._output_layer[added.to(self._output_layer.device)]
        self._rows = rows if self._rows is None else torch.cat((self._rows, rows))
        self.ids = torch.cat((self.ids, added.to(self.ids.device)))

    def __call__(self, states: Tensor) -> Tensor:
        """[n, d_model] states of the last layer to [n, v] logits through the final norm."""
        states = self._decoder.normed(states)
        logits = self._decoder.project(states)
        if self._rows is None:
            return logits
        return torch.cat((logits, states @ self._rows.mT), -1)
