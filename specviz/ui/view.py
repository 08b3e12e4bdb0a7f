"""The Watch view: one `gr.HTML` that reads the deltas of `ui.stream` and does everything else in the browser.

    view = make_view()                       # then yield deltas into it
    demo.launch(theme=THEME, css=VIEW_CSS + NATIVE_CSS)

Template and script are fixed texts from `assets/`. Gradio evaluates templates as code, so no text of a run or a visitor
may ever enter one; it travels in the component's value as JSON and reaches the page through `textContent`.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

__all__ = ["VIEW_CSS", "make_view"]

_ASSETS = Path(__file__).resolve().parents[2] / "assets"
_SCRIPTS = ("dom.js", "strip.js", "detail.js", "charts.js", "main.js")
"""In this order they are the body of one function, so each may use what stands before it."""

VIEW_CSS = (_ASSETS / "view.css").read_text(encoding="utf-8")
"""Design tokens and rules of the view; goes to `launch(css=...)`."""

_TEMPLATE = (_ASSETS / "view" / "view.html").read_text(encoding="utf-8")
_SCRIPT = "\n".join((_ASSETS / "view" / name).read_text(encoding="utf-8") for name in _SCRIPTS)


def make_view(initial: str | None = None) -> gr.HTML:
    """The view as a component whose value is one delta of `ui.stream`; `initial` is a delta to begin with."""
    return gr.HTML(value=initial, html_template=_TEMPLATE, js_on_load=_SCRIPT, apply_default_css=False, elem_id="view")
