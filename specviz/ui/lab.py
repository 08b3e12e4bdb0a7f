"""The tab "Lab": experiments on the pair and settings of the side panel, each with its answer, picture and table."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from specviz.config import check_int
from specviz.errors import SpecvizError
from specviz.lab.experiment import Ask, Finding, Report
from specviz.lab.experiments import EXPERIMENTS, Experiment
from specviz.lab.gamma import formulas
from specviz.lab.record import load_findings, to_csv
from specviz.lab.words import answer, measured_where
from specviz.ui.api import CONCURRENCY
from specviz.ui.header import header_value
from specviz.ui.lab_charts import NUM_FIGURES, figures
from specviz.ui.lab_live import measure_live
from specviz.ui.lab_tables import heads, table
from specviz.ui.problems import sentence_for
from specviz.ui.settings import WatchSettings
from specviz.ui.visits import Visits
from specviz.ui.watch import PRIVATE, Watch

__all__ = ["Lab"]

REDRAW_S = 4.0
"""Gradio mounts a figure anew with every change, which its browser feels: not more often than this."""

FILE_LIFE_S = 60
MAX_ROUNDS, MAX_SAMPLES = 10, 2000

_CLASSES = {"gamma": ("curve", "surface"), "precision": ("bars",), "sampling": ("bars",)}
_TABLE_IS_OPEN = ("precision",)


@dataclass(slots=True)
class _Section:
    """The parts of one experiment on the page."""

    measure: gr.Button
    stop: gr.Button
    state: gr.HTML
    said: gr.HTML
    plots: list[gr.Plot]
    facts: gr.HTML | None
    table: gr.Dataframe
    save: gr.DownloadButton
    pictures: list[tuple[gr.Button, str]]
    amount: gr.Slider | None

    @property
    def shown(self) -> list[Any]:
        """What a finding changes."""
        facts = [self.facts] if self.facts is not None else []
        return [self.said, *self.plots, *facts, self.table, self.save]


class Lab:
    """Within the tab of a Blocks, `main`; then `connect`. Settings are the fields of `watch`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.sections: dict[str, _Section] = {}
        self._visits = {name: Visits() for name in EXPERIMENTS}
        self._files = tempfile.TemporaryDirectory(prefix="specviz-lab-")

    def main(self) -> None:
        """All experiments below each other, empty until the tab is opened."""
        self.is_open = gr.State(False)
        with gr.Column(elem_classes="lab", elem_id="lab"):
            for name, experiment in EXPERIMENTS.items():
                if name == "greedy":
                    _words("<h2 class='part'>Exactness</h2><p class='lead'>Is the text really the target’s own?</p>")
                self.sections[name] = _section(experiment)

    def connect(self, demo: gr.Blocks, tab: gr.Tab, header: gr.HTML) -> None:
        """Wire the parts. As in Watch, values are checked in the handler."""
        fields = list(self.watch.fields.values())
        everything = [part for section in self.sections.values() for part in section.shown]
        tab.select(self._open, self.is_open, [self.is_open, *everything], **PRIVATE, queue=True)
        tab.select(None, None, None, js=_RESIZE_JS, **PRIVATE)
        for name, part in self.sections.items():
            outputs = [part.measure, part.stop, part.state, header, *part.shown]
            inputs = [*fields, *([part.amount] if part.amount is not None else [])]
            part.measure.click(self._measure(name), inputs, outputs, preprocess=False, **PRIVATE, **CONCURRENCY)
            part.stop.click(self._stop(name), None, part.stop, queue=False, **PRIVATE)
            for button, kind in part.pictures:
                button.click(None, None, None, js=_PICTURE_JS % (json.dumps(name), json.dumps(kind)), **PRIVATE)
        demo.unload(self._leave)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _open(self, is_open: bool) -> Iterator[dict[Any, Any]]:
        """The recorded findings, one after the other so that no browser draws all of them at once."""
        if is_open:
            yield {self.is_open: True}
            return
        try:
            recorded = load_findings()
        except SpecvizError as error:
            yield {self.is_open: True, self.sections["gamma"].said: _said(sentence_for(error))}
            return
        yield {self.is_open: True}
        for name, finding in recorded.items():
            yield self._shown(name, finding, recorded=True)

    def _measure(self, name: str) -> Any:
        def measure(request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
            part, watch = self.sections[name], self.watch
            try:
                settings, ask = self._ask(part, values, name)
            except SpecvizError as error:
                yield {part.state: _state(Report(sentence_for(error), 0.0))}
                return
            yield {part.measure: gr.Button(interactive=False), part.stop: gr.Button(visible=True, interactive=True)}
            visit = self._visits[name].of(request.session_hash)
            waiting: Finding | None = None
            drawn = 0.0
            report = Report("", 0.0)
            for report in measure_live(watch.host, visit, settings, ask, EXPERIMENTS[name].measure):
                out: dict[Any, Any] = {part.state: _state(report, is_busy=True)}
                waiting = report.finding or waiting
                if waiting is not None and time.monotonic() - drawn > REDRAW_S:
                    out |= self._shown(name, waiting)
                    waiting, drawn = None, time.monotonic()
                yield out | {watch.header: header_value(watch.host.status)}
            done: dict[Any, Any] = {
                part.measure: gr.Button(interactive=True), part.stop: gr.Button(visible=False),
                part.state: _state(report), watch.header: header_value(watch.host.status),
            }  # fmt: skip
            yield done | (self._shown(name, waiting) if waiting is not None else {})

        return measure

    def _ask(self, part: _Section, values: tuple[Any, ...], name: str) -> tuple[WatchSettings, Ask]:
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
            part.said: _said(headline, rest, measured_where(finding, recorded=recorded)),
            part.table: table(finding),
            part.save: gr.DownloadButton(value=str(self._csv(finding)), interactive=True),
        }
        for plot, figure in zip(part.plots, figures(finding), strict=True):
            out[plot] = gr.Plot(visible=False) if figure is None else gr.Plot(figure, visible=True)
        if part.facts is not None:
            out[part.facts] = _facts(finding)
        return out

    def _csv(self, finding: Finding) -> Path:
        """Gradio copies it for the download at once, so files here live for a minute."""
        root = Path(self._files.name)
        for old in root.glob("*/*.csv"):
            if time.time() - old.stat().st_mtime > FILE_LIFE_S:
                old.unlink(missing_ok=True)
        path = Path(tempfile.mkdtemp(dir=root)) / f"specviz-{finding.name}.csv"
        path.write_text(to_csv(finding), encoding="utf-8")
        return path


