"""The one engine of this process: which pair is loaded, how loading goes, and whose turn it is.

One run at a time keeps the measured speeds true and the memory bounded, so everything that touches the models holds one
lock. A run's generator may hop between worker threads, so the lock is a plain `Lock`: any thread may release it.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specviz.config import DEFAULT_METHOD, DEFAULT_WIDTH, RunConfig
from specviz.errors import BusyError, ConfigError, ModelLoadError, SpecvizError
from specviz.models.catalog import ModelPair, default_pair_name, load_catalog
from specviz.models.machine import fits, probe, trim_memory
from specviz.ui.access.attached import POLL_S, AttachedServer, Notice, Session
from specviz.ui.access.downloads import Downloads, Fetch, fetch_missing
from specviz.ui.problems import sentence_for

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import LoadedPair

    Engine: TypeAlias = SpeculativeGenerator | Session

__all__ = ["MAX_WAITING", "EngineHost", "HostStatus", "Notice"]

MAX_WAITING = 8

NUM_MEASURED = 8
"""Turns whose median the time to wait is told from."""

_PLACES = ("next", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

Load = Callable[..., "LoadedPair"]
Phase = Literal["empty", "loading", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What the head of the page says. pair: name of the pair that is loaded or on its way."""

    phase: Phase
    text: str
    fraction: float | None = None
    pair: str = ""


