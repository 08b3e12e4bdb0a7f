"""The line on top of every page: the name, and whether a model is ready."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from specviz.ui.access.host import EngineHost, HostStatus

__all__ = ["HeaderNews", "header_value", "make_header"]

_TEMPLATE = """
<header class="masthead">
  <h1>specviz <small>see speculative decoding accept and refuse</small></h1>
  <p class="ready" data-phase="empty"><i aria-hidden="true"></i><span class="said"></span></p>
</header>
"""
_SCRIPT = """
const box = element.querySelector('.ready');
const show = () => {
  let status;
  try { status = JSON.parse(props.value); } catch { return; }
  if (!status) return;
  box.dataset.phase = status.phase;
  const share = status.fraction == null ? '' : ` · ${Math.round(100 * status.fraction)} %`;
  box.querySelector('.said').textContent = status.text + share;
};
watch('value', show);
show();
"""


def header_value(status: HostStatus) -> str:
    """The component's value for a status."""
    text = status.text.split(". ")[0] if status.phase == "failed" else status.text  # the view has the whole of it
    return json.dumps({"phase": status.phase, "text": text, "fraction": status.fraction})


class HeaderNews:
    """For a handler that yields often: the line's update when it has changed since the last time it was asked."""

    def __init__(self, header: gr.HTML, host: EngineHost):
        self._header, self._host = header, host
        self._shown = ""

    def __call__(self) -> dict[Any, Any]:
        value = header_value(self._host.status)
        if value == self._shown:
            return {}
        self._shown = value
        return {self._header: value}


def make_header(status: HostStatus) -> gr.HTML:
    """Texts reach the page through `textContent` only; the template is fixed."""
    return gr.HTML(
        value=header_value(status),
        html_template=_TEMPLATE,
        js_on_load=_SCRIPT,
        apply_default_css=False,
        elem_id="masthead",
    )
