"""vLLM's own counts for each request: read from two real captures, matched with the messages, shown on the page.

Issue 19: with them alpha, histogram and refused counts are exact, not bounds, also on a busy server.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay import DETAILED, ReplayServer, capture, serving

from specviz.config import RunConfig
from specviz.events import EmittedToken, EngineCounts, RunFinished, StepDone
from specviz.matching import Told, match_steps
from specviz.metrics import Counters, fold
from specviz.remote import Address, RemoteEngine
from specviz.remote.chunks import read_chunk
from specviz.remote.engine import Patience
from specviz.trace import dump_trace, parse_trace
from specviz.ui.access.attached import AttachedServer
from specviz.ui.wire.stream import recorded_delta

CONFIG = RunConfig(max_new_tokens=96)


@pytest.fixture
def replay() -> Iterator[ReplayServer]:
    with serving(names=DETAILED) as server:
        yield server


def engine(replay: ReplayServer) -> RemoteEngine:
    address = Address(replay.url, replay.url.removeprefix("http://"))
    return RemoteEngine(address, Patience(poll_s=0.02, settle_s=0.1))


def run(replay: ReplayServer, name: str) -> list[Any]:
    return list(engine(replay).stream(capture(name).prompt, CONFIG))


def listed(name: str) -> dict[str, Any]:
    """What the server itself said, read without the code under test."""
    last = json.loads(capture(name).lines[-2][1].removeprefix("data: "))
    return last["metrics"]["speculative_decoding"]


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DETAILED)
def test_a_runs_figures_are_the_servers_own_for_this_request(replay: ReplayServer, name: str) -> None:
    """Beside `detailed-busy` the counters grew by 49 drafts, of which 17 were this request's."""
    said, c = listed(name), fold(run(replay, name))
    assert not c.is_bound
    assert (c.num_drafting_steps, c.num_drafted, c.num_accepted) == (
        said["num_spec_steps"], said["num_draft_tokens"], said["num_accepted_draft_tokens"],
    )  # fmt: skip
    assert c.accepted_histogram == said["acceptance_histogram"][: len(c.accepted_histogram)]
    assert not any(said["acceptance_histogram"][len(c.accepted_histogram) :])
    pairs = list(zip(said["per_step_drafted"], said["per_step_accepted"], strict=True))
    refusals = sum(accepted < drafted for drafted, accepted in pairs)
    assert (c.num_rejections, c.num_corrected, c.num_bonus) == (refusals, refusals, len(pairs) - refusals)
    assert c.alpha == pytest.approx(c.num_accepted / (c.num_accepted + refusals))
    assert c.num_target == c.num_steps - len(pairs)
    assert c.acceptance_length == pytest.approx(said["mean_acceptance_length"])
    for place in range(4):
        tested = sum(drafted > place and accepted >= place for drafted, accepted in pairs)
        assert c.tested_at[place] == tested


def test_on_a_busy_server_nothing_is_a_bound_and_without_the_list_it_is(replay: ReplayServer) -> None:
    busy = capture("detailed-busy")
    assert busy.counter("spec_decode_num_drafts_total") == 49
    exact = run(replay, "detailed-busy")
    assert (fold(exact).num_drafted, fold(exact).alpha) == (64, pytest.approx(5 / 21))
    assert "upper bounds" not in exact[-1].message
    replay.edit = without_counts
    bounded = run(replay, "detailed-busy")
    assert fold(bounded).is_bound
    assert fold(bounded).num_drafted > 64
    assert "--per-request-spec-decode-metrics detailed" in bounded[-1].message


