"""`python -m specviz page` and `picture`: recorded runs as an HTML file that needs no server, or a moving picture."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError
from specviz.trace import load_trace

__all__ = ["add_page_command", "add_picture_command"]


def add_page_command(commands: Any) -> None:
    """Add `page` to the command line's sub-commands."""
    parser = commands.add_parser(
        "page",
        help="write recorded runs as one HTML file, several as a race",
        description="Write recorded runs as one HTML file that opens anywhere, without a server and without a network. "
        "Several runs of one prompt become a race.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="RUN.jsonl", help="written by `run --trace`")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE.html", help="default: the first run's name, with .html")
    parser.set_defaults(command=_page)


def add_picture_command(commands: Any) -> None:
    """Add `picture` to the command line's sub-commands."""
    parser = commands.add_parser(
        "picture",
        help="write a recorded run as an animated GIF or WebP",
        description="Write a recorded run as a picture that moves: the text with every token's fate, at the run's real "
        "speed. A run of more than 30 s is shown so far.",
    )
    parser.add_argument("trace", type=Path, metavar="RUN.jsonl", help="written by `run --trace`")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="ends in .gif or .webp; default: the run's, .gif"
    )
    parser.add_argument("--dark", action="store_true", help="light letters on a dark ground")
    parser.add_argument(
        "--speed", type=float, default=1.0, choices=(0.1, 0.25, 0.5, 1.0, 2.0, 4.0), help="times its own; default 1"
    )
    parser.set_defaults(command=_picture)


def _picture(options: argparse.Namespace) -> int:
    trace = load_trace(options.trace)
    out: Path = options.out or options.trace.with_suffix(".gif")
    format_name = out.suffix[1:].lower()
    if format_name not in ("gif", "webp"):
        raise SpecvizError(f"A picture that moves is a .gif or a .webp; {out.name!r} is neither.")
    from specviz.ui.saved.picture import draw_run  # Pillow, and the page's words

    out.write_bytes(draw_run(trace, format_name, dark=options.dark, speed=options.speed))
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB", file=sys.stderr)
    return 0


def _page(options: argparse.Namespace) -> int:
    traces = [load_trace(path) for path in options.traces]
    from specviz.ui.saved.page import write_page  # the view's texts come from the registry, which imports torch

    out: Path = options.out or options.traces[0].with_suffix(".html")
    write_page(out, traces)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB", file=sys.stderr)
    return 0
