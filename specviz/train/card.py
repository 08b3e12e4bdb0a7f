"""The card of a trained draft: what was trained, on what, how long, where, and how good it came out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specviz.models.machine import probe

__all__ = ["write_card"]

MOST_NAMED = 30
"""Topics that the card for people names one by one."""


def write_card(
    folder: Path,
    settings: Mapping[str, Any],
    material: Any,
    seconds: float,
    places: Sequence[Any],
    runs: Sequence[Any],
) -> None:
    """Write card.json for programs and card.md for people."""
    corpus, loaded = material.corpus, material.loaded
    lengths = [int(corpus.offsets[i + 1] - corpus.offsets[i] - corpus.prompt_len[i]) for i in material.shown]
    card = {
        "settings": dict(settings),
        "target": loaded.pair.target.name,
        "target_sha256": loaded.target_info.sha256,
        "target_dtype": loaded.target_info.dtype,
        "corpus": list(corpus.names),
        "num_answers": len(material.shown),
        "num_tokens": sum(lengths),
        "held_topics": corpus.held_topics.tolist(),
        "num_held_answers": len(material.held),
        "taps": list(material.taps) if settings["kind"] == "feature" else [],
        "seconds": round(seconds),
        "machine": f"{probe().processor}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "places": [asdict(place) for place in places],
        "runs": [asdict(run) for run in runs],
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (folder / "card.md").write_text("\n".join(_lines(card, folder)) + "\n", encoding="utf-8")


def _lines(card: Mapping[str, Any], folder: Path) -> Iterator[str]:
    settings = card["settings"]
    yield f"# {settings['kind'].capitalize()} of {settings['pair']}"
    yield ""
    yield f"- Target: {card['target']} in {card['target_dtype']}, weights {card['target_sha256'] or 'without a hash'}"
    yield f"- Corpus: {', '.join(card['corpus'])}: {card['num_answers']} answers, {card['num_tokens']} tokens"
    told = ", ".join(f"{name} {_plain(value)}" for name, value in settings.items() if name not in ("kind", "pair"))
    yield f"- Settings: {told}"
    if card["taps"]:
        yield f"- Reads the target's states behind layers {_plain(card['taps'])} and behind the last"
    yield f"- Training took {card['seconds'] / 60:.0f} min on {card['machine']}"
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    yield f"- Files: {len(sizes)} of {sum(sizes) / 1e6:.1f} MB in all, the largest {max(sizes) / 1e6:.1f} MB"
    yield ""
    if not card["places"]:
        yield "The corpus has no topics to keep back, so there are no figures on text the draft has not seen."
        return
    topics = card["held_topics"]
    named = f"topics {_plain(topics)}" if len(topics) <= MOST_NAMED else f"{len(topics)} topics, see card.json"
    yield f"Kept back: {named}; {card['num_held_answers']} answers of all temperatures."
    yield "Against the target's own distributions behind the true text, without quantization:"
    yield ""
    yield "| place | tokens | greedy agreement | in the best 2 | in the best 5 | overlap, T = 1 |"
    yield "|---|---|---|---|---|---|"
    for place in card["places"]:
        top = place["top"]
        shares = " | ".join(f"{100 * share:.1f} %" for share in (top[0], top[1], top[4]))
        yield f"| {place['place']} | {place['num_tokens']} | {shares} | {place['overlap']:.3f} |"
    yield ""
    yield "Greedy runs over prompts kept back, as the page counts, the draft quantized as the page does:"
    yield ""
    yield "| draft | runs | tokens | α | acceptance rate | acceptance length | block efficiency |"
    yield "|---|---|---|---|---|---|---|"
    for run in card["runs"]:
        rates = [f"{run[name]:.3f}" for name in ("alpha", "acceptance_rate")]
        lengths = [f"{run[name]:.2f}" for name in ("acceptance_length", "block_efficiency")]
        counts = [run["settings"], str(run["num_runs"]), str(run["num_tokens"])]
        yield f"| {' | '.join([*counts, *rates, *lengths])} |"


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
