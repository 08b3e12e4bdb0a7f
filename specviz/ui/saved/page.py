"""A run, or a race of several, as one HTML file: the page's own view, its style and the recorded events. No Gradio, no
server and no network once it is written.

The file's policy for its content allows exactly one script, by its hash, and no address at all: a text of a run that
got out of its place could still neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from specviz.assets import read_asset
from specviz.errors import TraceError
from specviz.events import Event, RunFinished, RunStarted
from specviz.metrics import Baseline
from specviz.trace import Trace
from specviz.ui.race.lanes import Lane, title_of
from specviz.ui.race.racing import MAX_RACERS, recorded_race
from specviz.ui.view import SCRIPT, TEMPLATE
from specviz.ui.wire.stream import cut_short, recorded_delta

__all__ = ["MAX_RUNS", "as_script", "empty_page", "race_page", "saved_page", "trace_of", "whole_events", "write_page"]

MAX_RUNS = MAX_RACERS + 1
"""Runs in one file: the lanes of a race, plain decoding among them."""

_TABS = (("watch", "Watch"), ("inspect", "Inspect"), ("methods", "Methods"))
_RACE_TABS = (("race", "Race"), *_TABS)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<div class="frame">
<header class="masthead"><h1>specviz</h1><div role="tablist" aria-label="Views of the run">{tabs}</div>
<label class="which">Run <select></select></label></header>
<main id="view" role="tabpanel">{markup}</main>
</div>
<script type="application/json" id="saved-runs">{runs}</script>
<script>{script}</script>
</body>
</html>
"""

