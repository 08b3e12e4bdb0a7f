"""Many runs in one pass: the record of a batch, and runs that are what they are alone."""

from __future__ import annotations

import json

import pytest

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
from specviz.errors import TraceError

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
