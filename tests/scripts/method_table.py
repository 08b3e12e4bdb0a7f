"""Every method on one prompt of each regime, beside plain decoding: the table of the README and of closing notes.

    python tests/scripts/method_table.py [--dtype bfloat16] [--max-new-tokens 96] [--temperature 0 0.8] [--methods ...]

Each run's plain baseline (one row a pass) is measured right after it, so both see the same moment of the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specviz import RunConfig, SamplingParams, SpeculativeGenerator, fold, load_pair
from specviz.baseline import explain_difference
from specviz.bench.prompts import PROMPTS
from specviz.drafters.registry import METHODS, get_method
from specviz.errors import SpecvizError
from specviz.metrics import Baseline, Counters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--methods", nargs="+", default=[name for name in METHODS if name != "plain"])
    options = parser.parse_args()
    entries = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    prompts = {entry["regime"]: entry["prompt"] for entry in reversed(entries)}  # the first of each regime
    generator = SpeculativeGenerator(load_pair("smollm2-135m", dtype=options.dtype))
    print(f"{generator.loaded.target_info.dtype}. {generator.exactness_report().sentence}", flush=True)
    for temperature in options.temperature:
        print(f"\nT = {temperature:g}, {options.max_new_tokens} tokens\n")
        columns = ["method", "word", "equal to plain", "α", "acceptance length", "block efficiency"]
        columns += ["draft / verify / other %", *reversed(prompts), "mean"]
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
        for name in options.methods:
            if get_method(name).refusal(generator.loaded):
                continue
            print(
                _row(generator, name, list(reversed(prompts.values())), temperature, options.max_new_tokens), flush=True
            )


def _row(generator: SpeculativeGenerator, name: str, prompts: list[str], temperature: float, limit: int) -> str:
    total, ratios, equal, words = Counters(), [], 0, set()
    for prompt in prompts:
        config = RunConfig(method=name, max_new_tokens=limit, sampling=SamplingParams(temperature, seed=1))
        try:
            events = list(generator.stream(prompt, config))
        except SpecvizError as error:
            return f"| {name} | {error} |"
        plain = list(generator.stream_plain(prompt, config))
        baseline = Baseline.of(plain, events)
        rate = fold(events).decode_tokens_per_s
        assert baseline is not None and baseline.tokens_per_s and rate, events[-1]
        ratios.append(rate / baseline.tokens_per_s)
        baseline = explain_difference(generator, prompt, config, events, baseline)
        equal += bool(baseline.same_text or baseline.width_same)  # an exact run equals plain decoding at its own width
        words.add(events[0].exactness)
        for event in events:
            total.update(event)
    shares = " / ".join(f"{100 * part / total.decode_s:.0f}" for part in (total.draft_s, total.verify_s, total.other_s))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    same = f"{equal} of {len(prompts)}" if temperature == 0 else "–"
    figures = [_show(total.alpha), _show(total.acceptance_length), _show(total.block_efficiency)]
    speed = [f"{ratio:.2f}×" for ratio in (*ratios, mean)]
    return "| " + " | ".join([name, "/".join(sorted(words)), same, *figures, shares, *speed]) + " |"


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
