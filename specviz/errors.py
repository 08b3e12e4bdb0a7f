"""The errors specviz raises on purpose.

    SpecvizError
    ├── ConfigError               a setting that cannot work, named with the value got and the range allowed
    ├── ModelLoadError            a model that is missing, gated, too large, damaged or of an unknown kind
    ├── TokenizerMismatchError    target and draft do not read the same ids as the same text
    ├── CacheNotCroppableError    a model whose past cannot be rolled back, so refused drafts would stay in it
    ├── TraceError                a trace file that cannot be read
    ├── RemoteError               a serving engine that does not answer, refuses, or breaks off
    └── BusyError                 another run holds the engine

Each message says what was wrong, what was found, and what to do next, and is fit to be shown to a visitor.
Anything else that is raised is a fault of ours and reaches the page as an id only.
"""

from __future__ import annotations

import errno
import logging
import uuid

__all__ = [
    "BusyError",
    "CacheNotCroppableError",
    "ConfigError",
    "ModelLoadError",
    "RemoteError",
    "SpecvizError",
    "TokenizerMismatchError",
    "TraceError",
    "sentence_for",
]

_log = logging.getLogger(__name__)


class SpecvizError(Exception):
    """Base of all errors whose message is written for the user."""


class ConfigError(SpecvizError):
    """A setting is out of range, unknown, or does not fit another setting."""


class ModelLoadError(SpecvizError):
    """A model could not be loaded."""


class TokenizerMismatchError(SpecvizError):
    """Target and draft give the same token id to different texts."""


class CacheNotCroppableError(SpecvizError):
    """The model keeps a state that cannot be rolled back to an earlier token."""


class TraceError(SpecvizError):
    """A trace file is damaged, too large, or of a schema this version does not know."""


class RemoteError(SpecvizError):
    """A serving engine does not answer, refuses what it was asked, or breaks off."""


class BusyError(SpecvizError):
    """The engine is in use and the queue is full."""


def sentence_for(error: BaseException, *, stays: str) -> str:
    """A sentence fit to be shown: our own messages whole, a full memory or disk in plain words, anything else as an id.

    What was not foreseen may hold paths or secrets: it goes to the log under that id. stays: what is not lost by it.
    """
    if isinstance(error, SpecvizError):
        return str(error)
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "This machine ran out of memory. Choose a smaller pair, fewer tokens or a shorter prompt."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk of this machine is full. {stays}"
    mark = uuid.uuid4().hex[:8]
    _log.error("failure %s", mark, exc_info=error)
    return f"Something failed inside specviz. {stays} The log has the details under {mark}."
