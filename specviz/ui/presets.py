"""Prompts to try, by regime."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

from specviz.assets import ASSETS

__all__ = ["Regime", "load_regimes"]

PRESETS_FILE = ASSETS / "presets.toml"


@dataclass(frozen=True, slots=True)
class Regime:
    """One kind of text. title: for the menu."""

    name: str
    title: str
    prompts: tuple[str, ...]


@cache
def load_regimes() -> tuple[Regime, ...]:
    """All regimes in the order of the file."""
    data = tomllib.loads(PRESETS_FILE.read_text(encoding="utf-8"))
    return tuple(Regime(entry["name"], entry["title"], tuple(entry["prompts"])) for entry in data["regimes"])
