"""Many runs in one pass: the record of a batch, and runs that are what they are alone."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from checks import ids_from
from fakes import tiny_llama

from specviz.batch.company import check_company
from specviz.batch.paged_cache import PagedCache, PageStore
from specviz.batch.record import (
    BatchEvent,
    BatchFinished,
    BatchStarted,
    PassDone,
    PassRows,
    SequenceArrived,
    SequenceLeft,
    SequencePages,
    batch_event_from_json,
    batch_event_to_json,
)
from specviz.batch.shared_pass import run_shared
from specviz.errors import TraceError
from specviz.models.decoder import LeanDecoder
from specviz.models.session import PassRequest, Session

RECORD: list[BatchEvent] = [
    BatchStarted("tiny", "float32", "cpu", 64, 128, 4096, 8, 128, {"cores": 2}, {"torch": "2"}, "2026-01-01T00:00:00"),
    SequenceArrived(0, "abc", "plain", "Why?", 12, 0, 64, "exact", 0.0),
    SequenceArrived(1, "abd", "early-exit", "How?", 12, 4, 64, "exact", 0.25, "It goes on from its own layers."),
    PassDone(
        1,
        0.5,
        0.04,
        0.03,
        5,
        (
            PassRows(0, "prompt", ("read", "read"), 0, 2),
            PassRows(1, "check", ("target", "accepted", "rejected"), 11, 13, ("a", "b", "c"), "bd", 2, 2, 1, 1, 0.01),
        ),
        (SequencePages(0, (3,), 2), SequencePages(1, (3, 5), 13)),
        2,
        126,
        (0, 1),
        waiting=(2,),
        preempted=(3,),
        cached=(7,),
        taken=(5,),
        copied=(3,),
    ),
    SequenceLeft(1, "eos", 2, 0.6, 0.55, 1, 2.0, 1, 64),
    BatchFinished(2, 1, 2, 5, 0.04, 0.03, 2),
]


@pytest.mark.parametrize("event", RECORD, ids=lambda event: type(event).__name__)
def test_a_batch_is_the_same_after_json(event: BatchEvent) -> None:
    assert batch_event_from_json(json.loads(json.dumps(batch_event_to_json(event)))) == event


def test_a_record_is_read_with_suspicion() -> None:
    data = batch_event_to_json(RECORD[3])
    for damaged in (
        {**data, "type": "StepDone"},
        {**data, "num_used": -1},
        {**data, "rows": [{**data["rows"][0], "fates": ["kept"]}]},
        {**data, "unknown": 1},
    ):
        with pytest.raises(TraceError):
            batch_event_from_json(damaged)


# --- one pass for several sequences -------------------------------------------------------------------------------


def tiny(dtype: torch.dtype) -> Any:
    """A small random Llama in this precision; its weights are large enough for texts to differ."""
    return copy.deepcopy(tiny_llama(5)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_shared_pass_computes_what_each_sequence_computes_alone(dtype: torch.dtype) -> None:
    """Issue 17: eight sequences in passes of up to 64 rows, their prompts in pieces beside each other."""
    model = tiny(dtype)
    report = check_company(model, 2, 8, 264)
    assert report.num_positions == 8 + 36 + 64 + 4 + 1
    if dtype != torch.float64:
        assert report.passed, report.sentence


def trio(model: Any, store: PageStore | None) -> list[Session]:
    """Three sessions with 70, 1 and 130 tokens in the cache, the first two read as prompts."""
    sessions = []
    for seed, count in ((1, 70), (2, 1), (3, 130)):
        session = Session(model, capacity=300, keep_hidden=True, taps=(1, 2))
        if store is not None:
            session.use(PagedCache(store, store.pool.open()))
        session.extend(ids_from(seed, count))
        sessions.append(session)
    return sessions


def test_trees_states_and_pages_apart_in_one_pass() -> None:
    """A tree, a chain and a prompt share a pass: logits, states, kept paths and keys are those of passes alone. The
    store is so full of others' pages that no sequence's own lie side by side."""
    model = tiny_llama(5)
    store = PageStore(LeanDecoder.of(model), 16)
    held = [store.pool.open() for _ in range(8)]
    for table in held:
        table.reserve(0, 1)
    shared, alone = trio(model, store), trio(model, None)
    assert shared[2].cache.views() is None  # type: ignore[attr-defined]
    tree = torch.tensor([5, 6, 7, 8])

    def wishes(sessions: list[Session]) -> list[PassRequest]:
        return [
            sessions[0].check(9, tree, (-1, -1, 1, 2)),
            sessions[1].check(8, torch.tensor([3, 4]), (-1, 0)),
            sessions[2].read(ids_from(4, 90), max_rows=64),
        ]

    for _ in range(2):
        requests = wishes(shared)
        for request in requests:
            request.session.cache.open(request.rows, request.key_len)
        found = run_shared(LeanDecoder.of(model), requests)
        for session, other, mine, request in zip(shared, alone, found, wishes(alone), strict=True):
            assert float((mine - request.run()).abs().max()) < 1e-9
            assert session.hidden is not None and other.hidden is not None
            assert float((session.hidden - other.hidden).abs().max()) < 1e-9
        for sessions in (shared, alone):
            sessions[0].keep_path((1, 2))
            sessions[1].keep_path(())
        for session, other in zip(shared, alone, strict=True):
            assert session.length == other.length and session.token_ids == other.token_ids
            (first, states), (also, right) = session.take_states(), other.take_states()
            assert first == also and float((states - right).abs().max()) < 1e-9
    for session in shared:
        session.close()
    assert store.pool.num_used == len(held)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_was_set_aside_comes_back_to_the_bit(dtype: torch.dtype) -> None:
    """Issue 17: preemption by recomputation. Keys and values read again equal those that were given up."""
    model = tiny(dtype)
    store = PageStore(LeanDecoder.of(model), 12)
    session = Session(model, capacity=300, min_rows=2)
    session.use(PagedCache(store, store.pool.open()))
    session.extend(ids_from(1, 150))
    for step in range(12):  # steps of one to five tokens
        tokens = torch.tensor(ids_from(step, step % 5), dtype=torch.int64)
        session.check(step, tokens, tuple(range(-1, len(tokens) - 1))).run()
        session.keep_path(tuple(range(len(tokens))))
    request = session.check(7, torch.tensor([1, 2, 3]), (-1, 0, 1))
    before = request.run().clone()
    length = session.length
    session.set_aside()
    assert store.pool.num_used == 0
    while session.is_aside:
        session.again(64).run()
    assert session.length == length
    assert torch.equal(request.run(), before)
    session.close()
