"""Keys and values in pages of one store, which the sequences of a batch share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.batch.pages import BlockTable, PagePool
from specviz.models.decoder import LeanDecoder
from specviz.models.session import KEY_BLOCK

__all__ = ["PageStore", "PagedCache"]


class PageStore:
    """Memory for the keys and values of a pool's pages, all layers.

    kv: [layers, 2, key heads, num_pages * KEY_BLOCK, head_dim], keys first. Page p begins at place p * KEY_BLOCK.
    """

    def __init__(self, decoder: LeanDecoder, num_pages: int) -> None:
        self.pool = PagePool(num_pages, KEY_BLOCK)
        heads = decoder.heads
        # Zeros, not garbage: masked places are multiplied by 0, and 0 * NaN is NaN. Untouched, they take no memory.
        shape = (decoder.num_layers, 2, heads.num_keys, num_pages * KEY_BLOCK, heads.head_dim)
        self.kv = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)

    @property
    def page_bytes(self) -> int:
        return self.kv.nbytes // self.pool.num_pages

    def copy(self, pages: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (from, to)."""
        for source, goal in pages:
            at, to = source * KEY_BLOCK, goal * KEY_BLOCK
            self.kv[:, :, :, to : to + KEY_BLOCK] = self.kv[:, :, :, at : at + KEY_BLOCK]


class PagedCache:
    """One sequence's keys and values, with the face of `specviz.models.cache.InPlaceCache`.

    A pass reserves its pages before it writes; pages behind the last entry that counts are given back behind it.
    copied: pages (from, to) that the last `open` copied, as others read them.
    """

    def __init__(self, store: PageStore, table: BlockTable) -> None:
        self.store, self.table = store, table
        self.copied: list[tuple[int, int]] = []
        self._start = self._key_len = 0
        self._view: tuple[tuple[int, int], list[Tensor]] = ((-1, -1), [])
        self._read: Tensor | None = None  # places of the keys of this pass, where they do not lie side by side
        self._written: Tensor | None = None  # places of its rows

    @property
    def length(self) -> int:
        return self.table.length

    @property
    def num_bytes(self) -> int:
        return self.length * self.store.page_bytes // KEY_BLOCK

    def num_missing(self, stop: int) -> int:
        """Free pages that it takes to write up to entry `stop`."""
        return self.table.num_missing(self.length, max(stop, self.length))

    @property
    def start(self) -> int:
        return self._start

    def open(self, rows: int, key_len: int, ahead: int = 0) -> None:
        """Prepare a pass of `rows` new entries that reads `key_len` places, unused ones included.

        ahead: entries behind `length` that an earlier pass wrote, that do not count yet and stay as they are.
        Raises:
            PoolFullError: not enough pages are free; nothing has changed.
        """
        start = self.length + ahead
        assert start + rows <= key_len
        self.copied = self.table.reserve(self.length, key_len)
        self.store.copy(self.copied)
        self._start, self._key_len = start, key_len
        self._read = self._written = None

    def places(self, rows: int) -> list[int]:
        """Where in the store the opened pass writes its rows."""
        return [page * KEY_BLOCK + at for page, at in map(self.table.place, range(self.start, self.start + rows))]

    def views(self) -> list[Tensor] | None:
        """2 * layers of [1, key heads, key_len, head_dim], each layer's keys and then its values, without a copy; None
        where the pages do not lie side by side."""
        pages = self.table.pages[: -(-self._key_len // KEY_BLOCK)]
        if pages != list(range(pages[0], pages[0] + len(pages))):
            return None
        key = (pages[0], self._key_len)
        if self._view[0] != key:
            at = pages[0] * KEY_BLOCK
            kv = self.store.kv[:, :, None, :, at : at + self._key_len]
            self._view = (key, list(kv.flatten(0, 1).unbind(0)))
        return self._view[1]

    def gathered(self, layer: int) -> tuple[Tensor, Tensor]:
        """A copy of a layer's keys and values, for pages that do not lie side by side."""
        if self._read is None:
            entries = torch.arange(self._key_len, device=self.store.kv.device)
            pages = torch.tensor(self.table.pages, device=entries.device)
            self._read = pages[entries // KEY_BLOCK] * KEY_BLOCK + entries % KEY_BLOCK
        keys, values = self.store.kv[layer].index_select(2, self._read)[:, None].unbind(0)
        return keys, values

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put [1, heads, rows, head_dim] where `open` said; returns `key_len` places, unused ones included."""
        if self._written is None:
            self._written = torch.tensor(self.places(keys.shape[-2]), device=keys.device)
        self.store.kv[layer, 0].index_copy_(1, self._written, keys[0])
        self.store.kv[layer, 1].index_copy_(1, self._written, values[0])
        views = self.views()
        if views is None:
            return self.gathered(layer)
        return views[2 * layer], views[2 * layer + 1]

    def commit(self, rows: int) -> None:
        """Count the first `rows` entries behind `length` in, and give back the pages behind them."""
        self.table.commit(self.length + rows)
        self.table.trim()

    def roll_back(self, length: int) -> None:
        """Forget all entries from `length` on. Raises ValueError as `BlockTable.roll_back`."""
        self.table.roll_back(length)

    def gather(self, places: list[int], start: int) -> None:
        """Move the entries at `places` (ascending, each >= its goal) to start, start + 1, ..."""
        if places == list(range(start, start + len(places))):
            return
        device = self.store.kv.device
        source, goal = (
            torch.tensor([page * KEY_BLOCK + at for page, at in map(self.table.place, entries)], device=device)
            for entries in (places, range(start, start + len(places)))
        )
        self.store.kv[:, :, :, goal] = self.store.kv.index_select(3, source)

    def close(self) -> None:
        """Give all pages back."""
        self.table.close()
        self._view = ((-1, -1), [])
