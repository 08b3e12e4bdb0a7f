"""What came of a benchmark: rows of plain data, a table for people, a file of single rates."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specviz.bench.runner import Entry, Score
from specviz.bench.sweep import over, theory
from specviz.bench.table import print_table, show
from specviz.errors import ConfigError

__all__ = ["print_scores", "score_row", "write_rates"]


def score_row(score: Score, scores: Sequence[Score], entries: Sequence[Entry]) -> dict[str, Any]:
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
        costs = theory(c, plain.totals, is_chain=c.is_chain)
        s = costs["theory_speed_up"]
        total = c.decode_s or 1.0
        row |= {
            "alpha": c.alpha,
            "acceptance_length": c.acceptance_length,
            "block_efficiency": c.block_efficiency,
            "draft_share": c.draft_s / total,
            "verify_share": c.verify_s / total,
            "other_share": c.other_s / total,
            **costs,
            "over_theory": over(over(c.decode_tokens_per_s, plain.totals.decode_tokens_per_s), s),
            "memory_bytes": score.memory_bytes,
        }
    return row


def print_scores(rows: Sequence[dict[str, Any]]) -> None:
    regimes = list(rows[0]["regimes"])
    heads = ["", "tok/s", "± %", "÷ plain", "÷ transf.", *regimes, "α", "τ", "eff.", "÷ S"]
    heads += ["draft/verify/other", "MB", "equal"]
    lines = [heads]
    for row in rows:
        shares = "–"
        if "draft_share" in row:
            shares = " / ".join(f"{100 * row[f'{part}_share']:.0f}" for part in ("draft", "verify", "other"))
        spread = None if row["spread"] is None else 100 * row["spread"]
        figures = [row["speed_up"], row["speed_up_over_transformers"], *row["regimes"].values()]
        figures += [row.get(name) for name in ("alpha", "acceptance_length", "block_efficiency", "over_theory")]
        memory = row.get("memory_bytes")
        equal = f"{row['num_equal_to_plain']} of {row['num_prompts']}"
        lines.append(
            [
                row["name"],
                f"{row['tokens_per_s']:.1f}",
                show(spread, 0),
                *(show(f, 2) for f in figures),
                shares,
                show(None if memory is None else memory / 1e6, 0),
                equal,
            ]
        )
    print_table(lines)
    print(_LEGEND)


_LEGEND = """
Rates are medians of decoding behind the first step; ± is their range over repeats. Ratios are geometric means over
prompts. plain has one token a pass. ÷ S: speed-up over what theory makes of the run's own α, κ, c and v, for chains.
MB: weights, also where they are held twice, and caches. equal compares with plain's ids; in a tree's passes, and in
passes of other sizes where the self-test found that they differ, near-ties may resolve differently.
"""


def write_rates(path: Path, scores: Sequence[Score]) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["contestant", "prompt", "repeat", "tokens_per_s"])
            for score in scores:
                for name, rates in score.rates.items():
                    writer.writerows([score.name, name, number, rate] for number, rate in enumerate(rates))
    except OSError as error:
        raise ConfigError(f"The table cannot be written to {str(path)!r}: {error.strerror}.") from error
