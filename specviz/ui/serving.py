"""The tab "Serving": attached servers over time, from their metrics alone. No prompt is sent.

The value of its one `gr.HTML` is JSON, and JavaScript draws it; every number is computed here:

    {"servers": [{"name", "title", "state", "said", "alarms": [sentence],
                  "hints": [sentence],
                  "figures": {"acceptance_rate", "acceptance_length", "drafts_per_s", "tokens_per_s",
                              "num_running", "num_waiting", "num_accepted", "num_drafted", "num_drafts"},
                  "positions": [share], "ago_s": [...], "series": {name: [...]}}]}

hints: what would make the server tell more, once a request from here has shown that it could.
state: "answers", "silent", "new" (nothing heard yet) or "plain" (it does not speculate). said: what there is to say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from specviz.remote.alarms import RECENT_S, alarms
from specviz.remote.sampler import EVERY_S, Sampler
from specviz.ui.attached import AttachedServer
from specviz.ui.view import read_asset

__all__ = ["Serving", "picture_of"]

MOST_POINTS = 120
_RATES = ("acceptance_length", "drafts_per_s", "tokens_per_s")
_REQUESTS = ("num_running", "num_waiting")
_COUNTS = ("num_accepted", "num_drafted", "num_drafts")

_TEMPLATE = f"<style>{read_asset('serving.css')}</style>\n{read_asset('view/serving.html')}"
_SCRIPT = "\n".join(read_asset(f"view/{name}") for name in ("dom.js", "charts.js", "serving.js"))


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
        quick: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}
        tab.select(lambda: (self._value(), gr.Timer(active=True)), None, [self.view, self.timer], **quick)
        self.timer.tick(self._value, None, self.view, **quick)

    def _value(self) -> str:
        servers = [picture_of(server.sampler) | {"hints": server.hints()} for server in self.servers]
        return json.dumps({"servers": servers}, allow_nan=False)


def picture_of(sampler: Sampler) -> dict[str, Any]:
    """One server as the page draws it."""
    history = sampler.history
    newest = history.samples[-1].counters if history.samples else None
    recent = history.last(RECENT_S)
    stretches = history.stretches(MOST_POINTS)
    kept = history.last(float("inf"))
    figures: dict[str, Any] = {name: getattr(recent, name, None) for name in ("acceptance_rate", *_RATES)}
    figures |= {name: getattr(recent.counted, name) if recent else None for name in _COUNTS}
    figures |= {name: getattr(newest, name, None) for name in _REQUESTS}
    state, said = _state(sampler)
    return {
        "name": sampler.server.name,
        "title": f"{sampler.identity.model} · {sampler.identity.title}" if sampler.identity else "",
        "state": state,
        "said": said,
        "alarms": alarms(history) if state == "answers" else [],
        "figures": figures,
        "positions": kept.by_position() if kept else [],
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
    newest = history.samples[-1].counters
    if newest.speculates is False:
        return "plain", "It does not speculate: there is nothing to accept or refuse."
    if newest.speculates is None:
        return "plain", "Its metrics do not count drafts."
    if history.restarted_at_s is not None:
        return (
            "answers",
            f"It restarted {sampler.clock() - history.restarted_at_s:.0f} s ago; what was before is left out.",
        )
    return "answers", ""


def _short(value: float | None) -> float | None:
    """Three digits behind the point are more than a pixel."""
    return None if value is None else round(value, 3)
