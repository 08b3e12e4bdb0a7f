"""A serving engine's place beside the local one: one visitor's request at a time, so that its counters stay exact."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specviz.config import RunConfig
from specviz.events import Event
from specviz.remote.engine import HOW_TO_COUNT_REQUESTS, RemoteEngine
from specviz.remote.sampler import Sampler

__all__ = ["POLL_S", "AttachedServer", "Notice", "Session"]

POLL_S = 0.2
"""How long a waiting visitor blocks a worker thread at a time; also how late a Stop can be noticed while waiting."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What goes on while a visitor waits. fraction: 0 to 1 where it is known."""

    text: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """The server for one visitor's run, which can be stopped while the server is waited for."""

    engine: RemoteEngine
    stopped: Callable[[], bool]

    @property
    def name(self) -> str:
        return self.engine.name

    def stream(self, prompt: str, config: RunConfig) -> Iterator[Event]:
        return self.engine.stream(prompt, config, self.stopped)


class AttachedServer:
    """A server that the dashboard was started with."""

    def __init__(self, engine: RemoteEngine) -> None:
        self.engine = engine
        self.sampler = Sampler(engine.server)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def title(self) -> str:
        """In the list of what can be run."""
        return f"Server {self.name}"

    def hints(self) -> list[str]:
        """What would make it tell more. A run from here shows what it leaves out; before one nothing is said."""
        identity = self.sampler.identity
        is_vllm = identity is not None and identity.engine == "vLLM"
        return [HOW_TO_COUNT_REQUESTS] if is_vllm and self.engine.counts_requests is False else []

    def turn(self, stopped: Callable[[], bool]) -> Iterator[Notice | Session]:
        """Notices while another visitor's request runs, then the server, once, until this iterator is closed.

        Ends without it where `stopped` turns true.
        """
        while not self._lock.acquire(timeout=POLL_S):
            if stopped():
                return
            yield Notice(
                f"Another request is running on {self.name}. Requests take turns, so that its counters stay exact."
            )
        try:
            yield Session(self.engine, stopped)
        finally:
            self._lock.release()
