"""`python -m specviz page`: recorded runs as one HTML file that needs no server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from specviz.trace import load_trace

__all__ = ["add_page_command"]


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


def _page(options: argparse.Namespace) -> int:
    traces = [load_trace(path) for path in options.traces]
    from specviz.ui.saved.page import write_page  # the view's texts come from the registry, which imports torch

    out: Path = options.out or options.traces[0].with_suffix(".html")
    write_page(out, traces)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB", file=sys.stderr)
    return 0
