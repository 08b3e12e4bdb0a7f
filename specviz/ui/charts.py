"""The summary after a run, in Plotly: how much was kept a step, how deep drafts hold, where a step's time goes.

Only numbers and fixed labels enter a figure: Plotly reads some markup in texts. Colours here are readable on both
grounds; `CHART_CSS` then gives the figures the page's own tokens, which follow light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from specviz.events import Event, StepDone
from specviz.metrics import Baseline, Counters, fold

__all__ = ["CHART_CSS", "Summary", "bare_figure", "summarize"]

_ACCEPTED = "#14917A"
_DRAFT, _VERIFY, _OTHER, _PLAIN = "#7D90BF", "#5470B5", "#9A9AA5", "#8C8C98"
_TEXT = "#7A7A85"
_GRID = "rgba(127,127,140,.18)"
_HEIGHT = 214

CHART_CSS = """
/* Until Plotly has loaded, Gradio shows a drawing named "Empty value", on an element that may have no name. */
[aria-label="Empty value"] { visibility: hidden; }
.after .js-plotly-plot text { fill: var(--sv-ink-3) !important; }
.after .js-plotly-plot :is(.annotation-text, .bartext, .textpoint text) { fill: var(--sv-ink) !important; }
.after .js-plotly-plot .gridlayer path { stroke: var(--sv-grid) !important; }
.after .js-plotly-plot .zerolinelayer path { stroke: var(--sv-axis) !important; }
.after .bars .point path {
  fill: color-mix(in srgb, var(--sv-accepted-line) 34%, var(--sv-bg)) !important;
  fill-opacity: 1 !important;
  stroke: none !important;
}
.after .bars .errorbars path { stroke: var(--sv-ink) !important; }
.after .times .trace:nth-child(1) path.js-line { stroke: var(--sv-draft-time) !important; }
.after .times .trace:nth-child(2) path.js-line { stroke: var(--sv-verify-time) !important; }
.after .times .trace:nth-child(3) path.js-line { stroke: var(--sv-other-time) !important; }
.after .times .trace:nth-child(4) path.js-line { stroke: var(--sv-series-plain) !important; }
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """Three figures and a sentence under each."""

    kept: go.Figure
    places: go.Figure
    times: go.Figure
    kept_text: str
    places_text: str
    times_text: str


def summarize(events: Iterable[Event], plain: Baseline | None = None) -> Summary:
    """The summary of a finished run; plain adds the dashed line of a plain step."""
    events = list(events)
    counters = fold(events)
    steps = [event for event in events if isinstance(event, StepDone)]
    return Summary(
        _kept(counters.accepted_histogram),
        _places(counters),
        _times(steps, plain),
        _kept_sentence(counters),
        _places_sentence(counters),
        _times_sentence(counters, plain),
    )


def _kept(histogram: Sequence[int]) -> go.Figure:
    counts = list(histogram)
    bars = go.Bar(
        x=list(range(len(counts))),
        y=counts,
        text=counts,
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y} steps kept %{x}<extra></extra>",
        **_bar_style(),
    )
    figure = bare_figure([bars], max(counts, default=1) * 1.15)
    figure.update_xaxes(dtick=1, title_text="drafted tokens kept")
    figure.update_yaxes(showticklabels=False, showgrid=False)
    return figure


def _places(counters: Counters) -> go.Figure:
    """Both readings, each as bars and their labels; the page shows those whose `meta` is chosen."""
    traces: list[go.Bar | go.Scatter] = []
    for meta in ("conditional", "unconditional"):
        rows = [row for row in counters.by_position(unconditional=meta == "unconditional") if row["of"]]
        traces += _place_traces(rows, meta, visible=not traces)
    figure = bare_figure(traces, 1.12)
    figure.update_xaxes(dtick=1, title_text="place in the draft")
    figure.update_yaxes(tickvals=[0, 0.5, 1])
    return figure


def _place_traces(rows: Sequence[dict[str, Any]], meta: str, *, visible: bool) -> list[go.Bar | go.Scatter]:
    x = list(range(1, len(rows) + 1))
    rates = [row["rate"] for row in rows]
    of = "tested" if meta == "conditional" else "drafts"
    bars = go.Bar(
        x=x,
        y=rates,
        customdata=[[row["accepted"], row["of"]] for row in rows],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [row["high"] - row["rate"] for row in rows],
            "arrayminus": [row["rate"] - row["low"] for row in rows],
            "thickness": 1.5,
            "width": 0,
            "color": _TEXT,
        },
        hovertemplate=f"place %{{x}}: %{{y:.2f}}<br>%{{customdata[0]}} of %{{customdata[1]}} {of}<extra></extra>",
        meta=meta,
        visible=visible,
        **_bar_style(),
    )
    labels = go.Scatter(  # beside the interval, and over a bar of 0 too
        x=x if len(rows) <= 8 else [],
        y=rates if len(rows) <= 8 else [],
        text=[f" {rate:.2f}" for rate in rates],
        mode="text",
        textposition="top right",
        textfont_size=13,
        cliponaxis=False,
        hoverinfo="skip",
        meta=meta,
        visible=visible,
    )
    return [bars, labels]


