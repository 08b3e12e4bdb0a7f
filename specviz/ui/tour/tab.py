"""The tab "Tour": ten stops on recorded real runs, and a glossary of the field. It needs no model."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from typing import Any

import gradio as gr

from specviz.assets import read_asset
from specviz.errors import SpecvizError
from specviz.ui.controls import QUICK
from specviz.ui.problems import sentence_for
from specviz.ui.tour.run import TourRun
from specviz.ui.tour.stops import tour_stops
from specviz.ui.wire.recorded import load_gallery, recall

__all__ = ["connect_tour", "tour_delta"]


def connect_tour(tab: gr.Tab, view: gr.HTML) -> None:
    """Send the tour to the view when its tab is opened."""
    tab.select(tour_delta, None, view, **QUICK)


@cache
def tour_delta() -> str:
    """Stops and glossary as one message to the view, or the sentence that says why there are no stops."""
    try:
        stops = [stop.to_json() for stop in tour_stops(_runs())]
        problem = ""
    except SpecvizError as error:
        stops, problem = [], sentence_for(error)
    entries = tomllib.loads(read_asset("glossary.toml"))["entries"]
    return json.dumps({"tour": {"stops": stops, "glossary": entries, "problem": problem}}, allow_nan=False)


def _runs() -> dict[str, TourRun]:
    recordings: dict[str, Any] = {name: recall(name) for name in load_gallery()}
    titles = {name: run.title for name, run in load_gallery().items()}
    return {name: TourRun(name, titles[name], found.trace) for name, found in recordings.items() if found is not None}
