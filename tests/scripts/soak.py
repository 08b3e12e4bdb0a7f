"""Long loads with figures: eight visitors of a served page, or many short runs in one process.

    python tests/scripts/soak.py visitors --minutes 15
    python tests/scripts/soak.py runs --count 1000

Prints one JSON line. Linux only: memory, threads and open files are read from /proc.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import httpx  # noqa: E402
from visitors import PageVisitor, Usage, usage  # noqa: E402

METHODS = ("cascade", "prompt-lookup", "feature", "plain", "lookahead", "draft-model")


def visitors(minutes: float, count: int, port: int) -> dict[str, Any]:
    """`count` tabs press Run again and again; now and then one is closed in mid-run and another opens."""
    server = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            print(line.rstrip(), file=sys.stderr)
            if line.startswith("Ready"):
                break
        end = time.monotonic() + minutes * 60
        lists: list[dict[str, Any]] = [{"runs": 0, "left": 0, "problems": [], "waits": []} for _ in range(count)]
        url = f"http://127.0.0.1:{port}"
        threads = [threading.Thread(target=_visit, args=(url, i, end, lists[i])) for i in range(count)]
        samples: list[tuple[float, Usage]] = []
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            samples.append((time.monotonic(), usage(server.pid)))
            time.sleep(5)
        time.sleep(3)
        after = usage(server.pid)
    finally:
        server.terminate()
    runs = [entry["runs"] for entry in lists]
    return {
        "minutes": minutes,
        "runs": sum(runs),
        "runs_by_visitor": runs,
        "left_in_mid_run": sum(entry["left"] for entry in lists),
        "problems": [problem for entry in lists for problem in entry["problems"]][:20],
        "median_wait_s": statistics.median([wait for entry in lists for wait in entry["waits"]] or [0]),
    } | _growth(samples, after)


def _visit(url: str, number: int, end: float, out: dict[str, Any]) -> None:
    rng = random.Random(number)
    with httpx.Client(timeout=300) as client:
        tab = PageVisitor(url, client)
        while time.monotonic() < end:
            prompt = f"Visitor {number}, run {out['runs'] + out['left']}: say hello hello hello."
            leaves = rng.random() < 0.1
            try:
                run = tab.run(
                    prompt,
                    leave_after=6 if leaves else None,
                    method=rng.choice(METHODS),
                    max_new_tokens=rng.choice((16, 32)),
                    temperature=rng.choice((0.0, 0.8)),
                )
            except Exception as error:
                out["problems"].append(f"visitor {number}: {type(error).__name__} {error}"[:200])
                time.sleep(1)
                continue
            if leaves:
                out["left"] += 1
                tab = PageVisitor(url, client)
                continue
            out["runs"] += 1
            out["waits"].append(run.ended - run.began)
            out["problems"] += [f"visitor {number}: {problem}" for problem in run.problems(prompt)]


def runs(count: int) -> dict[str, Any]:
    """Short runs of every method in turn on the default pair, in this process."""
    from specviz import RunConfig, SpeculativeGenerator, load_pair
    from specviz.config import SamplingParams

    engine = SpeculativeGenerator(load_pair("smollm2-135m"))
    samples: list[tuple[float, Usage]] = []
    traced: list[int] = []
    for number in range(count):
        method = METHODS[number % len(METHODS)]
        sampling = SamplingParams(temperature=0.8 * (number % 2))
        for _ in engine.stream(f"Run {number}", RunConfig(method, max_new_tokens=6, sampling=sampling)):
            pass
        if number == count // 10:  # everything that is kept once is there
            gc.collect()
            tracemalloc.start()
        if number % max(1, count // 50) == 0:
            samples.append((time.monotonic(), usage()))
            if tracemalloc.is_tracing():
                gc.collect()
                traced.append(tracemalloc.get_traced_memory()[0])
    return {"runs": count, "python_bytes_over_time": traced[:: max(1, len(traced) // 8)]} | _growth(samples, usage())


def _growth(samples: list[tuple[float, Usage]], after: Usage) -> dict[str, Any]:
    """Before, after, and the slope of the second half, where everything that is kept once is there."""
    half = samples[len(samples) // 2 :]
    times = [at / 60 for at, _ in half]
    slope = statistics.linear_regression(times, [used.resident / 1e6 for _, used in half]).slope if len(half) > 1 else 0
    resident = [round(used.resident / 1e6) for _, used in samples]
    return {
        "before": asdict(samples[0][1]),
        "after": asdict(after),
        "resident_mb_over_time": resident[:: max(1, len(resident) // 30)],
        "slope_mb_a_minute_second_half": round(slope, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    load = kinds.add_parser("visitors")
    load.add_argument("--minutes", type=float, default=15)
    load.add_argument("--count", type=int, default=8)
    load.add_argument("--port", type=int, default=7960)
    short = kinds.add_parser("runs")
    short.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    if options.kind == "visitors":
        figures = visitors(options.minutes, options.count, options.port)
    else:
        figures = runs(options.count)
    print(json.dumps(figures))
    return 1 if figures.get("problems") else 0


if __name__ == "__main__":
    raise SystemExit(main())
