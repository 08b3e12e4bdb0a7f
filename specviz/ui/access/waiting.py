"""A visitor waits for the engine, and is told what for."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from specviz.ui.access.attached import Notice

if TYPE_CHECKING:
    from specviz.ui.access.host import Engine

__all__ = ["wait_for_engine"]

REPEAT_S = 1.0
"""How often a visitor who waits is told the same again."""


def wait_for_engine(
    turn: Iterator[Notice | Engine], status: Callable[[str, float | None], str]
) -> Generator[str, None, Engine | None]:
    """Notices as deltas that `status` makes; returns the engine, or None if the wait was given up."""
    said, said_at = None, 0.0
    for item in turn:
        if not isinstance(item, Notice):
            return item  # `turn` stays open: it is what holds the engine
        # The same words go out again: a yield is where Gradio notices that the visitor has left. Seldom, though, since
        # each message slows the run of the visitor who is not waiting.
        if item != said or time.monotonic() - said_at >= REPEAT_S:
            said, said_at = item, time.monotonic()
            yield status(item.text, item.fraction)
    return None
