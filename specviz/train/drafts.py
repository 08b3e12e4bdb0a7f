"""From a corpus to a draft in its folder: states, lesson, training, files, judgement, card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specviz.config import RunConfig, check_int, check_number
from specviz.drafters.feature import EAGLE, EAGLE_3, read_parts
from specviz.drafters.feature_head import fresh_parts
from specviz.drafters.medusa import find_heads, load_heads, save_heads
from specviz.errors import ConfigError
from specviz.generator import SpeculativeGenerator
from specviz.models.convert import Progress
from specviz.models.fetch import cache_dir, silent
from specviz.models.loader import LoadedPair, TrainedDraft, load_pair
from specviz.models.stored import own_folder
from specviz.models.trunk import cut_head, load_trunk, read_manifest, save_trunk, trunk_refusal
from specviz.train.batches import Batches
from specviz.train.card import write_card
from specviz.train.corpus import Corpus, read_corpus
from specviz.train.feature import FeatureLesson
from specviz.train.judge import PlaceScore, RunScore, judge, judge_runs
from specviz.train.lesson import Lesson, lesson_loss
from specviz.train.loop import Schedule, fit
from specviz.train.medusa import MedusaLesson, fresh_heads
from specviz.train.states import States, compute_states, middle_taps
from specviz.train.student import StudentLesson, fresh_trunk, trainable

__all__ = ["KINDS", "Material", "Plan", "default_plan", "gather", "judge_draft", "train_draft", "train_on"]

KINDS = {"student": "draft-model", "feature": "feature", "medusa": "medusa"}
"""What can be trained by gradient, and the method that drafts with it."""

_RUN_SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "student": ({},),
    "feature": ({}, {"tree": "growing:7"}),
    "medusa": ({}, {"tree": "4,2,1"}),
}
NUM_RUNS = 24
RUN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a training; equal plans give equal weights on the same machine and number of threads.

    layers: of the target, from 1, that the draft's own begin as. output_size: ids the draft can propose.
    depth: tokens in a row that a feature head learns, or Medusa's number of heads. blocks: of each Medusa head.
    batch: sequences a step. hard: see `imitation_loss`. start: folder of a draft to go on from, which then decides
    layers and blocks; output ids are the corpus's. hold_out: topics kept from training besides every eighth.
    """

    kind: str
    pair: str
    layers: tuple[int, ...] = ()
    output_size: int = 8192
    depth: int = 3
    blocks: int = 1
    steps: int = 1500
    batch: int = 8
    lr: float = 1e-3
    hard: float = 0.5
    seed: int = 0
    start: str = ""
    hold_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"There is no training {self.kind[:40]!r}. Choose one of {', '.join(KINDS)}.")
        check_int("output-size", self.output_size, 16, 1 << 20)
        check_int("depth", self.depth, 1, 15)
        check_int("blocks", self.blocks, 1, 8)
        check_int("steps", self.steps, 1, 10_000_000)
        check_int("batch", self.batch, 1, 4096)
        check_number("lr", self.lr, 1e-7, 1.0)
        check_number("hard", self.hard, 0.0, 1.0)


