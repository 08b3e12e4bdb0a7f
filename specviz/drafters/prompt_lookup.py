"""Prompt lookup: guess that what followed these words before will follow them again. Needs no model.

Source: Saxena (2023), prompt lookup decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.events import DraftNote
from specviz.models.session import Session
from specviz.proposal import Proposal

__all__ = ["LONGEST_NGRAM", "PromptLookupDrafter"]

LONGEST_NGRAM = 4


class PromptLookupDrafter:
    """Finds the longest suffix of the text that occurred before (4 tokens down to 1, the latest place first) and
    proposes what stood behind it. The proposal ends where the text ends.
    """

    name = "prompt-lookup"
    needs: frozenset[Need] = frozenset()
    num_bytes = 0

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token behind its latest occurrence
        self._indexed = 0

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self._places.clear()
        self._indexed = 0
        self._index(prompt_ids)

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        ids = context.token_ids
        self._index(ids)
        for n in range(min(LONGEST_NGRAM, len(ids) - 1), 0, -1):
            start = self._places.get(tuple(ids[-n:]))
            if start is not None:
                copied = ids[start : start + max_tokens]
                data = {"source_start": start, "source_end": start + len(copied), "match_len": n}
                note = DraftNote(
                    "copied", f"Copied: {len(copied)} that followed the same {n} earlier in the text", data
                )
                return Proposal.chain(copied, note=note)
        return Proposal.empty(DraftNote("copied", "the last token has not occurred before"))

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        self._places.clear()

    def _index(self, ids: Sequence[int]) -> None:
        """Enter all n-grams that end before the last token: that one is what is looked up."""
        for end in range(self._indexed, len(ids) - 1):
            for n in range(1, min(LONGEST_NGRAM, end + 1) + 1):
                self._places[tuple(ids[end - n + 1 : end + 1])] = end + 1
        self._indexed = max(self._indexed, len(ids) - 1)
