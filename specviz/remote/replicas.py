"""Several servers of one model as one: their histories summed, and those that keep other shares than the rest."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from specviz.remote.alarms import COLLAPSED_TO, MIN_DRAFTS, RECENT_S
from specviz.remote.counters import ServerCounters
from specviz.remote.history import History, Sample

__all__ = ["outliers", "summed", "total_of"]

_MOST_TICKS = 240
_STALE_S = 10.0
"""An older sample says nothing of the requests of this moment."""

_COUNTS = ("num_drafts", "num_drafted", "num_accepted", "num_generated", "num_decoded", "num_finished", "num_gaps")
_REQUESTS = ("num_running", "num_waiting")


def summed(histories: Sequence[History]) -> History:
    """What all of them counted, from the first sample of each on, so that a restart or a late start takes nothing away.

    They are read at different moments of one clock; each counts as it was last read.
    """
    longest = max(histories, key=lambda history: len(history.samples), default=History())
    stride = max(1, -(-len(longest.samples) // _MOST_TICKS))
    ticks = [sample.at_s for sample in longest.samples[::-1][::stride]][::-1]
    times = [[sample.at_s for sample in history.samples] for history in histories]
    found = []
    for tick in ticks:
        parts = []
        for history, read_s in zip(histories, times, strict=True):
            place = bisect.bisect_right(read_s, tick + 1.0) - 1
            if place < 0:
                continue
            sample = history.samples[place]
            delta = sample.counters.since(history.samples[0].counters)
            if delta is not None:
                parts.append((delta, tick - sample.at_s < _STALE_S))
        current = [part if is_fresh else replace(part, num_running=None, num_waiting=None) for part, is_fresh in parts]
        found.append(Sample(tick, total_of(current)))
    return History(tuple(found))


def outliers(histories: Mapping[str, History]) -> list[str]:
    """A sentence for each server that keeps far less of its drafts than the others together, in the last minute."""
    recent = {name: history.last(RECENT_S) for name, history in histories.items()}
    counts = {
        name: (stretch.counted.num_accepted or 0, stretch.counted.num_drafted)
        for name, stretch in recent.items()
        if stretch is not None and stretch.counted.num_drafted and (stretch.counted.num_drafts or 0) >= MIN_DRAFTS
    }
    said = []
    for name, (accepted, drafted) in counts.items():
        others = [pair for other, pair in counts.items() if other != name]
        if not others:
            continue
        rest = sum(a for a, _ in others) / sum(d for _, d in others)
        if accepted / drafted < COLLAPSED_TO * rest:
            said.append(
                f"{name} keeps {100 * accepted / drafted:.0f} % of its drafted tokens, the others {100 * rest:.0f} %. "
                "Does it run the same model, draft and version, and get the same kind of traffic?"
            )
    return said


def total_of(parts: Sequence[ServerCounters]) -> ServerCounters:
    """What several counted together; settings are those of the first."""
    if not parts:
        return ServerCounters()
    sums = {name: _total([getattr(part, name) for part in parts]) for name in (*_COUNTS, *_REQUESTS)}
    places = max(len(part.accepted_at) for part in parts)
    lengths = [part.accept_length for part in parts if part.accept_length and part.num_running]
    return replace(
        parts[0],
        **sums,  # type: ignore[arg-type]
        accepted_at=tuple(
            sum(part.accepted_at[place] for part in parts if place < len(part.accepted_at)) for place in range(places)
        ),
        gaps_s=sum(part.gaps_s or 0.0 for part in parts),
        accept_length=sum(lengths) / len(lengths) if lengths else None,
    )


def _total(values: Sequence[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None
