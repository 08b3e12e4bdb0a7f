"""One step as the page reads it: the event as JSON, small, and the numbers that a page would else have to work out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from specviz.events import DraftedToken, EmittedToken, StepDone, event_to_json

__all__ = ["DIGITS", "TOKEN_NAMES", "short_floats", "step_json"]

DIGITS = 6
"""Significant digits of a number on the wire."""

TOKEN_NAMES = {
    "drafted": [field.name for field in fields(DraftedToken)],
    "emitted": [field.name for field in fields(EmittedToken)],
}
"""What the values of a token mean, in their order."""

_TOPS = ("draft_top", "target_top", "residual_top")


def step_json(step: StepDone, began_s: float, cache_before: int) -> dict[str, Any]:
    """The step with these keys besides its own:

    clock        seconds of all steps when it began, when the draft was there, when it was checked, when it was done
    s_per_token  seconds of this step for each token that it wrote
    cache        entries of the target's cache: `before` the step, `checked` with what its pass wrote ahead, `after` it,
                 and `extra` rows, padding or scored for the drafter's own use; None where the pass is not known

    Tokens are lists of values in the order of TOKEN_NAMES, None where nothing is known, cut behind the last known one;
    likeliest tokens are triples [token_id, text, prob]. With the names of all values a run of 1,000 tokens would be
    30 % larger.
    began_s: seconds of all steps before this one. cache_before: entries that counted before it.
    """
    data = event_to_json(step)
    del data["type"]
    for token in data["drafted"]:
        for name in _TOPS:
            if name in token:
                token[name] = [list(one.values()) for one in token[name]]
    for name, names in TOKEN_NAMES.items():
        data[name] = [_values(token, names) for token in data[name]]
    drafted_s = began_s + step.draft_s
    checked_s = drafted_s + step.verify_s
    seconds = step.draft_s + step.verify_s + step.other_s
    written = 1 + len(step.drafted)  # the last committed token has no entry before it is fed with its draft
    data["clock"] = [began_s, drafted_s, checked_s, checked_s + step.other_s]
    data["s_per_token"] = seconds / len(step.emitted) if step.emitted else None
    data["cache"] = None
    if step.rows:
        data["cache"] = {
            "before": cache_before,
            "checked": cache_before + written,
            "after": step.cache_len,
            "extra": max(0, step.rows - written),
        }
    return data


def _values(token: dict[str, Any], names: list[str]) -> list[Any]:
    last = max(place for place, name in enumerate(names) if name in token)
    return [token.get(name) for name in names[: last + 1]]


def short_floats(value: Any) -> Any:
    """The same plain data, floats cut to DIGITS significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: short_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [short_floats(item) for item in value]
    return value
