"""`python -m specviz crowd`: where speculation stops paying when sequences share the target's passes.

The same prompts run so many at once, plainly and with each draft length, in turns, so that a slow moment of the machine
hits all of them. The answer is a draft length for each number of sequences, also in vLLM's own words.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.bench.prompts import PROMPTS, names_in, read_entries
from specviz.bench.table import print_table, show
from specviz.errors import ConfigError
from specviz.progress import Line
from specviz.remote.advice import batch_ranges

if TYPE_CHECKING:
    from specviz.batch.scheduler import Batch
    from specviz.config import RunConfig
    from specviz.generator import SpeculativeGenerator

__all__ = ["Crossing", "add_crowd_command", "measure_crossing"]

BY_LOAD = -1
"""Stands for the draft length that a batch chooses by itself, from 0 to the largest."""

MOST_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class Crossing:
    """Tokens a second of a whole batch, medians over repeats, by (sequences, gamma); gamma 0 is plain decoding."""

    rates: dict[tuple[int, int], float]
    rows: dict[tuple[int, int], float]
    """Rows of a pass on average."""

    @property
    def sizes(self) -> list[int]:
        return sorted({size for size, _ in self.rates})

    def best(self) -> dict[int, int]:
        """The fixed draft length that was fastest with so many sequences, 0 where plain decoding was."""
        return {
            size: max((rate, -gamma) for (n, gamma), rate in self.rates.items() if n == size and gamma >= 0)[1] * -1
            for size in self.sizes
        }

    def vllm_line(self) -> str:
        """The same for vLLM's --speculative-config, which takes ranges of requests; "" where plain was always best."""
        best = self.best()
        if not any(best.values()):
            return ""
        config = {
            "num_speculative_tokens": max(best.values()),
            "num_speculative_tokens_per_batch_size": batch_ranges(best),
        }
        return json.dumps(config)


def measure_crossing(
    engine: SpeculativeGenerator,
    prompts: Sequence[Sequence[int]],
    config: RunConfig,
    sizes: Sequence[int],
    gammas: Sequence[int],
    repeat: int,
    tell: Callable[[str, float], None],
) -> Crossing:
    """Run the prompts so many at once, with each draft length, in turns. config: of the runs, but for gamma."""
    from dataclasses import replace

    from specviz.batch.scheduler import Batch
    from specviz.generator import plain_beside

    settings: dict[int, RunConfig] = {0: replace(plain_beside(config), exact=config.exact)}
    settings |= {gamma: replace(config, gamma=gamma) for gamma in gammas if gamma > 0}
    settings[BY_LOAD] = replace(config, gamma=max(settings))
    runs: dict[tuple[int, int], list[tuple[float, float]]] = {}
    turns = [(size, gamma) for _ in range(repeat) for size in sizes for gamma in settings]
    for gamma in settings:  # self-tests and first passes are charged to nobody
        _run(Batch(engine, max_running=2), prompts[:2], replace(settings[gamma], max_new_tokens=2))
    for done, (size, gamma) in enumerate(turns):
        tell(f"{size} at once, {_name(gamma)}", done / len(turns))
        batch = Batch(engine, max_running=size, by_load=gamma == BY_LOAD)
        chosen = [prompts[i % len(prompts)] for i in range(size)]
        runs.setdefault((size, gamma), []).append(_run(batch, chosen, settings[gamma]))
    return Crossing(
        {key: statistics.median(rate for rate, _ in found) for key, found in runs.items()},
        {key: statistics.median(rows for _, rows in found) for key, found in runs.items()},
    )


def _run(batch: Batch, prompts: Sequence[Sequence[int]], config: RunConfig) -> tuple[float, float]:
    """Tokens a second, prompts read included, and rows a pass."""
    from specviz.batch.record import BatchFinished

    ends: list[BatchFinished] = []
    batch.record = lambda event: ends.append(event) if isinstance(event, BatchFinished) else None
    for prompt in prompts:
        batch.add(prompt, config)
    batch.play()
    end = ends[0]
    return end.num_tokens / end.seconds, end.num_rows / max(1, end.num_passes)


