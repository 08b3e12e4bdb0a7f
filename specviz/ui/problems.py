"""What a visitor reads when something fails: our own messages whole, anything else as an id only."""

from __future__ import annotations

from specviz import errors

__all__ = ["sentence_for"]

_FLAGS = {
    "--width 16": "16 as the most rows of an exact pass",
    "--no-exact": "exact passes off",
    "(--raw)": "(No chat template)",
}
"""Messages are shared with the command line; the page and its API have no flags, but settings under these names."""


def sentence_for(error: BaseException) -> str:
    """`errors.sentence_for` in the page's own terms."""
    sentence = errors.sentence_for(error, stays="Your last run is still here.")
    return _in_words_of_the_page(sentence) if isinstance(error, errors.SpecvizError) else sentence


def _in_words_of_the_page(sentence: str) -> str:
    for flag, words in _FLAGS.items():
        sentence = sentence.replace(flag, words)
    return sentence
