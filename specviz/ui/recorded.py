"""The real run that plays before a model has loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specviz.metrics import Baseline
from specviz.trace import Trace, load_trace
from specviz.ui.charts import Summary, summarize
from specviz.ui.stream import recorded_delta

__all__ = ["Recording", "opening_run"]

TRACES = Path(__file__).resolve().parents[2] / "assets" / "traces"
OPENING = "opening.jsonl"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run as the page takes it. delta: for the view; summary: the figures below it."""

    trace: Trace
    delta: str
    summary: Summary


def opening_run() -> Recording | None:
    """The recorded run that the page opens on; None where the file is missing."""
    path = TRACES / OPENING
    if not path.is_file():
        return None
    trace = load_trace(path)
    plain = Baseline.of(trace.plain, trace.events)
    delta = recorded_delta(trace.events, plain, f"recorded-{path.stem}")
    return Recording(trace, delta, summarize(trace.events, plain))
