"""`python -m specviz lab`: the experiments of the page's Lab without a page, and the record that ships with it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specviz.config import DEFAULT_GAMMA
from specviz.errors import ConfigError
from specviz.progress import Line

__all__ = ["add_lab_command"]

_PROMPT = "Explain in a few sentences how a rainbow comes about."


def add_lab_command(commands: Any, progress: Callable[[], Line]) -> None:
    """Add `lab` to the command line's sub-commands; arguments as in `add_train_command`."""
    parser = commands.add_parser(
        "lab",
        help="run the experiments of the page's Lab and print what they say",
        description="Measure draft length, passes, memory, precision, context and exactness of one pair and method. "
        "Each prints its answer; --csv and --record write files.",
    )
    only = "comma-separated: gamma, passes, memory, precision, length, greedy, sampling, rules (default: all)"
    parser.add_argument("--only", default="", metavar="NAMES", help=only)
    parser.add_argument("--pair", default="smollm2-135m", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--method", default="draft-model", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--gamma", type=int, default=DEFAULT_GAMMA, metavar="N", help="default: %(default)s")
    parser.add_argument("--width", type=int, default=8, metavar="N", help="8 or 16 (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: %(default)s")
    parser.add_argument("--prompt", default=_PROMPT, metavar="TEXT", help="default: %(default)s")
    parser.add_argument("--max-new-tokens", type=int, default=96, metavar="N", help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds of a sweep (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=400, metavar="N", help="default: %(default)s")
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write each table as FOLDER/NAME.csv")
    record = "write what the page shows before anybody has measured; FOLDER is assets/lab where none is named"
    parser.add_argument("--record", type=Path, nargs="?", const=Path(), metavar="FOLDER", help=record)
    parser.set_defaults(command=lambda options: _lab(options, progress()))


def _lab(options: argparse.Namespace, line: Line) -> int:
    from specviz.bench.prompts import names_in
    from specviz.config import RunConfig, SamplingParams, check_int
    from specviz.drafters.registry import get_method
    from specviz.generator import SpeculativeGenerator
    from specviz.lab.experiment import Ask, Finding, conduct
    from specviz.lab.experiments import EXPERIMENTS
    from specviz.lab.record import RECORDED, save_finding, to_csv
    from specviz.lab.words import answer
    from specviz.models.loader import load_pair

    names = names_in(options.only) or list(EXPERIMENTS)
    unknown = next((name for name in names if name not in EXPERIMENTS), None)
    if unknown is not None:
        raise ConfigError(f"There is no experiment {unknown[:40]!r}. There are: {', '.join(EXPERIMENTS)}.")
    config = RunConfig(
        get_method(options.method).name,
        gamma=options.gamma,
        width=options.width,
        max_new_tokens=options.max_new_tokens,
        sampling=SamplingParams(temperature=options.temperature),
    )
    ask = Ask(
        options.prompt,
        config,
        repeat=check_int("repeat", options.repeat, 1, 100),
        num_samples=check_int("samples", options.samples, 20, 100_000),
    )
    engine = SpeculativeGenerator(load_pair(options.pair, dtype=options.dtype, progress=line))
    engine.exactness_report(config.width, lambda part: line("Self-test", part))
    for name in names:
        experiment = EXPERIMENTS[name]
        finding: Finding | None = None
        for report in conduct(experiment.measure, engine, ask, lambda: False, float("inf")):
            line(report.text, report.fraction)
            finding = report.finding or finding
        line.close()
        assert finding is not None
        print("\n  ".join([experiment.title, *filter(None, answer(finding))]) + "\n")
        if options.csv is not None:
            options.csv.mkdir(parents=True, exist_ok=True)
            (options.csv / f"{name}.csv").write_text(to_csv(finding), encoding="utf-8")
        if options.record is not None:
            save_finding(RECORDED if options.record == Path() else options.record, finding)
    return 0
