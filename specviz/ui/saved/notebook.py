"""The page's player in a notebook: `specviz.show(run)` for one run, `specviz.compare(run, run)` for a race.

The result is a saved page in a frame of its own, so it works in Jupyter, VS Code and Colab, needs no widget and no
network, and stays in the notebook's file.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from specviz.events import Event
from specviz.trace import Trace, load_trace
from specviz.ui.saved.page import saved_page, trace_of

__all__ = ["HEIGHT", "Player", "compare", "show"]

HEIGHT = 640
"""Of the frame in a notebook, in CSS pixels; what is longer scrolls within it."""

Run = str | Path | Trace | Iterable[Event]
"""A trace file, a trace, or a run's events: a list, a stream that is read to its end, or what `specviz.watch` gives."""


class Player:
    """A page with recorded runs. The last value of a notebook's cell shows itself.

    html: the whole page as text. height: of its frame, in CSS pixels.
    """

    def __init__(self, html: str, height: int = HEIGHT) -> None:
        self.html = html
        self.height = int(height)

    def __repr__(self) -> str:
        return f"<specviz player, {len(self.html) / 1000:.0f} kB>"

    def _repr_html_(self) -> str:
        """The page in a frame without the notebook's origin: scripts of a run's page reach nothing of the notebook."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts allow-downloads" title="specviz: a run" '
            f'style="width:100%;height:{self.height}px;border:0" loading="lazy"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Writes the page as a file that opens by itself. Raises OSError: it cannot be written."""
        out = Path(path)
        out.write_bytes(self.html.encode("utf-8"))
        return out


def show(run: Run, *, plain: Iterable[Event] = (), height: int = HEIGHT) -> Player:
    """One run as a player.

    Args:
        run: a trace file, a trace, or a run's events. A stream is read to its end first.
        plain: events of plain decoding of the same prompt, for the speed-up; a trace brings its own.
        height: of the frame, in CSS pixels.
    Raises:
        TraceError: no trace, or no run's events.
    """
    return Player(saved_page([_trace(run, plain)]), height)


def compare(*runs: Run, height: int = HEIGHT) -> Player:
    """Two to four runs of one prompt as a race on one clock; arguments as in `show`.

    Raises:
        TraceError: as in `show`, or the runs cannot be compared: another prompt, pair, number format or processor, or
            plain decoding is not among them and was not measured beside one of them.
    """
    return Player(saved_page([_trace(run) for run in runs]), height)


def _trace(run: Run, plain: Iterable[Event] = ()) -> Trace:
    if isinstance(run, str | Path):
        run = load_trace(run)
    run = getattr(run, "trace", run)  # of a watched run: with the plain run beside it
    if not isinstance(run, Trace):
        return trace_of(list(run), list(plain))
    more = list(plain)
    return Trace(run.events, tuple(more), run.damage) if more else run
