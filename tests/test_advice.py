"""Which draft length would pay on a server, from its counts and times, and several servers as one."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz.remote.advice import Load, advise, loads_of, places_of, settings_line
from specviz.remote.advice_words import answer, sums
from specviz.remote.counters import ServerCounters, read_counters
from specviz.remote.history import History, Sample
from specviz.remote.replicas import outliers, summed
from specviz.remote.server import Drafting, Identity
from specviz.theory import expected_tokens, speed_up

VLLM = Identity("vLLM", "0.32.0", "m", 4096)


def times(t0: float, c: float, gamma: int, share: float, requests: int) -> tuple[Load, Load]:
    """A server whose drafted tokens cost c plain steps each, and a plain one."""
    step_s = share * t0 * (1 + gamma * c) + (1 - share) * t0
    return Load(requests, step_s, 1000, share), Load(requests, t0, 1000)


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
    st.floats(0.05, 1.0),
    st.floats(0.001, 0.2),
)
def test_the_best_gamma_is_that_of_every_gamma_tried(kept: list[float], c: float, share: float, t0: float) -> None:
    """kept: share of each place's drafts whose predecessor was kept."""
    by_place: list[float] = []
    for one in kept:
        by_place.append(one * (by_place[-1] if by_place else 1.0))
    own, plain = times(t0, c, len(kept), share, 4)
    advice = advise(by_place, {4: own}, {4: plain})
    assert advice.costs[4] == pytest.approx(c, abs=1e-6)
    pace = {0: 1 / t0}
    for gamma in range(1, len(kept) + 1):
        tokens = share * (1 + sum(by_place[:gamma])) + 1 - share
        pace[gamma] = tokens / (share * t0 * (1 + gamma * c) + (1 - share) * t0)
        assert advice.choices[gamma - 1].speed_up[4] == pytest.approx(pace[gamma] * t0, rel=1e-4)
        assert (pace[gamma] * t0 > 1 + 1e-6) <= (c < advice.choices[gamma - 1].break_even + 1e-6)
    assert pace[advice.best[4]] == pytest.approx(max(pace.values()), rel=1e-4)


def test_it_is_the_theory_where_each_place_is_kept_equally_often() -> None:
    by_place = [0.7**k for k in range(1, 6)]
    own, plain = times(0.02, 0.08, 5, 1.0, 1)
    advice = advise(by_place, {1: own}, {1: plain})
    for choice in advice.choices:
        assert choice.tokens == pytest.approx(expected_tokens(0.7, choice.gamma))
        assert choice.speed_up[1] == pytest.approx(speed_up(0.7, choice.gamma, 0.08))


def test_more_requests_at_once_make_shorter_drafts_best() -> None:
    by_place = [0.8, 0.6, 0.4, 0.2]
    measured = {n: times(0.02, c, 4, 1.0, n) for n, c in ((1, 0.05), (2, 0.2), (4, 0.7), (8, 1.0))}
    advice = advise(by_place, {n: own for n, (own, _) in measured.items()}, {n: p for n, (_, p) in measured.items()})
    assert dict(advice.best) == {1: 4, 2: 3, 4: 1, 8: 0}
    line = settings_line(VLLM, advice)
    config = json.loads(line.removeprefix("--speculative-config '").removesuffix("'"))
    assert config["num_speculative_tokens"] == 4
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 3, 3], [4, 7, 1], [8, 15, 0]]
    text = answer(advice, "a:1")
    assert text.startswith("With 1 request at once γ = 4 pays best, 2.50 times plain decoding; with 2 requests")
    assert text.endswith("with 8 requests at once no draft pays.")
    assert "= 0.050 plain steps, so γ = 4 gives 3.00 / (1 + 4 × 0.050) = 2.50 times plain" in sums(advice)[0]


def test_without_a_plain_server_it_says_what_is_missing() -> None:
    own, _ = times(0.02, 0.1, 2, 1.0, 1)
    advice = advise([0.5, 0.25], {1: own}, {})
    assert (advice.best, settings_line(VLLM, advice), sums(advice)) == ({}, "", [])
    assert "less than 0.38 plain steps" in answer(advice, "a:1")
    assert "--attach http://PLAIN --attach http://a:1 --concurrency" in answer(advice, "a:1")
    assert "has not been measured" in answer(advise([0.5, 0.25], {}, {}), "a:1")


@pytest.mark.parametrize(
    ("drafting", "line"),
    [
        (
            Drafting("EAGLE3", 4, 1, 5),
            "--speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 3",
        ),
        (Drafting("NGRAM", 0, 0, 5), "--speculative-algorithm NGRAM --speculative-num-draft-tokens 3"),
    ],
)
def test_sglang_gets_its_own_flags(drafting: Drafting, line: str) -> None:
    own, plain = times(0.02, 0.15, 4, 1.0, 1)
    advice = advise([0.9, 0.6, 0.1, 0.0], {1: own}, {1: plain})
    assert settings_line(Identity("SGLang", "0.5", "m", 0, drafting), advice) == line
    assert settings_line(Identity("llama.cpp", "", "m", 0), advice) == ""


# --- from metrics --------------------------------------------------------------------------------------------------