# --- parts -----------------------------------------------------------------------------------------------------------


def _section(experiment: Experiment) -> _Section:
    name = experiment.name
    small: dict[str, Any] = {"scale": 0, "min_width": 84}
    with gr.Column(elem_classes=["experiment", name], elem_id=f"lab-{name}"):
        _words(f"<h2>{experiment.title}</h2><p class='what'>{experiment.summary}</p>")  # fixed words
        said = gr.HTML(html_template=_SAID, js_on_load=_SAID_JS, apply_default_css=False)
        with gr.Row(equal_height=False, elem_classes="pictures"):
            plots = [
                gr.Plot(
                    visible=False, label=experiment.title, show_label=False, container=False, min_width=280,
                    elem_classes=["picture", *_CLASSES.get(name, ())[i : i + 1]],
                )
                for i in range(NUM_FIGURES[name])
            ]  # fmt: skip
        facts = None
        if name == "gamma":
            facts = gr.HTML(html_template="<dl class='facts'></dl>", js_on_load=_FACTS_JS, apply_default_css=False)
        with gr.Accordion("Table", open=name in _TABLE_IS_OPEN, elem_classes="quiet"):
            rows = gr.Dataframe(
                headers=heads(name), interactive=False, buttons=[], label=experiment.title, show_label=False,
                max_height=360, elem_classes="figures",
            )  # fmt: skip
        with gr.Row(elem_classes="bench"):
            kind = "primary" if name == "gamma" else "secondary"
            measure = gr.Button("Measure", variant=kind, elem_classes="run", elem_id=f"measure-{name}", **small)
            stop = gr.Button("Stop", visible=False, elem_classes="stop", elem_id=f"stop-{name}", **small)
            amount = _amount(name)
            state = gr.HTML(html_template=_STATE, js_on_load=_STATE_JS, apply_default_css=False, elem_classes="state")
            small["elem_classes"] = "bare"
            save = gr.DownloadButton("Save table", interactive=False, elem_id=f"csv-{name}", **small)
            pictures = [
                (gr.Button(f"Save {kind.upper()}", elem_id=f"{kind}-{name}", **small), kind)
                for kind in ("png", "svg")
                if plots
            ]
    return _Section(measure, stop, state, said, plots, facts, rows, save, pictures, amount)


def _amount(name: str) -> gr.Slider | None:
    shown: dict[str, Any] = {"buttons": [], "scale": 0, "min_width": 190, "elem_id": f"amount-{name}"}
    if name == "gamma":
        return gr.Slider(1, MAX_ROUNDS, 3, step=1, label="Rounds", **shown)
    if name == "sampling":
        return gr.Slider(100, MAX_SAMPLES, 400, step=100, label="Samples", **shown)
    return None


