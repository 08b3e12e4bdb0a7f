"""What a visitor reads when something fails: our own messages whole, anything else as an id only."""

from __future__ import annotations

import logging
import uuid

from specviz.errors import SpecvizError

__all__ = ["sentence_for"]

_log = logging.getLogger(__name__)

_FLAGS = {
    "--width 16": "16 rows of an exact pass",
    "--no-exact": "exact passes off",
    "(--raw)": "(No chat template)",
}
"""Messages are shared with the command line; the page and its API have no flags, but settings under these names."""


def sentence_for(error: BaseException) -> str:
    """A sentence fit to be shown. What was not foreseen may hold paths or secrets: it goes to the log under an id."""
    if isinstance(error, SpecvizError):
        return _in_words_of_the_page(str(error))
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "This machine ran out of memory. Choose a smaller pair, fewer tokens or a shorter prompt."
    mark = uuid.uuid4().hex[:8]
    _log.error("failure %s", mark, exc_info=error)
    return f"Something failed inside specviz. The log has the details under {mark}. Your last run is still here."


def _in_words_of_the_page(sentence: str) -> str:
    for flag, words in _FLAGS.items():
        sentence = sentence.replace(flag, words)
    return sentence