def history(source: str, steps: list[tuple[int, float, int]], kept: int = 2, places: int = 4) -> History:
    """steps: (requests running, seconds a step, steps) every two seconds; each step drafts and keeps `kept`."""
    found, total, gaps_s = History(), 0, 0.0
    for i, (running, step_s, count) in enumerate([(steps[0][0], 0.0, 0), *steps]):
        total, gaps_s = total + count, gaps_s + count * step_s
        by_place = tuple(total if place < kept else 0 for place in range(places))
        tokens = total * (kept + 1)
        counters = ServerCounters(total, places * total, kept * total, by_place, tokens, running, 0, source)
        counters = replace(counters, gaps_s=gaps_s, num_gaps=tokens if source == "sglang" else total)
        found = found.add(Sample(2.0 * i, counters))
    return found


@pytest.mark.parametrize("source", ["vllm", "sglang"])
def test_times_are_told_apart_by_load(source: str) -> None:
    """vLLM counts a gap a step, SGLang one a token."""
    found = loads_of(history(source, [(1, 0.02, 100), (1, 0.02, 50), (3, 0.05, 30), (3, 0.03, 100), (2, 0.03, 60)]))
    assert found[1] == Load(1, pytest.approx(0.02), 150, 1.0)
    assert found[2].num_steps == 160
    assert found[2].step_s == pytest.approx(0.03)
    assert set(found) == {1, 2}


def test_engines_behind_one_address_batch_apart() -> None:
    text = "".join(
        f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}\n'
        for engine in (0, 1)
        for name, value in (("num_requests_running", 4), ("inter_token_latency_seconds_count", 500))
    )
    counters = replace(read_counters(text), gaps_s=1.0)
    assert (counters.num_engines, counters.num_running, counters.num_gaps) == (2, 8, 1000)
    later = replace(counters, num_gaps=1200, gaps_s=5.0)
    assert loads_of(History((Sample(0.0, counters), Sample(2.0, later)))) == {4: Load(4, pytest.approx(0.02), 200)}


def test_a_model_stands_in_for_places_that_are_not_counted() -> None:
    counters = ServerCounters(200, 600, 300, (), 500, 1, 0, "sglang", draft_depth=3, num_drafted_each=3)
    found = History().add(Sample(0.0, ServerCounters(0, 0, 0, source="sglang", num_drafted_each=3)))
    by_place = places_of(found.add(Sample(2.0, counters)).last(9.0))
    assert 1 + sum(by_place) == pytest.approx(2.5)
    assert by_place[1] / by_place[0] == pytest.approx(by_place[0])
    assert places_of(None) == []


# --- several servers as one ----------------------------------------------------------------------------------------


def test_what_replicas_counted_is_summed_through_late_starts_and_restarts() -> None:
    draw = random.Random(3)
    grown: dict[str, int] = {}
    histories: dict[str, History] = {}
    for name, start in (("a", 0.0), ("b", 0.7), ("c", 41.3)):
        drafts, found = draw.randrange(1000), History()
        grown[name] = 0
        for i in range(40):
            if name == "b" and i == 20:  # a restart: what was before is gone for its history, as for the sum
                drafts, grown[name] = 0, 0
            elif i:
                more = draw.randrange(30)
                drafts, grown[name] = drafts + more, grown[name] + more
            counters = ServerCounters(drafts, 4 * drafts, 2 * drafts, (drafts, drafts, 0, 0), 3 * drafts, 2, 1, "vllm")
            found = found.add(Sample(start + 2.0 * i, counters))
        histories[name] = found
    total = summed([histories["a"], histories["b"]])
    newest = total.samples[-1].counters
    assert newest.num_drafts == grown["a"] + grown["b"]
    assert newest.accepted_at == (newest.num_drafts, newest.num_drafts, 0, 0)
    assert (newest.num_running, newest.num_waiting) == (4, 2)
    assert all(b.counters.since(a.counters) for a, b in zip(total.samples, total.samples[1:], strict=False))
    late = summed([histories["a"], histories["c"]]).samples
    assert (late[0].counters.num_running, late[-1].counters.num_running) == (2, 4)


def test_a_silent_replica_counts_but_has_no_requests() -> None:
    def of(count: int) -> History:
        found = History()
        for i in range(count):
            found = found.add(Sample(2.0 * i, ServerCounters(i, 4 * i, i, (i,), 2 * i, 5, 0, "vllm")))
        return found

    newest = summed([of(40), of(10)]).samples[-1].counters
    assert (newest.num_drafts, newest.num_running) == (39 + 9, 5)
    assert summed([]).samples == ()


def test_one_that_keeps_less_than_the_others_is_named() -> None:
    def of(share: int) -> History:
        found = History()
        for i in range(40):
            found = found.add(Sample(2.0 * i, ServerCounters(10 * i, 100 * i, share * i, (), 9 * i, 1, 0, "vllm")))
        return found

    assert outliers({"a": of(60), "b": of(55)}) == []
    said = outliers({"a": of(60), "b": of(20), "c": of(62)})
    assert len(said) == 1
    assert said[0].startswith("b keeps 20 % of its drafted tokens, the others 61 %.")
    assert outliers({"a": of(60)}) == []
