"""Do counts come from a known distribution? Pearson's chi-square test, pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

__all__ = ["LEAST_EXPECTED", "Cell", "Fit", "chi_square_p", "fit", "stands_out_from"]

Outcome = TypeVar("Outcome", bound=Hashable)

LEAST_EXPECTED = 5.0
"""Rarer outcomes are pooled: with fewer expected the statistic does not follow chi-square (Cochran 1954)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An outcome, or all rare ones together (outcome None), with how often it was expected and seen."""

    outcome: Any
    expected: float
    observed: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The test's result. num_pooled: known outcomes that share the last cell, those without a name included as one.

    p_value: None where all the mass lies in one cell, so that nothing can be told.
    """

    cells: tuple[Cell, ...]
    chi_square: float
    degrees: int
    p_value: float | None


def chi_square_p(statistic: float, degrees: int) -> float:
    """P(X >= statistic) for X of chi-square with so many degrees of freedom, Q(degrees / 2, statistic / 2)."""
    if math.isinf(statistic):
        return 0.0
    half = torch.tensor([degrees / 2.0, statistic / 2.0], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def fit(probs: Mapping[Outcome, float], counts: Mapping[Outcome, int]) -> Fit:
    """Pearson's test of counts against probabilities.

    Outcomes that are too rare for a cell of their own are pooled, together with the probability that `probs` leaves
    open and with whatever was seen outside of it. Where even the pool is too small it joins the rarest cell, so that
    every cell is expected LEAST_EXPECTED times, unless there is no more than one.

    Args:
        probs: of outcomes; may sum to less than 1. counts: how often each was seen; may hold others.
    """
    total = sum(counts.values())
    common = sorted((name for name, p in probs.items() if p * total >= LEAST_EXPECTED), key=lambda n: -probs[n])
    cells = [Cell(name, probs[name] * total, counts.get(name, 0)) for name in common]
    left = max(0.0, total - sum(cell.expected for cell in cells))
    seen = total - sum(cell.observed for cell in cells)
    if left < LEAST_EXPECTED and cells and (left > 1e-9 * total or seen):
        rarest = cells.pop()
        left, seen = left + rarest.expected, seen + rarest.observed
    if left > 1e-9 * total or seen:
        cells.append(Cell(None, left, seen))
    statistic = sum((cell.observed - cell.expected) ** 2 / cell.expected for cell in cells)
    degrees = len(cells) - 1
    return Fit(tuple(cells), statistic, max(0, degrees), chi_square_p(statistic, degrees) if degrees > 0 else None)


def stands_out_from(prob: float, total: int) -> float:
    """By how much an outcome of this probability would have to be off to stand out in so many samples: two standard
    errors of its share."""
    return 2.0 * math.sqrt(prob * (1.0 - prob) / total)