def _times(steps: Sequence[StepDone], plain: Baseline | None) -> go.Figure:
    x = [step.index for step in steps]
    series = [
        ("draft", [1000 * step.draft_s for step in steps], _DRAFT),
        ("check", [1000 * step.verify_s for step in steps], _VERIFY),
        ("other", [1000 * step.other_s for step in steps], _OTHER),
    ]
    if steps and not any(any(y) for _, y, _ in series[:2]):  # a serving engine tells a step's whole time only
        series = [("step", series[2][1], _OTHER)]
    figure = bare_figure([_line(x, y, name, colour) for name, y, colour in series], None)
    ends = [(name, sum(y) / len(y)) for name, y, _ in series if y]  # means: they add up to the step of the caption
    if plain is not None and plain.s_per_token is not None and x:
        level = 1000 * plain.s_per_token
        figure.add_trace(_line([x[0], x[-1]], [level, level], "plain step", _PLAIN, dash="5px,4px"))
        ends.append(("plain step", level))
    tallest = sorted(value for _, y, _ in series for value in y)
    top = 1.25 * max([tallest[int(0.98 * (len(tallest) - 1))] if tallest else 1.0, *(value for _, value in ends)])
    for name, value, height in _apart(ends, top / 8):
        text = f"{value:.{_digits(value)}f} {name}"
        figure.add_annotation(x=1.02, xref="paper", xanchor="left", y=height, text=text, showarrow=False, font_size=13)
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(range=[0, top], nticks=4, ticksuffix=" ms")
    figure.update_layout(margin_r=112, margin_l=50)
    return figure


def _line(x: Sequence[float], y: Sequence[float], name: str, colour: str, dash: str = "solid") -> go.Scatter:
    line = {"color": colour, "width": 2, "dash": dash}
    hover = f"step %{{x}}: %{{y:.1f}} ms {name}<extra></extra>"
    return go.Scatter(x=list(x), y=list(y), mode="lines", line=line, hovertemplate=hover)


def bare_figure(traces: Sequence[go.Bar | go.Scatter | go.Heatmap], top: float | None) -> go.Figure:
    """A figure of the house: no frame, no legend, few lines, a ground that lets the page through.

    top: of the vertical axis, which begins at 0; None leaves it to the data.
    """
    figure = go.Figure(list(traces))
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "IBM Plex Sans, system-ui, sans-serif", "size": 12, "color": _TEXT},
        height=_HEIGHT,
        margin={"l": 34, "r": 8, "t": 18, "b": 40},
        showlegend=False,
        bargap=0.24,
        dragmode=False,
        hoverlabel={"font_family": "IBM Plex Sans, system-ui, sans-serif"},
    )
    figure.update_xaxes(showgrid=False, zeroline=False, title_font_size=12, title_standoff=8)
    figure.update_yaxes(gridcolor=_GRID, zeroline=True, zerolinecolor=_TEXT, zerolinewidth=1)
    if top is not None:
        figure.update_yaxes(range=[0, top])
    return figure


def _bar_style() -> dict[str, object]:
    return {"marker": {"color": "rgba(20,145,122,.3)", "line": {"color": _ACCEPTED, "width": 1.5}}, "textfont_size": 13}


def _apart(ends: list[tuple[str, float]], gap: float) -> list[tuple[str, float, float]]:
    """(name, value, height) from below, labels at least `gap` apart."""
    out: list[tuple[str, float, float]] = []
    for name, value in sorted(ends, key=lambda end: end[1]):
        height = value if not out else max(value, out[-1][2] + gap)
        out.append((name, value, height))
    return out


def _kept_sentence(counters: Counters) -> str:
    histogram = counters.accepted_histogram
    if not histogram:
        return "No step drafted anything."
    if not counters.drafted_is_known or counters.is_bound:
        return "Steps that kept a draft; the server does not report the others."
    best = len(histogram) - 1
    undrafted = counters.num_steps - counters.num_drafting_steps
    rest = f" {undrafted} had nothing to draft." if undrafted else ""
    if best == 0:
        return f"None of {histogram[0]} drafts was kept.{rest}"
    return f"{_steps(histogram[best])} kept {best}, the most; {histogram[0]} kept none.{rest}"


def _places_sentence(counters: Counters) -> str:
    if not counters.drafted_is_known:
        return "The server does not report what was refused."
    if not counters.rejections_are_known:
        return "Drafts had several lengths, so only the first place is known."
    if not counters.num_tested:
        return "No drafted token was tested."
    if counters.is_bound:
        return "At least this share was kept: other requests ran at the same time."
    return "Share kept, with its 95 % interval."


def _times_sentence(counters: Counters, plain: Baseline | None) -> str:
    if counters.s_per_step is None:
        return "No step was done." if not counters.num_steps else "The only step read the prompt as well."
    mean = 1000 * counters.s_per_step
    if not counters.verify_s:
        return f"A step took {mean:.{_digits(mean)}f} ms, as its messages arrived here."
    if plain is None or plain.s_per_token is None:
        return f"A step took {mean:.{_digits(mean)}f} ms. Plain decoding was not measured."
    tokens = counters.num_timed_tokens / counters.num_timed_steps
    one = 1000 * plain.s_per_token
    wrote = f"A step took {mean:.{_digits(mean)}f} ms and wrote {tokens:.1f} tokens"
    return f"{wrote}; plain takes {one:.{_digits(one)}f} ms for one."


def _digits(milliseconds: float) -> int:
    """Decimals worth showing."""
    return 0 if milliseconds >= 10 or milliseconds < 0.05 else 1


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"
