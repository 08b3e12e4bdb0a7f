"""Findings as files: the recorded Lab that the page shows before anybody has measured, and tables to take away."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from specviz.assets import ASSETS
from specviz.errors import TraceError
from specviz.lab.experiment import Finding
from specviz.lab.experiments import EXPERIMENTS
from specviz.spreadsheet import harmless

__all__ = ["RECORDED", "load_findings", "save_finding", "to_csv"]

RECORDED = ASSETS / "lab"


def save_finding(folder: Path, finding: Finding) -> Path:
    """Writes <folder>/<name>.json, a table row a line, floats to six digits."""
    data = finding.to_json()
    rows = ",\n  ".join(_dump(row) for row in data.pop("rows"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.name}.json"
    path.write_text(f'{_dump(data)[:-1]}, "rows": [\n  {rows}\n]}}\n', encoding="utf-8")
    return path


def load_findings(folder: Path = RECORDED) -> dict[str, Finding]:
    """The recorded findings by name; those that were never recorded are missing.

    Raises:
        TraceError: a file that is not one of `save_finding`.
    """
    found = {}
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        if path.is_file():
            try:
                found[name] = Finding.from_json(json.loads(path.read_text(encoding="utf-8")))
            except ValueError as error:
                raise TraceError(f"{path.name} is not the record of an experiment: {error}.") from error
    return found


def to_csv(finding: Finding) -> str:
    """The table with where and when it was measured in its first columns; one row a line."""
    about = {key: value for key, value in finding.about.items() if key != "prompt"}
    columns = dict.fromkeys(key for row in finding.rows for key in row)
    out = io.StringIO()
    writer = csv.DictWriter(out, [*about, *(key for key in columns if key not in about)], lineterminator="\n")
    writer.writeheader()
    for row in finding.rows:
        writer.writerow({key: harmless(value) for key, value in (about | row).items()})
    return out.getvalue()


def _dump(value: object) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False, allow_nan=False)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