def default_plan(kind: str, num_layers: int) -> dict[str, Any]:
    """What a kind is trained with unless asked otherwise, on a target of so many layers."""
    if kind == "student":
        ends = (1, 2, num_layers - 1, num_layers) if num_layers >= 4 else (1, num_layers)
        return {"layers": tuple(sorted(set(ends))), "lr": 8e-4}
    if kind == "feature":
        return {"layers": (num_layers,), "lr": 1e-3, "depth": 3}
    return {"depth": 3, "blocks": 2, "lr": 2e-3}


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What every lesson is made from. shown, held: numbers of the corpus's sequences to learn from and to judge by.

    output_ids: [v] int64. taps: layers whose states are there besides the last.
    """

    loaded: LoadedPair
    corpus: Corpus
    states: States
    shown: tuple[int, ...]
    held: tuple[int, ...]
    output_ids: Tensor
    taps: tuple[int, ...]

    def batches(self, size: int, seed: int) -> Batches:
        return Batches(self.corpus, self.states, self.shown, size=size, seed=seed, device=self.loaded.device)


def gather(loaded: LoadedPair, files: Sequence[Path], plan: Plan, report: Progress = silent) -> Material:
    """Read the corpus and compute the states that are not on disk yet.

    Raises:
        ConfigError: a setting out of range, a target whose layers cannot be reused, a corpus that cannot be read or
        leaves nothing to learn from.
    """
    refusal = trunk_refusal(loaded.target)
    if refusal:
        raise ConfigError(refusal)
    count = loaded.num_layers
    if not all(1 <= layer <= count for layer in plan.layers):
        raise ConfigError(f"layers must be numbers from 1 to {count} for this target; got {plan.layers}.")

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
    taps = middle_taps(count)
    folder = cache_dir() / plan.pair / "train" / "states"
    states = compute_states(loaded.target, corpus, taps, folder, report, key=loaded.target_info.sha256)
    ids = _most_frequent_ids(corpus, shown, plan.output_size, loaded.vocab_size, loaded.eos_ids)
    return Material(loaded, corpus, states, shown, held, ids, taps)


def train_draft(
    files: Sequence[Path],
    kind: str,
    pair: str,
    settings: Mapping[str, Any],
    out: Path | None = None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    threads: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Train a draft, write its files, judge them on topics held out, and write the card.

    Args:
        files: the corpus, see `specviz.train.corpus`.
        kind: one of KINDS. settings: fields of Plan, the others are the kind's own.
        out: folder to write into; None for the one in the cache where runs look first.
        threads: of torch; 0 for the machine's.
    Returns:
        The folder.
    """
    report = progress or silent
    _check_start(Plan(kind, pair, **settings))  # says what is wrong before anything is loaded
    loaded = load_pair(pair, dtype=dtype, device=device, progress=report)
    if threads:
        torch.set_num_threads(threads)
    plan = Plan(kind, pair, **{**default_plan(kind, loaded.num_layers), **settings})
    material = gather(loaded, files, plan, report)
    return train_on(material, plan, out, report)


def _check_start(plan: Plan) -> None:
    """Refuse to go on from a draft that this training did not make: it would fail when the hours are over."""
    if not plan.start or plan.kind == "medusa":
        return
    about, method = read_manifest(Path(plan.start)), KINDS[plan.kind]
    if about.get("parts") in (EAGLE, EAGLE_3):
        raise ConfigError(
            "--from names an imported EAGLE head. Its layers read other inputs than those that are trained here. "
            "Run it as it is, or train a fresh head without --from."
        )
    if about.get("method", method) != method:
        made_for = str(about["method"])[:40]
        raise ConfigError(f"--from names a draft for {made_for}, and this training makes one for {method}.")


def train_on(material: Material, plan: Plan, out: Path | None = None, report: Progress = silent) -> Path:
    """`train_draft` once everything is in memory."""
    loaded, method = material.loaded, KINDS[plan.kind]
    lesson = _fresh_lesson(material, plan)
    key = json.dumps({**asdict(plan), "target": loaded.target_info.sha256, "tokens": len(material.corpus.tokens)})
    work = cache_dir() / plan.pair / "train" / plan.kind
    seconds = fit(
        lesson.module,
        lambda batch: lesson_loss(lesson, batch, plan.hard),
        material.batches(plan.batch, plan.seed),
        Schedule(plan.steps, plan.lr),
        work,
        report,
        key=key,
    )
    folder = own_folder(plan.pair, method) if out is None else out
    _save(folder, lesson, material, plan)
    places, runs = judge_draft(material, plan, folder, report)
    write_card(folder, plan_as_dict(plan), material, seconds, places, runs)
    return folder


