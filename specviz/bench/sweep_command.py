"""`python -m specviz sweep`: one method over its settings; a table for people, and rows for pandas."""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.bench.prompts import PROMPTS, names_in, read_entries
from specviz.bench.table import print_table, show
from specviz.errors import ConfigError
from specviz.progress import Line

if TYPE_CHECKING:
    from specviz.bench.settings import Setting
    from specviz.bench.sweep import Measured

__all__ = ["add_sweep_command"]


def add_sweep_command(commands: Any, progress: Callable[[], Line]) -> None:
    """Add `sweep` to the command line's sub-commands; arguments as in `add_train_command`."""
    parser = commands.add_parser(
        "sweep",
        help="measure one method over its settings, beside plain decoding",
        description="Run a method with every combination of the values given, each on every prompt in turns with plain "
        "decoding, and print what came of it. --csv and --json write one row a setting and regime, which pandas reads.",
    )
    vary = (
        "values of a setting, e.g. gamma=1,2,4; one value fixes it; may be repeated, all combinations are run. A "
        "semicolon separates values that have commas: 'tree=chain;4,2,1', and 'tree=4,2,1;' is one. NAME is gamma, "
        "draft_length, confidence, draft_quant, verify, epsilon, delta, threshold, temperature, exact (auto, on, off), "
        "width, or one of the method's own (default: what tells most about the method)"
    )
    prompts = "JSON Lines of id, regime, prompt (default: the bench's)"
    regimes = "comma-separated (default: all in the file)"
    parser.add_argument("--method", required=True, metavar="NAME", help="see `specviz methods`")
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=V,V", help=vary)
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help=prompts)
    parser.add_argument("--regimes", default="", metavar="NAMES", help=regimes)
    parser.add_argument("--per-regime", type=int, default=1, metavar="N", help="prompts of each (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of sampled runs (default: %(default)s)")
    parser.add_argument("--pair", default="smollm2-135m", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="one row a setting and regime, and one over all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the same rows as a list of objects")
    parser.set_defaults(command=lambda options: _sweep(options, progress()))


def _sweep(options: argparse.Namespace, line: Line) -> int:
    from specviz.bench.settings import combine, default_vary, read_vary
    from specviz.bench.sweep import measure, sweep_rows
    from specviz.config import check_int
    from specviz.drafters.registry import get_method
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import load_pair

    method = get_method(options.method)
    repeat = check_int("repeat", options.repeat, 1, 100)
    per_regime = check_int("per-regime", options.per_regime, 1, 1000)

    def settings_for(texts: Sequence[str]) -> list[Setting]:
        vary = read_vary(method, texts)
        return combine(method, vary, max_new_tokens=options.max_new_tokens, seed=options.seed)

    settings = settings_for(options.vary) if options.vary else []  # refuse what is wrong before a model is loaded
    for path in filter(None, (options.csv, options.json)):
        _check_writable(path)
    engine = SpeculativeGenerator(load_pair(options.pair, dtype=options.dtype, progress=line))
    settings = settings or settings_for(default_vary(method, engine.loaded.num_layers))
    entries = read_entries(options.prompts, per_regime, engine, names_in(options.regimes))
    engine.exactness_report(progress=lambda part: line("Self-test", part))
    try:
        measured = measure(engine, settings, entries, limit=options.max_new_tokens, repeat=repeat, progress=line)
    finally:
        line.close()
    rows = sweep_rows(measured, entries, repeat=repeat)
    for path, write in ((options.csv, _write_csv), (options.json, _write_json)):
        if path is not None:
            _write(path, write, rows)
    _print(measured, rows, repeat)
    return 0


# --- for people ------------------------------------------------------------------------------------------------------


