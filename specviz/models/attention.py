"""Where a pass's keys and values go, and what each of its rows reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specviz.models.cache import KeyValues

__all__ = ["Attention", "Block", "Heads", "SingleAttention", "additive"]

Block = tuple[int, int, int]
"""Rows first .. last - 1 of a pass that are attended together, and how many keys they read."""


class Heads:
    """The shape of a model's attention. groups: query heads that read the same keys."""

    def __init__(self, num: int, num_keys: int, head_dim: int, scale: float) -> None:
        self.num, self.num_keys, self.head_dim, self.scale = num, num_keys, head_dim, scale
        self.groups = num // num_keys
        self.width = num * head_dim


class Attention(Protocol):
    """Attention of one pass, called once a layer."""

    def __call__(self, layer: int, qk: Tensor, v: Tensor) -> Tensor:
        """
        Args:
            qk: [rows, heads + key heads, head_dim] queries and keys, rotated. v: [rows, key heads, head_dim].
        Returns:
            [rows or more, heads * head_dim]; rows behind the first `rows` belong to nobody.
        """
        ...


class SingleAttention:
    """Rows of one sequence over its own cache.

    With `blocks`, rows are attended a block at a time: a row's numbers then depend on its own block and on nothing
    behind it, however long the pass is. Else all rows read all keys.
    """

    def __init__(
        self, seen: Tensor, cache: KeyValues, heads: Heads, like: Tensor, blocks: Sequence[Block] = ()
    ) -> None:
        """
        Args:
            seen: [rows, key_len] bool. like: [rows or more, any], of the output's type, device and number of rows.
        """
        rows = len(seen)
        self._cache, self._heads, self._rows = cache, heads, rows
        self._mixed = like.new_zeros(len(like), heads.width)
        by_head = self._mixed[:rows].view(rows, heads.num_keys, heads.groups, heads.head_dim).permute(1, 2, 0, 3)
        # The query heads that share a key head become rows of one head, so that no key or value is copied.
        self._blocks = [
            (
                first,
                last,
                keys,
                additive(seen[first:last, :keys].repeat(heads.groups, 1), like.dtype),
                by_head[:, :, first:last],
            )
            for first, last, keys in blocks or [(0, rows, seen.shape[1])]
        ]

    def __call__(self, layer: int, qk: Tensor, v: Tensor) -> Tensor:
        heads = self._heads
        keys, values = self._cache.write(layer, qk[:, heads.num :].transpose(0, 1)[None], v.transpose(0, 1)[None])
        queries = (
            qk[:, : heads.num].reshape(self._rows, heads.num_keys, heads.groups, heads.head_dim).permute(1, 2, 0, 3)
        )
        for first, last, num_keys, mask, goal in self._blocks:
            q = queries[:, :, first:last].reshape(1, heads.num_keys, heads.groups * (last - first), heads.head_dim)
            attended = scaled_dot_product_attention(
                q, keys[:, :, :num_keys], values[:, :, :num_keys], attn_mask=mask, scale=heads.scale
            )
            goal.copy_(attended.view(goal.shape))
        return self._mixed


def additive(seen: Tensor, dtype: torch.dtype, *, lowest: bool = False) -> Tensor:
    """[1, 1, rows, keys]: 0 where seen, else minus infinity (or the lowest finite number)."""
    blocked = torch.finfo(dtype).min if lowest else float("-inf")
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, blocked)[None, None]
