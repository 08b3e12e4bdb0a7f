"""What tables owe to the programs that open them."""

from __future__ import annotations

from typing import Any

__all__ = ["harmless"]


def harmless(value: Any) -> Any:
    """A text that a spreadsheet would run as a formula gets an apostrophe before it (OWASP, CSV injection)."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
