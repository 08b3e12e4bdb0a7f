"""Recurrent states: layers that keep one state for all of the past, and how such a past is taken back.

A state has seen what was drafted and cannot be cut. So a copy is kept before a check, and brought back when a draft is
refused; the kept tokens are then fed again, see `specviz.models.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

__all__ = [
    "KeptStates",
    "attends",
    "has_state",
    "has_states",
    "is_known_layer",
    "layers_of",
    "needs_mask",
    "state_notes",
    "step_through_scans",
]

_UNCUT = (DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
_NO_MIXING = ("mlp", "moe")
"""Layer types that look at no other token."""


def layers_of(model: Any) -> list[Any]:
    """An empty cache layer of transformers for each layer of the model, which tells what that layer keeps."""
    return list(DynamicCache(config=model.config.get_text_config(decoder=True)).layers)


def is_known_layer(layer: Any) -> bool:
    """Whether the layer keeps a state, or all keys, in a way that sessions know."""
    return type(layer) in _UNCUT


def attends(layer: Any) -> bool:
    """Whether the layer keeps keys and values."""
    return isinstance(layer, DynamicLayer)


def needs_mask(layer: Any, layer_type: str | None) -> bool:
    """Whether the layer attends, be it to keys that another layer keeps."""
    return attends(layer) or (type(layer) is DummyLayer and layer_type not in _NO_MIXING)


def has_state(layer: Any) -> bool:
    """Whether the layer keeps a recurrent state; a convolution's last inputs are one too."""
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def has_states(model: Any) -> bool:
    """Whether some of the model's layers keep one."""
    return any(map(has_state, layers_of(model)))


class KeptStates:
    """The recurrent states of one sequence, and a copy of them to come back to.

    at: how many tokens the copy has seen; 0 where there is none, as a state that has seen nothing needs none.
    """

    def __init__(self, layers: Sequence[LinearAttentionCacheLayerMixin]) -> None:
        self._layers = list(layers)
        self._copies: list[Tensor] = []
        self.at = 0

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def num_bytes(self) -> int:
        """Memory of the states and of their copy."""
        return sum(state.nbytes for state in (*self._states(), *self._copies))

    @torch.inference_mode()
    def keep(self, length: int) -> None:
        """Copy the states, which have seen `length` tokens. Takes the time of writing them once."""
        assert not length or all(any(layer.has_previous_state.values()) for layer in self._layers), "kept elsewhere"
        self.at = length
        states = self._states() if length else []
        if len(states) != len(self._copies):
            self._copies = [torch.empty_like(state) for state in states]
        for copy, state in zip(self._copies, states, strict=True):
            copy.copy_(state)

    @torch.inference_mode()
    def bring_back(self, length: int) -> int:
        """Put the copy in place again, or empty states where it has seen more than `length` tokens.

        Returns:
            How many tokens the states have seen now.
        """
        if self.at > length or not self._copies:
            self.at, self._copies = 0, []
            for layer in self._layers:
                LinearAttentionCacheLayerMixin.reset(layer)
            return 0
        for copy, state in zip(self._copies, self._states(), strict=True):
            state.copy_(copy)
        return self.at

    def _states(self) -> list[Tensor]:
        """All tensors that the layers hold, in the same order each time; none before the first pass."""
        return [
            state
            for layer in self._layers
            for states in (layer.conv_states, layer.recurrent_states)
            for state in states.values()
            if state is not None
        ]


def state_notes(model: Any) -> list[str]:
    """What a reader of a run has to know about a target that keeps states."""
    notes = [
        "This target keeps a recurrent state. After a refusal it is brought back to before the check and the kept "
        "tokens are fed again: such a step costs two passes."
    ]
    if any(map(_is_first_mamba, model.modules())):
        notes.append("Its Mamba 1 layers read a draft token by token, so a check of several tokens costs more here.")
    return notes


def step_through_scans(model: Any) -> None:
    """Let Mamba 1 layers (Gu & Dao 2023; Jamba's too) go on from a state with several tokens at once.

    Their scan in transformers starts from an empty state whenever it is given more than one token. Behind a state, the
    layer is therefore called token by token, as in plain decoding; all other layers still read all tokens in one pass.
    """
    for module in model.modules():
        if _is_first_mamba(module) and not hasattr(module, "steps"):
            kind: Any = type(module)
            module.__class__ = _stepping(kind)  # not a function of this one module: copies must have their own


def _is_first_mamba(module: Any) -> bool:
    return all(hasattr(module, name) for name in ("A_log", "x_proj", "dt_proj", "conv1d", "layer_idx"))


@cache
def _stepping(kind: Any) -> type:
    class Stepping(kind):  # type: ignore[misc]
        steps = True

        def forward(self, hidden_states: Tensor, cache: Any = None, **more: Any) -> Tensor:
            if cache is None or hidden_states.shape[1] == 1 or cache.get_conv_state(self.layer_idx) is None:
                return super().forward(hidden_states, cache=cache, **more)  # type: ignore[no-any-return]
            rows = hidden_states.split(1, dim=1)
            return torch.cat([super(Stepping, self).forward(row, cache=cache, **more) for row in rows], 1)

    return Stepping
