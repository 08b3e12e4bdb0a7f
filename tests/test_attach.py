"""Attached servers end to end: a replaying server sends what a real vLLM sent, whole, cut short, slow or spoilt.

`tests/test_remote.py` tests the reading of messages and counters by itself. The last test wants SPECVIZ_VLLM_URL.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from replay import NAMES, ReplayServer, capture, serving

from specviz.bench.prompts import read_entries
from specviz.cli import main
from specviz.config import RunConfig, SamplingParams
from specviz.errors import ConfigError, RemoteError
from specviz.events import PrefillDone, RunFinished, RunStarted, StepDone
from specviz.metrics import fold, summary
from specviz.remote import Address, RemoteEngine, attach
from specviz.remote.engine import Patience
from specviz.remote.sampler import Sampler
from specviz.remote.server import Server
from specviz.trace import dump_trace, load_trace, parse_trace
from specviz.words import verdict

PATIENT = Patience(poll_s=0.02, settle_s=0.1)
CONFIG = RunConfig(max_new_tokens=96)


@pytest.fixture
def replay() -> Iterator[ReplayServer]:
    with serving() as server:
        yield server


def engine(replay: ReplayServer, key: str = "", patience: Patience = PATIENT) -> RemoteEngine:
    return RemoteEngine(Address(replay.url, replay.url.removeprefix("http://"), key), patience)


def run(replay: ReplayServer, name: str = "copy", config: RunConfig = CONFIG) -> list[Any]:
    return list(engine(replay).stream(capture(name).prompt, config))


def shows(text: str, *, without: str) -> str:
    return "\n".join(line for line in text.splitlines() if without not in line) + "\n"


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_of_a_run_are_those_of_the_servers_counters(replay: ReplayServer, name: str) -> None:
    recorded = capture(name)
    events = run(replay, name)
    c, end = fold(events), events[-1]
    assert [type(event) for event in events[:3]] == [RunStarted, PrefillDone, StepDone]
    assert c.num_drafting_steps == recorded.counter("spec_decode_num_drafts_total")
    assert c.num_drafted == recorded.counter("spec_decode_num_draft_tokens_total")
    assert c.num_accepted == recorded.counter("spec_decode_num_accepted_tokens_total")
    places = [recorded.counter("spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(4)]
    assert c.accepted_at == places
    assert sum(k * steps for k, steps in enumerate(c.accepted_histogram)) == c.num_accepted
    assert c.num_prefill_tokens + c.num_tokens == end.num_tokens == recorded.counter("generation_tokens_total")
    assert c.num_rejected + c.num_discarded == c.num_drafted - c.num_accepted
    assert not c.is_bound
    assert end.reason == ("length" if name in ("chat", "code") else "eos")
    assert events[0].gamma == 4
    assert events[0].versions == {"vLLM": "0.32.0"}
    assert events[0].exactness == "unchecked"


def test_a_run_with_the_recorded_timing_takes_the_recorded_time(replay: ReplayServer) -> None:
    replay.speed = 1.0
    c = fold(run(replay, "emoji-sampled"))
    recorded = capture("emoji-sampled").lines
    assert c.decode_s >= 0.8 * (recorded[-3][0] - recorded[1][0])  # a busy machine may only be slower
    assert c.prefill_s >= 0.9 * recorded[0][0]
    assert c.verify_s == c.draft_s == 0


def test_only_settings_that_are_on_are_sent(replay: ReplayServer) -> None:
    run(replay)
    sampling = SamplingParams(0.7, 5, 0.9, 1.1, 3)
    run(replay, config=RunConfig(max_new_tokens=7, sampling=sampling, stop=("END",)))
    plain, full = replay.requests
    assert not {"top_k", "top_p", "seed", "stop", "repetition_penalty"} & set(plain)
    assert plain["return_token_ids"] is plain["logprobs"] is True
    assert (full["temperature"], full["top_k"], full["top_p"], full["repetition_penalty"]) == (0.7, 5, 0.9, 1.1)
    assert (full["seed"], full["stop"], full["max_tokens"]) == (3, ["END"], 7)


def test_raw_asks_for_a_completion(replay: ReplayServer) -> None:
    run(replay, config=RunConfig(max_new_tokens=7, raw=True))
    assert replay.requests[0]["prompt"] == capture("copy").prompt
    assert "messages" not in replay.requests[0]


def test_an_attached_run_is_a_trace_like_any_other(replay: ReplayServer) -> None:
    events = run(replay, "chat")
    trace = parse_trace(dump_trace(events).encode())
    assert list(trace.events) == events
    started = trace.started
    found = summary(started, fold(trace.events), events[-1])
    assert found["num_drafted"] == 40
    said = verdict(started, fold(trace.events), None)
    assert said["speed_up"] is None
    assert "nothing here has checked it" in said["detail"]
    assert "plain" not in said["detail"].lower()


def test_logprobs_are_named_and_never_make_an_acceptance_probability(replay: ReplayServer) -> None:
    events = run(replay, "emoji-sampled")
    assert "before temperature" in events[0].notes[0]
    tokens = [token for event in events[1:-1] for token in event.emitted]
    assert all(token.target_prob is not None for token in tokens)
    assert not any(event.drafted for event in events if isinstance(event, StepDone))


# --- what counters cannot tell -------------------------------------------------------------------------------------


def test_beside_other_requests_the_counts_are_marked_as_bounds(replay: ReplayServer) -> None:
    def beside(text: str) -> str:  # others ask "code" while we ask "chat"
        names = [found.name for found in replay.answered]
        if names == ["chat"]:
            replay.answered.append(capture("code"))
            return replay.counters()
        return text

    replay.metrics = beside
    events = run(replay, "chat")
    c = fold(events)
    assert c.is_bound
    assert c.num_accepted == 10
    assert c.num_drafted == 80
    assert "upper bounds" in events[-1].message
    assert c.alpha == pytest.approx(10 / 30)


def test_a_server_that_does_not_speculate_is_said_to(replay: ReplayServer) -> None:
    replay.metrics = lambda text: shows(text, without="spec_decode")
    events = run(replay, "emoji-sampled")
    c = fold(events)
    assert "does not speculate" in events[-1].message
    assert (c.num_drafted, c.num_rejections, c.num_drafting_steps) == (0, 0, 0)
    assert all(step.num_drafted == 0 for step in events if isinstance(step, StepDone))


@pytest.mark.parametrize("text", ["", "vllm:generation_tokens_total{ 5\n"])
def test_without_readable_metrics_the_run_stands_and_refusals_stay_unknown(replay: ReplayServer, text: str) -> None:
    replay.metrics = lambda _: text
    events = run(replay, "chat")
    assert "what was refused is not known" in events[-1].message
    assert fold(events).to_json()["num_rejected"] is None
    assert fold(events).num_accepted == 10


def test_counters_that_fell_are_not_used(replay: ReplayServer) -> None:
    """A restart between two questions."""
    replay.answered = [capture("code")] * 3
    replay.metrics = lambda text: capture("copy").before if replay.requests else text
    events = run(replay, "chat")
    assert events[-1].counts is None
    assert "not known" in events[-1].message


def test_a_server_without_a_version_is_taken_as_it_is(replay: ReplayServer) -> None:
    replay.has_version = False
    started = run(replay)[0]
    assert started.machine["engine"] == "vLLM"
    assert started.versions == {}


def test_a_server_that_tells_no_tokens_is_read_by_its_messages(replay: ReplayServer) -> None:
    """An older version: no token ids, no logprobs."""

    def spoil(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
        out = []
        for at_s, line in lines:
            if not line.endswith("[DONE]"):
                message = json.loads(line[6:])
                for choice in message["choices"]:
                    choice.pop("token_ids", None)
                    choice.pop("logprobs", None)
                line = f"data: {json.dumps(message)}"
            out.append((at_s, line))
        return out

    replay.edit = spoil
    end = run(replay, "copy")[-1]
    assert "each message counts as one. It counts 38." in end.message
    assert end.text.endswith("until noon.")


# --- servers that fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [2, 3, 8, 40, 86])
def test_a_stream_that_is_cut_short_keeps_what_came_and_says_so(replay: ReplayServer, cut: int) -> None:
    replay.cut = cut
    events = run(replay, "chat")
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert end.reason == "error"
    assert "ended the stream before the answer was done after" in end.message
    replay.cut = None
    whole = run(replay, "chat")[-1]
    assert whole.token_ids[: end.num_tokens] == end.token_ids
    assert whole.text.startswith(end.text)
    assert parse_trace(dump_trace(events).encode()).damage == ""


@pytest.mark.parametrize("cut", [0, 1])
def test_a_stream_without_a_token_is_a_failure_before_the_run(replay: ReplayServer, cut: int) -> None:
    replay.cut = cut
    with pytest.raises(RemoteError, match="before the first token"):
        run(replay, "chat")


def test_a_server_that_falls_silent_is_given_up(replay: ReplayServer) -> None:
    replay.hang = 10
    *_, end = engine(replay, patience=Patience(poll_s=0.02, next_s=2.0)).stream(capture("chat").prompt, CONFIG)
    assert end.reason == "error"
    assert "silent for 2 s after 9 tokens" in end.message
    assert replay.hung_up.wait(20)
    replay.hang = 0
    with pytest.raises(RemoteError, match="silent for 1 s, before the first token"):
        list(engine(replay, patience=Patience(poll_s=0.02, first_s=1.0)).stream(capture("chat").prompt, CONFIG))


def test_a_failure_in_the_stream_is_told_in_the_servers_words(replay: ReplayServer) -> None:
    replay.edit = lambda lines: [*lines[:5], (0.0, 'data: {"error": {"message": "EngineDeadError", "code": 500}}')]
    end = run(replay, "chat")[-1]
    assert "EngineDeadError" in end.message
    assert end.num_tokens == 4


def test_what_is_not_the_protocol_ends_the_run(replay: ReplayServer) -> None:
    replay.edit = lambda lines: [*lines[:5], (0.0, "data: {oops")]
    assert run(replay, "chat")[-1].reason == "error"


@pytest.mark.parametrize(
    ("status", "needle"), [(503, "cannot answer now"), (401, "wants a key"), (404, "does not know")]
)
def test_a_server_that_refuses(replay: ReplayServer, status: int, needle: str) -> None:
    replay.status = status
    with pytest.raises(RemoteError, match=needle):
        run(replay)


def test_the_key_is_sent_and_a_wrong_one_is_named_but_not_shown(replay: ReplayServer) -> None:
    replay.key = "right"
    assert list(engine(replay, "right").stream(capture("copy").prompt, CONFIG))[-1].reason == "eos"
    with pytest.raises(RemoteError, match="refused the key") as caught:
        list(engine(replay, "wrong-one").stream("x", CONFIG))
    assert "wrong-one" not in str(caught.value)
    assert "right" not in dump_trace(list(engine(replay, "right").stream(capture("copy").prompt, CONFIG)))


def nowhere() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_nothing_listens() -> None:
    with pytest.raises(RemoteError, match="nothing listens there"):
        list(attach(nowhere()).stream("x", CONFIG))


def test_a_half_dead_server_takes_the_connection_and_never_answers() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = Address(f"http://127.0.0.1:{deaf.getsockname()[1]}", "deaf")
        with pytest.raises(RemoteError, match="does not answer"):
            Server(address, answer_s=0.2).identify()


def test_a_stop_hangs_up_before_and_behind_the_first_token(replay: ReplayServer) -> None:
    replay.hang = 0
    assert list(engine(replay).stream(capture("chat").prompt, CONFIG, stopped=lambda: True)) == []
    replay.hang = 10
    seen: list[Any] = []
    for event in engine(replay).stream(capture("chat").prompt, CONFIG, stopped=lambda: len(seen) > 4):
        seen.append(event)
    assert seen[-1].reason == "cancelled"
    assert replay.hung_up.wait(20)


def test_a_run_that_nobody_reads_on_hangs_up(replay: ReplayServer) -> None:
    replay.hang = 20
    events = engine(replay).stream(capture("chat").prompt, CONFIG)
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert replay.hung_up.wait(20)


def test_the_time_limit_holds(replay: ReplayServer) -> None:
    replay.hang = 10
    end = list(engine(replay).stream(capture("chat").prompt, RunConfig(time_limit_s=1.0)))[-1]
    assert end.reason == "time"


def test_an_empty_prompt_is_refused_before_anything_is_sent(replay: ReplayServer) -> None:
    with pytest.raises(ConfigError, match="empty"):
        engine(replay).stream("  ", CONFIG)
    assert replay.requests == []


# --- sampling counters over time -----------------------------------------------------------------------------------


def test_a_sampler_lives_through_silence_and_restart(replay: ReplayServer) -> None:
    now = [0.0]
    sampler = Sampler(Server(Address(replay.url, "here")), clock=lambda: now[0])
    for name in ("copy", "chat"):
        sampler.sample()
        replay.answered.append(capture(name))
        now[0] += 2
    sampler.sample()
    last = sampler.history.last(60)
    assert last is not None
    assert (last.counted.num_drafts, last.counted.num_accepted) == (17, 38)
    assert last.acceptance_length == pytest.approx(1 + 38 / 17)
    assert sampler.identity is not None
    replay.status = 503
    now[0] += 2
    sampler.sample()
    assert "503" in sampler.problem
    assert sampler.silent_since_s == now[0]
    replay.status = 200
    replay.answered.clear()
    now[0] += 2
    sampler.sample()
    assert sampler.silent_since_s is None
    assert sampler.history.restarted_at_s == now[0]
    assert sampler.problem == ""


def test_metrics_are_sampled_where_only_the_models_want_a_key(replay: ReplayServer) -> None:
    replay.key = "k"
    sampler = Sampler(Server(Address(replay.url, "here")))
    sampler.sample()
    assert len(sampler.history.samples) == 1
    assert "wants a key" in sampler.problem
    assert sampler.silent_since_s is None


# --- command line --------------------------------------------------------------------------------------------------


def test_run_on_a_server_from_the_command_line(replay: ReplayServer, capsys: Any, tmp_path: Any) -> None:
    trace = tmp_path / "run.jsonl"
    assert main(["run", "--attach", replay.url, capture("copy").prompt, "--trace", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("There were seven boats")
    assert "37 tokens in 9 steps (eos)" in err
    assert "accepted 28 of 28 drafted" in err
    assert fold(load_trace(trace).events).num_drafted == 28
    assert main(["run", "--attach", replay.url, capture("chat").prompt, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_drafted"], found["num_rejected"], found["method"]) == (40, 10, "attached")


def test_the_command_line_says_what_a_server_cannot_do(replay: ReplayServer, capsys: Any) -> None:
    assert main(["run", "--attach", replay.url, "x", "--measure-plain"]) == 2
    assert "cannot be asked to decode plainly" in capsys.readouterr().err
    assert main(["run", "--attach", nowhere(), "x"]) == 2
    assert "nothing listens there" in capsys.readouterr().err


def test_bench_compares_servers_with_the_first(replay: ReplayServer, capsys: Any, tmp_path: Any) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"id": name, "prompt": capture(name).prompt}) for name in ("copy", "chat")))
    entry = read_entries(prompts, 2, None)[0]
    assert entry.asked == capture("copy").prompt
    with serving(metrics=lambda text: shows(text, without="spec_decode")) as other:
        words = ["bench", "--attach", other.url, "--attach", replay.url, "--prompts", str(prompts)]
        assert main([*words, "--per-regime", "2", "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    first, second = json.loads(out.splitlines()[-1])["rows"]
    assert first["over_first"] == 1.0
    assert first["alpha"] is None
    assert second["num_accepted"] == 38
    assert second["num_drafted"] == 68
    assert second["num_equal_to_first"] == 2
    assert "÷ first" in out


# --- a real server -------------------------------------------------------------------------------------------------


@pytest.mark.skipif("SPECVIZ_VLLM_URL" not in os.environ, reason="set SPECVIZ_VLLM_URL to a running vLLM")
def test_a_real_server_agrees_with_its_own_counters() -> None:
    """Nothing else may run on it."""
    real = attach(os.environ["SPECVIZ_VLLM_URL"])
    prompt = "Repeat word for word: the cat sat on the mat, and the cat sat on the hat."
    events = list(real.stream(prompt, RunConfig(max_new_tokens=64)))
    end, c = events[-1], fold(events)
    assert end.reason in ("eos", "length")
    assert end.text
    assert end.num_tokens == c.num_tokens + c.num_prefill_tokens
    if end.counts is not None and not end.counts.is_bound:
        kept = sum(event.num_accepted for event in events if isinstance(event, StepDone))
        assert kept <= end.counts.num_accepted <= kept + max(0, events[0].gamma)  # the end may cut the last step
        assert c.num_steps >= end.counts.num_drafts
