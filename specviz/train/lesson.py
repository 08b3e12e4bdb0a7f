"""What the kinds of training have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from specviz.train.batches import Batch
from specviz.train.loop import imitation_loss

__all__ = ["Lesson", "lesson_loss"]


class Lesson(Protocol):
    """module: what is trained. head: [v, d_model] the rows of the target's output layer that the draft uses, and
    output_ids: [v] int64 what tokens they stand for.

    fade: weight of a drafted place over the one before.
    """

    module: torch.nn.Module
    head: Tensor
    output_ids: Tensor
    fade: float

    def pairs(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
        """By place in the draft, the first one first: [m, d_model] states of the draft, those of the target that they
        are to say the same as, over m places of the text."""
        ...


def lesson_loss(lesson: Lesson, batch: Batch, hard: float) -> Tensor:
    """Weighted mean over places in the draft of `imitation_loss`."""
    total, weights = torch.zeros((), device=batch.ids.device), 0.0
    for place, (draft, target) in enumerate(lesson.pairs(batch)):
        weight = lesson.fade**place
        total = total + weight * imitation_loss(draft, target, lesson.head, hard)
        weights += weight
    return total / weights
