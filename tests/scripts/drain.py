"""How much of the speed a program sees that reads a run through `gradio_client`, without a browser on the machine.

    python tests/scripts/drain.py --repeat 5

Starts the dashboard, then runs the same prompts in turns: through its `spec_events`, and in this process as the command
line does. Prints the ratio of the rates, client over process, twice: by the wall clock from the call to the last event,
the way through the server's line included, and by the run's own clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gradio_client import Client  # noqa: E402

from specviz import SpeculativeGenerator, load_pair  # noqa: E402
from specviz.events import event_to_json  # noqa: E402
from specviz.ui.presets import load_regimes  # noqa: E402
from specviz.ui.settings import WatchSettings  # noqa: E402


def rates_of(messages: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Tokens a second of one run: `wall`, from the call to the last event, and `engine`, as the run itself tells."""
    called_at = time.perf_counter()
    for message in messages:
        if message["type"] == "RunFinished":
            wall_s = time.perf_counter() - called_at
            return {"wall": message["num_tokens"] / wall_s, "engine": message["num_tokens"] / message["decode_s"]}
    raise RuntimeError("The run had no end.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--port", type=int, default=7891)
    options = parser.parse_args()
    prompts = [regime.prompts[0] for regime in load_regimes()]
    server = subprocess.Popen([sys.executable, "app.py", "--port", str(options.port)], cwd=ROOT)
    try:
        client = _connect(f"http://127.0.0.1:{options.port}")
        engine = SpeculativeGenerator(load_pair("smollm2-135m"))
        asked = {"prompt": "", "max_new_tokens": options.max_new_tokens}
        config = WatchSettings.read(asked, ["smollm2-135m"]).config  # what the endpoint makes of the same call
        ratios: dict[str, list[float]] = {"wall": [], "engine": []}
        for turn in range(options.repeat + 1):
            for place, prompt in enumerate(prompts):
                ways = {
                    "client": lambda prompt=prompt: client.submit(
                        prompt, max_new_tokens=options.max_new_tokens, api_name="/spec_events"
                    ),
                    "process": lambda prompt=prompt: map(event_to_json, engine.stream(prompt, config)),
                }
                rates = {name: rates_of(ways[name]()) for name in sorted(ways, reverse=bool((turn + place) % 2))}
                for clock, found in ratios.items():
                    if turn:  # the first turn warms up
                        found.append(rates["client"][clock] / rates["process"][clock])
        for clock, found in ratios.items():
            low, middle, high = (round(value, 3) for value in statistics.quantiles(found, n=4))
            print(json.dumps({"clock": clock, "ratio": middle, "quartiles": [low, high], "runs": len(found)}))
    finally:
        server.terminate()
        server.wait()


def _connect(url: str, patience_s: float = 120.0) -> Client:
    """A client once the dashboard answers and its model has run."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            client = Client(url, verbose=False)
            client.predict("Hello", max_new_tokens=4, api_name="/spec_events")
            return client
        except Exception:
            if time.monotonic() > give_up:
                raise
            time.sleep(1)


if __name__ == "__main__":
    main()
