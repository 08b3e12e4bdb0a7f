"""When a server's acceptance needs a look. Speculation that has gone wrong stays unseen, as the text stays right."""

from __future__ import annotations

from specviz.remote.history import History

__all__ = ["RECENT_S", "alarms"]

RECENT_S = 60.0
"""What counts as now."""

MIN_DRAFTS = 50
"""Fewer drafts than this say nothing: a single prompt can be all copying or all new."""

COLLAPSED_TO = 0.5
LOW = 0.1
PERFECT = 0.98


def alarms(history: History) -> list[str]:
    """Sentences for whoever watches, none where all is as it was."""
    recent, earlier = history.last(RECENT_S), history.before(RECENT_S)
    if recent is None or (recent.counted.num_drafts or 0) < MIN_DRAFTS or recent.acceptance_rate is None:
        return []
    rate, drafts = recent.acceptance_rate, recent.counted.num_drafts
    now = f"{100 * rate:.0f} % of drafted tokens were kept in the last minute"
    was = earlier.acceptance_rate if earlier and (earlier.counted.num_drafts or 0) >= MIN_DRAFTS else None
    if was is not None and rate < COLLAPSED_TO * was:
        return [
            f"Acceptance collapsed: {now}, {100 * was:.0f} % before. Answers stay right but come slower. "
            "Has the model, the draft or the kind of traffic changed?"
        ]
    if rate < LOW:
        return [f"Hardly any draft is kept: {now}, over {drafts} drafts. Drafting costs more than it brings."]
    if rate >= PERFECT:
        return [
            f"Suspiciously perfect: {now}, over {drafts} drafts. Copying can do that, and so can answers that repeat "
            "themselves. Read a few."
        ]
    return []
