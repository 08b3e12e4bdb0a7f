"""How much of the speed a program sees that reads a run through `gradio_client`, without a browser on the machine.

    python tests/scripts/drain.py --repeat 5

Starts the dashboard, then runs the same prompts in turns: through its `spec_events`, and in this process as the command
line does. Both by the wall clock, from the first step to the last. Prints one JSON line.
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

from specviz import RunConfig, SpeculativeGenerator, load_pair  # noqa: E402
from specviz.events import event_to_json  # noqa: E402
from specviz.ui.presets import load_regimes  # noqa: E402


def wall_rate(messages: Iterable[dict[str, Any]]) -> float:
    """Tokens a second from the first step to the last event of a run."""
    first_at = num_tokens = 0.0
    for message in messages:
        if message["type"] == "StepDone":
            if first_at:
                num_tokens += len(message["emitted"])
            else:
                first_at = time.perf_counter()
        elif message["type"] == "RunFinished":
            break
    return num_tokens / (time.perf_counter() - first_at)


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
        config = RunConfig(max_new_tokens=options.max_new_tokens)
        rates: dict[str, list[float]] = {"client": [], "process": []}
        for turn in range(options.repeat + 1):
            for place, prompt in enumerate(prompts):
                ways = {
                    "client": lambda prompt=prompt: client.submit(
                        prompt, max_new_tokens=options.max_new_tokens, api_name="/spec_events"
                    ),
                    "process": lambda prompt=prompt: map(event_to_json, engine.stream(prompt, config)),
                }
                for name in sorted(ways, reverse=bool((turn + place) % 2)):
                    rate = wall_rate(ways[name]())
                    if turn:  # the first turn warms up
                        rates[name].append(rate)
        ratios = [mine / theirs for mine, theirs in zip(rates["client"], rates["process"], strict=True)]
        print(json.dumps({"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)} | rates))
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
