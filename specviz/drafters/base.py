"""What every drafter can do: propose tokens, and learn what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from specviz.config import SamplingParams
from specviz.models.session import Session
from specviz.proposal import Proposal, Verdict

__all__ = ["DraftContext", "Drafter", "Need", "Outcome"]


class Need(Enum):
    """What a method asks of target and pair; checked before the run, never inside it."""

    DRAFT = "a draft model of the pair's own"
    SAME_TOKENIZER = "a draft that reads the target's tokens"
    HIDDEN = "the target's hidden states"
    TREE = "a target that takes an attention mask of its own"
    STATES = "the target's states of every token, of several layers"
    LAYERS = "a target that runs layer by layer"
    TRAINED = "a draft made beforehand for this pair's target, by `python -m specviz train`"


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter may look at.

    token_ids: every committed id, prompt and answer; the last one is not in the target's cache yet.
    hidden: [d_model] the target's last hidden state of token_ids[-2], the last one in its cache: what token_ids[-1] was
        chosen by. For drafters with Need.HIDDEN; None before anything is in the cache.
    target: the run's own session. A drafter may make draft passes in it, and leaves its length alone.
    """

    token_ids: Sequence[int]
    sampling: SamplingParams
    hidden: Tensor | None = None
    target: Session | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal.

    kept: accepted nodes from the root downwards. token_ids: ids committed in this step, the target's own included.
    scored_logits: [rows, vocab] of the proposal's `scored_only` rows. hidden: [n + 1, d_model] of the scored rows.
    logits: [n + 1, vocab] of the whole pass: row 0 of the last committed token, row i + 1 of node i.
    """

    proposal: Proposal
    verdict: Verdict
    kept: tuple[int, ...]
    token_ids: tuple[int, ...]
    scored_logits: Tensor | None = None
    hidden: Tensor | None = None
    logits: Tensor | None = None


class Drafter(Protocol):
    """One method of drafting, for one run.

    name: as in the registry. num_bytes: memory of the drafter's own caches. A drafter may also have `notes`, sentences
    about the run for its RunStarted; one with Need.STATES has `taps`, after how many layers it wants the states.
    """

    name: str
    needs: frozenset[Need]

    @property
    def num_bytes(self) -> int: ...

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        """Begin a run. Reading the prompt belongs here: its time is prefill.

        Args:
            target: the run's own session, the prompt but for its last token in it; None where a test runs without one.
        """
        ...

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        """At most `max_tokens` tokens along any path; none is legal. max_tokens >= 1."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn what the target kept. Called once after every step, also after one without a draft."""
        ...

    def close(self) -> None:
        """Free what the run held."""
        ...
