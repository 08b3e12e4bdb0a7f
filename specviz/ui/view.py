"""The Watch view: one `gr.HTML` that reads the deltas of `ui.stream` and does everything else in the browser.

    view = make_view()                       # then yield deltas into it
    demo.launch(theme=THEME, css=VIEW_CSS + NATIVE_CSS)

Template and script are fixed texts from `assets/`. Gradio evaluates templates as code, so no text of a run or a visitor
may ever enter one; it travels in the component's value as JSON and reaches the page through `textContent`.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

__all__ = ["VIEW_CSS", "make_view", "read_asset"]

_ASSETS = Path(__file__).resolve().parents[2] / "assets"
_SCRIPTS = ("dom.js", "strip.js", "detail.js", "charts.js", "main.js")
"""In this order they are the body of one function, so each may use what stands before it."""


def read_asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return (_ASSETS / name).read_text(encoding="utf-8")


VIEW_CSS = read_asset("tokens.css")
"""Design tokens, for `launch(css=...)`, so that Gradio's own parts can use them. The view's rules are in its template:
`launch(css=...)` repeats each rule under a longer selector and drops `@container`, which undoes the narrow layout."""

_TEMPLATE = f"<style>{read_asset('tokens.css')}{read_asset('view.css')}</style>\n{read_asset('view/view.html')}"
_SCRIPT = "\n".join(read_asset(f"view/{name}") for name in _SCRIPTS)


def make_view(initial: str | None = None) -> gr.HTML:
    """The view as a component whose value is one delta of `ui.stream`; `initial` is a delta to begin with."""
    return gr.HTML(value=initial, html_template=_TEMPLATE, js_on_load=_SCRIPT, apply_default_css=False, elem_id="view")
