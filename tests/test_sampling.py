"""The one transform from logits to probabilities, and drawing from it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specviz.config import GREEDY_BELOW, RunConfig, SamplingParams
from specviz.errors import ConfigError
from specviz.sampling import choose, draw, own_probability, penalise, probabilities, residual, spread, uniform_generator

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, 1.0, -3.0], dtype=torch.float64)


def naive(logits: list[float], params: SamplingParams, history: list[int]) -> list[float]:
    """The same definition with plain Python loops."""
    scores = [
        (x / params.repetition_penalty if x > 0 else x * params.repetition_penalty) if i in history else x
        for i, x in enumerate(logits)
    ]
    scores = [x / params.temperature for x in scores]
    if 0 < params.top_k < len(scores):
        kth = sorted(scores, reverse=True)[params.top_k - 1]
        scores = [x if x >= kth else -math.inf for x in scores]
    top = max(scores)
    weights = [math.exp(x - top) for x in scores]
    probs = [w / sum(weights) for w in weights]
    if params.top_p < 1.0:
        kept, mass = set(), 0.0
        for i in sorted(range(len(probs)), key=lambda i: (-probs[i], i)):
            if mass >= params.top_p:
                break
            kept.add(i)
            mass += probs[i]
        probs = [p / mass if i in kept else 0.0 for i, p in enumerate(probs)]
    return probs


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=9),
    st.floats(0.05, 3),
    st.integers(0, 9),
    st.floats(0.05, 1),
    st.floats(0.5, 2),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_probabilities_agree_with_plain_loops(
    logits: list[float], temperature: float, top_k: int, top_p: float, penalty: float, history: list[int]
) -> None:
    """Case 21: temperature, top-k, top-p and penalty in every combination."""
    params = SamplingParams(temperature, top_k, top_p, penalty)
    found = probabilities(torch.tensor(logits, dtype=torch.float64), params, history)
    expected = torch.tensor(naive(logits, params, history), dtype=torch.float64)
    assert float(found.sum()) == pytest.approx(1.0)
    # A cumulative mass that meets top_p to the last bit may fall on either side of it.
    near = top_p < 1 and any(abs(m - top_p) < 1e-9 for m in sorted(expected.cumsum(0).tolist()))
    assert near or torch.allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-9, 1e-6, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_case_26_tiny_temperatures_are_greedy(temperature: float, dtype: torch.dtype) -> None:
    params = SamplingParams(temperature)
    assert params.is_greedy
    found = probabilities(LOGITS.to(dtype), params)
    assert torch.isfinite(found).all()
    assert found[0] == 1.0
    assert choose(LOGITS.to(dtype), params) == 0


def test_the_smallest_temperature_that_draws_is_finite() -> None:
    found = probabilities(LOGITS.float() * 1000, SamplingParams(GREEDY_BELOW))
    assert torch.isfinite(found).all()
    assert found[0] == 1.0


def test_case_10_penalty_hits_each_token_once_with_the_right_sign() -> None:
    found = penalise(LOGITS, [0, 0, 3, 77, -1], 2.0)
    assert found.tolist() == [1.0, 1.0, 0.5, -2.0, 1.0, -3.0]
    assert LOGITS[0] == 2.0


def test_top_k_beyond_the_vocabulary_and_ties() -> None:
    params = SamplingParams(1.0, top_k=100)
    assert torch.allclose(probabilities(LOGITS, params), torch.softmax(LOGITS, 0))
    assert (probabilities(LOGITS, SamplingParams(1.0, top_k=2)) > 0).tolist() == [True, True, False, False, True, False]


def test_case_25_half_precision_logits_are_computed_in_float32() -> None:
    found = probabilities(torch.tensor([0.0, -20.0], dtype=torch.bfloat16), SamplingParams(1.0))
    assert found.dtype == torch.float32
    assert found[1] == pytest.approx(math.exp(-20), rel=1e-3)


def test_draw_follows_the_distribution_and_never_takes_an_impossible_token() -> None:
    """50,000 draws of 4 tokens: a share is off by 0.012 with p < 1e-6 (5.4 standard errors at 0.5)."""
    probs = torch.tensor([0.0, 0.5, 0.3, 0.0, 0.2])
    rng = uniform_generator(3)
    counts = torch.zeros(5)
    for _ in range(50_000):
        counts[draw(probs, rng)] += 1
    assert counts[0] == counts[3] == 0
    assert (counts / 50_000 - probs).abs().max() < 0.012


@pytest.mark.parametrize("point", [0.0, 1.0 - 2**-53])
def test_draw_at_the_ends_of_the_interval(point: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specviz.sampling.coin", lambda rng: point)
    index = draw(torch.tensor([0.0, 0.1, 0.7, 0.2, 0.0]), uniform_generator(0))
    assert index == (1 if point == 0.0 else 3)


def test_residual() -> None:
    p, q = torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0.6, 0.2, 0.2])
    assert residual(p, q).tolist() == pytest.approx([0.0, 0.8, 0.2])
    assert residual(p, p).tolist() == p.tolist()


def test_own_probability_is_a_softmax_and_zero_outside() -> None:
    assert own_probability(LOGITS, 2) == pytest.approx(float(torch.softmax(LOGITS, 0)[2]), rel=1e-6)
    assert own_probability(LOGITS, 6) == own_probability(LOGITS, -1) == 0.0


def test_case_28_the_global_stream_is_left_alone() -> None:
    before = torch.get_rng_state()
    draw(torch.tensor([0.5, 0.5]), uniform_generator(1))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("settings", "needle"),
    [
        (dict(temperature=float("nan")), "temperature"),
        (dict(temperature=-1), "temperature"),
        (dict(temperature=None), "temperature"),
        (dict(top_k=-5), "top-k"),
        (dict(top_k=2.5), "top-k"),
        (dict(top_p=0), "top-p"),
        (dict(top_p=float("inf")), "top-p"),
        (dict(repetition_penalty=0), "repetition penalty"),
        (dict(seed=2**80), "seed"),
        (dict(seed=-1), "seed"),
        (dict(seed=True), "seed"),
    ],
)
def test_case_92_bad_sampling_settings_are_refused_by_name(settings: dict, needle: str) -> None:
    with pytest.raises(ConfigError, match=needle):
        SamplingParams(**settings)


@pytest.mark.parametrize(
    ("settings", "needle"),
    [
        (dict(gamma=10_000), "gamma"),
        (dict(gamma="4"), "gamma"),
        (dict(max_new_tokens=10**9), "max-new-tokens"),
        (dict(max_new_tokens=0), "max-new-tokens"),
        (dict(width=0), "width"),
        (dict(method=""), "method"),
        (dict(verify="wishful"), "verify"),
        (dict(stop=("",)), "stop"),
        (dict(stop=("x",) * 9), "stop"),
        (dict(time_limit_s=float("nan")), "time limit"),
    ],
)
def test_case_92_bad_run_settings_are_refused_by_name(settings: dict, needle: str) -> None:
    with pytest.raises(ConfigError, match=needle):
        RunConfig(**settings)


def test_exact_mode_names_the_remedy_when_gamma_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="--width 16"):
        RunConfig(gamma=8).require_width()
    RunConfig(gamma=7).require_width()


def test_whole_floats_become_ints() -> None:
    config = RunConfig(gamma=3.0, sampling=SamplingParams(top_k=5.0))  # type: ignore[arg-type]
    assert (config.gamma, config.sampling.top_k) == (3, 5)
    assert isinstance(config.gamma, int)


def test_spread_puts_a_draft_s_logits_where_its_tokens_are() -> None:
    row = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    low = float("-inf")
    assert spread(row, torch.tensor([4, 0, 2]), 6).tolist() == [2.0, low, 3.0, low, 1.0, low]
    assert spread(row, None, 2).tolist() == [1.0, 2.0]
    assert spread(row, None, 5).tolist() == [1.0, 2.0, 3.0, low, low]
    assert spread(row.double(), None, 3).dtype == torch.float64
    assert spread(row, None, 3).dtype == torch.float32
