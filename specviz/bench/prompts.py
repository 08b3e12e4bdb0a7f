"""The prompts that are measured on: read from a file, by regime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.assets import ASSETS
from specviz.errors import ConfigError

if TYPE_CHECKING:
    from specviz.bench.runner import Entry

__all__ = ["PROMPTS", "names_in", "read_entries"]

PROMPTS = ASSETS / "bench" / "prompts.jsonl"


def names_in(text: str) -> list[str]:
    """The names of a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def read_entries(path: Path, per_regime: int, engine: Any | None, regimes: Sequence[str] = ()) -> list[Entry]:
    """The first prompts of each regime, as ids in the chat template.

    Args:
        engine: whose tokenizer makes the ids; None leaves the prompts as texts, for serving engines.
        path: JSON Lines of id, regime, prompt; without a regime a prompt belongs to "all".
        regimes: which ones; empty for every one.
    Raises:
        ConfigError: a file that is not of prompts, one that has an id twice, a regime it does not have.
    """
    from specviz.bench.runner import Entry
    from specviz.models.chat import clean_text, encode_prompt

    taken: dict[str, int] = {}
    entries: list[Entry] = []
    try:
        for text in path.read_text(encoding="utf-8").split("\n"):  # `splitlines` would cut at U+2028 within a prompt
            if not text.strip():
                continue
            item = json.loads(text)
            regime = str(item.get("regime", "all"))
            taken[regime] = taken.get(regime, 0) + 1
            if taken[regime] <= per_regime and (not regimes or regime in regimes):
                name = str(item.get("id", len(entries)))
                if engine is None:
                    entries.append(Entry(name, regime, prompt=clean_text(item["prompt"])[0]))
                    continue
                ids, _ = encode_prompt(engine.loaded.tokenizer, item["prompt"], False)
                entries.append(Entry(name, regime, tuple(ids)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"The prompts in {str(path)!r} cannot be read: {error}.") from error
    missing = [regime for regime in regimes if regime not in taken]
    if missing:
        raise ConfigError(f"{str(path)!r} has no regime {missing[0][:40]!r}. It has: {', '.join(taken)}.")
    if not entries:
        raise ConfigError(f"{str(path)!r} holds no prompts.")
    names = [entry.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:  # figures are kept by id
        raise ConfigError(f"{str(path)!r} has the id {twice[:40]!r} twice. Give every prompt an id of its own.")
    return entries