def _words(html: str) -> None:
    """Fixed words of the page."""
    gr.HTML(html_template=html, js_on_load=None, apply_default_css=False)


def _said(headline: str, rest: str = "", where: str = "") -> str:
    return json.dumps({"headline": headline, "rest": rest, "where": where})


def _state(report: Report, *, is_busy: bool = False) -> str:
    return json.dumps({"text": report.text, "fraction": report.fraction if is_busy else None})


def _facts(finding: Finding) -> str:
    """The figures that the curve follows from, and the formulas in circulation, as [figure, words] each."""
    facts = finding.facts
    parts = [
        ("α", "of the tested tokens, the share that was kept", facts["alpha"], 3),
        ("κ", "share of steps that drafted", facts["kappa"], 2),
        ("c", "a drafted token ÷ a plain step", facts["c"], 3),
        ("v", "a check ÷ a one-row pass", facts["v"], 2),
    ]
    why = "The curve is not fitted. It follows from four figures measured in the runs:"
    if not facts["is_chain"]:
        why = "These drafts were trees, for which S(γ) does not hold: points only. Measured in the runs:"
    known = [[f"{value:.{digits}f}", f"{name}: {words}"] for name, words, value, digits in parts if value is not None]
    told = [[one["value"], f"{one['formula']}. {one['judgement']}"] for one in formulas(finding)]
    return json.dumps([[why, known], ["Formulas in circulation, on the best point measured here:", told]])


_SAID = "<p class='headline'></p><p class='rest'></p><p class='where'></p>"
_SAID_JS = """
const show = () => {
  let said;
  try { said = JSON.parse(props.value) ?? {}; } catch { said = {}; }
  for (const name of ['headline', 'rest', 'where']) {
    const line = element.querySelector(`.${name}`);
    line.textContent = said[name] ?? '';
    line.hidden = !said[name];
  }
  const section = element.closest('.experiment');
  const title = section?.querySelector('h2')?.textContent;
  for (const picture of section?.querySelectorAll('.picture') ?? []) {
    picture.setAttribute('role', 'img');
    picture.setAttribute('aria-label', `${title}. ${said.headline ?? ''}`);
  }
};
watch('value', show);
show();
"""

_STATE = "<p class='doing' role='status'></p><progress max='1' hidden aria-label='Part done'></progress>"
_STATE_JS = """
const show = () => {
  let state;
  try { state = JSON.parse(props.value) ?? {}; } catch { state = {}; }
  element.querySelector('.doing').textContent = state.text ?? '';
  const bar = element.querySelector('progress');
  bar.hidden = state.fraction == null;
  bar.value = state.fraction ?? 0;
};
watch('value', show);
show();
"""

_FACTS_JS = """
const show = () => {
  let groups;
  try { groups = JSON.parse(props.value) ?? []; } catch { groups = []; }
  const list = element.querySelector('dl');
  list.replaceChildren();
  for (const [why, rows] of groups) {
    if (!rows.length) continue;
    const group = document.createElement('div');
    const head = document.createElement('p');
    head.textContent = why;
    group.append(head);
    for (const [figure, words] of rows) {
      const row = document.createElement('div');
      const dt = document.createElement('dt');
      const dd = document.createElement('dd');
      dt.textContent = figure;
      dd.textContent = words;
      row.append(dt, dd);
      group.append(row);
    }
    list.append(group);
  }
};
watch('value', show);
show();
"""

# A figure that came while its tab was hidden has no width; the frame after the tab is shown gives it one.
_RESIZE_JS = """() => requestAnimationFrame(() => requestAnimationFrame(() => {
  for (const plot of document.querySelectorAll('#lab .js-plotly-plot')) window.Plotly?.Plots.resize(plot);
}))"""

# The page's own ground goes along: figures are clear, and a slide may be of any colour.
_PICTURE_JS = """() => {
  const name = %s, format = %s;
  const paper_bgcolor = getComputedStyle(document.body).getPropertyValue('--sv-bg').trim() || '#fff';
  document.querySelectorAll(`#lab-${name} .js-plotly-plot`).forEach((plot, i) => {
    const { width, height } = plot.getBoundingClientRect();
    const figure = { data: plot.data, layout: { ...plot.layout, paper_bgcolor } };
    const filename = `specviz-${name}${i ? `-${i + 1}` : ''}`;
    window.Plotly.downloadImage(figure, { format, width, height, scale: 2, filename });
  });
}"""
