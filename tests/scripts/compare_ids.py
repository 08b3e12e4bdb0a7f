"""Do speculative runs write plain decoding's ids? Counts equal runs over the bench prompts; too long for the suite.

python tests/scripts/compare_ids.py [--dtype bfloat16 float32] [--methods prompt-lookup quantized-copy]
    [--max-new-tokens 64] [--prompts 30] [--no-exact]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specviz import RunConfig, SpeculativeGenerator, fold, load_pair
from specviz.bench.prompts import PROMPTS
from specviz.events import RunFinished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--methods", nargs="+", default=["prompt-lookup", "quantized-copy"])
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--exact", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()][
        : options.prompts
    ]
    for dtype in options.dtype:
        generator = SpeculativeGenerator(load_pair("smollm2-135m", dtype=dtype))
        print(dtype, generator.exactness_report().sentence, flush=True)
        reference = [_run(generator, prompt, "plain", options) for prompt in prompts]
        print(f"{dtype} plain: {statistics.median(rate for _, rate, _ in reference):.1f} tokens/s (median)", flush=True)
        for method in options.methods:
            began = time.perf_counter()
            runs = [_run(generator, prompt, method, options) for prompt in prompts]
            equal = sum(run[0] == plain[0] for run, plain in zip(runs, reference, strict=True))
            words = {run[2] for run in runs}
            rate = statistics.median(rate for _, rate, _ in runs)
            seconds = time.perf_counter() - began
            print(
                f"{dtype} {method}: {equal} of {len(prompts)} equal, {words}, {rate:.1f} tokens/s, {seconds:.0f} s",
                flush=True,
            )


def _run(
    generator: SpeculativeGenerator, prompt: str, method: str, options: argparse.Namespace
) -> tuple[tuple[int, ...], float, str]:
    """Ids, decoding tokens a second, and the run's word."""
    config = RunConfig(method=method, max_new_tokens=options.max_new_tokens, exact=options.exact)
    events = list(generator.stream(prompt, config))
    finished = events[-1]
    assert isinstance(finished, RunFinished) and finished.reason != "error", finished
    return finished.token_ids, fold(events).decode_tokens_per_s or 0.0, events[0].exactness


if __name__ == "__main__":
    main()
