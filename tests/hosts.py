"""The dashboard around a tiny random model: a loader that counts, hosts, and the page served on loopback."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fakes import loaded_pair, tiny_llama

from specviz.errors import ModelLoadError
from specviz.models.decoder import decoder_for
from specviz.ui.access.host import EngineHost, Notice
from specviz.ui.page import build_page, launch
from specviz.ui.settings import WatchSettings

TINY = loaded_pair(tiny_llama(), object()).pair
PAIRS = {name: replace(TINY, name=name, title=name.title()) for name in ("tiny", "other", "third", "broken", "huge")}


class Loader:
    """Loads tiny models; counts what is alive. `delay_s` slows every pass of the target."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.alive: list[weakref.ref[Any]] = []
        self.num_passes = 0
        self.fail: Exception | None = None
        self.gate: threading.Event | None = None

    def __call__(self, pair: Any, *, dtype: str = "auto", progress: Callable[..., None]) -> Any:
        progress(f"Loading {pair.title}", 0.5)
        if self.gate is not None:
            assert self.gate.wait(10)
        if pair.name == "broken":
            raise ModelLoadError("These weights are damaged. Choose another pair.")
        if self.fail is not None:
            raise self.fail
        target = tiny_llama(positions=2048)
        decoder = decoder_for(target)
        forward = decoder.forward
        decoder.forward = lambda *args, **more: self._pass() or forward(*args, **more)  # type: ignore[method-assign]
        loaded = loaded_pair(target, tiny_llama(1, positions=2048))
        loaded.pair = pair
        self.alive.append(weakref.ref(target))
        return loaded

    def _pass(self) -> None:
        self.num_passes += 1
        if self.delay_s:
            time.sleep(self.delay_s)

    @property
    def num_alive(self) -> int:
        gc.collect()
        return sum(ref() is not None for ref in self.alive)


def make_host(loader: Loader | None = None, **more: Any) -> EngineHost:
    def problem(pair: Any, dtype: str, freed: int) -> str | None:
        return "Huge needs 900.0 GB of memory, and 8.0 GB are free here." if pair.name == "huge" else None

    return EngineHost(PAIRS, load=loader or Loader(), **({"problem": problem} | more))


def take(host: EngineHost, pair: str = "tiny") -> Any:
    """(turn, engine) of somebody who waits until it is theirs."""
    turn = host.turn(pair)
    return turn, next(item for item in turn if not isinstance(item, Notice))


def settings(**values: Any) -> WatchSettings:
    return WatchSettings.read({"prompt": "abc abc abc", "max_new_tokens": 12, "measure_plain": False} | values, PAIRS)


def deltas(texts: Any) -> list[dict[str, Any]]:
    return [json.loads(text) for text in texts]


def wait_until(check: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@contextmanager
def served(loader: Loader) -> Iterator[tuple[str, EngineHost]]:
    host = make_host(loader)
    host.start()
    demo = build_page(host)
    _, url, _ = launch(demo, prevent_thread_lock=True, server_name="127.0.0.1")
    try:
        yield url, host
    finally:
        demo.close()
