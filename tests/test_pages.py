"""Who owns which page: nothing leaks, nothing is written while shared. No model."""

from __future__ import annotations

import random

import pytest

from specviz.batch.pages import BlockTable, PagePool, PoolFullError

PAGE = 4


class Sequence:
    """A sequence that really writes: what it finds in its pages must be what it wrote."""

    def __init__(self, pool: PagePool, memory: list[list[int]], prompt: list[int]) -> None:
        self.memory, self.ids = memory, prompt
        self.table: BlockTable = pool.open(prompt)
        self.num_shared = self.table.length
        self.finished_prompt = False

    def write(self, count: int) -> None:
        """Write the next `count` of `ids`, and count them in."""
        start = self.table.length
        for source, goal in self.table.reserve(start, start + count):
            self.memory[goal][:] = self.memory[source]
        for entry in range(start, start + count):
            page, offset = self.table.place(entry)
            self.memory[page][offset] = self.ids[entry]

    def read(self) -> list[int]:
        return [self.memory[self.table.pages[i // PAGE]][i % PAGE] for i in range(self.table.length)]


def check(pool: PagePool, sequences: list[Sequence]) -> None:
    """The books balance, and every sequence reads what it wrote."""
    assert pool.num_used + pool.num_free == pool.num_pages
    held = [page for sequence in sequences for page in sequence.table.pages]
    assert len(set(held)) == pool.num_used
    for page in range(pool.num_pages):
        assert pool.readers(page) == held.count(page)
    for sequence in sequences:
        assert len(set(sequence.table.pages)) == len(sequence.table.pages)
        assert sequence.read() == sequence.ids[: sequence.table.length]


@pytest.mark.parametrize("seed", range(4))
def test_10000_random_moves_leak_nothing_and_write_nothing_shared(seed: int) -> None:
    """Issue 17: joins, steps, rejections, stops, forks and preemptions, 2,500 for each of four seeds."""
    rng = random.Random(seed)
    pool = PagePool(24, PAGE)
    memory = [[-1] * PAGE for _ in range(pool.num_pages)]
    sequences: list[Sequence] = []
    beginnings = [[rng.randrange(9) for _ in range(3 * PAGE)] for _ in range(3)]
    seen = dict.fromkeys(("join", "step", "reject", "stop", "preempt", "fork", "full", "shared", "copied"), 0)
    for _ in range(2500):
        move = rng.choices(("join", "step", "reject", "stop", "preempt", "fork"), (3, 12, 4, 1, 1, 1))[0]
        if move == "join" or not sequences:
            common = rng.choice(beginnings)[: rng.randrange(1, 3 * PAGE + 1)]
            prompt = [*common, *(rng.randrange(9) for _ in range(rng.randrange(5)))]
            sequence = Sequence(pool, memory, prompt)
            seen["shared"] += sequence.num_shared > 0
            sequences.append(sequence)
        sequence = rng.choice(sequences)
        table = sequence.table
        try:
            if move == "step":  # rows are written, some of them come to count
                rows = rng.randrange(1, 7)
                missing = max(0, table.length + rows - len(sequence.ids))
                sequence.ids = [*sequence.ids, *(rng.randrange(9) for _ in range(missing))]
                before = pool.num_free, table.pages[:]
                sequence.write(rows)
                seen["copied"] += any(page not in table.pages for page in before[1])
                table.commit(table.length + rng.randrange(rows + 1))
                table.trim()
                table.name(sequence.ids)
            elif move == "reject":
                keep = rng.randrange(table.length + 1)
                table.roll_back(keep)
                sequence.ids = sequence.ids[:keep] + [rng.randrange(9)]
            elif move == "stop":
                table.close()
                sequences.remove(sequence)
            elif move == "preempt":
                table.close()
                sequence.table = pool.open(sequence.ids)
            elif move == "fork":
                twin = Sequence(pool, memory, sequence.ids[:])
                twin.table.close()
                twin.table = table.fork()
                sequences.append(twin)
            seen[move] += 1
        except PoolFullError:
            assert (pool.num_free, table.pages) == before  # nothing changed
            seen["full"] += 1
            victim = rng.choice(sequences)
            victim.table.close()
            sequences.remove(victim)
        check(pool, sequences)
    assert all(seen.values()), seen  # every kind of move came up
    for sequence in sequences:
        sequence.table.close()
        sequence.table.close()  # a second time does nothing
    assert pool.num_free == pool.num_pages


def test_equal_beginnings_share_whole_pages_and_a_different_one_does_not() -> None:
    """A page counts as the same only if everything before it is the same as well."""
    pool = PagePool(16, PAGE)
    ids = list(range(10))
    first = pool.open(ids)
    assert first.length == 0
    first.reserve(0, 10)
    first.commit(10)
    first.name(ids)
    second = pool.open(ids[:9])
    assert (second.length, second.pages) == (8, first.pages[:2])
    assert pool.open([9, *ids[1:]]).length == 0
    shifted = pool.open([*range(4, 8), *range(4, 8)])  # the second page's tokens behind others
    assert shifted.length == 0
    assert pool.num_used == 3


def test_a_page_that_others_read_is_copied_before_it_is_written() -> None:
    pool = PagePool(8, PAGE)
    first = pool.open()
    first.reserve(0, 6)
    first.commit(6)
    twin = first.fork()
    with pytest.raises(AssertionError, match="shared"):
        twin.place(6)
    copies = twin.reserve(6, 8)
    assert [source for source, _ in copies] == [first.pages[1]]
    assert twin.pages == [first.pages[0], copies[0][1]]
    assert twin.place(6) == (copies[0][1], 2)
    assert first.reserve(6, 7) == []  # nobody else reads it any more


def test_what_nobody_reads_is_found_until_its_page_is_needed() -> None:
    """The oldest goes first, and only when no page without content is left."""
    pool = PagePool(3, PAGE)
    for start in (0, 10):
        ids = list(range(start, start + PAGE))
        table = pool.open(ids)
        table.reserve(0, PAGE)
        table.commit(PAGE)
        table.name(ids)
        table.close()
    assert (pool.num_free, len(pool.cached)) == (3, 2)
    other = pool.open()
    other.reserve(0, 2 * PAGE)
    assert pool.open(range(0, PAGE)).length == 0
    assert pool.open(range(10, 10 + PAGE)).length == PAGE


def test_a_page_that_is_written_again_is_not_found_by_what_it_said() -> None:
    pool = PagePool(4, PAGE)
    ids = list(range(PAGE))
    table = pool.open(ids)
    table.reserve(0, PAGE)
    table.commit(PAGE)
    table.name(ids)
    table.roll_back(2)
    table.reserve(2, PAGE)
    table.commit(PAGE)
    assert pool.open(ids).length == 0
    table.name([0, 1, 9, 9])
    assert pool.open([0, 1, 9, 9]).length == PAGE


def test_a_full_pool_refuses_without_a_trace() -> None:
    pool = PagePool(2, PAGE)
    table = pool.open()
    table.reserve(0, PAGE)
    with pytest.raises(PoolFullError):
        table.reserve(0, 3 * PAGE)
    assert (len(table.pages), pool.num_free) == (1, 1)


def test_pages_of_a_growing_sequence_lie_side_by_side() -> None:
    pool = PagePool(8, PAGE)
    table = pool.open()
    for stop in range(1, 8 * PAGE):
        table.reserve(0, stop)
    assert table.pages == list(range(8))


def test_sequences_that_grow_in_turns_each_lie_in_one_piece() -> None:
    pool = PagePool(64, PAGE)
    tables = [pool.open() for _ in range(8)]
    for pages in range(1, 7):
        for table in tables:
            table.reserve(0, pages * PAGE)
    for table in tables:
        assert table.pages == list(range(table.pages[0], table.pages[0] + 6))
