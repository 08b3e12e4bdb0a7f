"""Traces: whole, damaged, hostile, of another version."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import STREAMS

from specviz.config import MAX_SEED
from specviz.errors import TraceError
from specviz.events import event_to_json
from specviz.trace import (
    MAX_LINE,
    MAX_LINES,
    MAX_UPLOAD_BYTES,
    dump_trace,
    load_trace,
    open_upload,
    parse_trace,
    steps_frame,
    tokens_frame,
    write_events,
)


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


def changed(number: int, **values: object) -> bytes:
    """The chain's file with fields of one event set; event 2 is its first step."""
    events = [event_to_json(event) for event in STREAMS["chain"]()]
    events[number] |= values
    return "\n".join(map(json.dumps, [{"type": "SpecvizTrace", "schema_version": 1}, *events])).encode()


@pytest.mark.parametrize(
    ("values", "needle"),
    [
        ({"draft_s": 10**400}, "beyond"),  # no float can hold it
        ({"rows": 2**63}, "beyond"),
        ({"verify_s": -1}, "below 0"),
        ({"num_accepted": 10**9}, "more tokens are said to be accepted"),  # counters keep a place for each
        ({"drafted": [], "num_drafted": 10**9}, "cannot have been drafted"),
        ({"num_drafted": 7}, "4 are listed"),
        ({"note": {"data": {"a": json.loads("[" * 400 + "]" * 400)}}}, "levels"),
        ({"note": {"text": "\ud800"}}, "half a character"),
        ({"note": {"data": {"\udfff": 1}}}, "half a character"),
        ({"emitted": [{"token_id": 1, "text": "", "origin": "target", "target_prob": 1.2}]}, "above 1"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_step_that_would_break_what_reads_it_is_damage(values: dict, needle: str) -> None:
    trace = parse_trace(changed(2, **values))
    assert needle in trace.damage
    assert len(trace.events) == 2


def test_the_caches_are_filled_once_and_before_the_first_step() -> None:
    lines = dump_trace(STREAMS["chain"]()).splitlines()
    for broken in ([*lines[:3], lines[2]], [*lines[:2], lines[3]], [*lines[:4], lines[2]]):
        assert "out of order" in parse_trace("\n".join(broken).encode()).damage


@pytest.mark.parametrize("value", ["0", [], {}, True])
def test_settings_that_are_numbers_are_read_as_numbers_only(value: object) -> None:
    """Found by the fuzz test: a temperature of "0" broke the verdict."""
    with pytest.raises(TraceError, match="the setting temperature is no number"):
        parse_trace(changed(0, settings={"temperature": value}))
    assert parse_trace(changed(0, settings={"temperature": None, "tree": "chain"})).damage == ""


def test_the_largest_seed_is_read_back() -> None:
    trace = parse_trace(changed(0, settings={"seed": MAX_SEED}))
    assert trace.started.settings == {"seed": MAX_SEED}
    assert trace.damage == ""


def test_an_upload_has_limits_of_its_own(tmp_path) -> None:
    """Bytes, lines and the length of a line; the last two are damage, behind which nothing is read."""
    path = tmp_path / "upload.jsonl"
    good = dump_trace(STREAMS["chain"](), plain=STREAMS["chain"]())
    path.write_bytes(good.encode())
    assert open_upload(path).damage == ""
    path.write_bytes(good.encode() + b" " * MAX_UPLOAD_BYTES)
    with pytest.raises(TraceError, match="at most 16 MB"):
        open_upload(path)
    path.write_bytes(good.encode() + b"\n" * MAX_LINES + b"{}")
    assert "more than 20,000 lines" in open_upload(path).damage
    assert len(open_upload(path).events) == len(STREAMS["chain"]())
    header, *rest = good.splitlines()
    path.write_text("\n".join([header, *[" "] * MAX_LINES, *rest]))
    with pytest.raises(TraceError, match="more than 20,000 lines"):
        open_upload(path)
    path.write_text("\n".join([header, *rest[:3], '{"type": "StepDone", "note": "' + "x" * MAX_LINE + '"}']))
    assert "the line is too long" in open_upload(path).damage


def test_a_trace_names_no_file_that_is_opened(tmp_path) -> None:
    """Paths and addresses inside a file are texts like any other."""
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    path = tmp_path / "upload.jsonl"
    data = changed(0, prompt=str(secret), command=f"python -m specviz run @{secret}", pair=f"../../{secret}")
    path.write_bytes(data)
    trace = open_upload(path)
    assert trace.started.pair == f"../../{secret}"
    assert "hidden" not in repr(trace)


def test_a_plain_run_that_is_cut_off_is_left_out_and_said() -> None:
    lines = dump_trace(STREAMS["chain"](), plain=STREAMS["chain"]()).splitlines()
    trace = parse_trace("\n".join(lines[:-1]).encode())
    assert not trace.plain
    assert trace.damage == "The file ends before the plain run beside this one does. That one is left out."


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
