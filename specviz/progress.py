"""What long work reports to."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Line"]


class Line(Protocol):
    """A progress line: told messages with the part done, and closed."""

    def __call__(self, message: str, fraction: float | None) -> None: ...

    def close(self) -> None: ...