def without_counts(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return [(at_s, cut(line)) for at_s, line in lines]


def cut(line: str) -> str:
    if line.endswith("[DONE]"):
        return line
    message = json.loads(line[6:])
    message.pop("metrics", None)
    return f"data: {json.dumps(message)}"


def test_the_list_needs_no_metrics(replay: ReplayServer) -> None:
    replay.metrics = lambda _: ""
    c = fold(run(replay, "detailed-copy"))
    assert (c.num_drafted, c.num_accepted, c.alpha) == (28, 28, 1.0)


def test_only_a_run_shows_that_a_server_could_tell_more(replay: ReplayServer) -> None:
    server = AttachedServer(engine(replay))
    server.sampler.sample()
    assert server.hints() == []
    list(server.engine.stream(capture("detailed-copy").prompt, CONFIG))
    assert server.hints() == []
    replay.edit = without_counts
    list(server.engine.stream(capture("detailed-copy").prompt, CONFIG))
    assert "--per-request-spec-decode-metrics detailed" in server.hints()[0]


def test_the_histogram_alone_is_exact_too(replay: ReplayServer) -> None:
    """Level `summary`: no list by step."""

    def summary(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
        return [(at_s, line.replace("per_step_", "x_")) for at_s, line in lines]

    replay.edit = summary
    events = run(replay, "detailed-copy")
    c = fold(events)
    assert events[-1].counts.drafted_by_step == ()
    assert (c.is_bound, c.num_drafted, c.alpha, c.accepted_histogram) == (False, 28, 1.0, [0, 0, 0, 0, 7])


def test_a_trace_keeps_the_list_and_one_that_does_not_add_up_is_refused(replay: ReplayServer) -> None:
    events = run(replay, "detailed-busy")
    text = dump_trace(events)
    assert list(parse_trace(text.encode()).events) == events
    spoilt = text.replace('"accepted_by_step":[0,', '"accepted_by_step":[4,')
    spoilt = spoilt.replace('"accepted_by_step": [0,', '"accepted_by_step": [4,')
    assert spoilt != text
    assert "do not add up" in parse_trace(spoilt.encode()).damage


@pytest.mark.parametrize(
    "said",
    [
        {"num_spec_steps": 2},
        {"num_spec_steps": 1, "num_draft_tokens": 3, "num_accepted_draft_tokens": 4},
        {"num_spec_steps": -1, "num_draft_tokens": 3, "num_accepted_draft_tokens": 1},
        {"num_spec_steps": 1, "num_draft_tokens": 3, "num_accepted_draft_tokens": 1, "acceptance_histogram": [1]},
    ],
)
def test_counts_that_do_not_add_up_are_not_taken(said: dict[str, Any]) -> None:
    found = read_chunk(json.dumps({"choices": [], "metrics": {"speculative_decoding": said}}), 0.0)
    assert found is not None
    assert found.counts is None


@pytest.mark.parametrize("lists", [([4], [1, 0]), ([4, 4], [5, 0]), ([4, 3], [1, 0]), (["4", 4], [1, 0]), (None, 7)])
def test_a_list_that_does_not_fit_its_counts_is_left_out(lists: Any) -> None:
    said = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 1}
    said |= {"per_step_drafted": lists[0], "per_step_accepted": lists[1]}
    found = read_chunk(json.dumps({"metrics": {"speculative_decoding": said}}), 0.0)
    assert found is not None
    assert found.counts is not None
    assert found.counts.drafted == found.counts.accepted == ()


# --- messages and steps ----------------------------------------------------------------------------------------------

OPEN = None
PLAIN = Told(0, 0, "target")


def test_order_says_which_step_was_which_where_it_can() -> None:
    assert match_steps([1, 2, 1], [4], [1]) == [PLAIN, Told(4, 1, "corrected"), PLAIN]
    assert match_steps([1, 2, 1], [4, 4, 4], [0, 1, 0]) == [
        Told(4, 0, "corrected"), Told(4, 1, "corrected"), Told(4, 0, "corrected"),
    ]  # fmt: skip
    assert match_steps([1, 1, 3], [4, 2], [0, 2]) == [OPEN, OPEN, Told(2, 2, "bonus")]
    assert match_steps([1, 1], [4, 3], [0, 0]) == [Told(4, 0, "corrected"), Told(3, 0, "corrected")]
    assert match_steps([], [], []) == []


def test_the_end_of_the_answer_cuts_its_last_step_short() -> None:
    assert match_steps([5, 2], [4, 4], [4, 3]) == [Told(4, 4, "bonus"), Told(4, 2, "accepted")]
    assert match_steps([1], [4], [4]) == [Told(4, 1, "accepted")]


def test_a_message_of_several_steps_is_known_where_its_part_of_the_list_is() -> None:
    assert match_steps([5, 7, 2], [4, 4, 4, 4], [4, 4, 1, 1]) == [
        Told(4, 4, "bonus"), Told(8, 5, None), Told(4, 1, None),
    ]  # fmt: skip
    assert match_steps([3], [9], [1]) == [Told(9, 1, None)]
    assert match_steps([2, 2], [4], [3]) == [Told(0, 0, None), Told(4, 2, None)]


def test_a_list_that_fits_no_message_tells_nothing() -> None:
    assert match_steps([1, 1, 1], [4, 4], [2, 2]) == [OPEN, OPEN, OPEN]


STEPS = st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 3), st.integers(0, 3))), min_size=1, max_size=7)


