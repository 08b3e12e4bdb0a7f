"""Runs in a batch: each writes what it writes alone, in any company, and ends alone when it fails."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from checks import ids_from, noisy, wild_llama
from fakes import TapeModel, config, found_exact, generator, tiny_llama

from specviz.batch.load import Load, LoadLength
from specviz.batch.record import BatchEvent, PassDone, SequenceLeft
from specviz.batch.scheduler import Batch, run_together
from specviz.bench.crowd import Crossing, measure_crossing
from specviz.config import RunConfig
from specviz.drafters.length import FixedLength
from specviz.errors import ConfigError
from specviz.events import Event, RunFinished, StepDone
from specviz.generator import SpeculativeGenerator
from specviz.proposal import Proposal

TAPE = [ord(c) - 33 for c in "abcdefghijklmnopqrstuvwxyz"]

Job = tuple[Sequence[int], RunConfig]


def ids_in(events: Sequence[Event]) -> tuple[int, ...]:
    end = events[-1]
    assert isinstance(end, RunFinished), events[-1]
    assert end.reason != "error", end.message
    return end.token_ids


def alone(engine: SpeculativeGenerator, job: Job) -> tuple[int, ...]:
    return ids_in(list(engine.stream(*job)))


def play(engine: SpeculativeGenerator, jobs: Sequence[Job], **settings: Any) -> tuple[list[Any], list[BatchEvent]]:
    """All runs to their ends, arriving one pass apart from each other where `every` says so. No page is left over."""
    record: list[BatchEvent] = []
    every = settings.pop("every", 0)
    batch = Batch(engine, record=record.append, **settings)
    tickets = []
    for job in jobs:
        tickets.append(batch.add(*job))
        for _ in range(every):
            batch.step()
    while batch.step():
        pass
    assert batch.num_used_pages == 0
    batch.close()
    for event in record:
        if isinstance(event, PassDone):
            assert event.num_used == len({page for table in event.tables for page in table.pages})
            assert sum(len(rows.fates) for rows in event.rows) == event.num_rows
    return tickets, record


def passes(record: Sequence[BatchEvent]) -> list[PassDone]:
    return [event for event in record if isinstance(event, PassDone)]


def exact_engine(dtype: torch.dtype) -> SpeculativeGenerator:
    """An engine over a small model, with an exact chain of every drafter that needs no training."""
    model = tiny_llama(5).to(dtype)
    engine = found_exact(generator(model, tiny_llama(6, layers=2).to(dtype), eos=()), 2)
    engine.loaded.dtype = dtype
    return engine


EXACT = ("plain", "prompt-lookup", "suffix", "draft-model", "feature", "early-exit", "plain", "prompt-lookup")


def exact_jobs() -> list[Job]:
    return [
        (ids_from(seed, 5 + 31 * seed), config(method, exact=True, gamma=3, max_new_tokens=12 + seed))
        for seed, method in enumerate(EXACT)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_exact_runs_write_the_same_ids_in_any_company(dtype: torch.dtype) -> None:
    """Issue 17: alone, in 2, 4 and 8, in other orders, arriving at other times, and after preemption."""
    engine, jobs = exact_engine(dtype), exact_jobs()
    right = [alone(engine, job) for job in jobs]
    rng = random.Random(1)
    for size, every, pages in ((2, 0, 0), (4, 1, 0), (8, 0, 0), (8, 3, 0), (8, 0, 9), (8, 1, 7)):
        order = rng.sample(range(8), size)
        tickets, record = play(engine, [jobs[i] for i in order], every=every, num_pages=pages)
        assert [ids_in(ticket.events) for ticket in tickets] == [right[i] for i in order]
        assert max(len(event.rows) for event in passes(record)) > 1
        if pages:
            assert any(event.preempted for event in passes(record))
        assert [bool(ticket.alone) for ticket in tickets] == [EXACT[i] == "early-exit" for i in order]


def test_sampled_runs_draw_the_same_tokens_in_any_company() -> None:
    """Issue 17: float64, same seed, same tokens; chains, trees, token and block rules, with preemption."""
    engine = generator(wild_llama(1), noisy(wild_llama(1), 0.03), eos=())
    methods = ("draft-model", "plain", "lookahead", "feature", "medusa", "prompt-lookup", "jacobi", "draft-model")
    jobs = [
        (ids_from(seed, 10 + 20 * seed), config(method, temperature=0.9, seed=seed, gamma=4, max_new_tokens=14))
        for seed, method in enumerate(methods)
    ]
    right = [alone(engine, job) for job in jobs]
    for pages, order in ((0, range(8)), (0, (7, 3, 1)), (10, range(7, -1, -1))):
        tickets, record = play(engine, [jobs[i] for i in order], num_pages=pages)
        assert [ids_in(ticket.events) for ticket in tickets] == [right[i] for i in order]
        assert pages == 0 or any(event.preempted for event in passes(record))


def test_greedy_trees_and_windows_write_the_text_of_plain_decoding_together() -> None:
    """Whatever is drafted, and however much less of it the load allows."""
    engine = generator(wild_llama(1), noisy(wild_llama(1), 0.03), eos=())
    methods = ("feature", "medusa", "lookahead", "jacobi", "cascade", "suffix")
    prompt = ids_from(3, 40)
    right = alone(engine, (prompt, config("plain", max_new_tokens=20)))
    results = run_together(engine, [(prompt, config(method, max_new_tokens=20)) for method in methods])
    assert {ids_in(events) for events in results} == {right}
    for events in results:
        steps = [event for event in events if isinstance(event, StepDone)]
        assert max(step.company for step in steps) > 1
        assert sum(len(step.emitted) for step in steps) == 20


def test_a_common_beginning_is_read_once() -> None:
    """Whole pages of an equal beginning are shared; the text stays that of a run alone."""
    engine = exact_engine(torch.float32)
    beginning = ids_from(9, 130)
    jobs = [([*beginning, *ids_from(seed, 9)], config("plain", exact=True, max_new_tokens=8)) for seed in range(3)]
    right = [alone(engine, job) for job in jobs]
    tickets, record = play(engine, jobs, every=4)
    assert [ids_in(ticket.events) for ticket in tickets] == right
    left = {event.sequence: event for event in record if isinstance(event, SequenceLeft)}
    assert [left[i].num_shared for i in range(3)] == [0, 128, 128]
    tables = [table.pages for event in passes(record) for table in event.tables]
    assert max(sum(page in pages for pages in tables) for page in tables[0]) > len(passes(record)) // 2


class Broken:
    """A drafter that raises at its third proposal."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._count = inner, itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, *args: Any) -> Any:
        if next(self._count) == 2:
            raise RuntimeError("drafter")
        return self._inner.propose(*args)


