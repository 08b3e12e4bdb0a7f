"""`python -m specviz train WHAT`: one sub-command a kind of draft. Heavy libraries are imported when one runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from specviz.errors import ConfigError
from specviz.progress import Line

__all__ = ["add_train_command"]

_HELD = "numbers of topics to keep from training, besides every eighth"


def add_train_command(commands: Any, progress: Callable[[], Line]) -> None:
    """Add `train` to the command line's sub-commands.

    Args:
        commands: what `ArgumentParser.add_subparsers` returned.
        progress: opens a progress line on standard error.
    """
    train = commands.add_parser(
        "train",
        help="make a draft for a pair from a corpus",
        description="Make drafts that know their target. First `corpus` lets the target answer prompts; student, "
        "feature, medusa, ngrams and suffix learn from its answers. An interrupted training goes on where it stopped "
        "when the same command is given again, and ends in the same weights. A draft is put where runs look for it, "
        "with a card that says how good it is on topics it has not seen.",
    )
    kinds = train.add_subparsers(required=True, metavar="WHAT")
    _add_corpus(kinds, progress)
    _add_student(kinds, progress)
    _add_feature(kinds, progress)
    _add_medusa(kinds, progress)
    _add_ngrams(kinds, progress)
    _add_suffix(kinds, progress)
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
    parser.add_argument("--hold-out", metavar="N,N", default="", help=_HELD)

    def run(options: argparse.Namespace) -> int:
        from specviz.train.ngrams import train_ngrams

        with closing(progress()) as line:
            folder = train_ngrams(
                options.corpus,
                options.pair,
                options.out,
                min_count=options.min_count,
                max_mb=options.max_mb,
                hold_out=_numbers("hold-out", options.hold_out) if options.hold_out else (),
                progress=line,
            )
        print(folder)
        return 0

    parser.set_defaults(command=run)


def _add_suffix(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser("suffix", help="make the index of texts that the method suffix searches beside the run")
    corpus = '.txt, .jsonl with "text" or "prompt", or .npz of token ids'
    out = "folder to write into (default: where runs look for it)"
    most = "tokens of the index at most, the first texts (default: all)"
    size = "size of the file at most (default: %(default)s)"
    parser.add_argument("--corpus", nargs="+", required=True, metavar="FILE", type=Path, help=corpus)
    parser.add_argument("--out", metavar="DIR", type=Path, help=out)
    parser.add_argument("--pair", metavar="NAME", default="smollm2-135m", help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=0, metavar="N", help=most)
    parser.add_argument("--max-mb", type=float, default=6.0, metavar="X", help=size)
    parser.add_argument("--hold-out", metavar="N,N", default="", help=_HELD)

    def run(options: argparse.Namespace) -> int:
        from specviz.train.suffix import train_suffix

        with closing(progress()) as line:
            folder = train_suffix(
                options.corpus,
                options.pair,
                options.out,
                max_tokens=options.max_tokens,
                max_mb=options.max_mb,
                hold_out=_numbers("hold-out", options.hold_out) if options.hold_out else (),
                progress=line,
            )
        print(folder)
        return 0

    parser.set_defaults(command=run)


def _add_import(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser(
        "import", help="take over a draft that another project trained: Medusa heads, or an EAGLE-1, -2 or -3 head"
    )
    folder = "as downloaded: config.json and the weights, safetensors or a pickle of plain tensors"
    parser.add_argument("folder", metavar="FOLDER", type=Path, help=folder)
    parser.add_argument("--pair", metavar="NAME", required=True, help="the pair whose target it was trained on")
    parser.add_argument("--method", choices=("medusa", "feature"), help="what it has to be for (default: what it is)")

    def run(options: argparse.Namespace) -> int:
        from specviz.drafters.foreign import import_draft

        with closing(progress()) as line:
            folder, notes = import_draft(options.folder, options.pair, options.method, line)
        for note in notes:
            print(f"specviz: {note}", file=sys.stderr)
        print(folder)
        return 0

    parser.set_defaults(command=run)


def _add_corpus(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser("corpus", help="let the target answer prompts, as a corpus to train drafts on")
    prompts = '.txt with one a line, or .jsonl with "prompt" and perhaps "topic" and "form"'
    heat = "each prompt is answered once at each of these (default: %(default)s)"
    limit = "tokens of an answer at most (default: %(default)s)"
    top_p = "of the answers above temperature 0 (default: %(default)s)"
    batch = "answers made at once (default: %(default)s)"
    parser.add_argument("--prompts", nargs="+", required=True, metavar="FILE", type=Path, help=prompts)
    parser.add_argument("--out", required=True, metavar="FILE.npz", type=Path, help="a .json beside it says how")
    parser.add_argument("--pair", metavar="NAME", default="smollm2-135m", help="default: %(default)s")
    parser.add_argument("--temperatures", metavar="T,T", default="0,0.7", help=heat)
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help=limit)
    parser.add_argument("--top-p", type=float, default=0.95, metavar="P", help=top_p)
    parser.add_argument("--batch", type=int, default=64, metavar="N", help=batch)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: %(default)s")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")

    def run(options: argparse.Namespace) -> int:
        from specviz.train.answers import read_temperatures, write_answers

        with closing(progress()) as line:
            written = write_answers(
                options.prompts,
                options.out,
                pair=options.pair,
                temperatures=read_temperatures(options.temperatures),
                max_new_tokens=options.max_new_tokens,
                top_p=options.top_p,
                batch=options.batch,
                seed=options.seed,
                dtype=options.dtype,
                device=options.device,
                progress=line,
            )
        for note in written.notes:
            print(f"specviz: {note}", file=sys.stderr)
        print(written.path)
        return 0

    parser.set_defaults(command=run)


def _add_student(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser("student", help="distil some of the target's layers into a draft for draft-model")
    layers = "of the target, from 1, that the draft begins as (default: the first two and the last two)"
    parser.add_argument("--layers", metavar="N,N", default="", help=layers)
    _add_training(parser, progress, "student")


def _add_feature(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser("feature", help="train a head on the target's hidden states, for the method feature")
    parser.add_argument("--layers", metavar="N,N", default="", help="that the head begins as (default: the last)")
    parser.add_argument("--depth", type=int, metavar="N", help="tokens in a row that it learns to draft (default: 3)")
    _add_training(parser, progress, "feature")


def _add_medusa(kinds: Any, progress: Callable[[], Line]) -> None:
    parser = kinds.add_parser("medusa", help="train Medusa heads, for the method medusa")
    parser.add_argument("--heads", dest="depth", type=int, metavar="N", help="how many (default: 3)")
    parser.add_argument("--blocks", type=int, metavar="N", help="residual blocks of each (default: 2)")
    _add_training(parser, progress, "medusa")


def _add_training(parser: Any, progress: Callable[[], Line], kind: str) -> None:
    """What all trainings take, and the call."""
    corpus = "answers of the target, .npz as `train corpus` writes it"
    out = "folder to write into (default: where runs look for it)"
    size = "how many of the most frequent ids the draft can propose (default: 8192)"
    pace = "highest learning rate (default: student 0.0008, feature 0.001, medusa 0.002)"
    hard = "weight of the target's most likely token against its whole distribution, 0 to 1 (default: 0.5)"
    parser.add_argument("--corpus", nargs="+", required=True, metavar="FILE", type=Path, help=corpus)
    parser.add_argument("--out", metavar="DIR", type=Path, help=out)
    parser.add_argument("--pair", metavar="NAME", default="smollm2-135m", help="default: %(default)s")
    parser.add_argument("--from", dest="start", metavar="DIR", help="go on from this draft, with more or other answers")
    parser.add_argument("--steps", type=int, metavar="N", help="batches to learn from (default: 1500)")
    parser.add_argument("--batch", type=int, metavar="N", help="answers a batch (default: 8)")
    parser.add_argument("--lr", type=float, metavar="X", help=pace)
    parser.add_argument("--output-size", type=int, metavar="N", help=size)
    parser.add_argument("--hard", type=float, metavar="X", help=hard)
    parser.add_argument("--seed", type=int, metavar="S", help="default: 0")
    parser.add_argument("--hold-out", metavar="N,N", default="", help=_HELD)
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="of the target")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="default: one a core")

    def run(options: argparse.Namespace) -> int:
        from specviz.train.drafts import train_draft

        given = {name: getattr(options, name, None) for name in _PLAN_OPTIONS}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for name in ("layers", "hold_out"):
            if getattr(options, name, ""):
                settings[name] = _numbers(name.replace("_", "-"), getattr(options, name))
        with closing(progress()) as line:
            folder = train_draft(
                options.corpus,
                kind,
                options.pair,
                settings,
                options.out,
                dtype=options.dtype,
                device=options.device,
                threads=options.threads,
                progress=line,
            )
        print(folder)
        return 0

    parser.set_defaults(command=run)


_PLAN_OPTIONS = ("depth", "blocks", "steps", "batch", "lr", "output_size", "hard", "seed", "start")


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--{name} takes whole numbers with commas between, such as 1,2; got {text[:40]!r}."
        ) from error
