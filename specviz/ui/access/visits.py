"""What the server remembers of each open page: how to stop its run, and its last run. Never a model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from specviz.errors import BusyError
from specviz.events import Event
from specviz.ui.settings import WatchSettings
from specviz.ui.wire.stream import DeltaEncoder

__all__ = ["ALREADY_RUNNING", "MAX_VISITS", "LastRun", "Visit", "Visits"]

MAX_VISITS = 256
"""Pages that are remembered, here and by Gradio; the oldest make room."""

MAX_RUNS = 16
"""Pages whose last run is kept, for its baseline: the events of a long one take ten megabytes."""

ALREADY_RUNNING = "A run is already in progress on this page. Stop it first."

MAX_KEY = 64
"""Characters of a session hash; Gradio's have eleven."""


@dataclass(slots=True)
class LastRun:
    """A finished run, with what is needed to measure its baseline later.

    is_shown: whether the figures and files under it are on the page, the baseline with them.
    """

    settings: WatchSettings
    encoder: DeltaEncoder
    events: list[Event]
    plain: list[Event] = field(default_factory=list)
    is_shown: bool = False


@dataclass(slots=True)
class Visit:
    """One open page. stop: set to end the run that goes on; None while none does."""

    stop: threading.Event | None = None
    last: LastRun | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin(self) -> threading.Event:
        """Raises BusyError where a run of this page goes on: a page has one place in the line, and one Stop."""
        with self._lock:
            if self.stop is not None:
                raise BusyError(ALREADY_RUNNING)
            self.stop = threading.Event()
            return self.stop

    def end(self, stop: threading.Event) -> None:
        if self.stop is stop:
            self.stop = None

    @contextmanager
    def running(self) -> Iterator[threading.Event]:
        """`begin` and `end` around a run; the event that is set to stop it."""
        stop = self.begin()
        try:
            yield stop
        finally:
            self.end(stop)

    def ask_to_stop(self) -> None:
        if self.stop is not None:
            self.stop.set()


class Visits:
    """Open pages by Gradio's session hash; of too many, those that do nothing are forgotten first.

    The hash is what the browser says. Whoever sends none is remembered by nobody, or all of them would be one visitor.
    """

    def __init__(self) -> None:
        self._visits: OrderedDict[str, Visit] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, session: str | None) -> Visit:
        """The page's visit, a new one where it is not known."""
        if not session or len(session) > MAX_KEY:
            return Visit()
        with self._lock:
            visit = self._visits.setdefault(session, Visit())
            self._visits.move_to_end(session)
            self._forget_some()
            return visit

    def known(self, session: str | None) -> Visit | None:
        """The page's visit if it has run something. Asking leaves nothing behind."""
        with self._lock:
            return self._visits.get(session or "")

    def forget(self, session: str | None) -> None:
        """The page was closed: its run ends after the step it is in."""
        with self._lock:
            visit = self._visits.pop(session or "", None)
        if visit is not None:
            visit.ask_to_stop()

    def _forget_some(self) -> None:
        idle = [key for key, visit in self._visits.items() if visit.stop is None]
        for key in idle[: max(0, len(self._visits) - MAX_VISITS)]:
            del self._visits[key]
        with_run = [visit for visit in self._visits.values() if visit.last is not None and visit.stop is None]
        for visit in with_run[: max(0, len(with_run) - MAX_RUNS)]:
            visit.last = None