_FORBIDDEN = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Characters that could end a script element or a line of JavaScript; in JSON they occur within strings only."""


def saved_page(traces: Sequence[Trace], *, still: bool = False) -> str:
    """The HTML of a page that shows these runs; several as a race.

    still: one run does not play by itself when the page opens.

    A race needs plain decoding: one of the runs, or the plain run that was measured beside one.

    Raises:
        TraceError: no run or too many, or runs that cannot be raced: another prompt, pair, format or processor, or no
            plain decoding.
    """
    if not 1 <= len(traces) <= MAX_RUNS:
        raise TraceError(f"A page holds 1 to {MAX_RUNS} runs; {len(traces)} were given.")
    if len(traces) > 1:
        return race_page(_lanes(traces))
    [trace] = traces
    events, started = whole_events(trace), trace.started
    source = {"title": "", "damage": trace.damage}
    delta = recorded_delta(events, Baseline.of(trace.plain, events), "saved", source)
    title = title_of(started.method)
    return _page(f"specviz: {title}, {started.pair}", _TABS, [(title, delta)], still=still)


def empty_page() -> str:
    """The HTML of a page whose run comes by messages from the page around it, as `{specviz: {deltas: [...]}}`."""
    return _page("specviz: a run", _TABS, [])


def race_page(lanes: Sequence[Lane]) -> str:
    """The HTML of a page that replays a race; each lane that ran can also be looked at alone, plain decoding last.

    lanes: plain decoding first; at least it has events.
    """
    names = _names([title_of(lane.method) for lane in lanes])
    ran = [(name, lane) for name, lane in zip(names, lanes, strict=True) if lane.events]
    runs = [
        (name, recorded_delta(lane.events, lane.plain, f"saved-{i}"))
        for i, (name, lane) in enumerate(ran[1:] + ran[:1])
    ]
    started = lanes[0].started
    assert started is not None
    return _page(f"specviz: a race, {started.pair}", _RACE_TABS, runs, recorded_race(lanes, "saved-race"))


def whole_events(trace: Trace) -> tuple[Event, ...]:
    """Its events, with an end where the recording has none."""
    return trace.events if trace.is_whole else (*trace.events, cut_short(trace.events, "The recording ends here."))


def trace_of(events: Sequence[Event], plain: Sequence[Event] = ()) -> Trace:
    """The events of one run as a trace. Raises TraceError: they do not begin with RunStarted."""
    if not events or not isinstance(events[0], RunStarted):
        raise TraceError("These are not the events of a run: the first one must be RunStarted.")
    return Trace(tuple(events), tuple(plain))


# --- race ------------------------------------------------------------------------------------------------------------


def _lanes(traces: Sequence[Trace]) -> list[Lane]:
    """Plain decoding first, then the other runs in their order."""
    _check_comparable(traces)
    own = next((trace for trace in traces if trace.started.method == "plain"), None)
    plain = whole_events(own) if own else next((trace.plain for trace in traces if trace.plain), ())
    if not plain:
        raise TraceError(
            "A race needs plain decoding: record one of the runs with --measure-plain, or add one of --method plain."
        )
    rivals = [trace for trace in traces if trace is not own]
    if len(rivals) > MAX_RACERS:
        raise TraceError(f"At most {MAX_RACERS} runs race against plain decoding; {len(rivals)} were given.")
    first = Lane("plain", plain)
    names = _names(["plain", *(trace.started.method for trace in rivals)])[1:]
    return [first, *(_lane(name, whole_events(trace), first) for name, trace in zip(names, rivals, strict=True))]


def _lane(name: str, events: tuple[Event, ...], plain: Lane) -> Lane:
    lane = Lane(name, events)
    if not lane.is_whole:
        end = events[-1]
        words = end.message if isinstance(end, RunFinished) else ""
        return Lane(name, events, problem=words or "This run did not come to its end.")
    return Lane(name, events, Baseline.of(plain.events, events) if plain.is_whole else None)


def _check_comparable(traces: Sequence[Trace]) -> None:
    """Seconds are compared, so all must have done the same work on the same kind of machine."""
    first = traces[0].started
    for trace in traces[1:]:
        other = trace.started
        for what, mine, theirs in (
            ("prompt", first.prompt, other.prompt),
            ("pair", first.pair, other.pair),
            ("number format", first.dtype, other.dtype),
            ("processor", first.machine.get("processor"), other.machine.get("processor")),
        ):
            if mine != theirs:
                raise TraceError(f"These runs cannot be raced: the {what} is not the same. Save each as its own page.")


def _names(names: Sequence[str]) -> list[str]:
    """The same, numbered where one comes again: a race tells its lanes apart by their names."""
    again = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name} ({number + 1})" if number else name for name, number in zip(names, again, strict=True)]


# --- file ------------------------------------------------------------------------------------------------------------


def _page(
    title: str,
    tabs: Sequence[tuple[str, str]],
    runs: Sequence[tuple[str, str]],
    race: str | None = None,
    *,
    still: bool = False,
) -> str:
    """runs: title and delta of each, as JSON; race: the delta of a race of them."""
    more = {"still": True} if still else {}
    data = {
        "runs": [{"title": name, "delta": json.loads(delta) | more} for name, delta in runs],
        "race": json.loads(race) if race else None,
    }
    head = read_asset("saved/page.js")
    script = f"(() => {{\nfunction runView(element, props, watch) {{\n{SCRIPT}\n}}\n{head}}})();\n"
    return _PAGE.format(
        policy=_policy(script),
        title=escape(title.encode("utf-8", "replace").decode("utf-8")),
        css=read_asset("saved/page.css"),
        tabs="".join(
            f'<button type="button" role="tab" id="tab-{name}-button" data-tab="{name}" aria-controls="view" '
            f'aria-selected="false">{words}</button>'
            for name, words in tabs
        ),
        markup=TEMPLATE,
        runs=as_script(json.dumps(data, separators=(",", ":"), allow_nan=False)),
        script=script,
    )


def as_script(text: str) -> str:
    """The same JSON, fit to stand within a script element."""
    return text.translate(_FORBIDDEN)


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )


def write_page(path: Path, traces: Sequence[Trace]) -> None:
    """`saved_page` as a file, with line ends that keep the script's hash on every system."""
    path.write_bytes(saved_page(traces).encode("utf-8"))
