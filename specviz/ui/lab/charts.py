"""The Lab's figures, in Plotly. One function a finding; each gives the figures in the order of the page.

As in `ui.charts`, only numbers and fixed words enter a figure, its own colours are readable on both grounds, and the
page's tokens replace them by `LAB_CSS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from specviz.lab.experiment import Finding
from specviz.lab.gamma import ALPHAS, best_of, surface
from specviz.ui.charts import bare_figure

__all__ = ["LAB_CSS", "NUM_FIGURES", "figures"]

_INK, _GREY, _YOU = "#7A7A85", "#8C8C98", "#5B84E0"
_TIMES = ("#5470B5", "#7D90BF", "#9A9AA5")
_BANDS = (1.0, 1.25, 1.5, 2.0, 3.0)
_SHADES = ("rgba(130,133,154,0)", *(f"rgba(130,133,154,{alpha})" for alpha in (0.16, 0.32, 0.5, 0.72, 0.95)))
"""Grey-blue over whatever the ground is: darker for faster on white, lighter for faster on black."""

NUM_FIGURES = {
    "gamma": 2,
    "passes": 1,
    "memory": 1,
    "precision": 1,
    "length": 1,
    "greedy": 0,
    "sampling": 1,
    "rules": 1,
}

LAB_CSS = """
.lab .js-plotly-plot text { fill: var(--sv-ink-3) !important; }
.lab .js-plotly-plot .annotation-text, .lab .js-plotly-plot .bartext { fill: var(--sv-ink-2) !important; }
.lab .js-plotly-plot .gridlayer path { stroke: var(--sv-grid) !important; }
.lab .js-plotly-plot .zerolinelayer path { stroke: var(--sv-axis) !important; }
.lab .js-plotly-plot .shapelayer path { fill: var(--sv-surface) !important; fill-opacity: 1 !important; }
.lab .js-plotly-plot .errorbars path { stroke: var(--sv-ink) !important; }
.lab .js-plotly-plot .trace path.js-line { stroke: var(--sv-ink) !important; }
.lab .js-plotly-plot .trace .points path.point { stroke: var(--sv-ink) !important; fill: var(--sv-bg) !important; }
.lab .gamma .curve .trace:nth-child(1) path.js-line { stroke: var(--sv-ink-3) !important; }
.lab .gamma .curve .trace:nth-child(2) path.js-line,
.lab .passes .trace:nth-child(1) path.js-line { stroke: var(--sv-series-plain) !important; }
.lab .gamma .curve .trace:nth-child(4) .points path.point,
.lab .gamma .curve .trace:nth-child(4) .errorbars path,
.lab .gamma .surface .trace:nth-child(3) .points path.point {
  fill: var(--sv-you) !important; stroke: var(--sv-bg) !important;
}
.lab .gamma .curve .trace:nth-child(4) .errorbars path { stroke: var(--sv-you) !important; }
.lab .length .trace:nth-child(2) path.js-line { stroke: var(--sv-verify-time) !important; }
.lab .length .trace:nth-child(3) path.js-line { stroke: var(--sv-draft-time) !important; }
.lab .modebar-container { display: none; }
"""


def figures(finding: Finding, *, recorded: bool = False) -> list[go.Figure | None]:
    """Figures of a finding; None for one that cannot be drawn from it. A recorded one is not of the visitor's settings,
    and does not say so."""
    if finding.name == "gamma":
        return [_curve(finding, recorded), _surface(finding, recorded)]
    return _DRAW[finding.name](finding)


def _curve(finding: Finding, recorded: bool) -> go.Figure | None:
    """Measured points with their spread, on the curve that theory draws."""
    rows = [row for row in finding.rows if row["speed_up"] is not None]
    best = best_of(rows)
    if best is None:
        return None
    top, chosen = finding.facts["top"], finding.facts["gamma"]
    drawn = [(row["gamma"], row["theory_speed_up"]) for row in rows if row["theory_speed_up"] is not None]
    theory = [(0, 1.0), *drawn] if drawn else []
    mine = [row for row in rows if row["gamma"] == chosen]
    others = [row for row in rows if row["gamma"] != chosen]
    highest = max(max(row["speed_up"], row["speed_up_high"] or 0.0, row["theory_speed_up"] or 0.0) for row in rows)
    figure = bare_figure(
        [
            _line([x for x, _ in theory], [y for _, y in theory], "theory", _INK),
            _line([0, top + 0.3], [1, 1], "plain", _GREY, dash="5px,4px"),
            _points(others, _INK, 9),
            _points(mine, _YOU, 12),
        ],
        1.18 * max(highest, 1.0),
    )
    figure.add_shape(type="rect", x0=-0.4, x1=top + 0.4, y0=0, y1=1, fillcolor="rgba(127,127,140,.08)", line_width=0,
                     layer="below")  # fmt: skip
    _label(figure, best["gamma"], best["speed_up_high"] or best["speed_up"],
           f"<b>{best['speed_up']:.2f}× at γ {best['gamma']}</b>", yshift=14)  # fmt: skip
    if mine and mine[0] is not best and mine[0]["speed_up"] is not None:
        whose = f"at γ {chosen}" if recorded else "yours"
        _label(figure, chosen, mine[0]["speed_up_high"] or mine[0]["speed_up"], f"{whose}: {mine[0]['speed_up']:.2f}×",
               yshift=14, xanchor="right" if chosen == top else "center")  # fmt: skip
    _label(figure, -0.3, 0, "below the dashed line: slower than plain", xanchor="left", yshift=11)
    if drawn:
        lowest = min(drawn[-1][1], mine[-1]["speed_up"] if mine and chosen == top else drawn[-1][1])
        _label(figure, top, lowest, "theory S(γ)", yshift=-18, xanchor="right")
    figure.update_xaxes(range=[-0.4, top + 0.4], dtick=1 if top < 10 else 2, title_text="γ, tokens drafted per step")
    figure.update_yaxes(ticksuffix="×", nticks=5)
    figure.update_layout(height=290, margin_t=26)
    return figure


def _points(rows: Sequence[dict[str, Any]], colour: str, size: int) -> go.Scatter:
    """Measured speed-ups with the range of single rounds."""
    speed = [row["speed_up"] for row in rows]
    return go.Scatter(
        x=[row["gamma"] for row in rows],
        y=speed,
        mode="markers",
        cliponaxis=False,
        marker={"color": colour, "size": size, "line": {"color": colour, "width": 2}},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [(row["speed_up_high"] or y) - y for row, y in zip(rows, speed, strict=True)],
            "arrayminus": [y - (row["speed_up_low"] or y) for row, y in zip(rows, speed, strict=True)],
            "thickness": 1.5,
            "width": 0,
            "color": colour,
        },
        customdata=[[row["alpha"], row["mean_drafted"], row["theory_speed_up"] or 0.0] for row in rows],
        hovertemplate="γ %{x}: %{y:.2f}×<br>α %{customdata[0]:.2f}, theory %{customdata[2]:.2f}×<extra></extra>",
    )


_LABEL_SPAN = 0.36
"""Of the axis of α: what a label of three words takes beside its point, on a page 1280 pixels wide."""


def _surface(finding: Finding, recorded: bool) -> go.Figure | None:
    """S over α and γ in bands, where it pays and which γ is best; the chosen one is "you are here"."""
    here = "the recorded run" if recorded else "you are here"
    grid = surface(finding)
    if grid is None:
        return None
    gammas = list(range(len(grid)))
    band = [[sum(s > edge for edge in _BANDS) for s in row] for row in grid]
    steps = len(_SHADES)
    scale = [[(i + side) / steps, shade] for i, shade in enumerate(_SHADES) for side in (0, 1)]
    heat = go.Heatmap(
        x=list(ALPHAS),
        y=gammas,
        z=band,
        zmin=-0.5,
        zmax=steps - 0.5,
        colorscale=scale,
        showscale=False,
        customdata=grid,
        hovertemplate="α %{x:.2f}, γ %{y}: %{customdata:.2f}×<extra></extra>",
    )
    best = [max(gammas, key=lambda gamma: (grid[gamma][i], -gamma)) for i in range(len(ALPHAS))]
    even = [next((alpha for alpha, s in zip(ALPHAS, row, strict=True) if s > 1.0), None) for row in grid]
    pays = [(alpha, gamma) for alpha, gamma in zip(even, gammas, strict=True) if alpha is not None]
    alpha, chosen = float(finding.facts["alpha"]), min(int(finding.facts["gamma"]), gammas[-1])
    figure = bare_figure(
        [
            heat,
            _line([x for x, _ in pays], [y for _, y in pays], "break-even", _INK, dash="2px,3px", shape="vh"),
            _line(list(ALPHAS), best, "best γ", _INK, shape="hvh"),
            go.Scatter(
                x=[alpha], y=[chosen], mode="markers", cliponaxis=False,
                marker={"color": _YOU, "size": 13, "line": {"color": "#FFFFFF", "width": 2}},
                hovertemplate="α %{x:.2f}, γ %{y}: " + here + "<extra></extra>",
            ),
        ],
        None,
    )  # fmt: skip
    loses = alpha < (even[chosen] or 1.0)  # then the label keeps to the empty side of the break-even line
    side = "right" if alpha > (_LABEL_SPAN if loses else 0.6) else "left"
    _label(figure, alpha, chosen, f"<b>{here}</b>", xanchor=side, xshift=-11 if side == "right" else 11)
    first = next((i for i, gamma in enumerate(best) if gamma), None)
    if first is not None:
        _label(figure, ALPHAS[first], best[first], "best γ", xanchor="right", xshift=-5)
    corner = gammas[-1] if chosen < gammas[-1] - 1 else chosen - 2
    if (even[corner] or 1.0) > _LABEL_SPAN + 0.03:
        _label(figure, 0.02, corner, "slower than plain", xanchor="left")
    labelled = -1.0
    for edge in _BANDS[1:]:
        at = next((alpha for alpha, s in zip(ALPHAS, grid[-1], strict=True) if s > edge), None)
        if at is not None and at - labelled > 0.08:
            _label(figure, at, gammas[-1] + 0.5, f"{edge:g}×", yshift=9)
            labelled = at
    figure.update_xaxes(range=[0, 1], tickvals=[0, 0.25, 0.5, 0.75, 1], title_text="α, per-token acceptance")
    figure.update_yaxes(range=[-0.5, gammas[-1] + 0.5], dtick=2, showgrid=False, zeroline=False)
    figure.update_yaxes(title_text="γ", title_standoff=4)
    figure.update_layout(height=290, margin_t=26)
    return figure


def _passes(finding: Finding) -> list[go.Figure | None]:
    rows = finding.rows
    x = [row["rows"] for row in rows]
    figure = bare_figure(
        [
            _line([x[0], x[-1]], [1, 1], "one row", _GREY, dash="5px,4px"),
            go.Scatter(
                x=x, y=[row["v"] for row in rows], mode="lines+markers", cliponaxis=False,
                line={"color": _INK, "width": 2},
                marker={"size": 8, "color": _INK, "line": {"color": _INK, "width": 2}},
                customdata=[1000 * row["pass_s"] for row in rows],
                hovertemplate="%{x} rows: %{y:.2f} of one row, %{customdata:.1f} ms<extra></extra>",
            ),
        ],
        1.15 * max(row["v"] for row in rows),
    )  # fmt: skip
    for row in (rows[0], rows[-1]):
        text = f"{1000 * row['pass_s']:.0f} ms"
        at = math.log10(row["rows"])  # where annotations of a logarithmic axis stand
        _label(figure, at, row["v"], text, yshift=14, xanchor="left" if row is rows[0] else "right")
    figure.update_xaxes(type="log", tickvals=x, ticktext=[str(n) for n in x], title_text="rows in one pass")
    figure.update_yaxes(ticksuffix="×", nticks=5)
    return [figure]


def _memory(finding: Finding) -> list[go.Figure | None]:
    parts = (
        ("target_bytes", "target", 0.75), ("target_cache_bytes", "target’s cache", 0.45),
        ("draft_bytes", "draft", 0.28), ("draft_cache_bytes", "draft’s cache", 0.14),
    )  # fmt: skip
    x = [row["context"] for row in finding.rows]
    last, height = finding.rows[-1], 0.0
    traces, labels = [], []
    for key, name, shade in parts:
        if not last[key]:
            continue
        y = [row[key] / 1e6 for row in finding.rows]
        traces.append(
            go.Scatter(
                x=x, y=y, stackgroup="memory", mode="lines", line={"color": _INK, "width": 1},
                fillcolor=f"rgba(130,133,154,{shade})",
                hovertemplate=f"{name} at %{{x}} tokens: %{{y:.1f}} MB<extra></extra>",
            )
        )  # fmt: skip
        labels.append((height + y[-1] / 2, f"{name} {y[-1]:,.0f} MB"))
        height += y[-1]
    figure = bare_figure(traces, 1.08 * height)
    place = -1e9
    for middle, text in labels:
        place = max(middle, place + height / 11)
        figure.add_annotation(x=1.01, xref="paper", xanchor="left", y=place, text=text, showarrow=False, font_size=13)
    figure.update_xaxes(title_text="tokens of context", nticks=5)
    figure.update_yaxes(ticksuffix=" MB", nticks=5)
    figure.update_layout(margin_r=150, margin_l=62)
    return [figure]


def _precision(finding: Finding) -> list[go.Figure | None]:
    rows = [row for row in finding.rows if row.get("speed_up") is not None]
    if not rows:
        return [None]
    speed = [row["speed_up"] for row in rows]
    bars = go.Bar(
        x=[row["format"] for row in rows],
        y=speed,
        text=[f"{s:.2f}×" for s in speed],
        textposition="outside",
        cliponaxis=False,
        marker_color=[_YOU if row["is_used"] else _GREY for row in rows],
        hovertemplate="%{x}: %{y:.2f}× plain<extra></extra>",
    )
    figure = bare_figure([bars], 1.2 * max(*speed, 1.0))
    figure.add_hline(y=1, line={"color": _GREY, "width": 1, "dash": "5px,4px"})
    figure.update_yaxes(ticksuffix="×", nticks=4)
    figure.update_layout(bargap=0.5)
    return [figure]


def _length(finding: Finding) -> list[go.Figure | None]:
    rows = finding.rows
    lines = (("target", "plain token", _TIMES[0]), ("check", f"check of {finding.facts['rows']}", _TIMES[1]),
             ("draft", "drafted token", _TIMES[2]))  # fmt: skip
    traces, labels = [], []
    for key, name, colour in lines:
        mine = [row for row in rows if row.get(f"{key}_s") is not None]
        if mine:
            y = [1000 * row[f"{key}_s"] for row in mine]
            hover = f"{name} behind %{{x}} tokens: %{{y:.1f}} ms<extra></extra>"
            traces.append(
                go.Scatter(
                    x=[row["context"] for row in mine], y=y, mode="lines+markers",
                    marker={"size": 7, "line": {"color": colour, "width": 2}}, line={"color": colour, "width": 2},
                    hovertemplate=hover, cliponaxis=False,
                )
            )  # fmt: skip
            labels.append((y[-1], f"{y[-1]:.1f} {name}"))
    top = 1.15 * max(max(trace.y) for trace in traces)
    figure = bare_figure(traces, top)
    place = -1e9
    for value, text in sorted(labels):
        place = max(value, place + top / 10)
        figure.add_annotation(x=1.02, xref="paper", xanchor="left", y=place, text=text, showarrow=False, font_size=13)
    figure.update_xaxes(title_text="tokens of context", rangemode="tozero", nticks=5)
    figure.update_yaxes(ticksuffix=" ms", nticks=5)
    figure.update_layout(margin_r=130, margin_l=58)
    return [figure]


def _sampling(finding: Finding) -> list[go.Figure | None]:
    """Seen against expected, one bar an outcome; the marks are what the target's own distribution says."""
    places = list(range(1, len(finding.rows) + 1))
    total = finding.facts["num_samples"]
    expected = [row["expected"] for row in finding.rows]
    noise = [2.0 * (row["expected"] * (1.0 - row["expected"] / total)) ** 0.5 for row in finding.rows]
    seen = [row["observed"] for row in finding.rows]
    figure = bare_figure(
        [
            go.Bar(x=places, y=seen, marker_color=_GREY, hovertemplate="outcome %{x}: seen %{y} times<extra></extra>"),
            go.Scatter(
                x=places, y=expected, mode="markers",
                marker={"size": 8, "color": _INK, "line": {"color": _INK, "width": 2}},
                error_y={"type": "data", "array": noise, "thickness": 1.5, "width": 0, "color": _INK},
                hovertemplate="outcome %{x}: expected %{y:.1f}, two standard errors<extra></extra>",
            ),
        ],
        1.2 * max(*seen, *(e + n for e, n in zip(expected, noise, strict=True))),
    )  # fmt: skip
    figure.update_xaxes(title_text="beginnings, the likeliest first; last: all others", dtick=1)
    figure.update_yaxes(nticks=4)
    return [figure]


