"""What would pay on an attached server, as the tab "Serving" shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specviz.remote.advice import Load, advise, places_of, settings_line
from specviz.remote.advice_words import answer, sums
from specviz.remote.history import History
from specviz.remote.sampler import Sampler
from specviz.remote.server import Identity

__all__ = ["advice_json"]


def advice_json(history: History, timed: Sampler, all_: Sequence[Sampler]) -> dict[str, Any] | None:
    """None where too little was drafted to say anything.

    Args:
        history: of the server, or the sum of several.
        timed: the server, or that of several whose times count, as a sum has no load of its own.
        all_: every attached server, among which one may be the same model without drafts.
    """
    by_place, identity = places_of(history.last(float("inf"))), timed.seen
    if identity is None or not by_place:
        return None
    advice = advise(by_place, timed.loads(), _plain(identity, all_))
    loads = list(advice.costs)
    return {
        "answer": answer(advice, timed.server.name),
        "sums": sums(advice),
        "loads": loads,
        "rows": [
            {
                "gamma": choice.gamma,
                "tokens": choice.tokens,
                "break_even": choice.break_even,
                "speed_up": [choice.speed_up[n] for n in loads],
                "is_best": [advice.best[n] == choice.gamma for n in loads],
            }
            for choice in advice.choices
        ],
        "num_engines": timed.history.samples[-1].counters.num_engines if timed.history.samples else 1,
        "modelled": not history.samples[-1].counters.accepted_at,
        "line": settings_line(identity, advice),
    }


def _plain(identity: Identity, all_: Sequence[Sampler]) -> dict[int, Load]:
    """Times of the servers of this model and engine that do not draft; of several, of the one with more steps."""
    found: dict[int, Load] = {}
    for sampler in all_:
        seen, samples = sampler.seen, sampler.history.samples
        if seen is None or (seen.model, seen.engine) != (identity.model, identity.engine):
            continue
        if not samples or samples[-1].counters.speculates is not False:
            continue
        for load, times in sampler.loads().items():
            if load not in found or times.num_steps > found[load].num_steps:
                found[load] = times
    return found
