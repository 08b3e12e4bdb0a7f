"""A cascade: ask drafters that cost little first, and a model where what they promise is less than its time is worth.

A model that grows trees takes the others' candidates into its own. All of these are chosen, not drawn, and a proposal
with probabilities is one drafter's alone, so verification stays lossless whoever spoke.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from specviz.drafters.base import DraftContext, Drafter, Need, Outcome
from specviz.drafters.budget import Budget
from specviz.drafters.growth import SECOND_THOUGHT, Growth
from specviz.drafters.options import Option
from specviz.events import DraftNote
from specviz.models.session import Session
from specviz.proposal import Proposal

__all__ = ["FALLBACK", "FALLBACK_TREE", "CascadeDrafter"]

PRIOR_KEPT, PRIOR_WEIGHT = 1.2, 4.0
"""Tokens that a model is expected to keep before it has drafted anything, and for how many steps that belief counts."""

MODEL_LEVELS = 4
"""Levels of a model's draft, when its time is weighed before it is asked."""

MODEL_ADDS = 0.4
"""Tokens that a feature head adds to a tree of suffix decoding where that one's first guess fails, on 30 prompts."""

FALLBACKS = ("auto", "none", "feature", "draft-model", "quantized-copy")

FALLBACK = Option(
    "fallback",
    "auto",
    "the model that drafts where the texts read before promise less; auto takes one that was trained for the pair, or "
    "none",
    choices=FALLBACKS,
)
FALLBACK_TREE = Option(
    "fallback_tree",
    "auto",
    "how a feature head drafts here: chain, growing for as many candidates as pay on this machine, growing:5 for 5 of "
    "them, or a fixed shape; auto takes a chain where exact is on, else growing",
)


class CascadeDrafter:
    """Drafters that cost little are asked first, and a model where their answer promises less than its own would.

    All of them follow the whole run. A model among them keeps its own cache and catches up when its turn comes.
    """

    name = "cascade"
    needs: frozenset[Need] = frozenset()

    def __init__(
        self, drafters: Sequence[Drafter], *, budget: Budget | None = None, notes: tuple[str, ...] = ()
    ) -> None:
        """
        Args:
            drafters: in the order of asking.
            budget: of the last one, a model, with what it costs; without one the first with something to offer speaks.
            notes: sentences about the run, for the page.
        """
        self.notes = notes
        self.needs = frozenset(need for drafter in drafters for need in drafter.needs)
        self.taps = next((drafter.taps for drafter in drafters if hasattr(drafter, "taps")), None)
        self._drafters = tuple(drafters)
        self._budget = budget
        self._spoke = ""
        self._kept, self._asked = PRIOR_KEPT * PRIOR_WEIGHT, PRIOR_WEIGHT

    @property
    def num_bytes(self) -> int:
        return sum(drafter.num_bytes for drafter in self._drafters)

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self._kept, self._asked = PRIOR_KEPT * PRIOR_WEIGHT, PRIOR_WEIGHT
        for drafter in self._drafters:
            drafter.reset(prompt_ids, target)

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        """The note is the speaker's, with its name under "from". Of those asked before it stand under "passed": name,
        tokens that it promised (0: nothing to offer), tokens that it would have had to promise; under "joined" who took
        part in the speaker's tree."""
        passed: list[list[str | float]] = []
        *first, last = self._drafters
        joined: list[str] = []
        others = Proposal.empty()
        for drafter in first:
            proposal = drafter.propose(context, max_tokens, rng)
            promised, needed = _promised(drafter, proposal), self._needed(proposal)
            if len(proposal) and promised >= needed:
                return self._spoken(drafter, self._cut(proposal), passed)
            if needed < math.inf:
                passed.append([drafter.name, round(promised, 2), round(needed, 2)])
            elif not joined:
                joined, others = [drafter.name], proposal
        if isinstance(last, Joins) and joined:
            proposal = last.propose_with(context, max_tokens, rng, others)
        else:
            proposal = last.propose(context, max_tokens, rng)
        if len(proposal):
            return self._spoken(last, proposal, passed, joined)
        passed.append([last.name, 0, 0])
        data = {"from": None, "passed": passed}
        return Proposal.empty(DraftNote("cascade", "no drafter had anything to offer", data))

    def observe(self, outcome: Outcome) -> None:
        if self._spoke == self._drafters[-1].name:
            self._kept += len(outcome.kept)
            self._asked += 1
        if self._budget is not None and self._budget is not getattr(self._drafters[-1], "budget", None):
            levels = len(outcome.proposal) if self._spoke == self._drafters[-1].name else 0
            self._budget.spend(len(outcome.token_ids), 1 + len(outcome.proposal), levels)
        self._spoke = ""
        for drafter in self._drafters:
            drafter.observe(outcome)

    def _needed(self, proposal: Proposal) -> float:
        """Expected tokens from which a proposal is taken as it is, without asking the model; infinite where the model
        is to grow its candidates in the same tree.

        Alone, the model has to keep more than the proposal promises and its own time would bring otherwise. Where both
        grow in one tree, it has to add more than that, and it adds where the other's first guess fails.
        """
        budget, last = self._budget, self._drafters[-1]
        if budget is None:
            return 0.0
        if not (isinstance(last, Joins) and last.joins and len(proposal)):
            return max(0.0, self._kept / self._asked - budget.rate * budget.costs.of_draft(MODEL_LEVELS))
        first = max(proposal.confidence[node] for node, parent in enumerate(proposal.parents) if parent == -1)
        adds = MODEL_ADDS * (1.0 - first**SECOND_THOUGHT)
        return math.inf if adds > budget.rate * budget.costs.of_draft(1) else 0.0

    def _cut(self, proposal: Proposal) -> Proposal:
        """Without the candidates whose rows cost more than they promise."""
        if self._budget is None or not proposal.confidence:
            return proposal
        growth = Growth()
        growth.add_others(proposal)
        growth.weigh()
        order = growth.likeliest()
        return proposal.keep(sorted(order[: self._budget.best_size([growth.odds(node) for node in order])]))

    def _spoken(
        self, drafter: Drafter, proposal: Proposal, passed: list[list[str | float]], joined: Sequence[str] = ()
    ) -> Proposal:
        self._spoke = drafter.name
        note = proposal.note
        text = f"{drafter.name}: {note.text}" if note.text else drafter.name
        data = {**note.data, "from": drafter.name, "passed": passed} | ({"joined": list(joined)} if joined else {})
        return replace(proposal, note=DraftNote(note.kind, text, data))

    def close(self) -> None:
        with ExitStack() as closing:  # all of them, also where one fails
            for drafter in reversed(self._drafters):
                closing.callback(drafter.close)


@runtime_checkable
class Joins(Protocol):
    """A drafter that grows another's candidates and its own in one tree."""

    @property
    def joins(self) -> bool: ...

    def propose_with(
        self, context: DraftContext, max_tokens: int, rng: torch.Generator, others: Proposal | None
    ) -> Proposal: ...


def _promised(drafter: Drafter, proposal: Proposal) -> float:
    """Tokens that the target is expected to keep; as many as it proposes where the drafter has no estimate."""
    expected = getattr(drafter, "expected_accepted", None)
    return float(len(proposal)) if expected is None else float(expected)
