"""From a corpus to a draft in its folder: states, lesson, training, evaluation, card. What the kinds have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from specviz.config import check_int, check_number
from specviz.errors import ConfigError
from specviz.models.convert import Progress
from specviz.models.fetch import cache_dir, silent
from specviz.models.loader import LoadedPair, load_pair
from specviz.models.stored import own_folder
from specviz.models.trunk import trunk_refusal
from specviz.train.batches import Batch, Batches
from specviz.train.corpus import Corpus, read_corpus
from specviz.train.loop import Schedule, fit
from specviz.train.states import States, compute_states, middle_taps

__all__ = ["Lesson", "Material", "Plan", "gather", "most_frequent_ids", "train"]


class Lesson(Protocol):
    """What is learned, and how. module: its parameters that ask for gradients are trained."""

    module: torch.nn.Module

    def loss(self, batch: Batch) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a training; equal plans give equal weights on the same number of threads.

    layers: of the target, from 1, that the draft's own begin as. output_size: ids the draft can propose.
    depth: tokens in a row that are learned. batch: sequences a step. hard: see `imitation_loss`.
    hold_out: topics kept from training besides every eighth.
    """

    kind: str
    pair: str
    layers: tuple[int, ...] = ()
    output_size: int = 8192
    depth: int = 3
    steps: int = 2000
    batch: int = 8
    lr: float = 1e-3
    hard: float = 0.5
    seed: int = 0
    hold_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_int("output-size", self.output_size, 16, 1 << 20)
        check_int("depth", self.depth, 1, 15)
        check_int("steps", self.steps, 1, 10_000_000)
        check_int("batch", self.batch, 1, 4096)
        check_number("lr", self.lr, 1e-7, 1.0)
        check_number("hard", self.hard, 0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What every lesson is made from. shown, held: numbers of the corpus's sequences to learn from and to judge by."""

    loaded: LoadedPair
    corpus: Corpus
    states: States
    shown: tuple[int, ...]
    held: tuple[int, ...]
    output_ids: Tensor
    taps: tuple[int, ...]


def gather(files: Sequence[Path], plan: Plan, *, dtype: str = "auto", report: Progress = silent) -> Material:
    """Load the target, read the corpus, and compute what is not on disk yet.

    Raises:
        ConfigError: a setting out of range, a corpus that cannot be read or leaves nothing to learn from.
        ModelLoadError: the target cannot be loaded, or is of a kind whose layers cannot be reused.
    """
    loaded = load_pair(plan.pair, dtype=dtype, progress=report)
    refusal = trunk_refusal(loaded.target)
    if refusal:
        raise ConfigError(refusal)
    depth = loaded.num_layers
    if not all(1 <= layer <= depth for layer in plan.layers):
        raise ConfigError(f"layers must be numbers from 1 to {depth} for this target; got {plan.layers}.")

    def encode(text: str) -> Sequence[int]:
        ids: list[int] = loaded.tokenizer.encode(text, add_special_tokens=False)
        return ids

    corpus = read_corpus(files, encode, loaded.vocab_size, lambda text, part: report(text, part))
    held_topics = set(corpus.held_topics.tolist())
    kept_back = held_topics | set(plan.hold_out)
    lengths = np.diff(corpus.offsets)
    usable = [i for i in range(len(lengths)) if lengths[i] > corpus.prompt_len[i] + plan.depth]
    shown = tuple(i for i in usable if int(corpus.topic[i]) not in kept_back)
    held = tuple(i for i in usable if int(corpus.topic[i]) in held_topics)
    if not shown:
        raise ConfigError("The corpus has no answers to learn from once topics are held out. Give a larger one.")
    taps = middle_taps(depth) if plan.kind == "feature" else ()
    folder = cache_dir() / plan.pair / "train" / "states"
    states = compute_states(
        loaded.target, corpus, middle_taps(depth), folder, report, key=loaded.target_info.sha256
    )
    ids = most_frequent_ids(corpus, shown, plan.output_size, loaded.vocab_size, loaded.eos_ids)
    return Material(loaded, corpus, states, shown, held, ids, taps)


def most_frequent_ids(
    corpus: Corpus, sequences: Sequence[int], size: int, vocab_size: int, eos_ids: Sequence[int] | frozenset[int]
) -> Tensor:
    """[v] ascending: the ids that answers hold most often, end tokens always among them; v <= size."""
    counts = np.zeros(vocab_size, np.int64)
    for i in sequences:
        answer = corpus.tokens[corpus.offsets[i] + corpus.prompt_len[i] : corpus.offsets[i + 1]]
        counts += np.bincount(answer.astype(np.int64), minlength=vocab_size)
    for token in eos_ids:
        counts[token] = np.iinfo(np.int64).max
    best = np.argsort(-counts, kind="stable")[: min(size, vocab_size)]
    return torch.from_numpy(np.sort(best))


def train(material: Material, lesson: Lesson, plan: Plan, report: Progress) -> float:
    """Run the plan, from its checkpoint where one is there. Returns the seconds it took."""
    batches = Batches(material.corpus, material.states, material.shown, size=plan.batch, seed=plan.seed, device=material.loaded.device)
    key = json.dumps({**asdict(plan), "target": material.loaded.target_info.sha256, "n": len(material.corpus.tokens)})
    folder = cache_dir() / plan.pair / "train" / plan.kind
    return fit(lesson.module, lesson.loss, batches, Schedule(plan.steps, plan.lr), folder, report, key=key)


Folder = own_folder
About = dict[str, Any]
