"""What a serving engine counted for one request, as the counts of a run. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.events import EngineCounts
from specviz.remote.chunks import RequestCounts

__all__ = ["counts_of"]


def counts_of(own: RequestCounts, sizes: Sequence[int], *, is_chain: bool) -> EngineCounts:
    """A request's own counts as those of a run.

    Args:
        sizes: [messages] tokens of each, without the first, which came with the prompt.
        is_chain: whether every step drafts a chain of one length, as an SGLang's do. Then its messages tell what each
            step kept, as long as there are as many of them as steps.
    """
    most = max((kept for kept, steps in enumerate(own.histogram) if steps), default=0)
    places = max(most, max(own.drafted, default=len(own.histogram) - 1))
    each, rest = divmod(own.num_drafted, own.num_drafts or 1)
    drafted, accepted = own.drafted, own.accepted
    if is_chain and not rest:
        places = max(most, each)
        drafted, accepted = _from_sizes(own, sizes, each)
    by_place = tuple(sum(own.histogram[place + 1 :]) for place in range(places))
    if accepted and not own.histogram:
        by_place = tuple(sum(kept > place for kept in accepted) for place in range(places))
    return EngineCounts(
        own.num_drafts,
        own.num_drafted,
        own.num_accepted,
        by_place if own.histogram or accepted else (),
        drafted_by_step=drafted,
        accepted_by_step=accepted,
    )


def _from_sizes(own: RequestCounts, sizes: Sequence[int], each: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """[steps] drafted and accepted tokens, empty where the messages are not the steps. The answer's end may have cut
    the last step short, so what it kept is what the others leave."""
    if len(sizes) != own.num_drafts or not sizes:
        return (), ()
    kept = [size - 1 for size in sizes[:-1]]
    kept.append(own.num_accepted - sum(kept))
    if not sizes[-1] - 1 <= kept[-1] <= each or max(kept) > each:
        return (), ()
    if own.histogram and [kept.count(place) for place in range(len(own.histogram))] != list(own.histogram):
        return (), ()
    return (each,) * len(kept), tuple(kept)
