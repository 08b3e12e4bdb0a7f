"""The tab "Serving": attached servers over time, from their metrics alone. No prompt is sent.

The value of its one `gr.HTML` is JSON, and JavaScript draws it; every number is computed here:

    {"servers": [{"name", "title", "state", "said", "alarms": [sentence],
                  "hints": [sentence],
                  "figures": {"acceptance_rate", "acceptance_length", "drafts_per_s", "tokens_per_s",
                              "num_running", "num_waiting", "num_accepted", "num_drafted", "num_drafts"},
                  "positions": [share], "tells_places": whether it counts them, "ago_s": [...], "series": {name: [...]},
                  "replicas": [{"name", "state", "figures"}], "advice": see `specviz.ui.serving.advice`}]}

hints: what would make the server tell more, once a request from here has shown that it could.
state: "answers", "silent", "new" (nothing heard yet) or "plain" (it does not speculate). said: what there is to say.
replicas: servers of one model that draft alike are also shown as one, summed, before each of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from specviz.assets import read_asset
from specviz.remote.alarms import RECENT_S, alarms
from specviz.remote.history import History
from specviz.remote.replicas import outliers, summed
from specviz.remote.sampler import EVERY_S, Sampler
from specviz.ui.access.attached import AttachedServer
from specviz.ui.controls import QUICK
from specviz.ui.serving.advice import advice_json

__all__ = ["Serving", "picture_of"]

MOST_POINTS = 120
_RATES = ("acceptance_length", "drafts_per_s", "tokens_per_s")
_REQUESTS = ("num_running", "num_waiting")
_COUNTS = ("num_accepted", "num_drafted", "num_drafts")

_TEMPLATE = f"<style>{read_asset('view/serving/serving.css')}</style>\n{read_asset('view/serving/serving.html')}"
_SCRIPT = "\n".join(read_asset(f"view/{name}") for name in ("dom.js", "charts.js", "serving/serving.js"))


class Serving:
    """The tab's parts. Build it within a Blocks: `main` within the tab, then `connect`."""

    def __init__(self, servers: Sequence[AttachedServer]) -> None:
        self.servers = list(servers)
        for server in self.servers:
            server.sampler.start()

    def main(self) -> None:
        self.view = gr.HTML(
            value=self._value(), html_template=_TEMPLATE, js_on_load=_SCRIPT, apply_default_css=False, elem_id="serving"
        )
        self.timer = gr.Timer(EVERY_S, active=False)

    def connect(self, tab: gr.Tab) -> None:
        """The tab asks for news from when it is first opened."""
        if not self.servers:
            return
        tab.select(lambda: (self._value(), gr.Timer(active=True)), None, [self.view, self.timer], **QUICK)
        self.timer.tick(self._value, None, self.view, **QUICK)

    def _value(self) -> str:
        samplers = [server.sampler for server in self.servers]
        groups = groups_of(samplers)
        together = {sampler.server.name for group in groups for sampler in group}
        shown = [replicas_of(group) | {"advice": _advice(group, samplers)} for group in groups]
        for server in self.servers:
            alone = server.name not in together
            advice = _advice([server.sampler], samplers) if alone else None
            shown.append(picture_of(server.sampler) | {"hints": server.hints(), "advice": advice})
        return json.dumps({"servers": shown}, allow_nan=False)


def groups_of(samplers: Sequence[Sampler]) -> list[list[Sampler]]:
    """Two or more servers of one model and engine that draft as many tokens, in the order in which they were given."""
    found: dict[tuple[Any, ...], list[Sampler]] = {}
    for sampler in samplers:
        if sampler.seen is not None and sampler.history.samples:
            counters = sampler.history.samples[-1].counters
            key = sampler.seen.engine, sampler.seen.model, counters.speculates is True, counters.gamma
            found.setdefault(key, []).append(sampler)
    return [group for group in found.values() if len(group) > 1]


