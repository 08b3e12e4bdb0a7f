"""The line on top of every page: the name, and whether a model is ready."""

from __future__ import annotations

import json

import gradio as gr

from specviz.ui.host import HostStatus

__all__ = ["header_value", "make_header"]

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


def make_header(status: HostStatus) -> gr.HTML:
    """Texts reach the page through `textContent` only; the template is fixed."""
    return gr.HTML(
        value=header_value(status),
        html_template=_TEMPLATE,
        js_on_load=_SCRIPT,
        apply_default_css=False,
        elem_id="masthead",
    )
