"""Small versions of tests/scripts/soak.py: several visitors at once, and many short runs in one process."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gradio")

import httpx
from hosts import Loader, make_host, served, settings, take, wait_until
from visitors import PageVisitor, Run

from specviz.config import RunConfig
from specviz.drafters.registry import METHODS
from specviz.ui.access.visits import Visit
from specviz.ui.watch.live import new_encoder, run_live

NUM_VISITORS, NUM_RUNS = 8, 2


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    loader = Loader()
    with served(loader) as (address, host):
        wait_until(lambda: host.status.phase == "ready", 60)
        yield address


def test_eight_visitors_each_get_their_own_run_whole_and_in_fair_order(url: str) -> None:
    """No error, no update lost, nobody's text on another's page, and nobody has a second run before all had a first."""
    finished: list[tuple[int, int]] = []
    problems: list[str] = []
    start = threading.Barrier(NUM_VISITORS)

    def visit(number: int) -> None:
        with httpx.Client(timeout=120) as client:
            tab = PageVisitor(url, client)
            start.wait(60)
            for i in range(NUM_RUNS):
                prompt = f"visitor {number} run {i}"
                run = tab.run(prompt, max_new_tokens=16, measure=False)
                finished.append((i, number))
                problems.extend(run.problems(prompt))

    threads = [threading.Thread(target=visit, args=(number,)) for number in range(NUM_VISITORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert problems == []
    assert len(finished) == NUM_VISITORS * NUM_RUNS
    assert {number for _, number in finished[: NUM_VISITORS + 1]} == set(range(NUM_VISITORS))


def test_a_second_tab_never_mixes_with_the_first(url: str) -> None:
    with httpx.Client(timeout=120) as client:
        tabs = [PageVisitor(url, client) for _ in range(2)]
        runs: list[Run | None] = [None, None]

        def press(i: int) -> None:
            with httpx.Client(timeout=120) as own:
                tabs[i].client = own
                runs[i] = tabs[i].run(f"tab {i}", max_new_tokens=16, measure=False)

        threads = [threading.Thread(target=press, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for i, run in enumerate(runs):
            assert run is not None
            assert run.problems(f"tab {i}") == []


def num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_short_runs_leave_no_memory_thread_or_file() -> None:
    """Every method in turn, whole, stopped and closed. Python's own count of its memory is exact, unlike resident
    memory, in which freed parts stay. Python's lists of free objects fill up by some 70 kB and then stay; a leak of one
    kilobyte a run would be 130."""
    host = make_host()
    turn, engine = take(host)
    names = [name for name in METHODS if METHODS[name].refusal(engine.loaded) is None]
    turn.close()

    def one_round() -> None:
        for number, name in enumerate(names):
            visit = Visit()
            run = run_live(host, visit, settings(method=name, max_new_tokens=4, gamma=2), new_encoder())
            for _ in range(3 if number % 3 == 0 else 100):
                next(run, None)
            if number % 3 == 1:
                visit.ask_to_stop()
            run.close()  # type: ignore[attr-defined]

    def measure() -> tuple[int, int, int]:
        gc.collect()
        return tracemalloc.get_traced_memory()[0], threading.active_count(), num_files()

    for _ in range(3):
        one_round()
    tracemalloc.start()
    try:
        one_round()
        memory, threads, files = measure()
        for _ in range(12):
            one_round()
        after = measure()
    finally:
        tracemalloc.stop()
    assert after[1:] == (threads, files)
    assert after[0] - memory < 120_000
    assert not host.is_busy
    assert host.num_waiting == 0


def test_the_engine_keeps_nothing_of_a_run() -> None:
    host = make_host()
    turn, engine = take(host)
    list(engine.stream("warm", RunConfig("plain", max_new_tokens=2)))
    before = {name: repr(value)[:2000] for name, value in vars(engine).items()}
    list(engine.stream("remember the word saffron", RunConfig("prompt-lookup", max_new_tokens=8)))
    assert {name: repr(value)[:2000] for name, value in vars(engine).items()} == before
    turn.close()
