"""A draft model distilled from its target: some of its layers, trained to say what all of them say.

Source: word-level distillation as in Zhou et al. (2023), DistillSpec, arXiv 2310.08461, on the target's own answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from specviz.models.trunk import build_trunk
from specviz.train.batches import Batch
from specviz.train.loop import Said, fast_products

__all__ = ["StudentLesson", "fresh_trunk", "trainable"]


def fresh_trunk(target: Any, layers: Sequence[int], output_ids: Tensor) -> Any:
    """A trunk to start training from, float32 where it is trained.

    Args:
        layers: numbers of the target's layers that the draft's own begin as, from 1.
        output_ids: [v] int64, the draft's output vocabulary.
    """
    trunk = build_trunk(target, len(layers), output_ids)
    for own, number in zip(trunk.model.layers, layers, strict=True):
        own.load_state_dict(target.model.layers[number - 1].state_dict())
    trunk.model.norm.load_state_dict(target.model.norm.state_dict())
    return trainable(trunk)


def trainable(trunk: Any) -> Any:
    """The same trunk with layers and norm in float32, asking for gradients; the embedding is the target's and stays."""
    body = trunk.model
    device = body.embed_tokens.weight.device
    body.layers.to(device).float().requires_grad_(True)
    body.norm.to(device).float().requires_grad_(True)
    body.rotary_emb.to(device)
    body.embed_tokens.requires_grad_(False)
    return trunk


class StudentLesson:
    """module: the trunk that is trained or judged. head: [v, d_model] rows of the target's output layer."""

    fade = 1.0

    def __init__(self, trunk: Any) -> None:
        self.module = trunk
        self.head: Tensor = trunk.lm_head.weight.detach()
        self.output_ids: Tensor = trunk.output_ids

    def places(self, batch: Batch) -> Iterator[Said]:
        """One place: what the draft says behind every token of an answer."""
        norm = self.module.model.norm.weight
        with fast_products(norm):
            embedded = self.module.model.embed_tokens(batch.ids).to(norm.dtype)
            states = self.module.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        yield Said(states[batch.chosen], batch.chosen.flatten().nonzero()[:, 0])
