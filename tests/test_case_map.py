"""The table of cases in README.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = (HERE / "README.md").read_text(encoding="utf-8")


def test_every_test_in_the_table_exists() -> None:
    named = set(re.findall(r"`(test_\w+\.py)::(\w+)`", TABLE))
    assert len(named) > 100
    sources = {file: (HERE / file).read_text(encoding="utf-8") for file, _ in named}
    assert sorted(f"{file}::{name}" for file, name in named if f"def {name}(" not in sources[file]) == []


def test_every_row_has_a_test_or_a_reason() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \| [^|]+ \| (.+) \|$", TABLE)
    counted = re.search(r"(\d+)\s+cases, (\d+) with a test, (\d+) that cannot apply", TABLE)
    assert counted is not None
    without = [number for number, where in rows if where.startswith("does not apply: ")]
    assert [len(rows), len(rows) - len(without), len(without)] == [int(count) for count in counted.groups()]
    assert len({number for number, _ in rows}) == len(rows)
    assert all("`test_" in where for _, where in rows)
