"""The target's hidden states over a corpus, computed once and kept on disk.

Drafts learn from the target's distributions. Of those 49,152 numbers a token only the state they are projected from is
kept, d_model numbers, and the output layer is applied again when a batch is trained: a hundredth of the space, nothing
lost. States are bfloat16. An interrupted computation goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.models.convert import Progress
from specviz.train.corpus import Corpus

__all__ = ["States", "compute_states", "middle_taps"]

_ROWS = 4096
"""Tokens a pass, padding included."""

_SAVE_EVERY = 32


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Memory-mapped. last: [t, d_model], behind the final norm, so that logits = output layer of it. taps: [t, k,
    d_model], behind the layers named when they were computed; k may be 0."""

    last: Tensor
    taps: Tensor


def middle_taps(num_layers: int) -> tuple[int, ...]:
    """The layers whose output is kept besides the last one: a third and two thirds of the way up."""
    return tuple(sorted({max(1, round(num_layers / 3)), max(1, round(2 * num_layers / 3))}))


def compute_states(
    target: Any, corpus: Corpus, taps: Sequence[int], folder: Path, report: Progress, *, key: str = ""
) -> States:
    """Run the target over every sequence of a corpus.

    Args:
        target: a causal LM of transformers whose layers are `target.model.layers`.
        taps: after how many layers to keep the state as well, each 1 to the number of layers.
        folder: for the two files; another corpus, target or choice of taps begins anew.
        key: what tells this target from others, its hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = int(target.config.get_text_config(decoder=True).hidden_size)
    count = len(corpus.tokens)
    digest = hashlib.sha256(corpus.tokens.tobytes() + corpus.offsets.tobytes()).hexdigest()
    wanted = {"corpus": digest, "target": key, "taps": list(taps), "hidden_size": size}
    note = folder / "states.json"
    done = _read_done(note, wanted)
    store = States(
        torch.from_file(str(folder / "last.bin"), shared=True, size=count * size, dtype=torch.bfloat16).view(-1, size),
        torch.from_file(
            str(folder / "taps.bin"), shared=True, size=max(1, count * len(taps) * size), dtype=torch.bfloat16
        )[: count * len(taps) * size].view(count, len(taps), size),
    )
    groups = _groups(corpus)
    started, first = time.perf_counter(), done
    for number in range(done, len(groups)):
        _one_pass(target, corpus, groups[number], taps, store)
        if number % _SAVE_EVERY == _SAVE_EVERY - 1 or number == len(groups) - 1:
            note.write_text(json.dumps({**wanted, "done": number + 1}), encoding="utf-8")
        left = (time.perf_counter() - started) / (number + 1 - first) * (len(groups) - number - 1)
        report(f"Reading the corpus with the target, {left / 60:.0f} min left", (number + 1) / len(groups))
    return store


def _read_done(note: Path, wanted: dict[str, Any]) -> int:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        return int(found["done"]) if {key: found[key] for key in wanted} == wanted else 0
    except (OSError, ValueError, KeyError):
        return 0


def _groups(corpus: Corpus) -> list[list[int]]:
    """Sequences of like length together, at most _ROWS tokens with their padding."""
    lengths = np.diff(corpus.offsets)
    groups: list[list[int]] = []
    for index in np.argsort(lengths, kind="stable").tolist():
        if lengths[index] == 0:
            continue
        if not groups or (len(groups[-1]) + 1) * int(lengths[index]) > _ROWS:
            groups.append([])
        groups[-1].append(index)
    return groups


def _one_pass(target: Any, corpus: Corpus, group: Sequence[int], taps: Sequence[int], store: States) -> None:
    offsets = corpus.offsets
    longest = max(int(offsets[i + 1] - offsets[i]) for i in group)
    ids = torch.zeros(len(group), longest, dtype=torch.int64)
    for row, i in enumerate(group):
        ids[row, : int(offsets[i + 1] - offsets[i])] = torch.from_numpy(
            corpus.tokens[offsets[i] : offsets[i + 1]].astype(np.int64)
        )
    kept: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            kept[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [target.model.layers[tap - 1].register_forward_hook(keep(tap)) for tap in taps]
    try:
        with torch.inference_mode():  # padding is on the right, and no token sees what is behind it: no mask needed
            last = target.model(input_ids=ids.to(target.device), use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    for row, i in enumerate(group):
        start, end = int(offsets[i]), int(offsets[i + 1])
        store.last[start:end] = last[row, : end - start].to("cpu", torch.bfloat16)
        for place, tap in enumerate(taps):
            store.taps[start:end, place] = kept[tap][row, : end - start].to("cpu", torch.bfloat16)
