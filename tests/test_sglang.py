"""SGLang attached: its metrics, its stream, its own counts of a request, and what it does not tell."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_sglang import Sglang, sglang

from specviz import RunConfig, fold
from specviz.cli import main
from specviz.errors import RemoteError
from specviz.metrics import Counters
from specviz.remote import RemoteEngine, read_addresses
from specviz.remote.advice import advise, loads_of, places_of
from specviz.remote.counters import read_counters
from specviz.remote.engine import Patience
from specviz.remote.history import History, Sample
from specviz.remote.server import Drafting
from specviz.trace import dump_trace, parse_trace
from specviz.ui.wire.stream import recorded_delta

CONFIG = RunConfig(max_new_tokens=32)


def engine(fake: Sglang) -> RemoteEngine:
    return RemoteEngine(read_addresses([fake.url])[0], Patience(poll_s=0.02, settle_s=0.1))


def run(fake: Sglang) -> list[Any]:
    return list(engine(fake).stream("Hello", CONFIG))


def figures(c: Counters) -> dict[str, Any]:
    names = ("is_bound", "num_drafted", "num_accepted", "num_rejections", "num_corrected", "num_bonus", "num_target")
    return {name: getattr(c, name) for name in names}


WHOLE = {
    "is_bound": False, "num_drafted": 15, "num_accepted": 9, "num_rejections": 3, "num_corrected": 3, "num_bonus": 2,
    "num_target": 0,
}  # fmt: skip
"""Five passes of three drafted tokens each, which keep 3, 0, 1, 3 and 2."""


def test_it_says_who_it_is_and_how_it_drafts_but_no_key() -> None:
    with sglang() as fake:
        identity = engine(fake).server.identify()
    assert identity.title == "SGLang 0.5.21"
    assert identity.drafting == Drafting("EAGLE3", 3, 1, 4)
    assert "never shown" not in repr(identity)


@pytest.mark.parametrize("beside", [(0, 0, 0), (3, 400, 90)])
def test_a_requests_own_counts_are_exact_also_on_a_busy_server(beside: tuple[int, int, int]) -> None:
    with sglang(beside=beside) as fake:
        events = run(fake)
        assert fake.requests[0]["return_spec_tokens_details"] is True
    c = fold(events)
    assert figures(c) == WHOLE
    assert c.alpha == pytest.approx(9 / 12)
    assert c.accepted_histogram == [1, 1, 1, 2]
    assert c.tested_at == [5, 4, 3]
    assert c.acceptance_length == pytest.approx(1 + 9 / 5)
    assert events[-1].message == "The model ended its answer."


def test_every_step_is_told_as_each_of_them_drafts() -> None:
    with sglang() as fake:
        events = run(fake)
    told = [row[1:] for row in json.loads(recorded_delta(events, None, "x"))["told"]]
    assert told == [
        [3, 3, "bonus"], [3, 0, "corrected"], [3, 1, "corrected"], [3, 3, "bonus"], [3, 2, "corrected"],
    ]  # fmt: skip
    assert list(parse_trace(dump_trace(events).encode()).events) == events


def test_messages_without_token_names_are_counted_by_their_usage() -> None:
    with sglang(names_tokens=False) as fake:
        events = run(fake)
    assert figures(fold(events)) == WHOLE
    assert events[-1].text == "".join(f" w{i}" for i in range(15))
    assert events[-1].num_tokens == 15
    assert "names no tokens" in events[-1].message


@pytest.mark.parametrize("tells_settings", [True, False])
def test_an_older_one_is_read_from_its_metrics(tells_settings: bool) -> None:
    with sglang(tells_request=False, tells_settings=tells_settings) as fake:
        assert figures(fold(run(fake))) == WHOLE


def test_beside_others_its_metrics_are_bounds() -> None:
    with sglang(tells_request=False, beside=(3, 400, 90)) as fake:
        events = run(fake)
    c = fold(events)
    assert c.is_bound
    assert c.num_drafted >= 15
    assert "upper bounds" in events[-1].message


def test_a_tree_drafts_more_rows_than_it_is_deep() -> None:
    """Which of its tokens were tested nothing tells, so there is no alpha."""
    with sglang(topk=4, rows=9) as fake:
        events = run(fake)
    c = fold(events)
    assert (c.num_drafted, c.num_accepted, c.alpha) == (40, 9, None)
    assert c.acceptance_rate == pytest.approx(9 / 40)
    assert events[-1].counts.drafted_by_step == ()


def test_messages_of_several_passes_leave_the_steps_open() -> None:
    class Merging(Sglang):
        def messages(self, body: dict[str, Any]) -> Any:
            for message in super().messages(body):
                if "sglext" in message:
                    details = message["sglext"]["spec_tokens_details"]
                    details["spec_verify_ct"] += 1
                    details["spec_num_proposed_drafts"] += 3
                    details["spec_correct_drafts_histogram"][0] += 1
                yield message

    with sglang() as fake:
        fake.__class__ = Merging
        events = run(fake)
    assert events[-1].counts.drafted_by_step == ()
    assert fold(events).num_drafted == 18
    assert fold(events).alpha == pytest.approx(9 / 13)


@pytest.mark.parametrize(
    "details",
    [{}, {"spec_verify_ct": 0, "spec_num_proposed_drafts": 0, "spec_num_correct_drafts": 0}, {"spec_verify_ct": "5"}],
)
def test_details_that_say_nothing_are_not_taken(details: dict[str, Any]) -> None:
    from specviz.remote.chunks import read_chunk

    found = read_chunk(json.dumps({"choices": [], "sglext": {"spec_tokens_details": details}}), 0.0)
    assert found is not None
    assert found.counts is None


def test_its_metrics_over_time() -> None:
    """Two processes of one rank tell the same requests; finished requests move the counts, its gauge stands between."""
    fake = Sglang(num_running=2)
    first = read_counters(fake.metrics(), "m")
    assert (first.num_running, first.num_waiting, first.gamma, first.speculates) == (2, 0, 3, True)
    assert first.num_accepted == 300 - 7 - 100
    list(fake.messages({}))
    second = read_counters(fake.metrics(), "m")
    history = History().add(Sample(0.0, first)).add(Sample(2.0, first)).add(Sample(4.0, second))
    assert history.restarted_at_s is None
    before, after = (stretch for _, stretch in history.stretches(10))
    assert before.acceptance_length == 2.5
    assert before.acceptance_rate is None
    assert after.acceptance_length == pytest.approx(1 + 9 / 5)
    assert after.acceptance_rate == pytest.approx(9 / 15)
    assert after.tokens_per_s == pytest.approx(15 / 2)


def test_what_would_pay_from_its_metrics() -> None:
    """A pass takes 24 ms with three drafts and 20 ms without, so a drafted token costs (24 / 20 - 1) / 3."""
    found = []
    for fake in (Sglang(num_running=1, pass_s=0.024), Sglang([0] * 14, num_running=1, drafts=False)):
        history = History()
        for i in range(40):
            history = history.add(Sample(2.0 * i, read_counters(fake.metrics(), "m")))
            list(fake.messages({}))
        found.append(history)
    loads, plain = (loads_of(history) for history in found)
    assert (loads[1].step_s, loads[1].drafted_share) == (pytest.approx(0.024), 1.0)
    assert (plain[1].step_s, plain[1].drafted_share) == (pytest.approx(0.020), 0.0)
    by_place = places_of(found[0].last(float("inf")))
    assert 1 + sum(by_place) == pytest.approx(1 + 9 / 5)
    advice = advise(by_place, loads, plain)
    assert advice.costs[1] == pytest.approx(0.2 / 3)
    assert advice.best[1] == 3


def test_metrics_that_are_switched_off_are_told_with_the_flag() -> None:
    with sglang(tells_metrics=False) as fake, pytest.raises(RemoteError, match="--enable-metrics"):
        engine(fake).server.counters()


def test_one_that_does_not_speculate_says_so() -> None:
    text = 'sglang:num_requests_total{model_name="m"} 3\nsglang:generation_tokens_total{model_name="m"} 40\n'
    assert read_counters(text).speculates is False
    assert read_counters('sglang:num_running_reqs{model_name="m"} 0\n').speculates is None


# --- many at once --------------------------------------------------------------------------------------------------


def bench(*words: str) -> int:
    return main(["bench", "--per-regime", "1", "--repeat", "1", "--max-new-tokens", "15", *words])


def test_the_crossing_on_running_servers(capsys: Any, tmp_path: Any) -> None:
    """Issue 17: plain against speculative at each number of requests, and the gamma that would pay."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"id": str(i), "prompt": f"p{i}"}) for i in range(2)))
    with (
        sglang(kept=[0] * 14, drafts=False, step_s=0.008) as plain,
        sglang(kept=[3, 0, 1, 3, 2] * 2, step_s=0.01) as drafting,
    ):
        servers = ("--attach", plain.url, "--attach", drafting.url, "--prompts", str(prompts))
        assert bench(*servers, "--concurrency", "4,1,1", "--per-regime", "2") == 0
        assert (plain.most_at_once, drafting.most_at_once) == (4, 4)
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    rows = found["concurrency"]
    assert [row["requests"] for row in rows] == [1, 1, 4, 4]
    assert [row["num_answers"] for row in rows] == [8] * 4
    alone, ours, crowd = rows[0], rows[1], rows[2]
    assert alone["over_first"] == 1.0
    assert ours["over_first"] == pytest.approx(ours["tokens_per_s"] / alone["tokens_per_s"])
    assert ours["s_per_token"] < alone["s_per_token"]  # 29 tokens in ten steps of 10 ms, 15 in 14 of 8 ms
    assert crowd["tokens_per_s"] > 2 * alone["tokens_per_s"]
    assert alone["s_per_token"] > 0.008
    assert (alone["acceptance_length"], ours["acceptance_length"]) == (None, pytest.approx(1 + 9 / 5))
    (advice,) = found["advice"]
    assert advice["name"] == drafting.url.removeprefix("http://")
    assert [n for n, _ in advice["best"]] == [1, 4]
    assert "times plain" in advice["answer"]
    assert advice["line"].startswith("--speculative-algorithm EAGLE3 --speculative-num-steps 3")
    assert "÷ first" in out


def test_too_few_drafts_are_no_advice(capsys: Any) -> None:
    with sglang() as fake:
        assert bench("--attach", fake.url, "--concurrency", "1") == 0
    (advice,) = json.loads(capsys.readouterr().out.splitlines()[-1])["advice"]
    assert "too few" in advice["answer"]
    assert (advice["line"], advice["best"]) == ("", [])


def test_what_is_no_concurrency_is_refused(capsys: Any) -> None:
    assert bench("--concurrency", "2") == 2
    assert "--attach" in capsys.readouterr().err
    for wrong in ("two", "0", "1,-2", "1000", ","):
        with sglang() as fake:
            assert bench("--attach", fake.url, "--concurrency", wrong) == 2
            assert fake.requests == []
    assert "concurrency" in capsys.readouterr().err


def test_a_server_that_breaks_off_ends_the_measurement(capsys: Any) -> None:
    class Broken(Sglang):
        def messages(self, body: dict[str, Any]) -> Any:
            yield from list(super().messages(body))[: 30 if len(self.requests) < 4 else 3]

    with sglang() as fake:
        fake.__class__ = Broken
        assert bench("--attach", fake.url, "--concurrency", "4") == 2
    assert "before it was done" in capsys.readouterr().err