def test_what_goes_wrong_in_one_run_ends_that_run_alone() -> None:
    """Issue 17: a run closed in the middle, a drafter that raises, a prompt that is too long, rows that fail."""
    engine = exact_engine(torch.float32)
    jobs = exact_jobs()[:4]
    right = [alone(engine, job) for job in jobs]
    batch = Batch(engine, num_pages=40)
    tickets = [batch.add(*job) for job in jobs]
    with pytest.raises(ConfigError, match="reads"):
        batch.add(ids_from(1, 600), config("plain"))
    small = Batch(engine, num_pages=2)
    with pytest.raises(ConfigError, match="pages"):
        small.add(ids_from(1, 200), config("plain", max_new_tokens=9))
    closed, broken, failing = (batch.add(ids_from(7, 20), config("suffix", max_new_tokens=40)) for _ in range(3))
    broken.run.drafter = Broken(broken.run.drafter)
    for _ in range(4):
        batch.step()
    closed.cancel()
    assert failing.request is not None
    failing.request.ids[0] = 10_000_000  # an id that has no embedding fails every pass that holds it
    batch.play()
    assert [ids_in(ticket.events) for ticket in tickets] == right
    assert not isinstance(closed.events[-1], RunFinished)
    for ticket in (broken, failing):
        end = ticket.events[-1]
        assert isinstance(end, RunFinished) and end.reason == "error"
        assert "drafter" not in end.message
    assert batch.num_used_pages == 0 and not batch.running


