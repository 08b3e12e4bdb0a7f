"""The self-test that decides which passes are exact to the bit: what it finds on machines that round by other rules."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from checks import wild_llama

from specviz.models import exactness, session
from specviz.models.decoder import TransformersDecoder
from specviz.models.exactness import check_exactness


@cache
def wild() -> Any:
    return wild_llama(1)


class Rounding:
    """A machine whose logits move by a last bit for reasons of its own, and whose passes have times of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, differs: Any, seconds: dict[int, float]) -> None:
        exact = TransformersDecoder(wild())
        self.passes: list[tuple[int, int]] = []

        class Decoder(TransformersDecoder):
            def forward(_, ids, positions, seen, cache, **more):  # noqa: N805
                logits, hidden, taps = exact.forward(ids, positions, seen, cache, **more)
                # What differs in the fifteenth place between runs of one sum is none of the machine's rules.
                logits = torch.round(logits, decimals=6)
                self.passes.append((len(ids), seen.shape[1]))
                return logits + 1e-3 * differs(len(ids), seen.shape[1]), hidden, taps

        monkeypatch.setattr(session, "decoder_for", lambda model: Decoder(model))
        monkeypatch.setattr(
            exactness, "time_passes", lambda model, rows, *_, **__: iter([[[seconds[r]] for r in rows]])
        )


def check(width: int = 8) -> exactness.ExactnessReport:
    return check_exactness(wild(), width, 264, 2048)


FAST_TWO = {1: 1.0, 2: 0.9, 8: 1.2, 16: 1.4}
FAST_ONE = {1: 1.0, 2: 1.1, 8: 1.2, 16: 1.4}


@pytest.mark.parametrize(
    ("differs", "seconds", "min_rows", "cost", "is_free"),
    [
        (lambda rows, keys: 0, FAST_TWO, 2, 0.9, True),
        (lambda rows, keys: 0, FAST_ONE, 1, 1.0, True),
        (lambda rows, keys: rows == 1, FAST_ONE, 2, 1.1, False),
        (lambda rows, keys: rows == 1, {1: 1.0, 2: 1.02, 8: 1.2}, 2, 1.02, True),
        (lambda rows, keys: rows < 8, FAST_TWO, 8, 1.2, False),
        (lambda rows, keys: rows == 7, FAST_TWO, 8, 1.2, False),
        (lambda rows, keys: rows % 2, FAST_ONE, 8, 1.2, False),
    ],
)
def test_the_cheapest_padding_that_agrees_is_found(monkeypatch, differs, seconds, min_rows, cost, is_free) -> None:
    """One bit in one number of rows is enough to refuse what would be cheaper."""
    Rounding(monkeypatch, differs, seconds)
    report = check()
    assert (report.min_rows, report.cost, report.is_free) == (min_rows, pytest.approx(cost), is_free)
    assert report.passed
    assert report.is_default
    assert f"{report.num_positions} of {report.num_positions} positions equal to the bit" in report.sentence


@pytest.mark.parametrize(
    "differs",
    [
        lambda rows, keys: torch.rand(()),  # no two passes agree
        lambda rows, keys: keys == 128,  # the next block of keys is read in another order
        lambda rows, keys: torch.rand(()) * (keys > 448),  # the short contexts agree
    ],
    ids=["chance", "next-block", "long"],
)
def test_what_differs_at_every_padding_is_never_called_exact(monkeypatch, differs) -> None:
    """A pass is compared with others across the end of a key block, where its own keys are read in another length."""
    Rounding(monkeypatch, differs, FAST_TWO)
    report = check()
    assert report.min_rows == report.width == 8
    assert not report.passed
    assert not report.is_default
    assert not report.is_free
    assert report.num_equal < report.num_positions


def test_every_number_of_rows_is_compared_at_both_sides_of_a_key_block(monkeypatch) -> None:
    machine = Rounding(monkeypatch, lambda rows, keys: 0, FAST_ONE)
    check()
    assert {rows for rows, keys in machine.passes if keys == 64} >= set(range(1, 9))
    assert {rows for rows, keys in machine.passes if keys == 128} >= set(range(1, 9))


def test_at_width_16_more_rows_are_compared(monkeypatch) -> None:
    Rounding(monkeypatch, lambda rows, keys: rows > 8, FAST_TWO)
    assert check(8).min_rows == 2
    assert check(16).min_rows == 16
