"""Weights on their way from the network, beside the engine's line: a slow Hub holds up only who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from specviz.errors import BusyError, ModelLoadError, SpecvizError
from specviz.models.catalog import ModelPair
from specviz.models.convert import Progress
from specviz.ui.problems import sentence_for

__all__ = ["MAX_FOLLOWERS", "Downloads", "fetch_missing"]

MAX_FOLLOWERS = 3
"""Visitors who may wait for downloads at a time: each takes a worker that others need for their runs."""

Fetch = Callable[[ModelPair, Progress], None]


class Downloads:
    """Fetches each pair once, however many wait for it.

    Args:
        fetch: brings a pair's weights onto the disk, telling of its progress; at once where they are there.
        poll_s: how long a waiting visitor blocks a worker thread at a time.
    """

    def __init__(self, fetch: Fetch, poll_s: float) -> None:
        self._fetch = fetch
        self._poll_s = poll_s
        self._jobs: dict[str, _Download] = {}
        self._lock = threading.Lock()
        self._num_followers = 0

    def follow(self, pair: ModelPair, stopped: Callable[[], bool]) -> Iterator[tuple[str, float | None]]:
        """What goes on, in words and as a share, until the pair is here or `stopped` turns true; the download goes on.

        Raises:
            BusyError: too many wait for downloads already.
            ModelLoadError: the weights cannot be fetched.
        """
        with self._lock:
            job = self._jobs.get(pair.name)
            if job is None or job.done.is_set():
                job = self._jobs[pair.name] = _Download(self._fetch, pair)
        if not job.done.wait(self._poll_s):  # what is on the disk already needs no place
            yield from self._wait(job, stopped)
        if job.error is not None:
            raise job.error

    def _wait(self, job: _Download, stopped: Callable[[], bool]) -> Iterator[tuple[str, float | None]]:
        with self._lock:
            if self._num_followers >= MAX_FOLLOWERS:
                raise BusyError(
                    "Other visitors are already waiting for downloads. Try again later, or choose the loaded pair."
                )
            self._num_followers += 1
        try:
            while not job.done.wait(self._poll_s):
                if stopped():
                    return
                yield job.text, job.fraction
        finally:
            with self._lock:
                self._num_followers -= 1


class _Download:
    """One pair's download in a thread of its own."""

    def __init__(self, fetch: Fetch, pair: ModelPair) -> None:
        self.text = f"Fetching {pair.title}"
        self.fraction: float | None = None
        self.error: SpecvizError | None = None
        self.done = threading.Event()
        self._fetch, self._pair = fetch, pair
        threading.Thread(target=self._run, name="specviz-download", daemon=True).start()

    def _run(self) -> None:
        try:
            self._fetch(self._pair, self._tell)
        except SpecvizError as error:
            self.error = error
        except BaseException as error:
            self.error = ModelLoadError(sentence_for(error))
        finally:
            self.done.set()

    def _tell(self, text: str, fraction: float | None) -> None:
        self.text, self.fraction = text, fraction


def fetch_missing(pair: ModelPair, progress: Progress) -> None:
    """`Fetch` for the catalog's pairs."""
    from specviz.models.fetch import fetch_pair

    fetch_pair(pair, progress=progress)
