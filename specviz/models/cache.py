"""A transformers Cache written in place: rolling back is a smaller number, not a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionLayer

from specviz.models.states import KeptStates, attends, has_state

__all__ = ["InPlaceCache", "KeyValues"]


class KeyValues(Protocol):
    """The keys and values of one sequence, wherever they lie; see `InPlaceCache` for what each part does."""

    @property
    def length(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    def open(self, rows: int, key_len: int, ahead: int = 0) -> None: ...

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]: ...

    def commit(self, rows: int) -> None: ...

    def roll_back(self, length: int) -> None: ...

    def gather(self, places: list[int], start: int) -> None: ...

    def close(self) -> None: ...


class _Window:
    """Where the next pass writes and how far attention reads; one object shared by all layers."""

    def __init__(self) -> None:
        self.length = 0
        self.start = 0
        self.key_len = 0


class _InPlaceLayer(DynamicLayer):
    """Keys and values of one layer in a buffer of fixed capacity."""

    def __init__(self, window: _Window, capacity: int) -> None:
        super().__init__()
        self._window = window
        self._capacity = capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        # Zeros, not garbage: masked places are multiplied by 0, and 0 * NaN is NaN.
        shape = (*key_states.shape[:2], self._capacity)
        self.keys = key_states.new_zeros((*shape, key_states.shape[-1]))
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        start, stop = self._window.start, self._window.start + key_states.shape[-2]
        self.keys[:, :, start:stop] = key_states
        self.values[:, :, start:stop] = value_states
        return self.keys[:, :, : self._window.key_len], self.values[:, :, : self._window.key_len]

    def get_seq_length(self) -> int:
        return self._window.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._window.key_len, 0


class _StateAndKeysLayer(LinearAttentionLayer, _InPlaceLayer):
    """A layer that mixes attention and a recurrent state (Falcon-H1)."""

    is_compileable = False

    def __init__(self, window: _Window, capacity: int, number_of_states: int) -> None:
        _InPlaceLayer.__init__(self, window, capacity)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *keys_and_values: Any, **states: Any) -> None:
        if keys_and_values:
            _InPlaceLayer.lazy_initialization(self, *keys_and_values)
        else:
            LinearAttentionLayer.lazy_initialization(self, **states)


class InPlaceCache:
    """The keys and values of one sequence, and the recurrent states where a model has such layers.

    length: entries that count; everything behind it is free to be overwritten.
    handle: what the model is given as its cache. states: rolling back does not touch them.
    """

    def __init__(self, num_layers: int, capacity: int, kinds: Sequence[Any] = ()) -> None:
        """
        Args:
            kinds: for each layer, of `specviz.models.states.layers_of`; nothing where all layers keep keys only.
        """
        self._window = _Window()
        self.capacity = capacity
        layers = [self._layer(kind) for kind in kinds or [None] * num_layers]
        self._layers: list[_InPlaceLayer] = [layer for layer in layers if isinstance(layer, _InPlaceLayer)]
        self.states = KeptStates([layer for layer in layers if has_state(layer)])
        self.handle = Cache(layers=layers)

    def _layer(self, kind: Any) -> Any:
        if kind is None or (attends(kind) and not has_state(kind)):
            return _InPlaceLayer(self._window, self.capacity)
        return _StateAndKeysLayer(self._window, self.capacity, kind.number_of_states) if attends(kind) else kind

    @property
    def length(self) -> int:
        return self._window.length

    @property
    def start(self) -> int:
        """Where the opened pass writes its first row."""
        return self._window.start

    def open(self, rows: int, key_len: int, ahead: int = 0) -> None:
        """Prepare a pass of `rows` new entries that reads `key_len` places, unused ones included.

        ahead: entries behind `length` that an earlier pass wrote, that do not count yet and stay as they are.
        """
        start = self.length + ahead
        assert start + rows <= key_len <= self.capacity, "the cache was made too small"
        self._window.start, self._window.key_len = start, key_len

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put [1, heads, rows, head_dim] where `open` said; returns views of `key_len` places, unused ones included.

        layer: counted among those that keep keys.
        """
        return self._layers[layer].update(keys, values)

    def commit(self, rows: int) -> None:
        """Count the first `rows` entries behind `length` in."""
        assert 0 <= rows <= self._window.key_len - self.length
        self._window.length += rows

    def roll_back(self, length: int) -> None:
        """Forget all entries from `length` on, in constant time.

        Raises:
            ValueError: `length` is negative or more than is there.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"Cannot roll a cache of {self.length} entries back to {length}.")
        self._window.length = length

    def gather(self, places: list[int], start: int) -> None:
        """Move the entries at `places` (ascending, each >= its goal) to start, start + 1, ..."""
        if places == list(range(start, start + len(places))):
            return
        for layer in self._layers:
            if layer.is_initialized:
                assert layer.keys is not None and layer.values is not None
                index = torch.tensor(places, device=layer.keys.device)
                stop = start + len(places)
                layer.keys[:, :, start:stop] = layer.keys.index_select(2, index)
                layer.values[:, :, start:stop] = layer.values.index_select(2, index)

    def close(self) -> None:
        """The buffers go with the object; nothing else holds them."""

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values that count, in bytes."""
        total = self.states.num_bytes
        for layer in self._layers:
            if layer.is_initialized:
                assert layer.keys is not None and layer.values is not None
                total += layer.keys[:, :, : self.length].nbytes + layer.values[:, :, : self.length].nbytes
        return total
