"""Training a feature head. It learns on its own outputs as well: after the target's states it is fed what it made of
them, `depth` times, so that drafting many tokens in a row is what it was trained for (EAGLE-3, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specviz.drafters.feature_head import FeatureParts
from specviz.train.batches import Batch
from specviz.train.loop import Said, fast_products

__all__ = ["FeatureLesson"]


class FeatureLesson:
    """module: parts and trunk, trained or judged. head: [v, d_model] rows of the target's output layer.

    fade: weight of a depth over the one before. A deep token counts only where all before it were accepted.
    """

    fade = 0.8

    def __init__(self, trunk: Any, parts: FeatureParts, *, depth: int) -> None:
        """
        Args:
            depth: drafted tokens in a row to learn, from 1.
        """
        self.module: torch.nn.Module = torch.nn.ModuleDict({"trunk": trunk, "parts": parts})
        self.head: Tensor = trunk.lm_head.weight.detach()
        self.output_ids: Tensor = trunk.output_ids
        self._trunk = trunk
        self._parts = parts
        self._depth = depth

    def places(self, batch: Batch) -> Iterator[Said]:
        """By depth: root t has read the target's state at t and token t + 1; at depth d, from 0, it says token
        t + d + 2."""
        body, norm = self._trunk.model, self._trunk.model.norm.weight
        roots = batch.ids.shape[1] - 1
        device = batch.ids.device
        number = torch.arange(batch.ids.numel(), device=device).view_as(batch.ids)
        cache = DynamicCache()
        with fast_products(norm):
            embedded = body.embed_tokens(batch.ids).to(norm.dtype)
            known = torch.cat((batch.taps, batch.last[:, :, None]), 2)[:, :roots]
            state = self._parts.begin(known.to(norm.dtype))
        first = 0
        for depth in range(min(self._depth, roots)):
            if depth == 1:  # roots inside the prompts are context for others and have nothing to say
                first = max(0, int(batch.chosen.any(0).nonzero()[0]) - self._depth)
                state = state[:, first:]
            with fast_products(norm):
                token = torch.roll(embedded, -(depth + 1), 1)[:, first:roots]  # the last read what comes round
                state = self._through(self._parts.enter(token, state), first, depth, cache)
                chosen = torch.zeros(batch.ids.shape[0], roots, dtype=torch.bool, device=device)
                chosen[:, : roots - depth] = batch.chosen[:, depth + 1 :]
                chosen = chosen[:, first:]
                said = body.norm(state[chosen])
            yield Said(said, torch.roll(number, -(depth + 1), 1)[:, first:roots][chosen])

    def _through(self, x: Tensor, first: int, depth: int, cache: DynamicCache) -> Tensor:
        """The layers on nodes of one depth, those of the roots from `first` on. Each sees the roots up to its own and,
        of the nodes, its own ancestors."""
        nodes = x.shape[1]
        roots = first + nodes
        shown = torch.ones(roots, roots, dtype=torch.bool, device=x.device).tril()[first:]
        own = torch.eye(nodes, dtype=torch.bool, device=x.device)
        seen = torch.cat([shown] + [own] * depth, -1)[None, None]
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill(~seen, torch.finfo(x.dtype).min)
        places = torch.arange(first, roots, device=x.device)[None] + depth
        body = self._trunk.model
        rotation = body.rotary_emb(x, places)
        for layer in body.layers:
            x = layer(
                x,
                attention_mask=mask,
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
                position_embeddings=rotation,
            )
            x = x[0] if isinstance(x, tuple) else x
        return x
