"""The view: one `gr.HTML` that reads the deltas of `ui.wire.stream` and does everything else in the browser.

    view = make_view()                       # then yield deltas into it
    demo.launch(theme=THEME, css=VIEW_CSS + NATIVE_CSS)

Template and script are fixed texts from `assets/`. Gradio evaluates templates as code, so no text of a run or a visitor
may ever enter one; it travels in the component's value as JSON and reaches the page through `textContent`.
"""

from __future__ import annotations

from html import escape

import gradio as gr

from specviz.assets import read_asset
from specviz.drafters.registry import METHODS
from specviz.generate.titles import SUMMARIES, TITLES

__all__ = ["PANELS", "SCRIPT", "TEMPLATE", "VIEW_CSS", "make_view"]

_SCRIPTS = (
    *("dom", "watch/strip", "detail", "charts", "panels", "words", "inspect/replay", "main", "watch/stripfile"),
    *("share", "inspect/stepwords", "inspect/odds", "inspect/stepcost", "inspect/inspect"),
    *("race/race", "race/chart", "race/text"),
    *("methods/pieces", "methods/copied", "methods/table", "methods/tree", "methods/suffix", "methods/lookahead"),
    *("methods/layers", "methods/model", "methods/alone", "methods/methods", "tour/tour", "present", "start"),
)
"""In this order they are the body of one function, so each may use what stands before it."""
PANELS = ("watch", "inspect", "race", "methods", "tour")
"""Parts of the view, one seen at a time; each has a folder with its markup, scripts and, but for the first, style."""


def _panel(name: str) -> str:
    hidden = "" if name == "watch" else " hidden"
    return f'<div class="panel" data-panel="{name}"{hidden}>\n{read_asset(f"view/{name}/{name}.html")}</div>'


def _ways() -> str:
    """Every method with its sentence, for the panel "methods"; its script takes a run's title and summary from here.

    Those of watched runs are not in the list, as nobody can choose them there.
    """
    own = [(way.name, way.title, way.summary, "") for way in METHODS.values()]
    watched = [(name, title, SUMMARIES[name], " hidden") for name, title in TITLES.items()]
    return "\n".join(
        f'<div data-method="{name}"{hidden}><dt>{escape(title)}</dt><dd>{escape(summary)}</dd></div>'
        for name, title, summary, hidden in own + watched
    )


VIEW_CSS = read_asset("tokens.css")
"""Design tokens, for `launch(css=...)`, so that Gradio's own parts can use them. The view's rules are in its template:
`launch(css=...)` repeats each rule under a longer selector and drops `@container`, which undoes the narrow layout."""

_STYLES = ("tokens.css", "view/view.css", *(f"view/{name}/{name}.css" for name in PANELS[1:]), "view/present.css")
TEMPLATE = "<style>{rules}</style>\n{markup}".format(
    rules="".join(map(read_asset, _STYLES)),
    markup=read_asset("view/view.html")
    .replace("<!-- panels -->", "\n".join(map(_panel, PANELS)))
    .replace("<!-- ways -->", _ways()),
)
SCRIPT = "\n".join(read_asset(f"view/{name}.js") for name in _SCRIPTS)


def make_view(initial: str | None = None) -> gr.HTML:
    """The view as a component whose value is one delta of `ui.wire.stream`; `initial` is a delta to begin with."""
    return gr.HTML(value=initial, html_template=TEMPLATE, js_on_load=SCRIPT, apply_default_css=False, elem_id="view")
