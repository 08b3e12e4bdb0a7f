"""A cascade: ask drafters that cost nothing first, and a model only where they have nothing to say.

Each proposal is one drafter's alone, so its probabilities are those of one drafter too, and verification stays lossless
whoever spoke.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from specviz.drafters.base import DraftContext, Drafter, Need, Outcome
from specviz.drafters.options import Option
from specviz.events import DraftNote
from specviz.models.session import Session
from specviz.proposal import Proposal

__all__ = ["FALLBACK", "FALLBACK_TREE", "MIN_MATCH", "TABLE_MATCH", "CascadeDrafter"]

FALLBACKS = ("auto", "none", "feature", "draft-model", "quantized-copy")

FALLBACK = Option(
    "fallback",
    "auto",
    "the model that drafts where lookup and table have nothing; auto takes one that was trained for the pair, or none",
    choices=FALLBACKS,
)
MIN_MATCH = Option(
    "min_match",
    0,
    "tokens that must match before prompt lookup is believed; 0 takes 3 before a trained draft, else 2",
    0,
    4,
)
TABLE_MATCH = Option(
    "table_match",
    0,
    "tokens of context that the table must know to be believed; 0 leaves it out before a trained draft, else takes 1",
    0,
    4,
)
FALLBACK_TREE = Option(
    "fallback_tree",
    "auto",
    "how a feature head drafts here: chain, growing:5 for the 5 likeliest candidates, or a fixed shape; auto takes a "
    "chain where exact is on, else growing:5",
)


class CascadeDrafter:
    """The first drafter with something to offer makes the whole proposal.

    All of them follow the whole run. A model among them keeps its own cache and catches up when its turn comes.
    """

    name = "cascade"
    needs: frozenset[Need] = frozenset()

    def __init__(
        self, drafters: Sequence[Drafter], *, min_match: Mapping[str, int] | None = None, notes: tuple[str, ...] = ()
    ) -> None:
        """
        Args:
            drafters: in the order of asking.
            min_match: drafter's name -> a proposal whose note tells a smaller "match_len" is passed over.
            notes: sentences about the run, for the page.
        """
        self.notes = notes
        self.needs = frozenset(need for drafter in drafters for need in drafter.needs)
        self.taps = next((drafter.taps for drafter in drafters if hasattr(drafter, "taps")), None)
        self._drafters = tuple(drafters)
        self._min_match = dict(min_match or {})

    @property
    def num_bytes(self) -> int:
        return sum(drafter.num_bytes for drafter in self._drafters)

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        for drafter in self._drafters:
            drafter.reset(prompt_ids, target)

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        """The note is the speaker's, with its name under "from". Of those asked before it stand under "passed": name,
        tokens that matched (0: nothing to offer), tokens that have to match."""
        passed: list[list[str | int]] = []
        for drafter in self._drafters:
            proposal = drafter.propose(context, max_tokens, rng)
            note = proposal.note
            found, needed = int(note.data.get("match_len", 0)), self._min_match.get(drafter.name, 0)
            if len(proposal) and found >= needed:
                text = f"{drafter.name}: {note.text}" if note.text else drafter.name
                data = {**note.data, "from": drafter.name, "passed": passed}
                return replace(proposal, note=DraftNote(note.kind, text, data))
            passed.append([drafter.name, found, needed])
        data = {"from": None, "passed": passed}
        return Proposal.empty(DraftNote("cascade", "no drafter had anything to offer", data))

    def observe(self, outcome: Outcome) -> None:
        for drafter in self._drafters:
            drafter.observe(outcome)

    def close(self) -> None:
        with ExitStack() as closing:  # all of them, also where one fails
            for drafter in reversed(self._drafters):
                closing.callback(drafter.close)
