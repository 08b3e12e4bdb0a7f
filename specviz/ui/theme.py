"""The native half of the look: a Gradio theme and the few rules that a theme cannot express.

Colour belongs to the data, so Gradio's own parts are ink and grey. The values repeat those of `assets/tokens.css`,
because theme variables cannot refer to ours; a test compares the two.
"""

from __future__ import annotations

import gradio as gr

__all__ = ["COLOURS", "NATIVE_CSS", "THEME"]

COLOURS = {
    "ink": ("#18181B", "#F1F1F3"),
    "ink-2": ("#52525B", "#B9B9C2"),
    "ink-3": ("#6B6B75", "#9C9CA7"),
    "bg": ("#FFFFFF", "#131316"),
    "bg-side": ("#FAFAFA", "#18181B"),
    "surface": ("#F6F6F7", "#1D1D21"),
    "surface-2": ("#ECECEF", "#2A2A30"),
    "hair": ("#E6E6EA", "#2B2B31"),
    "edge": ("#8C8C98", "#74747F"),
    "you": ("#2456C7", "#8FB0FA"),
}
"""Light and dark value of each design token that Gradio's own parts use."""

_CLEAR = ("transparent", "transparent")
_PAINT: dict[str, str | tuple[str, str]] = {
    "body_background_fill": "bg",
    "body_text_color": "ink",
    "body_text_color_subdued": "ink-3",
    "link_text_color": "you",
    "background_fill_primary": "bg",
    "background_fill_secondary": "bg-side",
    "border_color_primary": "hair",
    "color_accent_soft": "surface-2",
    "block_background_fill": _CLEAR,
    "block_title_text_color": "ink",
    "block_label_background_fill": _CLEAR,
    "block_label_text_color": "ink",
    "block_info_text_color": "ink-3",
    "block_border_color": _CLEAR,
    "panel_background_fill": _CLEAR,
    "input_background_fill": "bg",
    "input_border_color": "edge",
    "input_border_color_focus": "you",
    "input_placeholder_color": "ink-3",
    "button_primary_background_fill": "ink",
    "button_primary_background_fill_hover": "ink-2",
    "button_primary_text_color": "bg",
    "button_primary_border_color": "ink",
    "button_secondary_background_fill": _CLEAR,
    "button_secondary_background_fill_hover": "surface",
    "button_secondary_border_color": "edge",
    "button_secondary_text_color": "ink",
    "slider_color": "ink-2",
    "checkbox_background_color_selected": ("#18181B", "#5B5B66"),  # Gradio's tick is always white
    "checkbox_border_color": "edge",
    "checkbox_border_color_selected": ("#18181B", "#8C8C98"),
    "checkbox_label_background_fill": "surface-2",
    "checkbox_label_background_fill_hover": "hair",
    "checkbox_label_background_fill_selected": "ink",
    "checkbox_label_text_color": "ink-2",
    "checkbox_label_text_color_selected": "bg",
}
_BOTH_MODES = {
    "block_border_width": "0px",
    "block_shadow": "none",
    "block_label_border_width": "0px",
    "panel_border_width": "0px",
    "input_border_width": "1px",
    "button_border_width": "1px",
}
_SIZES = {
    "block_padding": "0px",
    "block_radius": "6px",
    "block_title_text_weight": "700",
    "block_title_text_size": "13px",
    "block_info_text_size": "13px",
    "form_gap_width": "0px",
    "input_shadow": "none",
    "input_shadow_focus": "none",
    "input_radius": "6px",
    "input_padding": "8px 10px",
    "button_large_radius": "6px",
    "button_large_text_weight": "400",
    "button_large_text_size": "15px",
    "button_large_padding": "7px 14px",
    "button_primary_shadow": "none",
    "button_primary_shadow_hover": "none",
    "button_primary_shadow_active": "none",
    "button_secondary_shadow": "none",
    "button_secondary_shadow_hover": "none",
    "button_secondary_shadow_active": "none",
    "checkbox_label_border_width": "0px",
    "checkbox_label_border_width_dark": "0px",
    "checkbox_label_padding": "5px 9px",
    "checkbox_label_shadow": "none",
    "checkbox_label_gap": "6px",
    "checkbox_label_text_size": "13px",
}


def _settings() -> dict[str, str]:
    out = dict(_SIZES)
    for name, value in _BOTH_MODES.items():
        out |= {name: value, f"{name}_dark": value}
    for name, colour in _PAINT.items():
        light, dark = COLOURS[colour] if isinstance(colour, str) else colour
        out |= {name: light, f"{name}_dark": dark}
    return out


THEME = gr.themes.Base(
    primary_hue="zinc",
    neutral_hue="zinc",
    radius_size=gr.themes.sizes.radius_sm,
    # Only the regular and bold files of these families are complete in Gradio's bundle.
    font=[gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "system-ui", "sans-serif"],
    font_mono=[gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700)), "ui-monospace", "monospace"],
).set(**_settings())

NATIVE_CSS = """
.sidebar .sidebar-content { padding: 20px 24px 40px; }
.sidebar .form { background: none; border: 0; box-shadow: none; gap: 20px; overflow: visible; }
.sidebar .column, .sidebar .gap { gap: 20px; }
.presets label { border-radius: 99px; }
.presets label span { margin: 0; }
.presets label:has(input:focus-visible) { outline: 2px solid var(--sv-you); outline-offset: 2px; }
.tab-container button { font-size: 15px; padding: 8px 0; margin-right: 24px; color: var(--sv-ink-2); }
.tab-container button.selected { color: var(--sv-ink); font-weight: 700; }
.tab-container button.selected::after { background: var(--sv-ink); }
.run button, button.run { font-weight: 700; }
.sidebar .wrap:has(> .wrap-inner input[role=combobox]) { border-color: var(--sv-edge); }
.sidebar input[type=range] { --neutral-200: var(--sv-surface-2); }
.sidebar input[type=range]::-webkit-slider-thumb {
  border: 2px solid var(--sv-ink); box-shadow: none; background: var(--sv-bg);
}
.sidebar input[type=range]::-moz-range-thumb {
  border: 2px solid var(--sv-ink); box-shadow: none; background: var(--sv-bg);
}
.sidebar .head input[type=number] { width: 56px; text-align: right; border-radius: 6px; }
@media (max-width: 767px) {
  .actions {
    position: sticky; bottom: 0; z-index: 9; padding: 10px 0;
    background: var(--sv-bg); border-top: 1px solid var(--sv-hair);
  }
  .actions button { min-height: 44px; }
}
"""
