"""Closed forms of speculative decoding. Pure arithmetic; nothing here knows a model.

Notation of Leviathan, Kalman, Matias (2023), arXiv 2211.17192: alpha is per-token acceptance over tested tokens,
gamma the drafted tokens per step, c the cost of one drafted token in plain steps. Two factors are added that the
paper sets to 1: v, the cost of a verification pass in plain steps, and kappa, the share of steps that drafted.
"""

from __future__ import annotations

from specviz.errors import ConfigError

__all__ = ["best_gamma", "expected_tokens", "gain_condition", "loose_bound", "speed_up", "supremum"]


def expected_tokens(alpha: float, gamma: float) -> float:
    """Mean tokens emitted by one step when each drafted token is accepted with probability alpha.

    Args:
        alpha: per-token acceptance in [0, 1], tested tokens only.
        gamma: drafted tokens per step, >= 0; a mean over steps need not be whole.
    Returns:
        A number of tokens in [1, gamma + 1].
    Raises:
        ConfigError: alpha outside [0, 1] or gamma negative.
    Source: Leviathan et al. (2023), Equation 1. Assumes independent positions.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha must lie between 0 and 1; got {alpha}.")
    if gamma < 0:
        raise ConfigError(f"gamma must be 0 or more; got {gamma}.")
    if alpha == 1.0:
        return gamma + 1.0
    return float((1.0 - alpha ** (gamma + 1.0)) / (1.0 - alpha))


def speed_up(
    alpha: float, gamma: float, c: float, v: float = 1.0, *, kappa: float = 1.0, v_undrafted: float | None = None
) -> float:
    """Tokens a second over plain decoding, S = (kappa E + 1 - kappa) / (kappa (gamma c + v) + (1 - kappa) v0).

    Args:
        alpha, gamma: as in `expected_tokens`.
        c: time of one drafted token / time of one plain step, >= 0.
        v: time of a verification pass of this run's rows / time of a one-row pass, > 0.
        kappa: share of steps that drafted, in [0, 1].
        v_undrafted: v of a step without a draft; v where None.
    Source: Leviathan et al. (2023), Theorem 3.8, which is the case kappa = 1, v = 1.
    """
    if c < 0 or v <= 0 or not 0.0 <= kappa <= 1.0:
        raise ConfigError(f"c must be >= 0, v > 0 and kappa in [0, 1]; got c={c}, v={v}, kappa={kappa}.")
    v0 = v if v_undrafted is None else v_undrafted
    tokens = kappa * expected_tokens(alpha, gamma) + 1.0 - kappa
    return tokens / (kappa * (gamma * c + v) + (1.0 - kappa) * v0)


def best_gamma(alpha: float, c: float, v: float | list[float] = 1.0, *, max_gamma: int = 15) -> tuple[int, float]:
    """The gamma in 0..max_gamma with the highest speed-up, and that speed-up. 0 means "do not speculate" (S = 1).

    v may be a list: v[gamma] is the cost of checking gamma drafted tokens. Ties take the smaller gamma.
    """
    best, best_s = 0, 1.0
    for gamma in range(1, max_gamma + 1):
        s = speed_up(alpha, gamma, c, v[gamma] if isinstance(v, list) else v)
        if s > best_s:
            best, best_s = gamma, s
    return best, best_s


def loose_bound(alpha: float, gamma: float) -> float | None:
    """gamma / (1 - alpha), a bound in circulation: true, and gamma times too loose. None at alpha = 1."""
    return None if alpha == 1.0 else gamma / (1.0 - alpha)


def supremum(alpha: float) -> float | None:
    """1 / (1 - alpha), the supremum of the speed-up over all gamma at c = 0, v = 1. None at alpha = 1."""
    return None if alpha == 1.0 else 1.0 / (1.0 - alpha)


def gain_condition(tau: float, plain_s: float, draft_s: float, verify_s: float) -> bool:
    """Whether a drafting step gains: the tokens it emits would have cost plain decoding more than the step cost."""
    return tau * plain_s > draft_s + verify_s
