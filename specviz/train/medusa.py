"""Training Medusa heads: residual blocks on the target's last hidden state, each head for one place further ahead.

Source: Cai et al. (2024), arXiv 2401.10774, section 2.2 (Medusa-1: the target stays as it is), with the target's own
distributions as what is learned, and its own output layer for every head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from specviz.drafters.medusa import Heads
from specviz.train.batches import Batch
from specviz.train.loop import Said, fast_products

__all__ = ["MedusaLesson", "fresh_heads"]


def fresh_heads(num_heads: int, num_blocks: int, hidden_size: int, device: torch.device) -> Heads:
    """Heads to start training from, float32: their blocks add nothing yet."""
    return Heads(
        tuple(torch.zeros(num_heads, hidden_size, hidden_size, device=device) for _ in range(num_blocks)),
        tuple(torch.zeros(num_heads, hidden_size, device=device) for _ in range(num_blocks)),
        num_heads,
    )


class MedusaLesson:
    """module: the heads that are trained or judged. head: [v, d_model] rows of the target's output layer.

    fade: weight of a head over the one before.
    """

    fade = 0.8

    def __init__(self, heads: Heads, head: Tensor, output_ids: Tensor) -> None:
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(part) for part in heads.weights)
        self.biases = torch.nn.ParameterList(torch.nn.Parameter(part) for part in heads.biases)
        self.module: torch.nn.Module = torch.nn.ModuleList([self.weights, self.biases])
        self.head = head
        self.output_ids = output_ids
        self._num_heads = heads.num_heads

    def places(self, batch: Batch) -> Iterator[Said]:
        """By head, from 1: at position t head k imitates what the target says at t + k."""
        length = batch.ids.shape[1]
        number = torch.arange(batch.ids.numel(), device=batch.ids.device).view_as(batch.ids)
        for ahead in range(1, min(self._num_heads, length - 1) + 1):
            chosen = batch.chosen[:, ahead:]
            states = batch.last[:, : length - ahead][chosen].to(self.biases[0].dtype)
            with fast_products(self.biases[0]):
                for weight, bias in zip(self.weights, self.biases, strict=True):
                    states = states + silu(linear(states, weight[ahead - 1], bias[ahead - 1]))
            yield Said(states, number[:, ahead:][chosen])

    def heads(self, target_sha256: str) -> Heads:
        """The heads as they are stored, bfloat16."""
        return Heads(
            tuple(weight.detach().to("cpu", torch.bfloat16) for weight in self.weights),
            tuple(bias.detach().to("cpu", torch.bfloat16) for bias in self.biases),
            self._num_heads,
            target_sha256=target_sha256,
        )
