"""`python -m specviz bench`: a table for people, then one JSON line last."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specviz.bench.prompts import PROMPTS, names_in, read_entries
from specviz.config import DEFAULT_GAMMA
from specviz.errors import ConfigError
from specviz.progress import Line

__all__ = ["add_bench_command"]

METHODS = "plain,prompt-lookup,cascade,quantized-copy"
PEERS = "plain,prompt-lookup"


def add_bench_command(commands: Any, progress: Callable[[], Line]) -> None:
    """Add `bench` to the command line's sub-commands; arguments as in `add_train_command`."""
    parser = commands.add_parser("bench", help="measure methods against plain decoding and against transformers")
    parser.add_argument(
        "--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON Lines of id, regime, prompt"
    )
    parser.add_argument("--methods", default=METHODS, metavar="NAMES", help="comma-separated (default: %(default)s)")
    peers = "of plain, prompt-lookup, assistant, early-exit; empty for none (default: %(default)s)"
    parser.add_argument("--peers", default=PEERS, metavar="NAMES", help=peers)
    parser.add_argument(
        "--per-regime", type=int, default=1, metavar="N", help="prompts a regime (default: %(default)s)"
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--gamma", type=int, default=DEFAULT_GAMMA, metavar="N", help="default: %(default)s")
    parser.add_argument("--pair", default="smollm2-135m", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument(
        "--overheads", action="store_true", help="also measure what traces, details and a long context cost"
    )
    attach = "measure this server instead; again for more, each compared with the first"
    parser.add_argument("--attach", action="append", default=[], metavar="URL", help=attach)
    crowd = "with --attach: the same prompts with so many at once, like 1,2,4,8, and which draft length would pay"
    parser.add_argument("--concurrency", default="", metavar="NUMBERS", help=crowd)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write every single rate")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.set_defaults(command=lambda options: _bench(options, progress()))


def _bench(options: argparse.Namespace, line: Line) -> int:
    if options.attach:
        from specviz.bench.attach import bench_attached

        return bench_attached(options, line)
    if options.concurrency:
        raise ConfigError("--concurrency is for servers: give them with --attach.")
    from specviz.bench.contest import peer, specviz_method
    from specviz.bench.machine import measure_passes
    from specviz.bench.overheads import measure_overheads
    from specviz.bench.report import print_scores, score_row, write_rates
    from specviz.bench.runner import contest
    from specviz.config import RunConfig, check_int
    from specviz.drafters.registry import get_method
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import load_pair

    repeat = check_int("repeat", options.repeat, 1, 100)
    per_regime = check_int("per-regime", options.per_regime, 1, 1000)
    methods = ["plain", *(name for name in names_in(options.methods) if name != "plain")]
    for name in methods:
        get_method(name)
    engine = SpeculativeGenerator(load_pair(options.pair, dtype=options.dtype, progress=line))
    report = engine.exactness_report(progress=lambda part: line("Self-test", part))
    entries = read_entries(options.prompts, per_regime, engine)
    # Plain decoding and the methods run as their defaults decide on this machine.
    contestants = [specviz_method(engine, RunConfig(method="plain", gamma=0))]
    contestants += [specviz_method(engine, RunConfig(method=name, gamma=options.gamma)) for name in methods[1:]]
    contestants += [peer(name, engine, options.gamma) for name in names_in(options.peers)]
    scores = contest(contestants, entries, limit=options.max_new_tokens, repeat=repeat, progress=line)
    line("Measuring passes", None)
    costs = measure_passes(engine)
    overheads = None
    if options.overheads:
        config = RunConfig(gamma=options.gamma)
        limit = options.max_new_tokens
        overheads = measure_overheads(engine, entries, config, limit=limit, repeat=repeat, progress=line)
    line.close()

    rows = [score_row(score, scores, entries) for score in scores]
    if not options.json:
        info = engine.loaded.target_info
        size = f"{len(entries)} prompts × {options.max_new_tokens} tokens × {repeat} runs"
        print(f"{info.name}, {info.dtype}, {size}, greedy.")
        print(report.sentence)
        one = costs.seconds[1]
        passes = ", ".join(f"{n}: {seconds / one:.2f}" for n, seconds in costs.seconds.items())
        print(
            f"A one-row pass takes {1000 * one:.1f} ms; reading the weights once takes {1000 * costs.floor_s:.1f} ms "
            f"({100 * costs.floor_s / one:.0f} % of the roofline). v by rows: {passes}.\n"
        )
        print_scores(rows)
        if overheads is not None:
            print(overheads.sentence)
    if options.csv:
        write_rates(options.csv, scores)
    data = {"pair": options.pair, "dtype": engine.loaded.target_info.dtype, "passes": costs.to_json(), "rows": rows}
    print(json.dumps(data | ({"overheads": asdict(overheads)} if overheads else {})))
    return 0
