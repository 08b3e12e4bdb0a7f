"""`python -m specviz bench`: a table for people, then one JSON line last."""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.bench.prompts import PROMPTS, names_in, read_entries
from specviz.bench.table import print_table, show
from specviz.config import DEFAULT_GAMMA
from specviz.errors import ConfigError
from specviz.progress import Line

if TYPE_CHECKING:
    from specviz.bench.runner import Entry, Score

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
    attach = "measure this server instead; again for more, each compared with the first"
    parser.add_argument("--attach", action="append", default=[], metavar="URL", help=attach)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write every single rate")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.set_defaults(command=lambda options: _bench(options, progress()))


def _bench(options: argparse.Namespace, line: Line) -> int:
    if options.attach:
        from specviz.bench.attach import bench_attached

        return bench_attached(options, line, _write_csv)
    from specviz.bench.contest import peer, specviz_method
    from specviz.bench.machine import measure_passes
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
    # The baseline is plain decoding at one row a pass; methods run as their defaults decide on this machine.
    contestants = [specviz_method(engine, RunConfig(method="plain", exact=False))]
    contestants += [specviz_method(engine, RunConfig(method=name, gamma=options.gamma)) for name in methods[1:]]
    contestants += [peer(name, engine, options.gamma) for name in names_in(options.peers)]
    scores = contest(contestants, entries, limit=options.max_new_tokens, repeat=repeat, progress=line)
    line("Measuring passes", None)
    costs = measure_passes(engine)
    line.close()

    rows = [_row(score, scores, entries) for score in scores]
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
        _print_table(rows)
    if options.csv:
        _write_csv(options.csv, scores)
    print(
        json.dumps(
            {"pair": options.pair, "dtype": engine.loaded.target_info.dtype, "passes": costs.to_json(), "rows": rows}
        )
    )
    return 0


def _row(score: Score, scores: list[Score], entries: list[Entry]) -> dict[str, Any]:
    """One contestant's figures as plain data; ratios are geometric means over prompts of medians over repeats."""
    names = [entry.name for entry in entries]
    plain = scores[0]
    theirs = next((other for other in scores if other.name == "transformers plain"), None)
    equal = sum(score.answers.get(name) == plain.answers.get(name) for name in names)
    row: dict[str, Any] = {
        "name": score.name,
        "tokens_per_s": statistics.median(statistics.median(rates) for rates in score.rates.values()),
        "spread": score.spread,
        "prefill_s": statistics.median(score.prefills),
        "speed_up": score.speed_up(plain, names),
        "speed_up_over_transformers": score.speed_up(theirs, names) if theirs else None,
        "num_equal_to_plain": equal,
        "num_prompts": len(names),
        "regimes": {
            regime: score.speed_up(plain, [entry.name for entry in entries if entry.regime == regime])
            for regime in dict.fromkeys(entry.regime for entry in entries)
        },
    }
    if score.has_counters:
        c = score.totals
        total = c.decode_s or 1.0
        row |= {
            "alpha": c.alpha,
            "acceptance_length": c.acceptance_length,
            "block_efficiency": c.block_efficiency,
            "draft_share": c.draft_s / total,
            "verify_share": c.verify_s / total,
            "other_share": c.other_s / total,
        }
    return row


def _print_table(rows: list[dict[str, Any]]) -> None:
    regimes = list(rows[0]["regimes"])
    heads = ["", "tok/s", "± %", "÷ plain", "÷ transf.", *regimes, "α", "τ", "eff.", "draft/verify/other", "equal"]
    lines = [heads]
    for row in rows:
        shares = "–"
        if "draft_share" in row:
            shares = " / ".join(f"{100 * row[f'{part}_share']:.0f}" for part in ("draft", "verify", "other"))
        spread = None if row["spread"] is None else 100 * row["spread"]
        figures = [row["speed_up"], row["speed_up_over_transformers"], *row["regimes"].values()]
        figures += [row.get("alpha"), row.get("acceptance_length"), row.get("block_efficiency")]
        equal = f"{row['num_equal_to_plain']} of {row['num_prompts']}"
        lines.append(
            [
                row["name"],
                f"{row['tokens_per_s']:.1f}",
                show(spread, 0),
                *(show(f, 2) for f in figures),
                shares,
                equal,
            ]
        )
    print_table(lines)
    print(_LEGEND)


_LEGEND = """
Rates are medians of decoding behind the first step; ± is their range over repeats. Ratios are geometric means over
prompts. plain has one row a pass. equal compares with plain's ids; at other widths near-ties may fall the other way.
"""


def _write_csv(path: Path, scores: list[Score]) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["contestant", "prompt", "repeat", "tokens_per_s"])
            for score in scores:
                for name, rates in score.rates.items():
                    writer.writerows([score.name, name, number, rate] for number, rate in enumerate(rates))
    except OSError as error:
        raise ConfigError(f"The table cannot be written to {str(path)!r}: {error.strerror}.") from error
