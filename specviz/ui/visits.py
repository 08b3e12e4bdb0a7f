"""What the server remembers of each open page: how to stop its run, and its last run. Never a model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from specviz.events import Event
from specviz.ui.settings import WatchSettings
from specviz.ui.stream import DeltaEncoder

__all__ = ["LastRun", "Visit", "Visits"]

MAX_VISITS = 64
"""Each may hold the events of one run."""


@dataclass(slots=True)
class LastRun:
    """A finished run, with what is needed to measure its baseline later."""

    settings: WatchSettings
    encoder: DeltaEncoder
    events: list[Event]
    plain: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class Visit:
    """One open page. stop: set to end the run that goes on; None while none does."""

    stop: threading.Event | None = None
    last: LastRun | None = None

    def begin(self) -> threading.Event:
        self.stop = threading.Event()
        return self.stop

    def end(self, stop: threading.Event) -> None:
        if self.stop is stop:
            self.stop = None

    def ask_to_stop(self) -> None:
        if self.stop is not None:
            self.stop.set()


class Visits:
    """Open pages by Gradio's session hash; the oldest are forgotten."""

    def __init__(self) -> None:
        self._visits: OrderedDict[str, Visit] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, session: str | None) -> Visit:
        key = session or ""
        with self._lock:
            visit = self._visits.setdefault(key, Visit())
            self._visits.move_to_end(key)
            while len(self._visits) > MAX_VISITS:
                self._visits.popitem(last=False)
            return visit

    def forget(self, session: str | None) -> None:
        """The page was closed: its run ends after the step it is in."""
        with self._lock:
            visit = self._visits.pop(session or "", None)
        if visit is not None:
            visit.ask_to_stop()
