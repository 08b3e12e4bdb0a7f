"""Golden numbers for every rate, from scripted events."""

from __future__ import annotations

import json

import pytest
from streams import STREAMS, drafted, emitted, finished, started, step, stream

from specviz.events import PrefillDone, RunFinished, StepDone
from specviz.metrics import Baseline, Counters, fold
from specviz.words import verdict


def scripted(accepted: list[int], gamma: int = 4, **times: float) -> list[StepDone]:
    """Steps that draft `gamma` tokens and keep the given numbers of them."""
    steps = []
    for i, kept in enumerate(accepted, start=1):
        fates = ["accepted"] * kept + ["rejected"] * (kept < gamma) + ["discarded"] * max(0, gamma - kept - 1)
        tokens = [drafted(10 + j, f" {j}", j - 1, fate) for j, fate in enumerate(fates)]
        out = [emitted(10 + j, f" {j}", "accepted") for j in range(kept)]
        out.append(emitted(99, " x", "bonus" if kept == gamma else "corrected"))
        steps.append(step(i, tokens, out, 10 + i, **times))
    return steps


def test_case_48_full_acceptance_is_exactly_one() -> None:
    c = fold(stream(started("draft-model"), scripted([4] * 10)))
    assert (c.acceptance_rate, c.alpha, c.block_efficiency) == (1.0, 1.0, 5.0)
    assert c.num_bonus == 10
    assert c.num_corrected == c.num_rejected == c.num_discarded == 0


@pytest.mark.parametrize(
    "steps", [[], [step(1, [], [emitted(1, "a", "target")], 7), step(2, [], [emitted(2, "b", "target")], 8)]]
)
def test_case_49_no_drafts_is_a_dash_and_strict_json(steps: list[StepDone]) -> None:
    c = fold(stream(started("prompt-lookup"), steps))
    assert c.acceptance_rate is c.alpha is c.acceptance_length is c.mean_drafted is c.overlap is None
    assert c.block_efficiency == (1.0 if steps else None)
    assert json.loads(json.dumps(c.to_json(), allow_nan=False))["alpha"] is None
    assert c.by_position() == []


def test_case_51_each_rate_has_its_own_denominator() -> None:
    """gamma 4, accepted 4, 0, 2."""
    c = fold(stream(started("draft-model"), scripted([4, 0, 2])))
    assert (c.num_drafted, c.num_accepted, c.num_tested) == (12, 6, 8)
    assert c.acceptance_rate == 0.5
    assert c.alpha == 0.75
    assert c.acceptance_length == 3.0
    assert c.block_efficiency == 3.0
    assert [place["rate"] for place in c.by_position(unconditional=True)] == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])
    assert [place["rate"] for place in c.by_position()] == pytest.approx([2 / 3, 1.0, 1 / 2, 1.0])
    assert c.accepted_histogram == [1, 0, 1, 0, 1]


def test_case_53_prefill_apart_and_tokens_not_chunks() -> None:
    """Prefill 2.0 s, then 5 steps of 0.1 s with 3 tokens each."""
    steps = scripted([2] * 5, gamma=2, draft_s=0.02, verify_s=0.07, other_s=0.01)
    c = fold([started("draft-model"), PrefillDone(6, 2.0), *steps])
    assert c.first_token_s == pytest.approx(2.1)
    assert c.decode_tokens_per_s == pytest.approx(30.0)
    assert c.total_tokens_per_s == pytest.approx(6.0)
    assert c.draft_s_per_token == pytest.approx(0.01)


def test_case_57_first_token_is_the_first_token_whatever_is_visible() -> None:
    steps = [
        step(
            1,
            [],
            [emitted(2, "<|x|>", "target", special=True, label="<|x|>")],
            7,
            draft_s=0.0,
            verify_s=0.3,
            other_s=0.0,
        ),
        step(2, [], [emitted(3, "", "target", label="F0 9F")], 8, draft_s=0.0, verify_s=0.3, other_s=0.0),
        step(3, [], [emitted(4, "🔥", "target")], 9, draft_s=0.0, verify_s=0.3, other_s=0.0),
    ]
    assert fold([started("plain"), PrefillDone(6, 1.0), *steps]).first_token_s == pytest.approx(1.3)


@pytest.mark.parametrize("name", STREAMS)
def test_case_59_cumulative_values_never_fall_and_bounds_hold(name: str) -> None:
    """Invariants I2, I3 and I6 after every event of every kind of step."""
    before: dict = {}
    counters = Counters()
    for event in STREAMS[name]():
        now = counters.update(event).to_json()
        for key in ("num_steps", "num_tokens", "num_drafted", "num_accepted", "num_tested", "decode_s", "target_work"):
            if now[key] is None:  # a serving engine's steps do not tell it
                continue
            assert now[key] >= before.get(key, 0)
        if isinstance(event, StepDone):
            assert 0 <= event.num_accepted <= len(event.emitted)
        for key in ("acceptance_rate", "alpha", "coverage", "overlap"):
            assert now[key] is None or 0.0 <= now[key] <= 1.0
        before = now
    assert isinstance(event, RunFinished)
    assert counters.num_prefill_tokens + counters.num_tokens == event.num_tokens == len(event.token_ids)
    assert counters.reason == event.reason


