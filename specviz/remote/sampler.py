"""Reads a server's counters again and again, in a thread of its own, and remembers who answers and since when not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from specviz.errors import RemoteError
from specviz.remote.advice import Load, loads_of
from specviz.remote.history import History, Sample
from specviz.remote.server import Identity, Server

__all__ = ["EVERY_S", "Sampler"]

EVERY_S = 2.0


class Sampler:
    """One server's history. identity: who answers, None while nobody does; seen: who did last.

    problem: what it does not answer, in words, "" if nothing. silent_since_s: without metrics since then, None while
    there are some.
    """

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        self.server = server
        self.history = History()
        self.identity: Identity | None = None
        self.seen: Identity | None = None
        self.problem = ""
        self.silent_since_s: float | None = None
        self.clock = clock
        self._loads: tuple[History, dict[int, Load]] = self.history, {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="specviz-sample", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._ended.set()

    def sample(self) -> None:
        """Ask once. A server that was away may be another one now, so it is asked who it is again."""
        now = self.clock()
        try:
            self.history = self.history.add(Sample(now, self.server.counters()))
        except RemoteError as error:
            self.problem, self.identity = str(error), None
            self.silent_since_s = now if self.silent_since_s is None else self.silent_since_s
            return
        self.problem, self.silent_since_s = "", None
        if self.identity is None or self.history.restarted_at_s == now:
            self._identify()

    def loads(self) -> dict[int, Load]:
        """Times by load, worked out once a sample however many ask."""
        history = self.history
        if self._loads[0] is not history:
            self._loads = history, loads_of(history)
        return self._loads[1]

    def _identify(self) -> None:
        """Its metrics may be open to all where its models are not."""
        try:
            self.identity = self.seen = self.server.identify()
        except RemoteError as error:
            self.problem = str(error)

    def _run(self) -> None:
        while not self._ended.is_set():
            self.sample()
            self._ended.wait(EVERY_S)
