"""Closed forms against oracle values computed by hand, and against a simulation of the process they describe."""

from __future__ import annotations

import random

import pytest

from specviz.errors import ConfigError
from specviz.theory import best_gamma, expected_tokens, gain_condition, loose_bound, speed_up, supremum


@pytest.mark.parametrize(
    ("alpha", "gamma", "expected"),
    [(0.6, 4, 2.306), (0.8, 4, 3.362), (0.8, 8, 4.329), (0.0, 5, 1.0), (1.0, 5, 6.0), (0.5, 0, 1.0)],
)
def test_expected_tokens(alpha: float, gamma: int, expected: float) -> None:
    assert expected_tokens(alpha, gamma) == pytest.approx(expected, abs=5e-4)


def test_expected_tokens_is_the_mean_of_the_process() -> None:
    """200,000 blocks: the standard error is 0.004, so a miss by 0.02 is five of them (p < 1e-6)."""
    rng, alpha, gamma, total = random.Random(1), 0.7, 5, 0
    for _ in range(200_000):
        kept = 0
        while kept < gamma and rng.random() < alpha:
            kept += 1
        total += kept + 1
    assert total / 200_000 == pytest.approx(expected_tokens(alpha, gamma), abs=0.02)


@pytest.mark.parametrize(
    ("alpha", "gamma", "c", "expected"),
    [(0.6, 4, 0.05, 1.921), (0.8, 4, 0.05, 2.801), (0.5, 4, 0.5, 0.646), (0.8, 3, 0.25, 1.687)],
)
def test_speed_up(alpha: float, gamma: int, c: float, expected: float) -> None:
    assert speed_up(alpha, gamma, c) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "s"),
    [(0.6, 0.05, 4, 1.921), (0.8, 0.05, 8, 3.092), (0.8, 0.25, 3, 1.687), (0.8, 0.5, 2, 1.220)],
)
def test_best_gamma(alpha: float, c: float, gamma: int, s: float) -> None:
    found, speed = best_gamma(alpha, c)
    assert found == gamma
    assert speed == pytest.approx(s, abs=1e-3)


def test_best_gamma_may_be_not_to_speculate() -> None:
    assert best_gamma(0.5, 0.5) == (0, 1.0)
    assert best_gamma(0.9, 0.01, [1.0] + [3.0 + g for g in range(15)])[0] == 0


def test_coverage_and_pass_costs_enter() -> None:
    """kappa = 0 is plain decoding at the cost of an undrafted pass; v = 2 halves the gain of a free draft."""
    assert speed_up(0.8, 4, 0.1, 1.5, kappa=0.0, v_undrafted=1.1) == pytest.approx(1 / 1.1)
    assert speed_up(0.8, 4, 0.0, 2.0) == pytest.approx(speed_up(0.8, 4, 0.0) / 2)


def test_the_formulas_in_circulation() -> None:
    assert loose_bound(0.8, 4) == pytest.approx(20.0)
    assert supremum(0.416) == pytest.approx(1.712, abs=1e-3)
    assert supremum(1.0) is None
    assert loose_bound(1.0, 3) is None
    assert gain_condition(tau=2.0, plain_s=0.03, draft_s=0.01, verify_s=0.04)
    assert not gain_condition(tau=2.0, plain_s=0.03, draft_s=0.03, verify_s=0.04)


@pytest.mark.parametrize("bad", [(-0.1, 4), (1.1, 4), (0.5, -1)])
def test_out_of_range_is_refused(bad: tuple[float, int]) -> None:
    with pytest.raises(ConfigError):
        expected_tokens(*bad)
    with pytest.raises(ConfigError):
        speed_up(0.5, 4, -1.0)
