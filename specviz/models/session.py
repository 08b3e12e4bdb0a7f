"""One sequence in one model: passes, and taking them back. Hides the cache and how the model is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.models.cache import InPlaceCache, check_croppable
from specviz.models.decoder import Decoder, decoder_for

__all__ = ["KEY_BLOCK", "MAX_NODES", "Session"]

KEY_BLOCK = 64
"""In exact mode attention reads a key length rounded up to a multiple of this; unused places are masked."""

MAX_NODES = 256
"""Most drafted rows a pass, window rows included. The cache keeps room for them, a larger tree is cut."""

PREFILL_ROWS = 256
"""Prompt tokens a pass. Bounds the memory of a long prompt, and the time until a closed run stops."""


class Session:
    """One per run; nothing is stored on the model, so visitors never meet.

    length: cache entries that count. hidden: [rows, d_model] last hidden states of the last pass where asked for.
    width: rows of every pass made by `score` (padded on the right, rolled back), 0 = as many as there are tokens.
        A fixed width with a rounded key length makes a position's logits independent of how many tokens are checked
        with it, which is what bit-exact verification rests on.
    """

    def __init__(self, model: Any, *, capacity: int, width: int = 0, keep_hidden: bool = False) -> None:
        """
        Args:
            model: a transformers causal LM in eval mode.
            capacity: most tokens the sequence may hold; a pass may be `width` rows or MAX_NODES nodes longer.
        Raises:
            CacheNotCroppableError: the model's past cannot be rolled back.
        """
        check_croppable(model, capacity)
        room = -(-(capacity + max(width, 1 + MAX_NODES)) // KEY_BLOCK) * KEY_BLOCK
        self.width = width
        self.hidden: Tensor | None = None
        self.rows = 0
        self._decoder: Decoder | None = decoder_for(model)
        self._cache = InPlaceCache(self._decoder.num_layers, room)
        self._keep_hidden = keep_hidden
        self._device = self._decoder.device

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def num_bytes(self) -> int:
        """Memory of the cache entries that count."""
        return self._cache.num_bytes

    def extend(self, token_ids: Sequence[int], *, num_logits: int = 1) -> Tensor:
        """Append tokens for good, as many rows as there are tokens.

        Returns:
            [num_logits, vocab] logits of the last `num_logits` tokens.
        """
        assert token_ids, "nothing to append"
        for start in range(0, len(token_ids), PREFILL_ROWS):
            block = token_ids[start : start + PREFILL_ROWS]
            rows = len(block)
            key_len = self.length + rows
            positions = list(range(self.length, key_len))
            logits = self._pass(block, positions, self._chain_mask(rows, key_len), key_len, min(num_logits, rows))
            self._cache.commit(rows)
        return logits

    def score(self, root: int, token_ids: Tensor, parents: Sequence[int]) -> Tensor:
        """Logits for the last committed token and for every drafted one, in one pass that counts for nothing yet.

        Args:
            root: the last committed token, which is not in the cache. token_ids: [n] int64. parents: [n].
        Returns:
            [n + 1, vocab]; row 0 belongs to root, row i + 1 to node i and sees only its own path.
        """
        n = len(parents)
        chain = all(parent == node - 1 for node, parent in enumerate(parents))
        rows, key_len = n + 1, self.length + n + 1
        if self.width and chain and n < self.width:
            rows = self.width
            key_len = -(-(self.length + rows) // KEY_BLOCK) * KEY_BLOCK
        self.rows = rows
        ids = [root, *token_ids.tolist()]
        ids += [ids[-1]] * (rows - len(ids))
        if chain:
            positions = list(range(self.length, self.length + rows))
            mask = self._chain_mask(rows, key_len)
        else:
            depths = [0]
            for parent in parents:
                depths.append(depths[parent + 1] + 1)
            positions = [self.length + depth for depth in depths]
            mask = self._tree_mask(parents, key_len)
        return self._pass(ids, positions, mask, key_len, n + 1 if rows == n + 1 else rows)[: n + 1]

    def keep_path(self, nodes: Sequence[int]) -> None:
        """After `score`: keep root and this root-to-node path, drop the rest."""
        start = self.length + 1
        if any(node != i for i, node in enumerate(nodes)):
            with torch.inference_mode():
                self._cache.gather([start + node for node in nodes], start)
        self._cache.commit(1 + len(nodes))

    def roll_back(self, length: int) -> None:
        """Forget everything from token `length` on."""
        self._cache.roll_back(length)

    def close(self) -> None:
        """Free the keys and values."""
        self._cache = InPlaceCache(0, 0)
        self._decoder = None
        self.hidden = None

    # --- one pass ---------------------------------------------------------------------------------------------

    def _pass(self, ids: Sequence[int], positions: list[int], seen: Tensor, key_len: int, num_logits: int) -> Tensor:
        assert self._decoder is not None, "the session is closed"
        self._cache.open(len(ids), key_len)
        # Learned position tables end; a padding row past the end takes the last valid place, nobody reads it.
        last = self._decoder.max_positions - 1
        with torch.inference_mode():
            logits, self.hidden = self._decoder.forward(
                torch.tensor(ids, device=self._device),
                torch.tensor([min(position, last) for position in positions], device=self._device),
                seen,
                self._cache,
                num_logits=num_logits,
                hidden=self._keep_hidden,
            )
        return logits

    def _chain_mask(self, rows: int, key_len: int) -> Tensor:
        """[rows, key_len] bool: each row sees the cache and the rows up to itself."""
        last_seen = torch.arange(self.length, self.length + rows, device=self._device)
        return torch.arange(key_len, device=self._device) <= last_seen[:, None]

    def _tree_mask(self, parents: Sequence[int], key_len: int) -> Tensor:
        """[n + 1, key_len] bool: each row sees the cache, the root, its ancestors and itself."""
        rows = len(parents) + 1
        seen = torch.zeros(rows, key_len, dtype=torch.bool)
        seen[:, : self.length + 1] = True
        for node, parent in enumerate(parents):
            seen[node + 1] |= seen[parent + 1]
            seen[node + 1, self.length + 1 + node] = True
        return seen.to(self._device)
