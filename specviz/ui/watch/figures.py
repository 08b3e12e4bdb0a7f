"""The figures after a run, with heads and captions. What their buttons do is in assets/view/words.js and share.js."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specviz.ui.charts import Summary

__all__ = ["TEXT_JS", "Figures"]

TEXT_JS = """
const box = element.querySelector('p');
const show = () => { box.textContent = props.value ?? ''; };
watch('value', show);
show();
"""
"""Of a gr.HTML with one paragraph: its value reaches the page as text, never as markup."""

_HEAD = """<div class="sv"><div class="fighead">
  <h3><button type="button" class="term" data-define="{define}">{title}</button></h3>
  <span class="saves">
    <button type="button" class="quiet" data-save="plot:svg" aria-label="Save as SVG: {title}">SVG</button>
    <button type="button" class="quiet" data-save="plot:png" aria-label="Save as PNG: {title}">PNG</button>
  </span>
  {right}
</div></div>"""

_CHOICE = """<span class="seg choice" role="group" aria-label="Acceptance by place">
  <button type="button" data-choose="places:conditional" aria-pressed="true">where tested</button>
  <button type="button" data-choose="places:unconditional" aria-pressed="false">of all drafts</button>
</span>"""

# Gradio draws a figure anew when it changes; the view then shows the visitor's choice in it again.
_WATCH_JS = """
const tell = () => window.dispatchEvent(new CustomEvent('specviz:figures'));
new MutationObserver(tell).observe(element.closest('.figure'), { childList: true, subtree: true });
tell();
"""


class Figures:
    """Three figures side by side; built within a Blocks."""

    def __init__(self, summary: Summary) -> None:
        right = "<small>{}</small>".format
        self._kept = _box("Steps by tokens kept", right("steps"), "kept", "kept bars", summary.kept, summary.kept_text)
        self._places = _box(
            "Acceptance by place", _CHOICE, "places", "places bars", summary.places, summary.places_text
        )
        self._times = _box("Time by step", right("ms"), "step_times", "times", summary.times, summary.times_text)

    @property
    def parts(self) -> list[gr.Component]:
        return [*self._kept, *self._places, *self._times]

    def show(self, summary: Summary) -> dict[Any, Any]:
        """Updates that show another run's figures."""
        texts = (summary.kept_text, summary.places_text, summary.times_text)
        pairs = zip((summary.kept, summary.places, summary.times), texts, strict=True)
        return dict(zip(self.parts, (value for pair in pairs for value in pair), strict=True))


def _box(title: str, right: str, define: str, kinds: str, figure: Any, text: str) -> tuple[gr.Plot, gr.HTML]:
    """right: of the head, unit or switch. define: name of the title's definition. kinds: for the style sheet.

    All words but `text` are fixed ones.
    """
    with gr.Column(min_width=280, elem_classes=["figure", *kinds.split()]):
        head = _HEAD.format(title=title, define=define, right=right)
        gr.HTML(html_template=head, js_on_load=_WATCH_JS, apply_default_css=False)
        plot = gr.Plot(figure, label=title, show_label=False, container=False)
        caption = gr.HTML(
            value=text, html_template="<p class='caption'></p>", js_on_load=TEXT_JS, apply_default_css=False
        )
    return plot, caption
