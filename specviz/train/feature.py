"""Training a feature head. It learns on its own outputs as well: after the target's states it is fed what it made of
them, `depth` times, so that drafting many tokens in a row is what it was trained for (EAGLE-3, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specviz.drafters.feature_head import FeatureParts, fresh_parts
from specviz.models.trunk import build_trunk
from specviz.train.batches import Batch
from specviz.train.loop import fast_products, imitation_loss

__all__ = ["FeatureLesson"]

_FADE = 0.8
"""Weight of a depth over the one before: a deep draft token counts only where all before it were accepted."""


class FeatureLesson(torch.nn.Module):
    """parts, module: what is trained, in float32; matrix products run in bfloat16."""

    def __init__(
        self, target: Any, layers: tuple[int, ...], output_ids: Tensor, *, num_taps: int, depth: int, hard: float,
        rng: torch.Generator,
    ) -> None:
        """
        Args:
            layers: numbers of the target's layers that the head's own begin as, from 1.
            depth: drafted tokens in a row to learn, from 1.
        """
        super().__init__()
        self.trunk = build_trunk(target, len(layers), output_ids)
        body = self.trunk.model
        for own, number in zip(body.layers, layers, strict=True):
            own.load_state_dict(target.model.layers[number - 1].state_dict())
        body.norm.load_state_dict(target.model.norm.state_dict())
        body.layers.float().requires_grad_(True)
        body.norm.float().requires_grad_(True)
        body.embed_tokens.requires_grad_(False)
        size = int(target.config.hidden_size)
        self.parts: FeatureParts = fresh_parts(size, num_taps, rng).to(body.norm.weight.device)
        self._head = self.trunk.lm_head.weight.detach()
        self._depth = depth
        self._hard = hard
        self.listen: Callable[[Tensor], None] = lambda _: None

    @property
    def module(self) -> torch.nn.Module:
        return self

    def loss(self, batch: Batch) -> Tensor:
        """Root t has read the target's state at t and token t + 1; at depth d it says token t + d + 2."""
        norm, device = self.trunk.model.norm.weight, batch.ids.device
        with fast_products(norm):
            embedded = self.trunk.model.embed_tokens(batch.ids).to(norm.dtype)
            roots = batch.ids.shape[1] - 1
            known = torch.cat((batch.taps, batch.last[:, :, None]), 2)[:, :roots]
            state = self.parts.begin(known.to(norm.dtype))
            cache = DynamicCache()
            total, weights = torch.zeros((), device=device), 0.0
            places = torch.arange(roots, device=device)[None]
            for depth in range(min(self._depth, roots)):
                token = torch.roll(embedded, -(depth + 1), 1)[:, :roots]  # the last `depth` roots read what comes round
                x = self.parts.enter(token, state)
                state = self._through(x, places + depth, depth, cache)
                self.listen(state)
                chosen = torch.zeros(batch.ids.shape[0], roots, dtype=torch.bool, device=device)
                chosen[:, : roots - depth] = batch.chosen[:, depth + 1 :]
                target_state = torch.roll(batch.last, -(depth + 1), 1)[:, :roots]
                draft = self.trunk.model.norm(state[chosen])
                weight = _FADE**depth
                total = total + weight * imitation_loss(draft, target_state[chosen], self._head, self._hard)
                weights += weight
        return total / weights

    def _through(self, x: Tensor, places: Tensor, depth: int, cache: DynamicCache) -> Tensor:
        """The layers on nodes of one depth. Each sees the roots up to its own and, of the nodes, its own ancestors."""
        roots = x.shape[1]
        first = torch.ones(roots, roots, dtype=torch.bool, device=x.device).tril()
        own = torch.eye(roots, dtype=torch.bool, device=x.device)
        seen = torch.cat([first] + [own] * depth, -1)[None, None]
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device).masked_fill(~seen, torch.finfo(x.dtype).min)
        body = self.trunk.model
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