def _rules(finding: Finding) -> list[go.Figure | None]:
    """How likely each place of a draft is kept, under both rules."""
    places = [row["place"] for row in finding.rows]
    traces = [
        go.Bar(
            x=places, y=[100 * row[rule] for row in finding.rows], marker_color=colour, name=name,
            text=[f"{name} {100 * row[rule]:.0f} %" for row in finding.rows], textposition="auto", textangle=0,
            hovertemplate=f"place %{{x}}, {name}: kept in %{{y:.1f}} % of drafts<extra></extra>",
        )
        for rule, name, colour in (("token", "token", _GREY), ("block", "block", _YOU))
    ]  # fmt: skip
    figure = bare_figure(traces, 115 * max(row[rule] for row in finding.rows for rule in ("token", "block")))
    figure.update_xaxes(title_text="place in the draft", dtick=1)
    figure.update_yaxes(ticksuffix=" %", nticks=4)
    return [figure]


_DRAW: dict[str, Callable[[Finding], list[go.Figure | None]]] = {
    "passes": _passes,
    "memory": _memory,
    "precision": _precision,
    "length": _length,
    "greedy": lambda finding: [],
    "sampling": _sampling,
    "rules": _rules,
}


def _line(
    x: Sequence[float], y: Sequence[float], name: str, colour: str, *, dash: str = "solid", shape: str = "linear"
) -> go.Scatter:
    line = {"color": colour, "width": 2, "dash": dash, "shape": shape}
    return go.Scatter(x=list(x), y=list(y), mode="lines", line=line, name=name, hoverinfo="skip")


def _label(figure: go.Figure, x: float, y: float, text: str, **more: Any) -> None:
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, font_size=13, **more)
