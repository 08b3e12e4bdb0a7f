"""Who owns which page of keys and values: a pool of pages, and a table of them for every sequence.

Only the accounting; where the numbers lie is the caller's affair. A page is free, or has as many readers as there are
tables that hold it. Full pages are found again by what they and everything before them say, so that sequences with the
same beginning share it; a page with more than one reader is never written but copied first. Pages that nobody reads any
more keep what they say until they are handed out again, the longest unused first.

Source: Kwon et al. (2023), Efficient Memory Management for Large Language Model Serving with PagedAttention,
arXiv 2309.06180, sections 4.2 to 4.4.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

__all__ = ["BlockTable", "PagePool", "PoolFullError"]


class PoolFullError(Exception):
    """No page is free. Nothing has changed; the scheduler makes room and asks again."""


class PagePool:
    """Pages 0 .. num_pages - 1 of `page_tokens` tokens each.

    num_used + num_free = num_pages at all times. A page that is free may still be `cached`: findable by its content.
    """

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        assert num_pages > 0 and page_tokens > 0
        self.num_pages, self.page_tokens = num_pages, page_tokens
        self._readers = [0] * num_pages
        self._free = dict.fromkeys(range(num_pages))  # in the order in which they became free
        self._says: dict[int, bytes] = {}  # page -> digest of its tokens and all before them
        self._found: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    @property
    def cached(self) -> tuple[int, ...]:
        """Free pages whose content can still be found."""
        return tuple(page for page in self._says if page in self._free)

    def readers(self, page: int) -> int:
        return self._readers[page]

    def open(self, token_ids: Sequence[int] = ()) -> BlockTable:
        """A table for a sequence that begins with these tokens; its `length` says how many of them are there already,
        whole pages of them."""
        table = BlockTable(self)
        digest = b""
        for start in range(0, len(token_ids) - self.page_tokens + 1, self.page_tokens):
            digest = _digest(digest, token_ids[start : start + self.page_tokens])
            page = self._found.get(digest)
            if page is None:
                break
            self._take(page)
            table.pages.append(page)
            table.length += self.page_tokens
        return table

    # --- for tables -------------------------------------------------------------------------------------------

    def _take(self, page: int) -> None:
        if self._readers[page] == 0:
            del self._free[page]
        self._readers[page] += 1

    def _hand_out(self, behind: int | None) -> int:
        """A free page, that after `behind` if it can be had: pages side by side are read as one, without a copy. A
        sequence's first page lies in the middle of the largest gap, so that those behind it stay free for long."""
        page = self._middle() if behind is None else behind + 1
        if page not in self._free or page in self._says:
            page = next((free for free in self._free if free not in self._says), -1)
        if page < 0:
            page = next(iter(self._free))
        self._forget(page)
        self._take(page)
        return page

    def _middle(self) -> int:
        """The page in the middle of the longest row of free pages that say nothing; -1 if there is none."""
        best, start = (0, -1), 0
        for page in range(self.num_pages + 1):
            if page == self.num_pages or page not in self._free or page in self._says:
                best = max(best, (page - start, (page + start) // 2 if start else 0))
                start = page + 1
        return best[1] if best[0] else -1

    def _give_back(self, page: int) -> None:
        assert self._readers[page] > 0, "a page was given back twice"
        self._readers[page] -= 1
        if self._readers[page] == 0:
            self._free[page] = None

    def _name(self, page: int, digest: bytes) -> None:
        """Make a full page findable. Where another says the same, that one stays the one to be found."""
        if digest not in self._found:
            self._says[page] = digest
            self._found[digest] = page

    def _forget(self, page: int) -> None:
        digest = self._says.pop(page, None)
        if digest is not None:
            del self._found[digest]


class BlockTable:
    """The pages of one sequence: entry i lies in pages[i // page_tokens] at i % page_tokens.

    length: entries that count; those behind it in the last pages are free to be written.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.pages: list[int] = []
        self.length = 0
        self._digests: list[bytes] = []  # of the full pages that have been named, from the first on

    @property
    def page_tokens(self) -> int:
        return self._pool.page_tokens

    def num_missing(self, start: int, stop: int) -> int:
        """How many free pages it takes to write entries start .. stop - 1."""
        shared = sum(1 for page in self.pages[self._pages_for(start, whole=False) :] if self._pool.readers(page) > 1)
        return max(0, self._pages_for(stop) - len(self.pages)) + shared

    def reserve(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Make entries start .. stop - 1 writable, start <= length.

        Returns:
            (from, to) pages whose content the caller has to copy before it writes, as others read them.
        Raises:
            PoolFullError: not enough pages are free; nothing has changed.
        """
        assert 0 <= start <= self.length <= stop
        if self.num_missing(start, stop) > self._pool.num_free:
            raise PoolFullError
        copies = []
        first = self._pages_for(start, whole=False)
        del self._digests[first:]
        for index in range(first, len(self.pages)):
            page = self.pages[index]
            if self._pool.readers(page) > 1:
                own = self.pages[index] = self._pool._hand_out(self.pages[index - 1] if index else None)
                self._pool._give_back(page)
                copies.append((page, own))
            else:
                self._pool._forget(page)
        while len(self.pages) < self._pages_for(stop):
            self.pages.append(self._pool._hand_out(self.pages[-1] if self.pages else None))
        return copies

    def commit(self, length: int) -> None:
        """Count everything before `length` in."""
        assert self.length <= length <= len(self.pages) * self.page_tokens
        self.length = length

    def name(self, token_ids: Sequence[int]) -> None:
        """Make the full pages of these tokens findable, as far as they count. token_ids: of the sequence from its
        beginning."""
        for index in range(len(self._digests), min(self.length, len(token_ids)) // self.page_tokens):
            start = index * self.page_tokens
            before = self._digests[-1] if self._digests else b""
            self._digests.append(_digest(before, token_ids[start : start + self.page_tokens]))
            self._pool._name(self.pages[index], self._digests[-1])

    def trim(self) -> list[int]:
        """Give back the pages behind the last entry that counts, and return them."""
        keep = self._pages_for(self.length)
        rest, self.pages[keep:] = self.pages[keep:], []
        for page in rest:
            self._pool._give_back(page)
        return rest

    def roll_back(self, length: int) -> None:
        """Forget all entries from `length` on, and give whole pages back.

        Raises:
            ValueError: `length` is negative or more than is there.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"Cannot roll a sequence of {self.length} entries back to {length}.")
        self.length = length
        del self._digests[length // self.page_tokens :]
        self.trim()

    def fork(self) -> BlockTable:
        """A second sequence with the same entries: every page is shared, the last one until either writes to it."""
        twin = BlockTable(self._pool)
        twin.pages, twin.length, twin._digests = self.pages[:], self.length, self._digests[:]
        for page in twin.pages:
            self._pool._take(page)
        return twin

    def close(self) -> None:
        """Give everything back. A second call does nothing."""
        self.roll_back(0)

    def place(self, entry: int) -> tuple[int, int]:
        """Page and place of an entry that is about to be written."""
        index, offset = divmod(entry, self.page_tokens)
        page = self.pages[index]
        assert self._pool.readers(page) == 1, "a shared page was about to be written"
        return page, offset

    def _pages_for(self, entries: int, *, whole: bool = True) -> int:
        """Pages that hold so many entries; with `whole` False only those that are full."""
        return -(-entries // self.page_tokens) if whole else entries // self.page_tokens


def _digest(before: bytes, token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(before + array("q", token_ids).tobytes(), digest_size=16).digest()
