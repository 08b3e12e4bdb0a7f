"""Plain decoding: no draft, one token a pass. The baseline runs the same loop as everything it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.models.session import Session
from specviz.proposal import Proposal

__all__ = ["PlainDrafter"]


class PlainDrafter:
    """Proposes nothing."""

    name = "plain"
    needs: frozenset[Need] = frozenset()
    num_bytes = 0

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        pass

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        return Proposal.empty()

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        pass
