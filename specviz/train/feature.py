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
from specviz.train.loop import fast_products

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

    def pairs(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """By depth: root t has read the target's state at t and token t + 1; at depth d, from 0, it says token
        t + d + 2."""
        body, norm = self._trunk.model, self._trunk.model.norm.weight
        roots = batch.ids.shape[1] - 1
        cache = DynamicCache()
        places = torch.arange(roots, device=batch.ids.device)[None]
        with fast_products(norm):
            embedded = body.embed_tokens(batch.ids).to(norm.dtype)
            known = torch.cat((batch.taps, batch.last[:, :, None]), 2)[:, :roots]
            state = self._parts.begin(known.to(norm.dtype))
        for depth in range(min(self._depth, roots)):
            with fast_products(norm):
                token = torch.roll(embedded, -(depth + 1), 1)[:, :roots]  # the last roots read what comes round
                state = self._through(self._parts.enter(token, state), places + depth, depth, cache)
                chosen = torch.zeros(batch.ids.shape[0], roots, dtype=torch.bool, device=batch.ids.device)
                chosen[:, : roots - depth] = batch.chosen[:, depth + 1 :]
                said = body.norm(state[chosen])
            yield said, torch.roll(batch.last, -(depth + 1), 1)[:, :roots][chosen]

    def _through(self, x: Tensor, places: Tensor, depth: int, cache: DynamicCache) -> Tensor:
        """The layers on nodes of one depth. Each sees the roots up to its own and, of the nodes, its own ancestors."""
        roots = x.shape[1]
        first = torch.ones(roots, roots, dtype=torch.bool, device=x.device).tril()
        own = torch.eye(roots, dtype=torch.bool, device=x.device)
        seen = torch.cat([first] + [own] * depth, -1)[None, None]
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill(~seen, torch.finfo(x.dtype).min)
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