@given(STEPS)
def test_what_is_told_is_what_every_way_agrees_on(steps: list[tuple[int, int] | None]) -> None:
    """Against all ways, tried one by one."""
    real = [(0, 0) if step is None else (step[0], min(step)) for step in steps]
    sizes = [kept + 1 for _, kept in real]
    records = [step for step in real if step[0]]
    ways = []
    for places in itertools.combinations(range(len(sizes)), len(records)):
        way = dict(zip(places, records, strict=True))
        fits = all(
            (kept := way.get(i, (0, 0))[1]) + 1 == size or (i == len(sizes) - 1 and kept + 1 > size)
            for i, size in enumerate(sizes)
        )
        ways += [[way.get(i, (0, 0)) for i in range(len(sizes))]] if fits else []
    told = match_steps(sizes, [d for d, _ in records], [a for _, a in records])
    assert real in ways
    for found, seen in zip(told, zip(*ways, strict=True), strict=True):
        assert (found is None) == (len(set(seen)) > 1)
        assert found is None or (found.num_drafted, found.num_accepted) == (seen[0][0], found.num_accepted)


def test_the_page_hears_at_the_end_what_each_step_was(replay: ReplayServer) -> None:
    delta = json.loads(recorded_delta(run(replay, "detailed-copy"), None, "x"))
    assert [row[1:] for row in delta["told"]] == [[0, 0, "target"]] * 2 + [[4, 4, "bonus"]] * 7
    busy = json.loads(recorded_delta(run(replay, "detailed-busy"), None, "y"))
    steps = len(busy["steps"])
    known = {row[0]: row[1:] for row in busy["told"]}
    assert [known[i] for i in (38, 68, 69, 70, 73)] == [
        [4, 1, "corrected"], [4, 1, "corrected"], [0, 0, "target"], [4, 1, "corrected"], [2, 2, "bonus"],
    ]  # fmt: skip
    assert len(known) == 5 < steps
    assert busy["counters"]["num_target"] == steps - 17


def test_a_step_that_was_cut_short_has_no_token_of_the_targets_own() -> None:
    events = [StepDone(1, (), None, (), 0, 0, 1.0, 0.0, 0.0, 0.1, 5, 4)]
    assert fold(events).fates_are_told is False
    counts = {"num_drafts": 1, "num_drafted": 4, "num_accepted": 4, "drafted_by_step": (4,), "accepted_by_step": (4,)}
    words = tuple(EmittedToken(i, "a", origin, "") for i, origin in enumerate(("accepted", "target")))
    step = StepDone(1, (), None, words, 1, 0, 1.0, 0.0, 0.0, 0.1, 5, 4)
    end = RunFinished("length", "aa", (0, 1), 2, 1, 0.1, 0.1, 0.1, counts=EngineCounts(**counts))
    c: Counters = fold([step, end])
    assert (c.num_accepted, c.num_bonus, c.num_corrected, c.num_target) == (4, 0, 0, 0)