def add_crowd_command(commands: Any, progress: Callable[[], Line]) -> None:
    """Add `crowd` to the command line's sub-commands; arguments as in `add_train_command`."""
    parser = commands.add_parser(
        "crowd",
        help="throughput of sequences that share passes, plain and speculative, and which draft length pays",
        description="Measure whole batches: the same prompts, so many at once, plainly and with each draft length.",
    )
    parser.add_argument("--sequences", default="1,2,4,8,16", metavar="NUMBERS", help="default: %(default)s")
    parser.add_argument("--gammas", default="1,2,3,5", metavar="NUMBERS", help="default: %(default)s")
    parser.add_argument("--method", default="cascade", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="turns of each (default: %(default)s)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON Lines of id, prompt")
    parser.add_argument("--pair", default="smollm2-135m", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="one row a number of sequences and draft length")
    parser.set_defaults(command=lambda options: _crowd(options, progress()))


def _crowd(options: argparse.Namespace, line: Line) -> int:
    from specviz.config import MAX_GAMMA, RunConfig, check_int
    from specviz.drafters.registry import get_method
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import load_pair

    sizes = [_whole("sequences", text, MOST_SEQUENCES) for text in names_in(options.sequences)]
    gammas = [_whole("gammas", text, MAX_GAMMA) for text in names_in(options.gammas)]
    if not sizes or not gammas:
        raise ConfigError("--sequences and --gammas each take at least one number, such as 1,2,4,8.")
    repeat = check_int("repeat", options.repeat, 1, 100)
    method = get_method(options.method).name
    if method == "plain":
        raise ConfigError("Plain decoding is always measured; choose a method that drafts.")
    engine = SpeculativeGenerator(load_pair(options.pair, dtype=options.dtype, progress=line))
    entries = read_entries(options.prompts, max(sizes), engine)
    # Chains, where this machine can promise them to the bit: in trees gamma is a depth, and says little of the rows.
    exact = True if engine.exactness_report().passed and max(gammas) < 8 else None
    config = RunConfig(method, gamma=max(gammas), max_new_tokens=options.max_new_tokens, exact=exact)
    step = max(1, len(entries) // max(sizes))  # some of every regime, also where few run
    prompts = [entry.token_ids for entry in [*entries[::step], *entries]]
    crossing = measure_crossing(engine, prompts, config, sizes, gammas, repeat, line)
    line.close()
    lengths = [0, *gammas, BY_LOAD]
    heads = ["sequences", *(_name(gamma) for gamma in lengths), "best", "rows a pass"]
    best = crossing.best()
    table = [heads]
    for size in crossing.sizes:
        rates = [show(crossing.rates[size, gamma], 1) for gamma in lengths]
        table.append([str(size), *rates, _name(best[size]), show(crossing.rows[size, best[size]], 1)])
    print(f"{method}, {options.max_new_tokens} tokens each, tokens a second of the whole batch, prompts included:\n")
    print_table(table)
    print(f"\n{_answer(best)}")
    if line_for_vllm := crossing.vllm_line():
        print(f"The same for vLLM's --speculative-config, beside its method: {line_for_vllm}")
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["sequences", "gamma", "tokens_per_s", "rows_per_pass"])
            for (size, gamma), rate in sorted(crossing.rates.items()):
                name = "by load" if gamma == BY_LOAD else gamma
                writer.writerow([size, name, f"{rate:.3f}", f"{crossing.rows[size, gamma]:.2f}"])
    return 0


def _answer(best: dict[int, int]) -> str:
    paying = [size for size, gamma in best.items() if gamma]
    if not paying:
        return "Speculation paid at no number of sequences here."
    plain = [size for size, gamma in best.items() if not gamma and size > max(paying)]
    if not plain:
        return f"Speculation paid up to {max(paying)} sequences, the most that were measured."
    return f"Speculation paid up to {max(paying)} sequences; with {plain[0]} plain decoding was faster."


def _name(gamma: int) -> str:
    return "by load" if gamma == BY_LOAD else f"γ {gamma}" if gamma else "plain"


def _whole(name: str, text: str, most: int) -> int:
    """A number from 1 to `most`. Raises ConfigError for anything else."""
    from specviz.config import check_int

    if not text.isascii() or not text.isdigit() or len(text) > 4:
        raise ConfigError(f"--{name} takes whole numbers from 1 to {most}, apart by commas; got {text[:40]!r}.")
    return check_int(name, int(text), 1, most)
