"""What one experiment of the Lab consists of on the page, and how its parts are told what to show."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.lab.experiment import Finding, Report
from specviz.lab.experiments import Experiment
from specviz.lab.gamma import formulas
from specviz.ui.lab.charts import NUM_FIGURES
from specviz.ui.lab.tables import heads

__all__ = [
    "MAX_ROUNDS", "MAX_SAMPLES", "PICTURE_JS", "RESIZE_JS", "Section", "facts_value", "fixed_words", "make_section",
    "said_value", "state_value",
]  # fmt: skip

MAX_ROUNDS, MAX_SAMPLES = 10, 2000

_CLASSES = {"gamma": ("curve", "surface"), "precision": ("bars",), "sampling": ("bars",), "rules": ("bars",)}
_TABLE_IS_OPEN = ("precision",)


@dataclass(slots=True)
class Section:
    """The parts of one experiment on the page. box: all of them, unseen until the tab is opened."""

    box: gr.Column
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
    settings: gr.Button | None

    @property
    def shown(self) -> list[Any]:
        """What a finding changes."""
        facts = [self.facts] if self.facts is not None else []
        return [self.said, *self.plots, *facts, self.table, self.save]


def make_section(experiment: Experiment) -> Section:
    name = experiment.name
    small: dict[str, Any] = {"scale": 0, "min_width": 112}
    with gr.Column(elem_classes=["experiment", name], elem_id=f"lab-{name}", visible=False) as box:
        if name == "greedy":
            fixed_words(_EXACTNESS_WORDS)
        fixed_words(f"<h2>{experiment.title}</h2><p class='what'>{experiment.summary}</p>")  # fixed words
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
            fixed_words(_SURFACE_WORDS)
            facts = gr.HTML(html_template="<div class='facts'></div>", js_on_load=_FACTS_JS, apply_default_css=False)
        with gr.Accordion("Table", open=name in _TABLE_IS_OPEN, elem_classes="quiet"):
            rows = gr.Dataframe(
                headers=heads(name), interactive=False, buttons=[], label=experiment.title, show_label=False,
                max_height=360, elem_classes="figures",
            )  # fmt: skip
        with gr.Row(elem_classes="bench"):
            settings = None
            if name == "gamma":
                settings = gr.Button("Settings", elem_classes="open-settings", elem_id="lab-settings", **small)
            kind = "primary" if name == "gamma" else "secondary"
            measure = gr.Button("Measure", variant=kind, elem_classes="run", elem_id=f"measure-{name}", **small)
            stop = gr.Button("Stop", visible=False, elem_classes="stop", elem_id=f"stop-{name}", **small)
            amount = _amount(name)
            state = gr.HTML(html_template=_STATE, js_on_load=_STATE_JS, apply_default_css=False, elem_classes="state")
            small = {"scale": 0, "min_width": 92, "elem_classes": "bare"}
            save = gr.DownloadButton("Save table", interactive=False, elem_id=f"csv-{name}", **small)
            pictures = [
                (gr.Button(f"Save {kind.upper()}", elem_id=f"{kind}-{name}", **small), kind)
                for kind in ("png", "svg")
                if plots
            ]
    return Section(box, measure, stop, state, said, plots, facts, rows, save, pictures, amount, settings)


def _amount(name: str) -> gr.Slider | None:
    shown: dict[str, Any] = {"buttons": [], "scale": 0, "min_width": 190, "elem_id": f"amount-{name}"}
    if name == "gamma":
        return gr.Slider(1, MAX_ROUNDS, 3, step=1, label="Rounds", **shown)
    if name == "sampling":
        return gr.Slider(100, MAX_SAMPLES, 400, step=100, label="Samples", **shown)
    return None


def fixed_words(html: str) -> None:
    """Fixed words of the page."""
    gr.HTML(html_template=html, js_on_load=None, apply_default_css=False)


def said_value(headline: str, rest: str = "", where: str = "") -> str:
    return json.dumps({"headline": headline, "rest": rest, "where": where})


def state_value(report: Report, *, is_busy: bool = False) -> str:
    return json.dumps({"text": report.text, "fraction": report.fraction if is_busy else None})


def facts_value(finding: Finding) -> str:
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
    return json.dumps([[why, known], ["Formulas from the literature, at the best measured point:", told]])


_SURFACE_WORDS = (
    "<p class='what'>Left: measured points, each with the range of its single rounds. Right: the speed-up S(α, γ) that "
    "theory gives for the κ, c and v measured, darker on white and lighter on black for faster; solid line: the best γ "
    "for each α; dotted: break-even. Blue is the γ that was set.</p>"
)

_EXACTNESS_WORDS = "<h2 class='part'>Exactness</h2><p class='lead'>Is the text really the target’s own?</p>"

_SAID = "<p class='headline'></p><p class='rest'></p><p class='where'></p>"
_SAID_JS = """
const section = element.closest('.experiment');
let said = {};
const label = () => {
  const title = section.querySelector('h2:not(.part)')?.textContent;
  for (const picture of section.querySelectorAll('.picture')) {
    picture.setAttribute('role', 'img');
    picture.setAttribute('aria-label', `${title}. ${said.headline ?? ''}`);
  }
};
const show = () => {
  try { said = JSON.parse(props.value) ?? {}; } catch { said = {}; }
  for (const name of ['headline', 'rest', 'where']) {
    const line = element.querySelector(`.${name}`);
    line.textContent = said[name] ?? '';
    line.hidden = !said[name];
  }
  label();
};
new MutationObserver(label).observe(section, { childList: true, subtree: true }); // figures come later than words
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
  const box = element.querySelector('.facts');
  box.replaceChildren();
  for (const [why, rows] of groups) {
    if (!rows.length) continue;
    const group = document.createElement('div');
    const head = document.createElement('p');
    head.textContent = why;
    const list = document.createElement('dl');
    group.append(head, list);
    for (const [figure, words] of rows) {
      const row = document.createElement('div');
      const dt = document.createElement('dt');
      const dd = document.createElement('dd');
      dt.textContent = figure;
      dd.textContent = words;
      row.append(dt, dd);
      list.append(row);
    }
    box.append(group);
  }
};
watch('value', show);
show();
"""

# A figure that came while its tab was hidden has no width; the frame after the tab is shown gives it one.
RESIZE_JS = """() => requestAnimationFrame(() => requestAnimationFrame(() => {
  for (const plot of document.querySelectorAll('#lab .js-plotly-plot')) window.Plotly?.Plots.resize(plot);
}))"""

# The page's own ground goes along: figures are clear, and a slide may be of any colour.
PICTURE_JS = """() => {
  const name = %s, format = %s;
  const paper_bgcolor = getComputedStyle(document.body).getPropertyValue('--sv-bg').trim() || '#fff';
  document.querySelectorAll(`#lab-${name} .js-plotly-plot`).forEach((plot, i) => {
    const { width, height } = plot.getBoundingClientRect();
    const figure = { data: plot.data, layout: { ...plot.layout, paper_bgcolor } };
    const filename = `specviz-${name}${i ? `-${i + 1}` : ''}`;
    window.Plotly.downloadImage(figure, { format, width, height, scale: 2, filename });
  });
}"""