def test_case_61_slower_than_plain_is_said_with_the_reason() -> None:
    """Plain 50 ms a token; a step of 4 x 40 ms draft + 60 ms verify yields 1.4 tokens: 0.32x, a slowdown."""
    accepted = [1, 0, 1, 0, 0] * 4
    steps = scripted(accepted, draft_s=0.16, verify_s=0.06, other_s=0.0)
    c = fold(stream(started("draft-model"), steps))
    assert c.decode_s / c.num_tokens == pytest.approx(0.157, abs=1e-3)
    found = verdict(started("draft-model"), c, Baseline(num_tokens=28, decode_s=28 * 0.05))
    assert found["kind"] == "slower"
    assert found["speed_up"] == pytest.approx(0.318, abs=1e-3)
    assert "slower" in found["headline"]
    assert "0.80 plain steps" in found["reason"]


@pytest.mark.parametrize(("seconds", "kind"), [(0.5, "faster"), (0.245, "equal"), (0.1, "slower")])
def test_the_headline_follows_the_ratio(seconds: float, kind: str) -> None:
    """The run makes 15 tokens in 0.25 s."""
    steps = scripted([2] * 5, gamma=2, draft_s=0.0, verify_s=0.05, other_s=0.0)
    found = verdict(started("prompt-lookup"), fold(steps), Baseline(15, seconds))
    assert found["kind"] == kind
    assert found["speed_up"] == pytest.approx(seconds / 0.25)
    assert bool(found["reason"]) == (kind == "slower")
    why = "A step wrote 3.00 tokens in the time plain decoding takes for 1.50. "  # 3.00 / 1.50 is the speed-up
    assert found["detail"].startswith(why) == (kind == "faster")


def test_no_baseline_means_no_ratio() -> None:
    found = verdict(started("prompt-lookup"), fold(scripted([2])), None)
    assert found["speed_up"] is None
    assert "×" not in found["headline"]


def test_a_tree_counts_depth_not_nodes_as_places() -> None:
    """Siblings share a place; a step that went on past a refused sibling has no rejection at that place."""
    c = fold(STREAMS["tree"]())
    assert not c.is_chain
    assert (c.num_accepted, c.num_tested, c.num_drafted) == (3, 4, 8)
    assert c.drafted_at == [2, 2]
    assert c.tested_at == [2, 2]
    assert c.accepted_at == [2, 1]


def test_early_exit_counts_the_targets_own_work() -> None:
    assert fold(STREAMS["early-exit"]()).block_efficiency == pytest.approx(2 / 2.0)


def test_a_server_that_does_not_tell_what_it_drafted_has_no_rates() -> None:
    c = fold(STREAMS["attached"]())
    assert c.alpha is c.acceptance_rate is None
    assert c.num_accepted == 1
    assert c.num_tokens == 3


def test_rolling_values_cover_the_last_eight_steps() -> None:
    c = fold(scripted([0] * 8 + [4] * 8))
    assert c.rolling_alpha == 1.0
    assert c.alpha == pytest.approx(32 / 40)
    assert c.rolling_tokens_per_s == pytest.approx(5 / 0.071)


def test_baseline_compares_ids_only_where_that_makes_sense() -> None:
    run = [started("draft-model", verify="greedy"), *scripted([2]), finished(scripted([2]))]
    assert Baseline.of(run, run) == Baseline(3, pytest.approx(0.071), True, None)
    other = [*run[:-1], finished(scripted([1]))]
    assert Baseline.of(other, run).first_difference == 1  # type: ignore[union-attr]
    sampled = [started("draft-model", verify="speculative sampling"), *run[1:]]
    assert Baseline.of(run, sampled).same_text is None  # type: ignore[union-attr]
    assert Baseline.of(run[:-1], run) is None


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"same_text": True}, "wrote the same 15 tokens here"),
        (
            {"same_text": False, "first_difference": 4, "gap": 0.016, "width_same": True},
            "differs at token 5, where the two best logits are 0.016 apart",
        ),
        ({"same_text": False, "first_difference": 4, "width_same": False}, "Not exact"),
        ({"same_text": False, "first_difference": 0}, "differs at token 1."),
        ({}, "Lossless"),
    ],
)
def test_case_7_the_promise_is_shown_with_what_was_checked(changes: dict, needle: str) -> None:
    """A text that differs is never passed over: the first difference, the gap, and the run at equal width are named."""
    steps = scripted([2] * 5, gamma=2)
    found = verdict(started("prompt-lookup"), fold(steps), Baseline(15, 0.5, **changes))
    assert needle in found["detail"]
    assert ("Not exact" in found["detail"]) == (changes.get("width_same") is False)


def test_case_7_a_difference_is_explained_by_the_run_at_equal_width() -> None:
    run = [started("draft-model", verify="greedy"), *scripted([2]), finished(scripted([2]))]
    other = [*run[:-1], finished(scripted([1]))]
    base = Baseline.of(other, run)
    assert base is not None
    assert base.ids_to_difference(run) == [5, 6, 7, 8, 9, 10, 10]
    assert base.explained(run, 0.5, run).width_same is True
    assert base.explained(run, 0.5, other).width_same is False
    assert base.explained(run, 0.5, ()).width_same is None
