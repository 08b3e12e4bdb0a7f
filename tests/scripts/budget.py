"""What the page costs the browser: a run of 1,000 tokens at 15 updates a second, then each tab, then scrubbing.

    python tests/scripts/budget.py

The run is made up, with the five likeliest tokens of both models for every test, and paced: no model works beside it.
Prints a JSON line: the main thread's share, its long tasks, bytes on the wire, tokens shown, frames a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import close_browser, open_page  # noqa: E402
from hosts import Loader, served  # noqa: E402
from test_inspect import long_run  # noqa: E402

TABS = ("inspect", "race", "lab", "methods", "tour", "watch")
LONG_TASKS = """
window.__long = [];
new PerformanceObserver(list => {
  for (const one of list.getEntries()) window.__long.push([Math.round(one.startTime), Math.round(one.duration)]);
}).observe({ type: 'longtask', buffered: true });
"""
DRAG = """([x, y, width, frames]) => new Promise(resolve => {
  const map = document.querySelector('#view .mapbox');
  const began = performance.now();
  let done = 0;
  const frame = () => {
    if (done === frames) return resolve(performance.now() - began);
    const clientX = x + width * done++ / frames;
    map.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY: y, bubbles: true }));
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""
SHOWN = "document.querySelectorAll('#view .strip .tk').length"


def paced(updates_a_second: float) -> Any:
    """A stand-in for the engine's `stream`: one step of the made-up run after another."""

    def stream(*_: Any, **__: Any) -> Iterator[Any]:
        begin = time.monotonic()
        for place, event in enumerate(long_run()):
            time.sleep(max(0.0, begin + place / updates_a_second - time.monotonic()))
            yield event

    return stream


class Meter:
    """The main thread's processor time and the long tasks of a page."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._session.send("Network.enable")
        self.num_bytes = 0
        self._session.on("Network.dataReceived", self._count)

    def _count(self, message: Any) -> None:
        self.num_bytes += message["encodedDataLength"] or message["dataLength"]

    def busy_s(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def long_ms(self) -> list[int]:
        """Those since the last call, in milliseconds."""
        return [duration for _, duration in self._page.evaluate("window.__long.splice(0)")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=float, default=15.0)
    parser.add_argument("--width", type=int, default=1280)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with served(Loader()) as (url, host):
        viewport = {"width": options.width, "height": 900}
        with open_page(viewport=viewport) as chromium:
            page = chromium.page
            page.add_init_script(LONG_TASKS)
            page.goto(f"{url}?measure_plain=0&max_new_tokens=1002")
            page.wait_for_selector("#after .js-plotly-plot", state="attached", timeout=60_000)
            page.wait_for_function("document.querySelector('.ready')?.dataset.phase === 'ready'", timeout=60_000)
            page.wait_for_timeout(2000)
            assert host.engine is not None
            host.engine.stream = paced(options.updates)  # type: ignore[method-assign]
            meter = Meter(page)
            figures["long_ms_while_loading"] = meter.long_ms()
            began, busy = time.monotonic(), meter.busy_s()
            page.click("#run")
            page.wait_for_function(
                "document.querySelector('#view .status').textContent.includes('Finished')", timeout=0
            )
            wall = time.monotonic() - began
            figures |= {
                "run_s": round(wall, 1),
                "main_thread_share": round((meter.busy_s() - busy) / wall, 3),
                "bytes": meter.num_bytes,
                "tokens_shown": page.evaluate(SHOWN),
                "missed": [message for message in chromium.messages if "missed updates" in message],
                "long_ms_in_the_run": meter.long_ms(),
            }
            page.wait_for_timeout(3000)
            figures["long_ms_after_the_run"] = meter.long_ms()
            for again in ("", "_again"):
                for tab in TABS:
                    page.click(f"#tab-{tab}-button")
                    page.wait_for_timeout(2000)
                    figures[f"long_ms_{tab}{again}"] = meter.long_ms()
            page.click("#tab-inspect-button")
            figures |= scrub(page, meter)
            figures["errors"] = chromium.errors
    close_browser()
    print(json.dumps(figures))


def scrub(page: Any, meter: Meter) -> dict[str, Any]:
    """Drag over the map from end to end, one move and one step a frame, as fast as the page has the frames."""
    box = page.locator("#view .mapbox:visible").bounding_box()
    x, y, frames = box["x"] + 5, box["y"] + 20, 240
    page.mouse.move(x, y)
    page.mouse.down()
    page.wait_for_timeout(500)
    meter.long_ms()
    busy = meter.busy_s()
    wall_ms = page.evaluate(DRAG, [x, y, box["width"] - 10, frames])
    page.mouse.up()
    return {
        "scrub_frames_a_second": round(1000 * frames / wall_ms, 1),
        "scrub_busy_ms_a_frame": round(1000 * (meter.busy_s() - busy) / frames, 1),
        "long_ms_scrubbing": meter.long_ms(),
    }


if __name__ == "__main__":
    main()
