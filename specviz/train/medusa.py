"""Training Medusa heads: residual blocks on the target's last hidden state, each head for one place further ahead.

Source: Cai et al. (2024), arXiv 2401.10774, section 2.2 (Medusa-1: the target stays as it is), with the target's own
distributions as what is learned, and its own output layer for every head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from specviz.drafters.medusa import Heads
from specviz.train.batches import Batch
from specviz.train.loop import fast_products, imitation_loss

__all__ = ["MedusaLesson"]


class MedusaLesson(torch.nn.Module):
    """weights, biases: per block in a row [heads, d_model, d_model] and [heads, d_model], float32."""

    def __init__(self, target: Any, output_ids: Tensor, *, num_heads: int, num_blocks: int, hard: float) -> None:
        super().__init__()
        weight = target.get_output_embeddings().weight.detach()
        size = weight.shape[1]
        self.weights = torch.nn.ParameterList(torch.zeros(num_heads, size, size, device=weight.device) for _ in range(num_blocks))
        self.biases = torch.nn.ParameterList(torch.zeros(num_heads, size, device=weight.device) for _ in range(num_blocks))
        self._head = weight[output_ids.to(weight.device)]
        self._hard = hard

    @property
    def module(self) -> torch.nn.Module:
        return self

    def loss(self, batch: Batch) -> Tensor:
        """At position t head k, from 1, imitates what the target says at t + k."""
        total = torch.zeros((), device=batch.ids.device)
        num_heads = self.biases[0].shape[0]
        length = batch.ids.shape[1]
        for head in range(min(num_heads, length - 1)):
            ahead = head + 1
            chosen = batch.chosen[:, ahead:]
            states = batch.last[:, : length - ahead][chosen].to(self.biases[0].dtype)
            with fast_products(self.biases[0]):
                for weight, bias in zip(self.weights, self.biases, strict=True):
                    states = states + silu(torch.nn.functional.linear(states, weight[head], bias[head]))
            total = total + imitation_loss(states, batch.last[:, ahead:][chosen], self._head, self._hard)
        return total / num_heads

    def heads(self, target_sha256: str) -> Heads:
        """The trained heads, bfloat16."""
        return Heads(
            tuple(weight.detach().bfloat16() for weight in self.weights),
            tuple(bias.detach().bfloat16() for bias in self.biases),
            self.biases[0].shape[0],
            target_sha256=target_sha256,
        )