def replicas_of(group: Sequence[Sampler]) -> dict[str, Any]:
    """Several servers as one, with a row for each."""
    history = summed([sampler.history for sampler in group])
    silent = [sampler.server.name for sampler in group if sampler.silent_since_s is not None]
    seen = group[0].seen
    state, said = _state_of(history)
    if silent:
        said = " ".join([said, f"{len(silent)} of {len(group)} show no metrics now: {', '.join(silent)}."]).strip()
    return {
        "name": f"{len(group)} replicas of {seen.model if seen else ''}",
        "title": ", ".join(sampler.server.name for sampler in group),
        "state": state,
        "said": said,
        "alarms": [*alarms(history), *outliers({sampler.server.name: sampler.history for sampler in group})],
        "hints": [],
        "replicas": [
            {"name": sampler.server.name, "state": _state(sampler)[0], "figures": _figures(sampler.history)}
            for sampler in group
        ],
    } | _drawn(history)


def _advice(group: Sequence[Sampler], samplers: Sequence[Sampler]) -> dict[str, Any] | None:
    """Of several servers: places from all of them, times from the one that was measured most."""
    history = group[0].history if len(group) == 1 else summed([sampler.history for sampler in group])
    timed = max(group, key=lambda sampler: sum(load.num_steps for load in sampler.loads().values()))
    return advice_json(history, timed, samplers)


def picture_of(sampler: Sampler) -> dict[str, Any]:
    """One server as the page draws it."""
    state, said = _state(sampler)
    return {
        "name": sampler.server.name,
        "title": f"{sampler.identity.model} · {sampler.identity.title}" if sampler.identity else "",
        "state": state,
        "said": said,
        "alarms": alarms(sampler.history) if state == "answers" else [],
    } | _drawn(sampler.history)


def _figures(history: History) -> dict[str, Any]:
    """Of the last minute, and the requests of this moment."""
    newest = history.samples[-1].counters if history.samples else None
    recent = history.last(RECENT_S)
    figures: dict[str, Any] = {name: getattr(recent, name, None) for name in ("acceptance_rate", *_RATES)}
    figures |= {name: getattr(recent.counted, name) if recent else None for name in _COUNTS}
    return figures | {name: getattr(newest, name, None) for name in _REQUESTS}


def _drawn(history: History) -> dict[str, Any]:
    stretches = history.stretches(MOST_POINTS)
    kept = history.last(float("inf"))
    return {
        "figures": _figures(history),
        "positions": kept.by_position() if kept else [],
        "tells_places": not history.samples or history.samples[-1].counters.source != "sglang",
        "ago_s": [round(ago_s, 1) for ago_s, _ in stretches],
        "series": {name: [_short(getattr(stretch, name)) for _, stretch in stretches] for name in _RATES}
        | {name: [getattr(stretch.counted, name) for _, stretch in stretches] for name in _REQUESTS},
    }


def _state(sampler: Sampler) -> tuple[str, str]:
    history = sampler.history
    if sampler.silent_since_s is not None:
        seconds = sampler.clock() - sampler.silent_since_s
        rest = " What is shown is from before." if history.samples else ""
        return "silent", f"{sampler.problem} No metrics for {seconds:.0f} s.{rest}"
    if not history.samples:
        return "new", "Nothing heard yet."
    if sampler.problem:
        return "answers", sampler.problem
    state, said = _state_of(history)
    if said:
        return state, said
    if history.restarted_at_s is not None:
        return (
            "answers",
            f"It restarted {sampler.clock() - history.restarted_at_s:.0f} s ago; what was before is left out.",
        )
    return "answers", ""


def _state_of(history: History) -> tuple[str, str]:
    """Of counters that are there."""
    speculates = history.samples[-1].counters.speculates if history.samples else None
    if speculates is False:
        return "plain", "It does not speculate: there is nothing to accept or refuse."
    return ("answers", "") if speculates else ("plain", "Its metrics do not count drafts.")


def _short(value: float | None) -> float | None:
    """Three digits behind the point are more than a pixel."""
    return None if value is None else round(value, 3)
