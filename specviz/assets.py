"""The folder of files that come with specviz."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ASSETS", "read_asset"]

ASSETS = Path(__file__).resolve().parents[1] / "assets"


def read_asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")
