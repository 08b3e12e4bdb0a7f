"""Recorded runs as the page takes them: the one it opens on, the gallery that ships with it, a visitor's own file."""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specviz.assets import ASSETS
from specviz.metrics import Baseline
from specviz.trace import Trace, load_trace
from specviz.trace import open_upload as read_upload
from specviz.ui.charts import Summary, summarize
from specviz.ui.wire.stream import cut_short, recorded_delta

__all__ = ["OPENING", "GalleryRun", "Recording", "load_gallery", "open_upload", "opening_run", "recall"]

TRACES = ASSETS / "traces"
OPENING = "opening"


@dataclass(frozen=True, slots=True)
class GalleryRun:
    """One entry of `assets/traces/gallery.toml`.

    name: of its file and in a link. title: for the menu. prompt, flags: of the command that recorded it.
    """

    name: str
    title: str
    prompt: str
    flags: tuple[str, ...]

    @property
    def path(self) -> Path:
        return TRACES / f"{self.name}.jsonl"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run as the page takes it. delta: for the view; summary: the figures below it."""

    trace: Trace
    delta: str
    summary: Summary


@cache
def load_gallery() -> Mapping[str, GalleryRun]:
    """The runs that ship with specviz by name, the opening one first."""
    entries = tomllib.loads((TRACES / "gallery.toml").read_text(encoding="utf-8"))["runs"]
    return {e["name"]: GalleryRun(e["name"], e["title"], e["prompt"], tuple(e["flags"])) for e in entries}


@cache
def recall(name: str) -> Recording | None:
    """A run of the gallery by name; None where the name is unknown or its file is missing."""
    run = load_gallery().get(name)
    if run is None or not run.path.is_file():
        return None
    return _recording(load_trace(run.path), f"recorded-{name}", run)


def opening_run() -> Recording | None:
    """The recorded run that the page opens on; None where the file is missing."""
    return recall(OPENING)


def open_upload(path: Path) -> Recording:
    """A visitor's own file, which anybody may have written. Each opening is a run of its own for the page.

    Raises:
        TraceError: too large, no trace, or of a schema that this specviz does not read.
    """
    return _recording(read_upload(path), f"opened-{uuid.uuid4().hex[:12]}")


def _recording(trace: Trace, run_id: str, run: GalleryRun | None = None) -> Recording:
    events = trace.events if trace.is_whole else (*trace.events, cut_short(trace.events, "The recording ends here."))
    plain = Baseline.of(trace.plain, events)
    source = {"gallery": run.name if run else "", "title": run.title if run else "", "damage": trace.damage}
    delta = recorded_delta(events, plain, run_id, source)
    return Recording(trace, delta, summarize(events, plain))
