"""Serving engines without a network: messages, steps, counters, addresses, history and alarms. All pure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay import NAMES, capture

from specviz.errors import ConfigError
from specviz.events import DraftNote, EngineCounts, PrefillDone, RunFinished, StepDone
from specviz.metrics import Counters, fold
from specviz.remote.address import read_addresses
from specviz.remote.alarms import RECENT_S, alarms
from specviz.remote.chunks import DraftTimings, StreamChunk, StreamToken, read_chunk
from specviz.remote.counters import ServerCounters, read_counters
from specviz.remote.history import KEPT_S, History, Sample
from specviz.remote.pieces import emitted_tokens
from specviz.remote.problems import refusal
from specviz.remote.steps import StepReader


def chunk(at_s: float, *words: str, **more: Any) -> StreamChunk:
    tokens = tuple(StreamToken(100 + i, word, 0.5) for i, word in enumerate(words))
    return StreamChunk(at_s, **({"text": "".join(words), "tokens": tokens} | more))


def read(chunks: list[StreamChunk], gamma: int = 4, speculates: bool | None = True) -> tuple[StepReader, list[Any]]:
    reader = StepReader(gamma, speculates)
    events = [event for message in chunks for event in reader.feed(message)]
    return reader, events + reader.end()


def messages(name: str) -> list[StreamChunk]:
    found = [read_chunk(line.removeprefix("data: "), at_s) for at_s, line in capture(name).lines]
    assert found[-1] is None
    return [message for message in found if message is not None]


# --- the captures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_of_a_capture_accept_what_its_counters_count(name: str) -> None:
    recorded = capture(name)
    reader, (prefill, *steps) = read(messages(name))
    assert isinstance(prefill, PrefillDone)
    assert len(prefill.emitted) == 1
    assert reader.num_accepted == recorded.counter("spec_decode_num_accepted_tokens_total")
    assert len(reader.token_ids) == recorded.counter("generation_tokens_total")
    assert sum(step.num_accepted + 1 for step in steps) == len(reader.token_ids) - 1
    for place in range(4):
        kept = sum(step.num_accepted > place for step in steps)
        assert kept == recorded.counter("spec_decode_num_accepted_tokens_per_pos_total", position=str(place))
    assert all(step.num_drafted is None and not step.drafted for step in steps)
    assert reader.num_merged == 0
    sent = [json.loads(line[6:]) for _, line in recorded.lines[:-1]]
    text = "".join(choice["delta"].get("content") or "" for message in sent for choice in message["choices"])
    assert reader.text == text
    assert reader.prompt_len == len(prefill.emitted and messages(name)[0].prompt_ids) == messages(name)[-1].num_prompt


@pytest.mark.parametrize("name", NAMES)
def test_step_times_add_up_to_the_time_from_the_first_to_the_last_token(name: str) -> None:
    timed = [message for message in messages(name) if message.tokens]
    _, (prefill, *steps) = read(messages(name))
    assert prefill.prefill_s == timed[0].at_s
    assert sum(step.other_s for step in steps) == pytest.approx(timed[-1].at_s - timed[0].at_s)
    assert all(step.draft_s == step.verify_s == 0 for step in steps)


def test_a_character_of_several_tokens_stays_whole_and_its_parts_have_no_text() -> None:
    _, (prefill, *steps) = read(messages("emoji-sampled"))
    emitted = [*prefill.emitted, *(token for step in steps for token in step.emitted)]
    assert [token.text for token in emitted[:3]] == ["", "", "📵"]
    assert [token.label for token in emitted[:3]] == ["id 10813", "id 237", ""]
    assert emitted[-1].special
    assert emitted[-1].label == emitted[-1].text == "<|im_end|>"


# --- steps ---------------------------------------------------------------------------------------------------------


def test_a_message_longer_than_gamma_plus_one_is_marked_as_merged_steps() -> None:
    reader, (_, step) = read([chunk(0.1, "a"), chunk(0.2, *"bcdefg")])
    assert step.note is not None
    assert step.note.kind == "merged"
    assert step.target_work == 2
    assert step.num_accepted == 4  # at most: two of the six tokens are the target's own
    assert [token.origin for token in step.emitted].count("target") == 2
    assert reader.num_merged == 1


def test_a_server_without_speculation_drafts_nothing_and_says_so_step_by_step() -> None:
    _, (_, one, two) = read([chunk(0.1, "a"), chunk(0.2, "b"), chunk(0.3, "c", "d")], 0, False)
    assert one.num_drafted == two.num_drafted == 0
    assert one.note is None
    assert two.note == DraftNote("merged", two.note.text, {"passes": 2})


def test_without_counters_no_message_is_called_merged() -> None:
    _, (_, step) = read([chunk(0.1, "a"), chunk(0.2, *"bcdefg")], 0, None)
    assert step.note is None
    assert step.num_drafted is None


def test_a_first_message_with_more_than_the_first_token_leaves_the_rest_to_a_step() -> None:
    _, (prefill, step) = read([chunk(0.1, "a", "b", "c")])
    assert [token.text for token in prefill.emitted] == ["a"]
    assert [(token.text, token.origin) for token in step.emitted] == [("b", "accepted"), ("c", "target")]


def test_llama_cpp_tells_what_each_step_drafted() -> None:
    """Its messages are tokens; running counts of drafted and accepted ones say where a step begins."""

    def token(at_s: float, word: str, drafted: int, accepted: int) -> StreamChunk:
        return StreamChunk(at_s, text=word, timings=DraftTimings(drafted, accepted))

    stream = [
        token(0.1, "a", 0, 0),
        *(token(0.2, word, 4, 2) for word in "bcd"),  # drafted 4, kept 2, corrected
        token(0.3, "e", 4, 2),  # drafted nothing
        *(token(0.4, word, 6, 4) for word in "fgh"),  # drafted 2, kept both, bonus
        *(token(0.5, word, 9, 6) for word in "ij"),  # the end cut it short
    ]
    reader, (prefill, *steps) = read(stream, 0, None)
    assert reader.text == "abcdefghij"
    assert [(step.num_drafted, step.num_accepted) for step in steps] == [(4, 2), (0, 0), (2, 2), (3, 2)]
    assert ["".join(t.text for t in step.emitted) for step in steps] == ["bcd", "e", "fgh", "ij"]
    assert [step.emitted[-1].origin for step in steps] == ["corrected", "target", "bonus", "accepted"]
    c = fold([prefill, *steps])
    assert (c.num_drafted, c.num_accepted, c.num_rejections, c.num_rejected, c.num_discarded) == (9, 6, 2, 2, 1)
    assert c.alpha == pytest.approx(6 / 8)
    assert reader.is_timed
    assert reader.tokens_are_told


def test_a_server_that_tells_no_tokens_counts_a_message_as_one() -> None:
    reader, (_, step) = read([StreamChunk(0.1, text="Hel"), StreamChunk(0.2, text="lo")])
    assert reader.text == "Hello"
    assert reader.token_ids == [-1, -1]
    assert step.emitted[0].label == ""
    assert not reader.tokens_are_told


# --- pieces and messages -------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=3), min_size=1, max_size=6), st.text(max_size=12))
def test_the_pieces_of_a_message_join_to_its_text_whatever_the_names_say(names: list[str], text: str) -> None:
    message = chunk(0.0, *names, text=text)
    pieces = emitted_tokens(message, ["accepted"] * len(names))
    assert "".join(token.text for token in pieces) == text


def test_a_completion_has_its_logprobs_in_columns() -> None:
    data = {"choices": [{"text": "a b", "token_ids": [1, 2], "logprobs": {"tokens": ["a", " b"], "token_logprobs": [0.0, None]}}]}  # fmt: skip  # noqa: E501
    found = read_chunk(json.dumps(data), 0.5)
    assert found is not None
    assert found.text == "a b"
    assert found.tokens == (StreamToken(1, "a", 1.0), StreamToken(2, " b", None))


def test_reasoning_is_part_of_the_answer_and_errors_are_read() -> None:
    thought = read_chunk(json.dumps({"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]}), 0.0)
    assert thought is not None
    assert thought.text == "hm"
    failed = read_chunk(json.dumps({"error": {"message": "out of blocks", "code": 500}}), 0.0)
    assert failed is not None
    assert failed.error == "out of blocks"


@pytest.mark.parametrize(
    "data",
    ["", "[]", "7", '{"choices": 3}', '{"choices": [7]}', '{"choices": [{"token_ids": {}}]}', '{"usage": [1]}', "{"],
)
def test_what_is_not_the_protocol_is_refused(data: str) -> None:
    with pytest.raises(ValueError):
        read_chunk(data, 0.0)


@pytest.mark.parametrize(
    "row", [{"token_ids": [None, True, "7", 10**40]}, {"logprobs": {"content": [{"token": 5, "logprob": "NaN"}]}}]
)
def test_odd_values_become_untold_ones(row: dict[str, Any]) -> None:
    found = read_chunk(json.dumps({"choices": [{"delta": {"content": "x"}, **row}]}), 0.0)
    assert found is not None
    assert all(token.prob is None for token in found.tokens)
    assert all(-1 <= token.token_id < 2**32 for token in found.tokens)


def test_half_a_character_becomes_one_that_can_be_stored() -> None:
    """A lone surrogate in JSON would make the trace unwritable."""
    found = read_chunk('{"choices": [{"delta": {"content": "a\\ud83d b\\ud83d\\udd25"}}]}', 0.0)
    assert found is not None
    assert found.text == "a\ufffd b🔥"


# --- counters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_counters_of_a_capture(name: str) -> None:
    recorded = capture(name)
    delta = read_counters(recorded.after, "SmolLM2-135M-Instruct").since(read_counters(recorded.before))
    assert delta is not None
    assert delta.num_drafts == recorded.counter("spec_decode_num_drafts_total")
    assert delta.num_drafted == recorded.counter("spec_decode_num_draft_tokens_total")
    assert delta.num_accepted == sum(delta.accepted_at)
    assert delta.num_running == delta.num_waiting == 0
    assert delta.speculates


def test_engines_are_summed_and_other_models_left_out() -> None:
    text = "".join(
        f'vllm:spec_decode_num_drafts_total{{engine="{engine}",model_name="{model}"}} {value}\n'
        for engine, model, value in (("0", "a", 3.0), ("1", "a", 4.0), ("0", "b", 100.0), ("2", "a", "NaN"))
    )
    assert read_counters(text, "a").num_drafts == 7
    assert read_counters(text).num_drafts == 107


def test_what_a_server_does_not_tell_is_none_and_speculation_is_not_guessed() -> None:
    assert read_counters("").speculates is None
    assert read_counters("<html>busy</html>\n").speculates is None
    assert read_counters('vllm:generation_tokens_total{engine="0"} 5.0\n').speculates is False
    assert read_counters("llamacpp:tokens_predicted_total 5\n").speculates is None
    assert read_counters("llamacpp:requests_processing 2\n").num_running == 2
    with pytest.raises(ValueError):
        read_counters("vllm:generation_tokens_total{engine=\n")


def test_a_count_that_fell_is_a_restart() -> None:
    assert ServerCounters(num_generated=3).since(ServerCounters(num_generated=5)) is None
    assert ServerCounters(5, 9, 3, (3, 0)).since(ServerCounters(4, 9, 3, (2, 1))) is None


def counts(*values: int, accepted_at: tuple[int, ...] = (), is_bound: bool = False) -> EngineCounts:
    return EngineCounts(*values, accepted_at, is_bound)


@pytest.mark.parametrize(
    ("found", "rejections"),
    [
        (counts(10, 40, 10, accepted_at=(5, 3, 2, 0)), 10),
        (counts(7, 28, 28, accepted_at=(7, 7, 7, 7)), 0),
        (counts(10, 40, 34, accepted_at=(10, 9, 8, 7)), 3),
        (counts(1, 3, 0, accepted_at=(0, 0, 0, 0)), 1),
        (counts(2, 5, 5, accepted_at=(2, 2, 1, 0)), 0),
        (counts(3, 9, 4, accepted_at=(3, 1, 0, 0)), None),
    ],
)
def test_refusals_follow_from_the_counters_where_drafts_have_one_length(
    found: EngineCounts, rejections: int | None
) -> None:
    assert found.num_rejections == rejections


def attached(kept: list[int], engine: EngineCounts | None) -> Counters:
    reader, events = read([chunk(0.1, "x"), *(chunk(0.2 + i, *("y" * (k + 1))) for i, k in enumerate(kept))])
    ids = tuple(reader.token_ids)
    return fold([*events, RunFinished("eos", "", ids, len(ids), len(kept), 0.1, 0.1, 1.0, counts=engine)])


def test_the_whole_runs_counts_stand_where_steps_do_not_tell() -> None:
    c = attached([3, 0, 0, 1, 0], counts(4, 16, 4, accepted_at=(2, 1, 1, 0)))
    assert (c.num_drafting_steps, c.num_drafted, c.num_rejections, c.num_discarded) == (4, 16, 4, 8)
    assert c.alpha == 0.5
    assert c.acceptance_length == 2.0
    assert c.tested_at == [4, 2, 1, 1]
    assert c.accepted_histogram == [2, 1, 0, 1]
    assert c.coverage == pytest.approx(4 / 5)
    told = c.to_json()
    assert told["num_corrected"] is told["num_bonus"] is told["draft_s"] is None
    assert told["num_rejected"] == 4


def test_without_counters_no_rate_is_made_up() -> None:
    c = attached([3, 0, 1], None)
    assert all(row["rate"] is None for row in [*c.by_position(), *c.by_position(unconditional=True)])
    told = c.to_json()
    names = ("num_drafted", "num_tested", "num_rejected", "num_discarded", "num_drafting_steps")
    assert all(told[name] is None for name in names)
    rates = ("alpha", "acceptance_rate", "acceptance_length", "coverage", "mean_drafted")
    assert all(told[name] is None for name in rates)
    assert told["num_accepted"] == 4
    assert told["block_efficiency"] == pytest.approx(7 / 3)  # the prompt's own token is in no step


def test_drafts_of_several_lengths_leave_alpha_open_but_not_the_rate() -> None:
    c = attached([2, 1, 1], counts(3, 9, 4, accepted_at=(3, 1, 0, 0)))
    assert c.alpha is None
    assert c.acceptance_rate == pytest.approx(4 / 9)
    assert c.tested_at == [3, 0, 0, 0]


def test_beside_other_requests_counts_are_bounds() -> None:
    c = attached([3, 0, 0, 1, 0], counts(90, 360, 200, accepted_at=(90, 60, 30, 20), is_bound=True))
    assert c.is_bound
    assert c.num_accepted == 4  # its own text tells
    assert c.num_drafting_steps == 5  # a step has one draft at most
    assert c.num_drafted == 20
    assert c.num_rejections == 5
    assert c.num_discarded == 16


def test_merged_steps_have_no_places() -> None:
    c = attached([1, 7], counts(90, 360, 200, accepted_at=(90, 60, 30, 20), is_bound=True))
    assert c.num_accepted == 1 + 6  # eight tokens are two steps at least
    assert c.accepted_at == [1]
    assert c.accepted_histogram == [0, 1]


def test_merged_steps_show_where_the_server_counts_fewer_accepted() -> None:
    assert attached([1, 1], counts(1, 4, 1, accepted_at=(1, 0, 0, 0))).num_accepted == 1


# --- addresses and refusals ----------------------------------------------------------------------------------------


def test_addresses_come_from_the_flag_else_from_the_environment() -> None:
    there = {"SPECVIZ_ATTACH": "http://a:1, https://b/x/v1\nhttp://[::1]:8000/v1/"}
    assert [address.name for address in read_addresses((), there)] == ["a:1", "b/x", "[::1]:8000"]
    assert [address.url for address in read_addresses((), there)][1] == "https://b/x"
    assert [address.name for address in read_addresses(["http://c:2"], there)] == ["c:2"]
    assert read_addresses((), {}) == []


def test_one_key_for_all_servers_or_one_each_and_none_is_shown() -> None:
    urls = ["http://a", "http://b"]
    assert [a.key for a in read_addresses(urls, {"SPECVIZ_ATTACH_KEY": "k"})] == ["k", "k"]
    found = read_addresses(urls, {"SPECVIZ_ATTACH_KEY": "k1, k2"})
    assert [a.key for a in found] == ["k1", "k2"]
    assert "k1" not in repr(found)
    with pytest.raises(ConfigError, match="3 keys for 2 servers"):
        read_addresses(urls, {"SPECVIZ_ATTACH_KEY": "a,b,c"})


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://a",
        "http://",
        "http://u:secret@a",
        "http://a?x=1",
        "http://a:99999",
        "http://[",
        "file:///etc",
    ],
)
def test_what_is_no_address_is_refused_and_no_password_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_addresses([url], {})
    assert "secret" not in str(caught.value)


def test_the_same_server_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        read_addresses(["http://a:1", "http://a:1/v1"], {})


@pytest.mark.parametrize(
    ("status", "body", "needle"),
    [
        (401, "", "wants a key"),
        (404, '{"detail": "Not Found"}', "Not Found"),
        (404, "<html>", "OpenAI-compatible"),
        (400, '{"error": {"message": "max_tokens is too large"}}', "max_tokens is too large"),
        (429, "", "too many requests"),
        (503, "[1]", "may be starting"),
    ],
)
def test_a_refusal_says_what_to_do_next(status: int, body: str, needle: str) -> None:
    assert needle in str(refusal(status, body, read_addresses(["http://a:1"], {})[0]))


def test_a_servers_own_words_never_repeat_the_key() -> None:
    address = read_addresses(["http://a:1"], {"SPECVIZ_ATTACH_KEY": "hush"})[0]
    assert "hush" not in str(refusal(400, '{"error": "bad token hush"}', address))


# --- history and alarms --------------------------------------------------------------------------------------------


def traffic(*parts: tuple[int, int]) -> History:
    """Samples 2 s apart: for each (number of samples, tokens kept of 4 drafted), 5 drafts a sample."""
    history, drafts, accepted = History(), 0, 0
    for number, kept in parts:
        for _ in range(number):
            drafts, accepted = drafts + 5, accepted + 5 * kept
            at_s = 0.0 if not history.samples else history.samples[-1].at_s + 2.0
            found = ServerCounters(drafts, 4 * drafts, accepted, (), drafts + accepted, 2, 1, "vllm")
            history = history.add(Sample(at_s, found))
    return history


def test_rates_over_the_last_minute_and_over_time() -> None:
    history = traffic((40, 2))
    recent = history.last(RECENT_S)
    assert recent is not None
    assert recent.seconds == 60
    assert recent.drafts_per_s == 2.5
    assert recent.tokens_per_s == 7.5
    assert recent.acceptance_length == 3.0
    assert recent.acceptance_rate == 0.5
    points = history.stretches(10)
    assert len(points) <= 10
    assert points[-1][0] == 0
    assert [ago for ago, _ in points] == sorted((ago for ago, _ in points), reverse=True)
    assert all(stretch.acceptance_length == 3.0 for _, stretch in points)
    assert sum(stretch.seconds for _, stretch in points) == history.samples[-1].at_s


def test_history_forgets_the_old_and_what_was_before_a_restart() -> None:
    history = traffic((1200, 1))
    assert history.samples[-1].at_s - history.samples[0].at_s <= KEPT_S
    history = history.add(Sample(9999.0, ServerCounters(1, 4, 1, (1, 0, 0, 0), 2, 0, 0, "vllm")))
    assert len(history.samples) == 1
    assert history.restarted_at_s == 9999.0
    assert history.last(60) is None
    assert history.stretches(10) == []


@pytest.mark.parametrize(
    ("parts", "needle"),
    [
        ([(60, 3), (30, 1)], "collapsed: 25 %"),
        ([(60, 4)], "Suspiciously perfect: 100 %"),
        ([(60, 0)], "Hardly any"),
        ([(60, 2), (30, 1)], ""),
        ([(5, 4)], ""),  # too few drafts to say anything
    ],
)
def test_alarms_at_a_collapse_and_at_perfection(parts: list[tuple[int, int]], needle: str) -> None:
    """Collapse is silent, as the text stays right (peers 46); very high acceptance flags looping text (peers 44)."""
    said = " ".join(alarms(traffic(*parts)))
    assert needle in said
    assert bool(said) == bool(needle)


def test_step_events_of_a_server_read_back_from_a_trace() -> None:
    from specviz.events import event_from_json, event_to_json

    _, events = read([chunk(0.1, "a"), chunk(0.2, *"bcdefg")])
    end = RunFinished("eos", "a", (1,), 1, 1, 0.1, 0.1, 0.1, counts=counts(1, 4, 2, accepted_at=(1, 1)))
    for event in [*events, end]:
        assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
    assert isinstance(events[1], StepDone)