def _print(measured: Sequence[Measured], rows: Sequence[dict[str, Any]], repeat: int) -> None:
    from specviz.bench.sweep import ALL

    overall = [row for row in rows if row["regime"] == ALL]
    one = overall[0]
    size = [_number(len(overall), "setting"), _number(one["num_prompts"], "prompt"), f"{one['max_new_tokens']} tokens"]
    where = f"{one['method']} on {one['pair']}, {one['dtype']}, {_number(one['threads'], 'thread')}"
    print(f"{where}: {' × '.join(size)} × {_number(repeat, 'run')}.")
    speeds = dict.fromkeys(show(row["plain_tokens_per_s"], 1) for row in overall)
    print(f"Plain decoding beside them, one token a pass: {', '.join(speeds)} tokens/s.\n")

    names = list(dict.fromkeys(name for item in measured for name in item.setting.varied))
    heads = ["", *names, "α", "τ", "eff.", "drafted", "tok/s", "÷ plain", "low–high", "theory", "draft/verify/other"]
    lines = [[*heads, "equal", "word"]]
    for item, row in zip(measured, overall, strict=True):
        shares = " / ".join(f"{100 * row[f'{part}_share']:.0f}" for part in ("draft", "verify", "other"))
        low, high = row["speed_up_low"], row["speed_up_high"]
        equal = "–" if row["num_equal"] is None else f"{row['num_equal']} of {row['num_prompts']}"
        lines.append(
            [
                _mark(row, overall),
                *(str(item.setting.varied.get(name, "–")) for name in names),
                *(show(row[name], 2) for name in ("alpha", "acceptance_length", "block_efficiency", "mean_drafted")),
                show(row["tokens_per_s"], 1),
                show(row["speed_up"], 2),
                "–" if low is None else f"{low:.2f}–{high:.2f}",
                show(row["theory_speed_up"], 2),
                shares,
                equal,
                row["exactness"],
            ]
        )
    print_table(lines, num_left=1 + len(names))
    print(_LEGEND)
    for sentence in _verdict([item.setting.label for item in measured], rows, overall):
        print(sentence)


_LEGEND = """
Ratios are geometric means over prompts of medians over runs, behind the first step; low–high are those of the lowest
and highest ratio of one turn. theory is the speed-up that the run's own α and measured costs give, for chains. equal
compares with the ids of plain; in a tree's passes near-ties may resolve differently. word is what the setting promises.
"""


def _mark(row: dict[str, Any], overall: Sequence[dict[str, Any]]) -> str:
    """* for the best setting, ~ for one whose range reaches into the best one's."""
    if row["is_best"]:
        return "*"
    best = next((other for other in overall if other["is_best"]), None)
    if best is None or best["speed_up_low"] is None:
        return ""
    return "~" if row["speed_up_high"] >= best["speed_up_low"] else ""


def _verdict(labels: Sequence[str], rows: Sequence[dict[str, Any]], overall: Sequence[dict[str, Any]]) -> list[str]:
    """What was left out, the best setting, and the best of each regime, in sentences."""
    from specviz.bench.sweep import ALL

    sentences = []
    left_out = overall[0]["num_prompts"] - overall[0]["num_timed"]
    if left_out:
        answers = "answer was" if left_out == 1 else "answers were"
        sentences.append(f"Speeds leave out {_number(left_out, 'prompt')} whose {answers} over in one step.")
    best = next((index for index, row in enumerate(overall) if row["is_best"]), None)
    if best is None:
        return [*sentences, "No prompt has a speed: ask for more tokens."]
    speed_up = overall[best]["speed_up"]
    if speed_up > 1.0:
        sentences.append(f"* Best: {labels[best]}, {speed_up:.2f} × plain decoding.")
    else:
        sentences.append(
            f"* No setting is faster than plain decoding. Nearest: {labels[best]}, {speed_up:.2f} × plain."
        )
    if any(_mark(row, overall) == "~" for row in overall):
        sentences.append("~ Not told apart from it: the ranges overlap. More prompts or runs would tell.")
    num_regimes = len(rows) // len(overall)  # rows come setting by setting
    by_regime = [
        f"{row['regime']} {labels[place // num_regimes]} ({row['speed_up']:.2f})"
        for place, row in enumerate(rows)
        if row["is_best"] and row["regime"] != ALL
    ]
    if len(labels) > 1 and len(by_regime) > 1:
        sentences.append(f"Best by regime: {'; '.join(by_regime)}.")
    return sentences


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


# --- for programs ----------------------------------------------------------------------------------------------------


def _check_writable(path: Path) -> None:
    """A sweep takes long: what it is to write into is looked at first."""
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise ConfigError(f"The table cannot be written to {str(path)!r}: {str(place)!r} is no place to write to.")


def _write(path: Path, write: Callable[[Path, Sequence[dict[str, Any]]], None], rows: Sequence[dict[str, Any]]) -> None:
    try:
        write(path, rows)
    except OSError as error:
        raise ConfigError(f"The table cannot be written to {str(path)!r}: {error.strerror}.") from error


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _write_json(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
