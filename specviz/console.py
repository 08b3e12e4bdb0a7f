"""Output of the command line and app.py on every system."""

from __future__ import annotations

import io
import sys

__all__ = ["speak_utf8"]


def speak_utf8() -> None:
    """Write UTF-8 whatever the system's code page: on Windows a pipe would refuse α and every other sign it lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            stream.reconfigure(encoding="utf-8", errors="replace")
