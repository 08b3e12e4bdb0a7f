"""The sentences of a race. Pure functions of its lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specviz.ui.race.lanes import Lane, ranked, text_owner, title_of
from specviz.words import EQUAL_WITHIN, gap_in_words, own_passes

__all__ = ["race_verdict"]

_NUMBERS = {2: "Both", 3: "All three", 4: "All four"}


def race_verdict(lanes: Sequence[Lane]) -> dict[str, Any]:
    """headline: who was fastest, or why nobody was; texts: which texts are the same, as far as that was checked;
    same_length: whether all wrote as many tokens, so that seconds can be compared too."""
    return {"headline": _headline(lanes), "texts": _texts(lanes), "same_length": _same_length(ranked(lanes))}


def _headline(lanes: Sequence[Lane]) -> str:
    order = ranked(lanes)
    rivals = [lane for lane in order if lane.speed_up is not None]
    if not rivals:
        if any(lane.method == "plain" for lane in order):
            return "Only plain decoding finished, so there is nothing to compare."
        return "Plain decoding did not finish, so there is nothing to compare with."
    first = rivals[0]
    name, ratio = title_of(first.method), first.speed_up or 0.0
    if abs(ratio - 1.0) <= EQUAL_WITHIN:
        return f"{name} is as fast as plain decoding: {ratio:.2f} times, within the spread."
    if ratio > 1.0:
        arrives = "finishes first" if _same_length(order) else "is fastest"
        return f"{name} {arrives}: {ratio:.2f} times as fast as plain decoding."
    if len(rivals) == 1:
        return f"Plain decoding is faster: {name} has {ratio:.2f} of its speed."
    return f"Plain decoding is faster than all of them: the best, {name}, has {ratio:.2f} of its speed."


def _texts(lanes: Sequence[Lane]) -> str:
    compared = [lane for lane in lanes if lane.plain is not None]
    if not compared:
        return ""
    started = compared[0].started
    temperature = started.settings.get("temperature", 0) if started else 0
    same = [lane for lane in compared if lane.plain and lane.plain.same_text]
    other = [lane for lane in compared if lane.plain and lane.plain.same_text is False]
    unknown = [lane for lane in compared if lane.plain and lane.plain.same_text is None]
    said = [_agreement(same, all_of_them=len(same) == len(lanes) - 1), *map(_difference, _by_text(other))]
    if unknown:
        said.append(_uncompared(unknown, temperature))
    if unknown or not _same_length(ranked(lanes)):
        said.append("Texts differ, so compare tokens a second, not seconds.")
    return " ".join(filter(None, said))


def _agreement(same: Sequence[Lane], *, all_of_them: bool) -> str:
    if not same:
        return ""
    shared = {_num_compared(lane) for lane in same}
    tokens = f"the same {shared.pop()} tokens" if len(shared) == 1 else "the same tokens, up to the shorter length"
    if all_of_them:
        who = _NUMBERS[len(same) + 1]
    else:
        who = _list([*(title_of(lane.method) for lane in same), "plain decoding"])
    return f"{who} wrote {tokens} at temperature 0, compared one by one."


def _by_text(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """Lanes that wrote the same tokens, together."""
    groups: list[list[Lane]] = []
    for lane in lanes:
        group = next((group for group in groups if text_owner(lane, group) is group[0]), None)
        if group is None:
            groups.append([lane])
        else:
            group.append(lane)
    return groups


def _difference(lanes: Sequence[Lane]) -> str:
    """Where a text first differs from plain decoding's, by how much, and if plain decoding at equal width does too."""
    base, started = lanes[0].plain, lanes[0].started
    assert base is not None and started is not None
    place = (base.first_difference or 0) + 1
    gap = "" if base.gap is None else f", where the two best logits are {gap_in_words(base.gap)}"
    way = "differs from plain decoding" if len(lanes) == 1 else "differ from plain decoding in the same way"
    lead = f"{_list([title_of(lane.method) for lane in lanes])} {way} at token {place}{gap}"
    if base.width_same:
        return f"{lead}. So does plain decoding {own_passes(started)}."
    if base.width_same is False:
        return f"{lead}; even plain decoding {own_passes(started)} wrote another text, so this is a fault."
    return f"{lead}."


def _uncompared(lanes: Sequence[Lane], temperature: Any) -> str:
    if temperature:
        return f"Sampled at T = {temperature:g}: each draws its own text."
    names = _list([title_of(lane.method) for lane in lanes])
    return f"{names}: approximate, so the text was not compared."


def _same_length(lanes: Iterable[Lane]) -> bool:
    """Whether all that came to their end wrote as many tokens, so that the first at the end is the fastest."""
    return len({lane.finished.num_tokens for lane in lanes if lane.finished}) == 1


def _num_compared(lane: Lane) -> int:
    assert lane.plain is not None and lane.finished is not None
    return min(lane.plain.num_tokens, lane.finished.num_tokens)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