def judge_draft(
    material: Material, plan: Plan, folder: Path, report: Progress = silent
) -> tuple[list[PlaceScore], list[RunScore]]:
    """The card's figures from a folder's files, on the corpus's held-out topics; none where nothing was held out."""
    if not material.held:
        return [], []
    loaded, method = material.loaded, KINDS[plan.kind]
    loaded.draft_folders[method] = folder
    loaded.drop_drafts()
    lesson = _stored_lesson(loaded, plan)
    head = loaded.target.get_output_embeddings().weight.detach()[: loaded.vocab_size]
    places = judge(lesson, head, material.batches(plan.batch, plan.seed), material.held, plan.batch, report)
    corpus = material.corpus
    prompts = [
        corpus.tokens[corpus.offsets[i] : corpus.offsets[i] + corpus.prompt_len[i]].astype(int).tolist()
        for i in material.held
    ]
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    chosen = distinct[:: max(1, len(distinct) // NUM_RUNS)][:NUM_RUNS]
    engine = SpeculativeGenerator(loaded)
    runs = []
    for options in _RUN_SETTINGS[plan.kind]:
        config = RunConfig(method=method, max_new_tokens=RUN_TOKENS, exact=False, gamma=4, options=options)
        words = ", ".join(f"{name} {value}" for name, value in options.items()) or "chain of 4"
        runs.append(judge_runs(engine, chosen, config, words, report))
    return places, runs


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """The settings that matter to this kind."""
    unused = {"student": ("depth", "blocks"), "feature": ("blocks",), "medusa": ("layers",)}[plan.kind]
    settings = {name: value for name, value in asdict(plan).items() if name not in unused}
    return settings | {"start": Path(plan.start).name or "fresh"}


def _fresh_lesson(material: Material, plan: Plan) -> Lesson:
    target = material.loaded.target
    size = int(target.config.hidden_size)
    device = material.loaded.device
    if plan.kind == "medusa":
        weight = target.get_output_embeddings().weight.detach()
        heads = fresh_heads(plan.depth, plan.blocks, size, device)
        if plan.start:
            rows = int(weight.shape[0])
            heads = load_heads(Path(plan.start), hidden_size=size, vocab_size=rows, device=device)
        return MedusaLesson(heads, weight[material.output_ids.to(device)], material.output_ids)
    if plan.start:
        model, extra, about = load_trunk(Path(plan.start), target, material.loaded.vocab_size)
        cut_head(model, target, material.output_ids)
        trunk = trainable(model)
        if plan.kind == "feature":
            trained = TrainedDraft(model, material.loaded.target_info, extra, about)
            return FeatureLesson(trunk, read_parts(trained)[0].float().requires_grad_(True), depth=plan.depth)
        return StudentLesson(trunk)
    trunk = fresh_trunk(target, plan.layers, material.output_ids)
    if plan.kind == "student":
        return StudentLesson(trunk)
    rng = torch.Generator().manual_seed(plan.seed)
    parts = fresh_parts(size, len(material.taps), rng).to(device)
    return FeatureLesson(trunk, parts, depth=plan.depth)


def _stored_lesson(loaded: LoadedPair, plan: Plan) -> Lesson:
    """A lesson over what a run would load, in the target's number format and not quantized."""
    method = KINDS[plan.kind]
    if plan.kind == "medusa":
        heads, _ = find_heads(loaded)
        head = loaded.target.get_output_embeddings().weight.detach()[: loaded.vocab_size]
        return MedusaLesson(heads, head, torch.arange(loaded.vocab_size))
    trained = loaded.trained_draft(method, str(loaded.dtype).removeprefix("torch."))
    if plan.kind == "student":
        return StudentLesson(trained.model)
    return FeatureLesson(trained.model, read_parts(trained)[0], depth=plan.depth)


def _save(folder: Path, lesson: Any, material: Material, plan: Plan) -> None:
    loaded = material.loaded
    sha256 = loaded.target_info.sha256
    if plan.kind == "medusa":
        weight = loaded.target.get_output_embeddings().weight
        sizes = {"hidden_size": int(weight.shape[1]), "vocab_size": int(weight.shape[0])}
        save_heads(folder, lesson.heads(sha256), **sizes, target=loaded.pair.target.name)
        return
    about: dict[str, Any] = {
        "method": KINDS[plan.kind],
        "target": loaded.pair.target.name,
        "target_sha256": sha256,
        "target_layers": loaded.num_layers,
        "from_layers": list(plan.layers),
    }
    if plan.kind == "student":
        save_trunk(folder, lesson.module, {}, about)
    else:
        parts = lesson.module["parts"]
        extra = {"fuse": parts.fuse, "mix": parts.mix}
        save_trunk(folder, lesson.module["trunk"], extra, {**about, "taps": list(material.taps)})


def _most_frequent_ids(
    corpus: Corpus, sequences: Sequence[int], size: int, vocab_size: int, eos_ids: frozenset[int]
) -> Tensor:
    """[v] ascending: the ids that answers hold most often, end tokens always among them; v <= size."""
    counts = np.zeros(vocab_size, np.int64)
    for i in sequences:
        answer = corpus.tokens[corpus.offsets[i] + corpus.prompt_len[i] : corpus.offsets[i + 1]]
        counts += np.bincount(answer.astype(np.int64), minlength=vocab_size)
    for token in eos_ids:
        counts[token] += 10**9
    best = np.argsort(-counts, kind="stable")[: min(size, vocab_size)]
    return torch.from_numpy(np.sort(best))
