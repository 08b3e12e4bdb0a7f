"""Sliding windows: which layers of a model look back only so far, and what that hides from a row.

All keys are kept and what lies outside a layer's window is masked, so taking a pass back stays a smaller number: a
cache that drops old keys, as the library's own does, could not bring them back.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DummyLayer, DynamicSlidingWindowLayer

from specviz.errors import CacheNotCroppableError
from specviz.models.states import has_state, is_known_layer, layers_of

__all__ = ["check_croppable", "layer_types", "narrowed", "windows_of"]

ONE_MASK = ("mistral", "ministral3")
"""Families whose code makes one mask for all layers, whatever their configuration says."""

_MASK_MAKER = "create_sliding_window_causal_mask"
"""What the library's code for a family with windows calls; the others see everything, whatever a configuration says."""

_ROUNDS = ("n_recurrent_loops", "H_cycles")
"""Of families that run through their layers several times (Dory, HRM) and keep what each round saw."""


def check_croppable(model: Any, unmasked: int | None = None) -> None:
    """Refuse a model whose past cannot be rolled back to an earlier token, before the first token.

    Args:
        unmasked: most entries of a caller that does not mask what a sliding window hides, and so must not reach it, and
            that keeps no recurrent state. None: the caller does both.
    Raises:
        CacheNotCroppableError: naming the model type and the kind of layer.
    """
    windows = windows_of(model)
    if unmasked is not None and any(map(has_state, layers_of(model))):
        raise CacheNotCroppableError(_refusal(_kind(model), "a recurrent state"))
    for window in windows:
        if unmasked is not None and window is not None and window < unmasked:
            raise CacheNotCroppableError(
                f"Models of type “{_kind(model)}” see {window} tokens back in some layers, and here {unmasked} are "
                "needed. Choose shorter texts, or a model with full attention in every layer."
            )


def windows_of(model: Any) -> tuple[int | None, ...]:
    """For each layer the number of last tokens that it sees, itself included; None where it sees all, or keeps no keys.

    Raises:
        CacheNotCroppableError: a layer keeps something else than the keys and values of each token, or a state.
    """
    config = model.config.get_text_config(decoder=True)
    kind = _kind(model)
    if any(getattr(config, name, None) is not None for name in _ROUNDS):
        raise CacheNotCroppableError(_refusal(kind, "what each round through the same layers saw"))
    try:
        layers = layers_of(model)
    except Exception as error:  # unknown layer types raise whatever the library of the day raises
        raise CacheNotCroppableError(_refusal(kind, f"a cache of its own ({type(error).__name__})")) from error
    has_own = getattr(model, "_is_stateful", False) and not any(map(has_state, layers))
    if has_own or not getattr(model, "_supports_default_dynamic_cache", lambda: True)():
        raise CacheNotCroppableError(_refusal(kind, "a recurrent state of their own"))
    types = layer_types(config)
    windows: list[int | None] = []
    for index, layer in enumerate(layers):
        name = None if types is None else types[index]
        # A dummy reads the keys of a layer before it (Gemma 3n and 4), within its own window, or attends to nothing.
        dummy, window = type(layer) is DummyLayer, type(layer) is DynamicSlidingWindowLayer
        if is_known_layer(layer) or (dummy and name != "sliding_attention"):
            windows.append(None)
        elif dummy or (window and name in (None, "sliding_attention")):
            windows.append(int(config.sliding_window if dummy else layer.sliding_window))
        else:  # chunks of attention look like a window to the cache, yet hide other tokens
            raise CacheNotCroppableError(_refusal(kind, name or type(layer).__name__))
    if types is None and (len(set(windows)) > 1 or (any(windows) and getattr(config, "sliding_window", None) is None)):
        raise CacheNotCroppableError(_refusal(kind, "attention in chunks"))
    if kind in ONE_MASK and len(set(windows)) > 1:
        raise CacheNotCroppableError(_refusal(kind, "layers of two kinds under one mask"))
    return tuple(windows) if any(windows) and _makes_windows(model) else (None,) * len(windows)


def layer_types(config: Any) -> list[str] | None:
    """The name of each layer's mask, where the family has several."""
    types = getattr(config, "layer_types", None)
    return None if types is None else list(types)


def narrowed(seen: Tensor, positions: Tensor, start: int, window: int | None) -> Tensor:
    """What is left of a mask in a layer with a window.

    Args:
        seen: [rows, key_len] bool. positions: [rows] int64, of the rows, whose keys lie at start, start + 1, ...; every
            entry before them lies at its own position. In a tree a row's place and position differ, and distance
            is one of positions: what a row sees must not depend on how many branches stand beside it.
    """
    if window is None:
        return seen
    places = torch.arange(seen.shape[-1], device=seen.device)
    places[start : start + len(positions)] = positions
    return seen & (places > positions[:, None] - window)


def _makes_windows(model: Any) -> bool:
    files = {type(module).__module__ for module in model.modules()}
    return any(hasattr(sys.modules.get(name), _MASK_MAKER) for name in files)


def _kind(model: Any) -> str:
    config = model.config.get_text_config(decoder=True)
    return str(getattr(config, "model_type", type(model).__name__))


def _refusal(kind: str, what: str) -> str:
    return (
        f"Models of type “{kind}” keep {what}, which cannot be rolled back when a draft is refused: refused words "
        "would go on to change the text. Choose a model whose layers all have full attention or sliding windows, or a "
        "recurrent state that transformers keeps."
    )
