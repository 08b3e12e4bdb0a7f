"""A draft model distilled from its target: some of its layers, trained to say what all of them say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specviz.models.trunk import build_trunk
from specviz.train.batches import Batch
from specviz.train.loop import fast_products, imitation_loss

__all__ = ["StudentLesson"]


class StudentLesson:
    """module: what is trained, in float32; matrix products run in bfloat16."""

    def __init__(self, target: Any, layers: tuple[int, ...], output_ids: Tensor, *, hard: float) -> None:
        """
        Args:
            layers: numbers of the target's layers to begin with, from 1.
            output_ids: [v] int64, the draft's output vocabulary.
            hard: weight of the target's most likely token in what is imitated.
        """
        self.module = build_trunk(target, len(layers), output_ids)
        body = self.module.model
        for own, number in zip(body.layers, layers, strict=True):
            own.load_state_dict(target.model.layers[number - 1].state_dict())
        body.norm.load_state_dict(target.model.norm.state_dict())
        body.layers.float().requires_grad_(True)
        body.norm.float().requires_grad_(True)
        body.embed_tokens.requires_grad_(False)
        self._head = self.module.lm_head.weight.detach()
        self._hard = hard

    def loss(self, batch: Batch) -> Tensor:
        norm = self.module.model.norm.weight
        with fast_products(norm):
            embedded = self.module.model.embed_tokens(batch.ids).to(norm.dtype)
            states = self.module.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return imitation_loss(states[batch.chosen], batch.last[batch.chosen], self._head, self._hard)
