"""The page's player in a notebook: `specviz.show(run)` for one run, `specviz.compare(run, run)` for a race.

The result is a saved page in a frame of its own, so it works in Jupyter, VS Code and Colab, needs no widget and no
network, and stays in the notebook's file. A run that goes on is shown while it does: each change is an update of a
second output, a script that hands the frame its news. A front end that runs no scripts shows the run when it is over.
"""

from __future__ import annotations

import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from specviz.events import Event
from specviz.trace import Trace, load_trace
from specviz.ui.saved.page import as_script, empty_page, saved_page, trace_of
from specviz.ui.wire.stream import DeltaEncoder, coalesce

__all__ = ["HEIGHT", "Player", "compare", "show"]

HEIGHT = 640
"""Of the frame in a notebook, in CSS pixels; what is longer scrolls within it."""

_UPDATES_PER_S = 8.0
_REPEATED = 16
"""Deltas in each update: a front end that draws slower than they come may skip as many but one."""

Run = str | Path | Trace | Iterable[Event]
"""A trace file, a trace, or a run's events: a list, a stream, or what `specviz.watch` gives."""

_ON_LOAD = """
const dark = '[data-jp-theme-light=false], body.vscode-dark, body.vscode-high-contrast, html[theme=dark]';
const light = '[data-jp-theme-light=true], body.vscode-light, html[theme=light]';
const theme = document.querySelector(dark) ? 'dark' : document.querySelector(light) ? 'light' : null;
this.contentWindow.postMessage({ specviz: { theme } }, '*');
this.dataset.ready = 'yes';
"""
"""The notebook's theme, in Jupyter, VS Code and Colab; elsewhere the frame follows the system's."""

_FEED = """<script>(() => {
const frame = document.getElementById('%s');
const send = () => frame.contentWindow.postMessage({ specviz: { deltas: [%s] } }, '*');
if (frame?.dataset.ready) send(); else frame?.addEventListener('load', send, { once: true });
})();</script>"""


class Player:
    """A page with recorded runs. The last value of a notebook's cell shows itself.

    html: the whole page as text. height: of its frame, in CSS pixels.
    """

    def __init__(self, html: str, height: int = HEIGHT) -> None:
        self.html = html
        self.height = int(height)
        self._shown_by: int | None = None

    def __repr__(self) -> str:
        return f"<specviz player, {len(self.html) / 1000:.0f} kB>"

    def _repr_html_(self) -> str:
        return _frame(self.html, self.height)

    def _ipython_display_(self) -> None:
        """Nothing in the cell that has shown the run while it went on: it is there already."""
        if self._shown_by is None or self._shown_by != _cell():
            _display(self._bundle())

    def _bundle(self) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}

    def save(self, path: str | Path) -> Path:
        """Writes the page as a file that opens by itself. Raises OSError: it cannot be written."""
        out = Path(path)
        out.write_bytes(self.html.encode("utf-8"))
        return out


def show(run: Run, *, plain: Iterable[Event] = (), height: int = HEIGHT) -> Player:
    """One run as a player. In a notebook a stream is shown while it goes on; elsewhere it is read to its end first.

    Args:
        run: a trace file, a trace, or a run's events.
        plain: events of plain decoding of the same prompt, for the speed-up; a trace brings its own.
        height: of the frame, in CSS pixels.
    Raises:
        TraceError: no trace, or no run's events.
    """
    if isinstance(run, Iterator) and _in_notebook():
        return _show_live(run, list(plain), height)
    return Player(saved_page([_trace(run, plain)]), height)


def compare(*runs: Run, height: int = HEIGHT) -> Player:
    """Two to four runs of one prompt as a race on one clock; arguments as in `show`, streams are read one by one.

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


def _frame(html: str, height: int, element_id: str = "") -> str:
    """The page in a frame without the notebook's origin: scripts of a run's page reach nothing of the notebook."""
    known = f'id="{element_id}"' if element_id else 'loading="lazy"'
    return (
        f'<iframe srcdoc="{escape(html)}" sandbox="allow-scripts allow-downloads" title="specviz: a run" {known} '
        f'onload="{escape(_ON_LOAD)}" style="width:100%;height:{height}px;border:0"></iframe>'
    )


# --- while a run goes on ---------------------------------------------------------------------------------------------


def _show_live(events: Iterator[Event], plain: list[Event], height: int) -> Player:
    """The run as it goes on, then the whole player in its place, also when the cell is interrupted."""
    element_id = f"specviz-{uuid.uuid4().hex[:12]}"
    encoder = DeltaEncoder(element_id)
    encoder.plain_follows = bool(plain)
    seen: list[Event] = []
    recent: deque[str] = deque(maxlen=_REPEATED)
    replace = _display(_bundle_of(_frame(empty_page(), height, element_id)))
    feed = _display(_bundle_of(""))
    try:
        for delta in coalesce(encoder, _kept(events, seen), _UPDATES_PER_S):
            recent.append(as_script(delta))
            feed(_bundle_of(_FEED % (element_id, ", ".join(recent))))
    finally:
        feed(_bundle_of(""))
        if seen:
            player = Player(saved_page([trace_of(seen, plain)], still=True), height)
            player._shown_by = _cell()
            replace(player._bundle())
    return player if seen else Player(saved_page([trace_of(seen)]), height)  # which refuses, in a sentence


def _kept(events: Iterator[Event], seen: list[Event]) -> Iterator[Event]:
    try:
        for event in events:
            seen.append(event)
            yield event
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()


def _bundle_of(html: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": ""}


# --- what a notebook's kernel offers ---------------------------------------------------------------------------------


def _shell() -> Any:
    """IPython's shell, where this process is one: it is never imported for it."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _in_notebook() -> bool:
    """Whether outputs go to a front end that shows HTML: a kernel has one, a terminal has none."""
    return getattr(_shell(), "kernel", None) is not None


def _cell() -> int | None:
    return getattr(_shell(), "execution_count", None)


def _display(bundle: dict[str, str]) -> Callable[[dict[str, str]], None]:
    """Shows an output. The function that is returned puts another one in its place."""
    from IPython.display import display

    handle = display(bundle, raw=True, display_id=True)
    return lambda later: handle.update(later, raw=True)