class EngineHost:
    """Holds one loaded pair, two for the moment of a switch where memory allows it.

    Args:
        pairs: what a visitor may choose, by name; None for the catalog.
        load: makes a LoadedPair from (pair, dtype=..., progress=...).
        problem: why a pair does not fit, given (pair, dtype, bytes that would be freed first); None if it does.
        fetch: brings a pair's weights onto the disk before its visitor joins the line. A host with a `load` of its own
            fetches nothing unless told to.
        servers: serving engines elsewhere, which a visitor may choose like a pair.
    """

    def __init__(
        self,
        pairs: dict[str, ModelPair] | None = None,
        *,
        load: Load | None = None,
        problem: Callable[[ModelPair, str, int], str | None] | None = None,
        default_pair: str | None = None,
        default_dtype: str = "auto",
        fetch: Fetch | None = None,
        servers: Sequence[AttachedServer] = (),
    ) -> None:
        self.pairs = load_catalog() if pairs is None else dict(pairs)
        self.default_pair = default_pair or (default_pair_name() if pairs is None else next(iter(self.pairs)))
        self.default_dtype = default_dtype
        self.servers = {server.name: server for server in servers}
        self.engine: SpeculativeGenerator | None = None
        self.status = self._idle_status()
        self._load_pair = load or _load
        self._problem = problem or _memory_problem
        self._downloads = Downloads(fetch or (fetch_missing if load is None else _fetch_nothing), POLL_S)
        self._dtype = ""  # as asked for when the loaded pair was loaded
        self._turn_began: float | None = None
        self._turns_s: deque[float] = deque(maxlen=NUM_MEASURED)
        self._lock = threading.Lock()
        self._line: deque[object] = deque()
        self._line_lock = threading.Lock()

    @property
    def first_choice(self) -> str:
        """What the page begins with: the first server, else the default pair."""
        return next(iter(self.servers), self.default_pair)

    @property
    def is_busy(self) -> bool:
        """Whether somebody runs or loads."""
        return self._lock.locked()

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    def refusals(self) -> dict[str, str]:
        """Why pairs cannot be chosen on this machine, in sentences, by name."""
        found = {name: self._problem(pair, self.default_dtype, 0) for name, pair in self.pairs.items()}
        return {name: sentence for name, sentence in found.items() if sentence}

    def start(self) -> threading.Thread:
        """Begin to load the default pair; whoever comes meanwhile waits in line and sees the progress."""
        self._lock.acquire()
        return _Loading(self, self.default_pair, self.default_dtype, release=True).thread

    def serves(self, pair: str, dtype: str) -> bool:
        """Whether the loaded pair is the wanted one."""
        if self.engine is None:
            return False
        loaded = self.engine.loaded
        return loaded.pair.name == pair and dtype in (self._dtype, loaded.target_info.dtype)

    def turn(
        self, pair: str, dtype: str = "auto", stopped: Callable[[], bool] = lambda: False
    ) -> Generator[Notice | Engine, None, None]:
        """`turn_here`, or a turn at a server, which has a line of its own: it needs nothing of this machine.

        pair: name of a pair or of a server.
        """
        if pair in self.servers:
            yield from self.servers[pair].turn(stopped)
        else:
            yield from self.turn_here(pair, dtype, stopped)

    def turn_here(
        self, pair: str, dtype: str = "auto", stopped: Callable[[], bool] = lambda: False
    ) -> Generator[Notice | SpeculativeGenerator, None, None]:
        """Notices while the visitor waits, then the engine, once. The engine is theirs until this iterator is closed.

        Ends without the engine where `stopped` turns true. A load that has begun then goes on by itself.

        Raises:
            BusyError: the line is full.
            ConfigError: a server was chosen.
            ModelLoadError: the wanted pair cannot be fetched or loaded; the one before stays.
        """
        if pair in self.servers:
            raise ConfigError("This experiment needs a local model, not a server. Choose a model pair on the left.")
        if not self.serves(pair, dtype) and not self._is_on_its_way(pair):
            for text, fraction in self._downloads.follow(self._fitting(pair, dtype), stopped):
                yield Notice(text, fraction)
        if stopped():
            return
        ticket = self._join()
        loading: _Loading | None = None
        holds = False
        try:
            while not (holds := self._enter(ticket)):
                if stopped():
                    return
                yield self._waiting(ticket)
            if not self.serves(pair, dtype):
                loading = _Loading(self, pair, dtype)
                while not loading.done.wait(POLL_S):
                    if stopped():
                        return
                    yield Notice(self.status.text, self.status.fraction)
                if loading.error is not None:
                    raise loading.error
            if self.engine is None:
                raise ModelLoadError("No model is loaded. Choose a pair and press Run again.")
            if not stopped():
                self._turn_began = time.monotonic()
                yield self.engine
        finally:
            self._leave(ticket)
            if self._turn_began is not None and holds:
                self._turns_s.append(time.monotonic() - self._turn_began)
                self._turn_began = None
                trim_memory()
            if holds and (loading is None or loading.leave()):
                self._lock.release()

    def _is_on_its_way(self, pair: str) -> bool:
        return self.status.phase == "loading" and self.status.pair == pair

    def close(self) -> None:
        """Release the models."""
        with self._lock:
            self._release()
            self.status = self._idle_status()

    def _idle_status(self) -> HostStatus:
        """Of a host without a model: it may have servers."""
        if not self.servers:
            return HostStatus("empty", "No model loaded")
        names = " and ".join(self.servers) if len(self.servers) < 3 else f"{len(self.servers)} servers"
        return HostStatus("ready", f"Attached to {names}")

    # --- the line ----------------------------------------------------------------------------------------------------

    def _join(self) -> object:
        ticket = object()
        with self._line_lock:
            if len(self._line) >= MAX_WAITING:
                raise BusyError(f"{MAX_WAITING} visitors are already waiting. Try again in a minute.")
            self._line.append(ticket)
        return ticket

    def _enter(self, ticket: object) -> bool:
        """Take the lock if it is this ticket's turn and the lock comes free soon."""
        if self._line[0] is not ticket:
            time.sleep(POLL_S)
            return False
        if not self._lock.acquire(timeout=POLL_S):
            return False
        self._leave(ticket)
        return True

    def _leave(self, ticket: object) -> None:
        with self._line_lock:
            if ticket in self._line:
                self._line.remove(ticket)

    def _waiting(self, ticket: object) -> Notice:
        with self._line_lock:
            place = self._line.index(ticket)
        if place == 0 and self.status.phase == "loading":
            return Notice(self.status.text, self.status.fraction)
        rest = self._about(place) or "Runs take turns, so that each is measured alone."
        return Notice(f"You are {_PLACES[place]} in line. {rest}")

    def _about(self, place: int) -> str:
        """How long it takes until everybody before this place has had a turn like the last ones, in words.

        "" where no turn has been measured yet, or a load goes on, whose time nobody knows.
        """
        began = self._turn_began
        if not self._turns_s or began is None:
            return ""
        typical = statistics.median(self._turns_s)
        seconds = max(0.0, typical - (time.monotonic() - began)) + place * typical
        if seconds > 90:
            return f"About {round(seconds / 60)} minutes."
        return f"About {max(5, 5 * math.ceil(seconds / 5))} seconds."

    # --- loading ------------------------------------------------------------------------------------------------------

    def _fitting(self, name: str, dtype: str) -> ModelPair:
        """The pair of that name. Raises ModelLoadError where there is none, or it is larger than this machine."""
        pair = self.pairs.get(name)
        if pair is None:
            raise ModelLoadError(f"There is no model pair {name[:60]!r} here. Choose one from the list.")
        engine = self.engine
        problem = self._problem(pair, dtype, _num_bytes(engine.loaded) if engine else 0)
        if problem:
            raise ModelLoadError(problem)
        return pair

    # --- the lock is held from here on -------------------------------------------------------------------------------

    def _load(self, name: str, dtype: str) -> None:
        """Make `name` the loaded pair.

        The old pair stays until the new one works, where memory holds both; else it makes room and comes back if the
        new one fails.
        """
        pair = self.pairs[name]
        before = self.engine
        old = (before.loaded.pair.name, self._dtype) if before else None
        self._say(f"Loading {pair.title}", None, name)
        try:
            problem = self._problem(pair, dtype, 0)
            if problem and before is not None:
                problem = self._problem(pair, dtype, _num_bytes(before.loaded))
                if not problem:
                    before = None
                    self._release()
            if problem:
                raise ModelLoadError(problem)
            self._adopt(self._build(pair, dtype), dtype)
        except BaseException as error:
            if self.engine is None and old is not None:
                self._bring_back(*old)
            self._settle(error)
            raise
        self._settle()

    def _build(self, pair: ModelPair, dtype: str) -> SpeculativeGenerator:
        """Load, test and warm up: what the first visitor would wait for happens here."""
        from specviz.generator import SpeculativeGenerator

        loaded = self._load_pair(pair, dtype=dtype, progress=lambda text, share=None: self._say(text, share, pair.name))
        engine = SpeculativeGenerator(loaded)
        try:
            text = f"Checking that {pair.title} repeats itself to the bit"
            engine.exactness_report(DEFAULT_WIDTH, lambda share: self._say(text, share, pair.name))
            for _ in engine.stream("Hello", RunConfig(DEFAULT_METHOD, max_new_tokens=8)):
                pass
        except BaseException:
            loaded.close()
            raise
        return engine

    def _adopt(self, engine: SpeculativeGenerator, dtype: str) -> None:
        self._release()
        self.engine, self._dtype = engine, dtype

    def _bring_back(self, name: str, dtype: str) -> None:
        try:
            self._say(f"Going back to {self.pairs[name].title}", None, name)
            self._adopt(self._build(self.pairs[name], dtype), dtype)
        except Exception as error:
            sentence_for(error)  # into the log; the visitor hears of the failure that began it

    def _release(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.loaded.close()

    def _say(self, text: str, fraction: float | None, pair: str) -> None:
        self.status = HostStatus("loading", text, fraction, pair)

    def _settle(self, error: BaseException | None = None) -> None:
        if self.engine is not None:
            self.status = HostStatus("ready", ready_sentence(self.engine.loaded), pair=self.engine.loaded.pair.name)
        elif error is not None:
            self.status = HostStatus("failed", sentence_for(error))


def ready_sentence(loaded: Any) -> str:
    """ "Ready · SmolLM2 135M, bfloat16, 2 threads" """
    import torch

    place = f"{torch.get_num_threads()} threads" if str(loaded.device) == "cpu" else str(loaded.device)
    if place == "1 threads":
        place = "1 thread"
    return f"Ready · {loaded.pair.title}, {loaded.target_info.dtype}, {place}"


class _Loading:
    """A load in a thread of its own, so that whoever waits for it can be told of its progress, or leave.

    Begun with the lock held. Whoever leaves before it is done leaves the lock to it.
    """

    def __init__(self, host: EngineHost, pair: str, dtype: str, *, release: bool = False) -> None:
        self.done = threading.Event()
        self.error: SpecvizError | None = None
        self._host, self._pair, self._dtype = host, pair, dtype
        self._release = release
        self._mutex = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="specviz-load", daemon=True)
        self.thread.start()

    def leave(self) -> bool:
        """The waiting side goes. True if it has to release the lock, as the load is done."""
        with self._mutex:
            self._release = not self.done.is_set()
            return not self._release

    def _run(self) -> None:
        try:
            self._host._load(self._pair, self._dtype)
        except SpecvizError as error:
            self.error = error
        except BaseException as error:
            self.error = ModelLoadError(sentence_for(error))
        with self._mutex:
            self.done.set()
            if self._release:
                self._host._lock.release()


def _load(pair: ModelPair, **options: Any) -> LoadedPair:
    from specviz.models.loader import load_pair

    return load_pair(pair, **options)


def _fetch_nothing(pair: ModelPair, progress: Callable[[str, float | None], None]) -> None:
    """For a host whose `load` needs no files."""


def _memory_problem(pair: ModelPair, dtype: str, freed: int) -> str | None:
    machine = probe()
    return fits(pair, replace(machine, memory_available=machine.memory_available + freed), dtype)


def _num_bytes(loaded: LoadedPair) -> int:
    infos = {loaded.target_info, loaded.draft_info, *(trained.info for trained in loaded.trained.values())}
    return sum(info.num_bytes for info in infos if info is not None)
