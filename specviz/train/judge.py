"""How good a draft is on topics it was not trained on: against the target's own distributions, and in real runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.config import RunConfig
from specviz.generator import SpeculativeGenerator
from specviz.metrics import Counters, fold
from specviz.models.convert import Progress
from specviz.train.batches import Batches
from specviz.train.lesson import Lesson

__all__ = ["PlaceScore", "RunScore", "judge", "judge_runs"]

TOP = 5
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class PlaceScore:
    """The draft's guess at one place, against what the target says behind the true text.

    place: 1 for the first drafted token. num_tokens: judged. top: top[k - 1] is the share of them where the target's
    most likely token is among the draft's k most likely; top[0] is greedy agreement. overlap: mean over them of the
    sum over the vocabulary of min(p, q), at temperature 1: the chance that sampling accepts.
    """

    place: int
    num_tokens: int
    top: tuple[float, ...]
    overlap: float


@dataclass(frozen=True, slots=True)
class RunScore:
    """Greedy runs of the method itself, in the words of the page. settings: of the method, in a line."""

    settings: str
    num_runs: int
    num_tokens: int
    alpha: float
    acceptance_rate: float
    acceptance_length: float
    block_efficiency: float


def judge(
    lesson: Lesson, target_head: Tensor, batches: Batches, sequences: Sequence[int], size: int, report: Progress
) -> list[PlaceScore]:
    """Over all answers of some sequences, from true text and true states at the first place.

    Args:
        target_head: [vocab, d_model] the target's whole output layer.
        sequences: their numbers in the corpus. size: how many at once.
    """
    output_ids = lesson.output_ids.to(target_head.device)
    hits: dict[int, Tensor] = {}
    overlaps: dict[int, float] = {}
    counts: dict[int, int] = {}
    with torch.inference_mode():
        for start in range(0, len(sequences), size):
            batch = batches.of(sequences[start : start + size])
            last = batch.last.flatten(0, 1)
            for place, said in enumerate(lesson.places(batch), start=1):
                for rows in range(0, len(said.at), _BLOCK):
                    draft = (said.states[rows : rows + _BLOCK].to(lesson.head.dtype) @ lesson.head.mT).float()
                    target = (last[said.at[rows : rows + _BLOCK]].to(target_head.dtype) @ target_head.mT).float()
                    best = output_ids[draft.topk(TOP, -1).indices]
                    found = (best == target.argmax(-1, keepdim=True)).cumsum(-1) > 0
                    shared = torch.minimum(torch.softmax(target, -1)[:, output_ids], torch.softmax(draft, -1))
                    hits[place] = hits.get(place, torch.zeros(TOP, device=found.device)) + found.sum(0)
                    overlaps[place] = overlaps.get(place, 0.0) + float(shared.sum())
                    counts[place] = counts.get(place, 0) + len(found)
            report("Judging the draft on the topics held out", min(1.0, (start + size) / len(sequences)))
    return [
        PlaceScore(place, counts[place], tuple((hits[place] / counts[place]).tolist()), overlaps[place] / counts[place])
        for place in sorted(counts)
    ]


def judge_runs(
    engine: SpeculativeGenerator, prompts: Sequence[Sequence[int]], config: RunConfig, settings: str, report: Progress
) -> RunScore:
    """Greedy runs over prompts, counted together."""
    total = Counters()
    for number, prompt in enumerate(prompts, start=1):
        total.merge(fold(engine.stream(list(prompt), config)))
        report(f"Running {config.method}, {settings}", number / len(prompts))
    return RunScore(
        settings,
        len(prompts),
        total.num_tokens,
        float(total.alpha or 0.0),
        float(total.acceptance_rate or 0.0),
        float(total.acceptance_length or 0.0),
        float(total.block_efficiency or 0.0),
    )
