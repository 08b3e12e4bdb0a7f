"""Events are plain data, JSON both ways, and read strictly."""

from __future__ import annotations

import json
import pickle

import pytest
from streams import STREAMS

from specviz.errors import TraceError
from specviz.events import event_from_json, event_to_json


@pytest.mark.parametrize("name", STREAMS)
def test_all_kinds_of_step_survive_json_and_pickle(name: str) -> None:
    """Five kinds of step and hostile text (I7, case 104): strict JSON, plain data, the same event back."""
    for event in STREAMS[name]():
        text = json.dumps(event_to_json(event), allow_nan=False)
        assert event_from_json(json.loads(text)) == event
        assert pickle.loads(pickle.dumps(event)) == event


def _step() -> dict:
    return json.loads(json.dumps(event_to_json(STREAMS["chain"]()[2])))


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        ({"type": "Nonsense"}, "Unknown event type"),
        ({"surprise": 1}, "unknown field"),
        ({"draft_s": float("nan")}, "finite"),
        ({"draft_s": "0.1"}, "must be float"),
        ({"index": True}, "must be int"),
        ({"drafted": {}}, "must be a list"),
        ({"drafted": [{"token_id": 1}]}, "lacks the field"),
        ({"note": {"kind": "x", "data": {"deep": [float("inf")]}}}, "finite"),
    ],
)
def test_a_damaged_event_is_refused_by_name(change: dict, needle: str) -> None:
    with pytest.raises(TraceError, match=needle):
        event_from_json(_step() | change)


def test_missing_and_wrong_containers_are_refused() -> None:
    step = _step()
    step.pop("rows")
    with pytest.raises(TraceError, match="rows"):
        event_from_json(step)
    with pytest.raises(TraceError, match="JSON object"):
        event_from_json([1, 2])
    with pytest.raises(TraceError, match="allowed are"):
        event_from_json(_step() | {"emitted": [{"token_id": 1, "text": "", "origin": "invented"}]})


def test_a_whole_number_is_a_legal_float_and_defaults_are_left_out() -> None:
    step = _step() | {"draft_s": 1}
    assert event_from_json(step).draft_s == 1.0
    assert _step()["note"] == {"kind": "model"}
