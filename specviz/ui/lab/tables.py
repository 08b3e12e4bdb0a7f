"""The Lab's tables for people: heads with their units, figures with the digits that mean something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from specviz.lab.experiment import Finding

__all__ = ["heads", "table"]

Row = Mapping[str, Any]


def table(finding: Finding) -> pd.DataFrame:
    """One text a cell: a figure that is missing shows as –."""
    columns = _COLUMNS[finding.name]
    return pd.DataFrame([[read(row) for _, read in columns] for row in finding.rows], columns=heads(finding.name))


def heads(name: str) -> list[str]:
    """The heads of an experiment's table."""
    return [head for head, _ in _COLUMNS[name]]


def _number(key: str, digits: int = 2, scale: float = 1.0) -> Callable[[Row], str]:
    def read(row: Row) -> str:
        value = row.get(key)
        return "–" if value is None else f"{scale * value:,.{digits}f}"

    return read


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(key) or "")


def _range(low: str, high: str, digits: int = 2, scale: float = 1.0) -> Callable[[Row], str]:
    def read(row: Row) -> str:
        if row.get(low) is None or row.get(high) is None:
            return "–"
        return f"{scale * row[low]:.{digits}f} to {scale * row[high]:.{digits}f}"

    return read


def _token(key: str) -> Callable[[Row], str]:
    """White space is drawn, as in the strip: · and ↵."""
    return lambda row: str(row.get(key) or "").replace(" ", "·").replace("\n", "↵")


def _format(row: Row) -> str:
    return f"{row['format']}, in use" if row["is_used"] else str(row["format"])


_COLUMNS: dict[str, list[tuple[str, Callable[[Row], str]]]] = {
    "gamma": [
        ("γ", _number("gamma", 0)),
        ("speed-up", _number("speed_up")),
        ("single rounds", _range("speed_up_low", "speed_up_high")),
        ("theory S", _number("theory_speed_up")),
        ("α", _number("alpha", 3)),
        ("accepted / drafted", _number("acceptance_rate")),
        ("tokens a drafting step, τ", _number("acceptance_length")),
        ("c", _number("c", 3)),
        ("v", _number("v", 3)),
        ("tokens/s", _number("tokens_per_s", 1)),
        ("plain, tokens/s", _number("plain_tokens_per_s", 1)),
    ],
    "passes": [
        ("rows", _number("rows", 0)),
        ("pass, ms", _number("pass_s", 1, 1000)),
        ("single passes, ms", _range("pass_s_low", "pass_s_high", 1, 1000)),
        ("v: ÷ one row", _number("v")),
    ],
    "memory": [
        ("tokens of context", _number("context", 0)),
        ("target, MB", _number("target_bytes", 1, 1e-6)),
        ("its cache, MB", _number("target_cache_bytes", 1, 1e-6)),
        ("draft, MB", _number("draft_bytes", 1, 1e-6)),
        ("draft’s cache, MB", _number("draft_cache_bytes", 1, 1e-6)),
    ],
    "precision": [
        ("weights", _format),
        ("size, MB", _number("num_bytes", 1, 1e-6)),
        ("one pass, ms", _number("pass_s", 1, 1000)),
        ("c", _number("c", 3)),
        ("same first choice, %", _number("agreement", 0, 100)),
        ("α", _number("alpha", 3)),
        ("speed-up", _number("speed_up")),
        ("single rounds", _range("speed_up_low", "speed_up_high")),
        ("note", _text("note")),
    ],
    "length": [
        ("tokens of context", _number("context", 0)),
        ("plain token, ms", _number("target_s", 1, 1000)),
        ("check, ms", _number("check_s", 1, 1000)),
        ("drafted token, ms", _number("draft_s", 1, 1000)),
    ],
    "greedy": [
        ("place", _number("place", 0)),
        ("plain decoding", _token("plain")),
        ("this run", _token("run")),
        ("how it came", _text("origin")),
        ("same", lambda row: "yes" if row["is_same"] else "no"),
    ],
    "rules": [
        ("place in the draft", _number("place", 0)),
        ("kept token by token, %", _number("token", 1, 100)),
        ("kept as a block, %", _number("block", 1, 100)),
        ("more, %", _number("gain", 1, 100)),
    ],
    "sampling": [
        ("beginning", _token("outcome")),
        ("target’s probability, %", _number("probability", 2, 100)),
        ("expected", _number("expected", 1)),
        ("seen", _number("observed", 0)),
    ],
}
