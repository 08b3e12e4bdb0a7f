"""The tab "Lab": experiments on the pair and settings of the side panel, each with its answer, picture and table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from specviz.config import check_int
from specviz.errors import SpecvizError
from specviz.lab.experiment import Ask, Finding, Report
from specviz.lab.experiments import EXPERIMENTS
from specviz.lab.record import load_findings, to_csv
from specviz.lab.words import answer, measured_where
from specviz.ui.access.visits import Visits
from specviz.ui.controls import CONCURRENCY, OPEN_SETTINGS_JS, PRIVATE
from specviz.ui.header import HeaderNews
from specviz.ui.lab.charts import figures
from specviz.ui.lab.live import measure_live
from specviz.ui.lab.parts import (
    MAX_ROUNDS,
    MAX_SAMPLES,
    PICTURE_JS,
    RESIZE_JS,
    Section,
    facts_value,
    make_section,
    said_value,
    state_value,
)
from specviz.ui.lab.tables import table
from specviz.ui.problems import sentence_for
from specviz.ui.settings import WatchSettings
from specviz.ui.watch.tab import Watch
from specviz.ui.wire.outbox import Outbox

__all__ = ["Lab"]

REDRAW_S = 4.0
"""Gradio mounts a figure anew with every change, which its browser feels: not more often than this."""


class Lab:
    """Within the tab of a Blocks, `main`; then `connect`. Settings are the fields of `watch`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.sections: dict[str, Section] = {}
        self._visits = {name: Visits() for name in EXPERIMENTS}
        self._outbox = Outbox()

    def main(self) -> None:
        """All experiments below each other, empty until the tab is opened."""
        self.is_open = gr.State(False)
        with gr.Column(elem_classes="lab", elem_id="lab"):
            for name, experiment in EXPERIMENTS.items():
                self.sections[name] = make_section(experiment)

    def connect(self, demo: gr.Blocks, tab: gr.Tab, header: gr.HTML) -> None:
        """Wire the parts. As in Watch, values are checked in the handler."""
        fields = list(self.watch.fields.values())
        everything = [part for section in self.sections.values() for part in (section.box, *section.shown)]
        tab.select(self._open, self.is_open, [self.is_open, *everything], **PRIVATE, queue=True)
        tab.select(None, None, None, js=RESIZE_JS, **PRIVATE)
        for name, part in self.sections.items():
            outputs = [part.measure, part.stop, part.state, header, *part.shown]
            inputs = [*fields, *([part.amount] if part.amount is not None else [])]
            part.measure.click(self._measure(name), inputs, outputs, preprocess=False, **PRIVATE, **CONCURRENCY)
            part.stop.click(self._stop(name), None, part.stop, queue=False, **PRIVATE)
            if part.settings is not None:
                part.settings.click(None, None, None, js=OPEN_SETTINGS_JS, **PRIVATE)
            for button, kind in part.pictures:
                button.click(None, None, None, js=PICTURE_JS % (json.dumps(name), json.dumps(kind)), **PRIVATE)
        demo.unload(self._leave)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _open(self, is_open: bool) -> Iterator[dict[Any, Any]]:
        """The sections with their recorded findings, one after the other so that no browser draws all at once."""
        yield {self.is_open: True}
        if is_open:
            return
        problem, recorded = "", {}
        try:
            recorded = load_findings()
        except SpecvizError as error:
            problem = sentence_for(error)
        for name, part in self.sections.items():
            shown = self._shown(name, recorded[name], recorded=True) if name in recorded else {}
            if problem:
                shown = {part.said: said_value(problem)}
            yield {part.box: gr.Column(visible=True)} | shown

    def _measure(self, name: str) -> Any:
        def measure(request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
            part, watch = self.sections[name], self.watch
            try:
                settings, ask = self._ask(part, values, name)
            except SpecvizError as error:
                yield {part.state: state_value(Report(sentence_for(error), 0.0))}
                return
            yield {part.measure: gr.Button(interactive=False), part.stop: gr.Button(visible=True, interactive=True)}
            visit = self._visits[name].of(request.session_hash)
            header = HeaderNews(watch.header, watch.host)
            waiting: Finding | None = None
            drawn = 0.0
            report = Report("", 0.0)
            for report in measure_live(watch.host, visit, settings, ask, EXPERIMENTS[name].measure):
                out: dict[Any, Any] = {part.state: state_value(report, is_busy=True)}
                waiting = report.finding or waiting
                if waiting is not None and time.monotonic() - drawn > REDRAW_S:
                    out |= self._shown(name, waiting)
                    waiting, drawn = None, time.monotonic()
                yield out | header()
            done: dict[Any, Any] = {
                part.measure: gr.Button(interactive=True), part.stop: gr.Button(visible=False),
                part.state: state_value(report),
            }  # fmt: skip
            yield done | header() | (self._shown(name, waiting) if waiting is not None else {})

        return measure

    def _ask(self, part: Section, values: tuple[Any, ...], name: str) -> tuple[WatchSettings, Ask]:
        """The settings as sent by the browser. Raises ConfigError."""
        fields = self.watch.fields
        settings = WatchSettings.read(dict(zip(fields, values, strict=False)), self.watch.offered())
        more: dict[str, int] = {}
        if part.amount is not None:
            amount = values[len(fields)] if len(values) > len(fields) else None
            if name == "gamma":
                more["repeat"] = check_int("rounds", amount, 1, MAX_ROUNDS)
            else:
                more["num_samples"] = check_int("samples", amount, 100, MAX_SAMPLES)
        return settings, Ask(settings.prompt, settings.config, **more)

    def _stop(self, name: str) -> Any:
        def stop(request: gr.Request) -> Any:
            self._visits[name].of(request.session_hash).ask_to_stop()
            return gr.Button(interactive=False)

        return stop

    def _leave(self, request: gr.Request) -> None:
        for visits in self._visits.values():
            visits.forget(request.session_hash)

    def _shown(self, name: str, finding: Finding, *, recorded: bool = False) -> dict[Any, Any]:
        """Sentence, figures, table and file of a finding."""
        part = self.sections[name]
        headline, rest = answer(finding)
        out: dict[Any, Any] = {
            part.said: said_value(headline, rest, measured_where(finding, recorded=recorded)),
            part.table: table(finding),
            part.save: gr.DownloadButton(value=self._csv(finding), interactive=True),
        }
        for plot, figure in zip(part.plots, figures(finding, recorded=recorded), strict=True):
            out[plot] = gr.Plot(visible=False) if figure is None else gr.Plot(figure, visible=True)
        if part.facts is not None:
            out[part.facts] = facts_value(finding)
        return out

    def _csv(self, finding: Finding) -> str:
        [path] = self._outbox.write({f"specviz-{finding.name}.csv": to_csv(finding)})
        return path
