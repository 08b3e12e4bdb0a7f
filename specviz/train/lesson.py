"""What the kinds of training have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from specviz.train.batches import Batch
from specviz.train.loop import Said, imitation_loss

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

    def places(self, batch: Batch) -> Iterator[Said]:
        """What the draft says by place in the draft, the first one first. States of the target are numbered through
        the batch, row by row."""
        ...


def lesson_loss(lesson: Lesson, batch: Batch, hard: float) -> Tensor:
    """Weighted mean over places in the draft, see `imitation_loss`."""
    places = list(lesson.places(batch))
    weights = [lesson.fade**place for place in range(len(places))]
    return imitation_loss(places, batch.last.flatten(0, 1), lesson.head, hard, weights)
