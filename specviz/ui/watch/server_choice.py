"""What changes in the settings when a serving engine is chosen in place of a pair: its own settings are not ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from specviz.ui.access.host import EngineHost
from specviz.ui.controls import QUICK

__all__ = ["SERVER_INFO", "connect_server_choice"]

SERVER_INFO = "The server drafts and verifies, with its own method, draft length and number format."

_OURS = (
    "method", "gamma", "measure_plain", "exact", "width", "draft_quant", "draft_length", "verify", "dtype", "detail",
)  # fmt: skip
"""Settings that mean something only where the loop runs here."""


def connect_server_choice(
    host: EngineHost, demo: gr.Blocks, fields: Mapping[str, Any], own: Sequence[gr.components.Component | gr.Column]
) -> None:
    """Hide what a server would ignore while one is chosen (case 116). own: what belongs to single methods."""
    if not host.servers:
        return
    pair = fields["pair"]

    def show(chosen: Any) -> list[Any]:
        is_server = isinstance(chosen, str) and chosen in host.servers
        info = gr.Dropdown(info=SERVER_INFO) if is_server else gr.skip()
        hidden = gr.update(visible=False) if is_server else gr.skip()
        return [*(gr.update(visible=not is_server) for _ in _OURS), info, *(hidden for _ in own)]

    outputs = [*(fields[name] for name in _OURS), pair, *own]
    gr.on([demo.load, pair.change], show, pair, outputs, trigger_mode="always_last", preprocess=False, **QUICK)