def test_a_target_of_the_library_serves_its_runs_one_by_one_and_says_why() -> None:
    engine = generator(TapeModel(TAPE, 1), eos=())
    tickets, record = play(engine, [([40], config("plain", max_new_tokens=5)) for _ in range(2)])
    assert all("transformers" in ticket.alone for ticket in tickets)
    assert len({ids_in(ticket.events) for ticket in tickets}) == 1
    assert all(rows.alone for event in passes(record) for rows in event.rows)


# --- how much to draft, and where it stops paying -----------------------------------------------------------------


def test_the_fuller_a_pass_the_less_is_drafted() -> None:
    """A pass of 32 rows costs twice one of 8: with eight sequences a draft that is kept half the time does not pay."""
    load = Load((1, 8, 32, 64), (1.0, 1.0, 2.0, 4.0))
    assert load.pass_s(20) == 1.5 and load.pass_s(128) == 8.0
    chosen = []
    for load.num_running in (1, 2, 4, 8, 16):
        chosen.append(load.best(0.6, 0.05, 5))
    assert chosen == sorted(chosen, reverse=True) and chosen[0] >= 3 and chosen[-1] == 0
    length = LoadLength(FixedLength(5), load)
    load.num_running = 16
    for _ in range(40):
        length.observe(1, 0, True)
    asked = [length.next() for _ in range(32)]
    assert sorted(set(asked)) == [0, 1] and asked.count(1) == 2  # tried now and then
    load.num_running = 1
    assert length.next() == 5 and length.most_nodes(5) is None


def test_a_tree_is_cut_to_its_likeliest_nodes() -> None:
    """Each kept node's ancestors are kept with it."""
    run = generator(wild_llama(1), eos=()).prepare(ids_from(1, 5), config("plain"))
    tree = Proposal(torch.tensor([1, 2, 3, 4, 5]), (-1, -1, 0, 1, 3), confidence=(0.3, 0.6, 0.9, 0.9, 0.9))
    cut = run._likeliest(tree, 3)
    assert (cut.token_ids.tolist(), cut.parents) == ([2, 4, 5], (-1, 0, 1))
    assert run._likeliest(tree, None) is tree and run._likeliest(tree, 5) is tree
    run.close()


def test_the_crossing_is_measured_in_turns_and_ends_in_advice() -> None:
    engine = exact_engine(torch.float32)
    settings = config("suffix", exact=True, gamma=2, max_new_tokens=4)
    prompts = [ids_from(seed, 12) for seed in range(3)]
    said: list[str] = []
    found = measure_crossing(engine, prompts, settings, (1, 3), (1, 2), 2, lambda text, _: said.append(text))
    assert set(found.rates) == {(size, gamma) for size in (1, 3) for gamma in (0, 1, 2, -1)}
    assert all(rate > 0 for rate in found.rates.values()) and len(said) == 16
    assert found.rows[3, 0] > found.rows[1, 0]
    rates = {(1, 0): 1.0, (1, 2): 2.0, (1, -1): 9.0, (4, 0): 3.0, (4, 2): 2.0, (2, 0): 1.0, (2, 2): 1.5}
    crossing = Crossing(rates, {})
    assert crossing.best() == {1: 2, 2: 2, 4: 0}
    assert crossing.vllm_line() == (
        '{"num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": [[1, 3, 2], [4, 7, 0]]}'
    )
    assert Crossing({(1, 0): 2.0, (1, 1): 1.0}, {}).vllm_line() == ""
