"""What a stop of the guided tour is made of, as plain data for `assets/view/tour/tour.js`: objects with one of

    p       a paragraph
    words   [{text, kind}] a line of the strip; kind is a fate's letter, "pend" for an untested guess or "" for context
    bars    [{name, value, text, kind}] bars of one scale; kind is a class of colours
    cache   {before, checked, after} entries of the target's cache
    coins   {kept, coin} of a hundred coins, how many keep the word, and which one fell
    runs    [{title, text, trace}] recorded runs

and perhaps a caption.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from specviz.events import DraftedToken, EmittedToken, StepDone

__all__ = ["Block", "bars", "fates", "milliseconds", "paragraph", "pending", "quoted", "share", "shown", "words"]

Block = dict[str, Any]
_LETTERS = {"accepted": "a", "rejected": "r", "discarded": "d", "corrected": "c", "bonus": "b", "target": "t"}


def paragraph(text: str) -> Block:
    return {"p": text}


def bars(rows: Sequence[tuple[str, float, str, str]], caption: str = "") -> Block:
    """rows: name, value, its text, kind."""
    drawn = [{"name": name, "value": value, "text": text, "kind": kind} for name, value, text, kind in rows]
    return {"bars": drawn, "caption": caption}


def words(line: Iterable[dict[str, str]], caption: str = "") -> Block:
    return {"words": list(line), "caption": caption}


def pending(step: StepDone) -> list[dict[str, str]]:
    return [{"text": shown(token), "kind": "pend"} for token in step.drafted]


def fates(step: StepDone, until: str | DraftedToken = "") -> Iterator[dict[str, str]]:
    """The step's words in drafted order, then the target's own; guesses from `until` on still pending, and no own word.

    until: a fate or origin, or one of the step's tokens.
    """
    pending = False
    for token in step.drafted:
        pending = pending or token is until or token.fate == until
        yield {"text": shown(token), "kind": "pend" if pending else _LETTERS[token.fate]}
    if not until:
        for own in step.emitted:
            if own.origin != "accepted":
                yield {"text": shown(own), "kind": _LETTERS[own.origin]}


def shown(token: DraftedToken | EmittedToken) -> str:
    return token.text or token.label


def quoted(token: DraftedToken | EmittedToken) -> str:
    return f"“{shown(token).strip()}”"


def milliseconds(value: float) -> str:
    return f"{1000 * value:.1f} ms"


def share(value: float) -> str:
    """A share in words: of a percent where it is small."""
    return f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"
