"""`python -m specviz train WHAT`: one sub-command a kind of draft. Heavy libraries are imported when one runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specviz.progress import Line

__all__ = ["add_train_command"]


def add_train_command(commands: Any, progress: Callable[[], Line]) -> None:
    """Add `train` to the command line's sub-commands.

    Args:
        commands: what `ArgumentParser.add_subparsers` returned.
        progress: opens a progress line on standard error.
    """
    train = commands.add_parser("train", help="make a draft for a pair from a corpus")
    kinds = train.add_subparsers(required=True, metavar="WHAT")
    _add_ngrams(kinds, progress)
    _add_import(kinds, progress)


def _add_ngrams(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser("ngrams", help="count a corpus into the table of the method ngram-table")
    corpus = '.txt, .jsonl with "text" or "prompt", or .npz of token ids'
    out = "folder to write into (default: where runs look for it)"
    count = "leave out contexts whose best follower was seen less often (default: %(default)s)"
    size = "size of the table at most; the rarest of the longest contexts go first (default: %(default)s)"
    parser.add_argument("--corpus", nargs="+", required=True, metavar="FILE", type=Path, help=corpus)
    parser.add_argument("--out", metavar="DIR", type=Path, help=out)
    parser.add_argument("--pair", metavar="NAME", default="smollm2-135m", help="default: %(default)s")
    parser.add_argument("--min-count", type=int, default=1, metavar="N", help=count)
    parser.add_argument("--max-mb", type=float, default=4.0, metavar="X", help=size)

    def run(options: argparse.Namespace) -> int:
        from specviz.train.ngrams import train_ngrams

        line = progress()
        try:
            folder = train_ngrams(
                options.corpus,
                options.pair,
                options.out,
                min_count=options.min_count,
                max_mb=options.max_mb,
                progress=line,
            )
        finally:
            line.close()
        print(folder)
        return 0

    parser.set_defaults(command=run)


def _add_import(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser("import", help="take over a draft that another project trained, such as Medusa heads")
    folder = "as downloaded: config.json and the weights, safetensors or a pickle of plain tensors"
    parser.add_argument("folder", metavar="FOLDER", type=Path, help=folder)
    parser.add_argument("--pair", metavar="NAME", required=True, help="the pair whose target it was trained on")
    parser.add_argument("--method", choices=("medusa", "feature"), help="what it has to be for (default: what it is)")

    def run(options: argparse.Namespace) -> int:
        from specviz.drafters.foreign import import_draft

        line = progress()
        try:
            folder, notes = import_draft(options.folder, options.pair, options.method, line)
        finally:
            line.close()
        for note in notes:
            print(f"specviz: {note}", file=sys.stderr)
        print(folder)
        return 0

    parser.set_defaults(command=run)
