"""Traces: whole, damaged, hostile, of another version."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import STREAMS

from specviz.errors import TraceError
from specviz.events import event_to_json
from specviz.trace import MAX_LINE, dump_trace, load_trace, parse_trace, steps_frame, tokens_frame, write_events


@pytest.mark.parametrize("name", STREAMS)
def test_a_trace_reads_back_what_was_written(name: str) -> None:
    events = STREAMS[name]()
    trace = parse_trace(dump_trace(events, plain=events).encode())
    assert list(trace.events) == list(trace.plain) == events
    assert trace.damage == ""


def test_writing_as_it_goes_gives_the_same_file(tmp_path) -> None:
    events, file = STREAMS["chain"](), io.StringIO()
    assert list(write_events(events, file)) == events
    path = tmp_path / "run.jsonl"
    path.write_text(file.getvalue(), encoding="utf-8")
    assert file.getvalue() == dump_trace(events)
    assert list(load_trace(path).events) == events


@given(st.integers(0, 3000))
def test_a_file_cut_anywhere_opens_up_to_the_cut(cut: int) -> None:
    """Either the header or the first event is gone, or a prefix of the run comes back with a word about the damage."""
    events = STREAMS["chain"]()
    data = dump_trace(events).encode()
    with contextlib.suppress(TraceError):
        trace = parse_trace(data[: min(cut, len(data) - 2)])
        assert list(trace.events) == events[: len(trace.events)]
        assert len(trace.events) < len(events)
        assert trace.damage


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_trace_error(noise: bytes) -> None:
    header = dump_trace([]).encode()
    for data in (noise, header + noise):
        with pytest.raises(TraceError):
            parse_trace(data)


def test_damage_in_the_middle_is_named_by_line() -> None:
    lines = dump_trace(STREAMS["chain"]()).splitlines()
    lines[4] = lines[4].replace('"index":2', '"index":7')
    trace = parse_trace("\n".join(lines).encode())
    assert "Line 5" in trace.damage
    assert len(trace.events) == 3


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"type":"StepDone","index":NaN}',
        '"text"',
        "{" + " " * (MAX_LINE + 1) + "}",
        '{"of":"x","type":"RunStarted"}',
    ],
)
def test_hostile_lines_do_no_harm(line: str) -> None:
    good = dump_trace(STREAMS["chain"]()[:3])
    assert "damaged" in parse_trace((good + line + "\n").encode()).damage


def test_a_parent_that_comes_later_is_damage() -> None:
    """The page would follow it in a circle."""
    events = [event_to_json(event) for event in STREAMS["chain"]()]
    events[2]["drafted"][0]["parent"] = 3
    text = "\n".join(map(json.dumps, [{"type": "SpecvizTrace", "schema_version": 1}, *events]))
    assert "parent" in parse_trace(text.encode()).damage


@pytest.mark.parametrize("header", ['{"type":"SpecvizTrace","schema_version":99}', "{}", "", "<html>"])
def test_other_versions_and_other_files_say_why_not(header: str) -> None:
    with pytest.raises(TraceError, match=r"schema version 99|no specviz trace"):
        parse_trace(header.encode())


def test_a_missing_file_is_a_trace_error(tmp_path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path / "none.jsonl")


def test_frames_for_pandas() -> None:
    steps, tokens = steps_frame(STREAMS["chain"]()), tokens_frame(STREAMS["chain"]())
    assert list(steps["num_accepted"]) == [2, 2, 0, 2]
    assert steps["num_emitted"].sum() == 9
    assert (tokens["role"] == "drafted").sum() == 8
    assert set(tokens["fate"].dropna()) == {"accepted", "rejected", "discarded"}
