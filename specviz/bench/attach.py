"""`python -m specviz bench --attach URL`: serving engines on the bench's prompts, one request at a time.

Several are measured in turns, and each is compared with the first: one that does not speculate makes a baseline.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from specviz.bench.concurrency import bench_concurrency, print_concurrency, read_concurrency
from specviz.bench.contest import specviz_method
from specviz.bench.prompts import read_entries
from specviz.bench.report import write_rates
from specviz.bench.runner import Entry, Score, contest
from specviz.bench.table import print_table, show
from specviz.config import RunConfig, check_int
from specviz.progress import Line
from specviz.remote import METHOD, RemoteEngine, read_addresses

__all__ = ["bench_attached"]

_LEGEND = """
Rates are medians of decoding behind the first step, as messages arrived here; ± is their range over repeats. ÷ first
compares with the first server: a geometric mean over prompts. α, τ and accepted of drafted come from the servers' own
counters; ≥ marks bounds, where other requests ran at the same time. equal compares ids with the first server's.
"""


def bench_attached(options: argparse.Namespace, line: Line) -> int:
    """The table, then one JSON line. Raises RemoteError for a server that does not answer."""
    repeat = check_int("repeat", options.repeat, 1, 100)
    per_regime = check_int("per-regime", options.per_regime, 1, 1000)
    engines = [RemoteEngine(address) for address in read_addresses(options.attach)]
    entries = read_entries(options.prompts, per_regime, None)
    if options.concurrency:
        return _crowded(options, engines, entries, repeat, line)
    config = RunConfig(method=METHOD)
    contestants = [specviz_method(engine, config, engine.name) for engine in engines]
    scores = contest(contestants, entries, limit=options.max_new_tokens, repeat=repeat, progress=line)
    line.close()
    rows = [_row(score, scores[0], entries) for score in scores]
    if not options.json:
        for engine in engines:
            identity = engine.server.identify()
            print(f"{engine.name}: {identity.model}, {identity.title}")
        print(f"{len(entries)} prompts × {options.max_new_tokens} tokens × {repeat} runs, greedy.\n")
        _print_table(rows)
    if options.csv:
        write_rates(options.csv, scores)
    print(json.dumps({"attached": [engine.name for engine in engines], "rows": rows}))
    return 0


def _crowded(
    options: argparse.Namespace, engines: list[RemoteEngine], entries: list[Entry], repeat: int, line: Line
) -> int:
    levels, limit = read_concurrency(options.concurrency), options.max_new_tokens
    rows, advice = bench_concurrency(engines, entries, levels, limit=limit, repeat=repeat, line=line)
    line.close()
    if not options.json:
        print(f"{rows[0]['num_answers'] // repeat} requests × {limit} tokens × {repeat} runs, greedy.\n")
        print_concurrency(rows, advice)
    print(json.dumps({"attached": [engine.name for engine in engines], "concurrency": rows, "advice": advice}))
    return 0


def _row(score: Score, first: Score, entries: list[Entry]) -> dict[str, Any]:
    names = [entry.name for entry in entries]
    c = score.totals
    rates = [statistics.median(rates) for rates in score.rates.values()]
    told = c.to_json()
    return {
        "name": score.name,
        "tokens_per_s": statistics.median(rates) if rates else None,
        "spread": score.spread,
        "first_token_s": statistics.median(score.prefills),
        "over_first": score.speed_up(first, names),
        "num_equal_to_first": sum(score.answers.get(name) == first.answers.get(name) for name in names),
        "num_prompts": len(names),
        "is_bound": c.is_bound,
    } | {name: told[name] for name in ("alpha", "acceptance_length", "block_efficiency", "num_accepted", "num_drafted")}


def _print_table(rows: list[dict[str, Any]]) -> None:
    lines = [["", "tok/s", "± %", "÷ first", "α", "τ", "accepted", "drafted", "tokens a step", "equal"]]
    for row in rows:
        least, most = ("≥ ", "≤ ") if row["is_bound"] else ("", "")
        spread = None if row["spread"] is None else 100 * row["spread"]
        lines.append(
            [
                row["name"],
                show(row["tokens_per_s"], 1),
                show(spread, 0),
                show(row["over_first"], 2),
                _marked(least, show(row["alpha"], 2)),
                _marked(least, show(row["acceptance_length"], 2)),
                show(row["num_accepted"], 0),
                _marked(most, show(row["num_drafted"], 0)),
                show(row["block_efficiency"], 2),
                f"{row['num_equal_to_first']} of {row['num_prompts']}",
            ]
        )
    print_table(lines)
    print(_LEGEND)


def _marked(mark: str, text: str) -> str:
    return f"{mark}{text}" if text != "–" else text
