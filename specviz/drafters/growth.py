"""A tree of candidates that grows: the likeliest paths first, whoever proposed them.

Source: Li et al. (2024), EAGLE-2, arXiv 2406.16858, section 4. That another drafter's candidates grow in the same tree
is our own addition.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.events import DraftNote
from specviz.proposal import Proposal

__all__ = ["Growth"]

SECOND_THOUGHT = 1.4
"""Exponent of another drafter's share where no model has read the place: the best of several phrases is believed too
much. Found on 30 prompts: of tokens with shares 0.10, 0.28, 0.48, 0.69 and 0.92 the target kept 5, 18, 35, 60 and 81 of
100."""

UNLISTED = 0.25
"""What is left of that where the model has read the place and does not name the token.

Found on 12 prompts: of tokens that both named the target kept about the mean of both shares (0.10 and 0.48: 27 of 100,
0.27 and 0.69: 53, 0.94 and 0.51: 78), of those that the model left out 1, 3, 18 and 17 of 100 where the other's shares
were 0.14, 0.27, 0.46 and 0.68, and of those that it alone named as many as it said.
"""


class Growth:
    """Candidates found so far.

    tokens, parents, depths: of each; parents come before their children, -1 is the last committed token.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._node_of: dict[tuple[int, int], int] = {}
        self._model: list[float | None] = []
        self._other: list[float | None] = []
        self._read: set[int] = set()
        self._paths: list[float] = []

    def add_others(self, proposal: Proposal) -> None:
        """Another drafter's tree or chain, each token with that drafter's own confidence in it."""
        place = {-1: -1}
        for node, (token, parent) in enumerate(zip(proposal.token_ids.tolist(), proposal.parents, strict=True)):
            place[node] = self._node(place[parent], token)
            self._other[place[node]] = proposal.confidence[node]

    def add(self, parent: int, guesses: Sequence[tuple[int, float]]) -> None:
        """The model's likeliest tokens behind a node, each with its probability."""
        self._read.add(parent)
        for token, prob in guesses:
            self._model[self._node(parent, token)] = prob

    def _node(self, parent: int, token: int) -> int:
        node = self._node_of.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(1 + (self.depths[parent] if parent >= 0 else 0))
            self._model.append(None)
            self._other.append(None)
        return node

    def weigh(self) -> None:
        """Settle the odds of all paths, after candidates have come in."""
        paths: list[float] = []
        for node, parent in enumerate(self.parents):
            above = paths[parent] if parent >= 0 else 1.0
            paths.append(above * self.share(node))
        self._paths = paths

    def share(self, node: int) -> float:
        """Odds of a candidate behind its parent: a model's and another drafter's, put together."""
        model, other = self._model[node], self._other[node]
        if model is None:
            assert other is not None, "somebody proposed it"
            return min(1.0, other**SECOND_THOUGHT * (UNLISTED if self.parents[node] in self._read else 1.0))
        return min(1.0, model if other is None else (model + other) / 2)

    def odds(self, node: int) -> float:
        """Of the whole path down to a candidate; never above its parent's."""
        return self._paths[node]

    def on_level(self, depth: int) -> list[int]:
        """Candidates at this depth, the likeliest first."""
        here = [node for node, found in enumerate(self.depths) if found == depth]
        return sorted(here, key=lambda node: -self._paths[node])

    def likeliest(self) -> list[int]:
        """All candidates, the likeliest first, no child before its parent."""
        return sorted(range(len(self.tokens)), key=lambda node: (-self._paths[node], node))

    def levels(self, nodes: Sequence[int]) -> list[int]:
        """How many of these are on each level."""
        reached = [self.depths[node] for node in nodes]
        return [reached.count(depth) for depth in range(1, max(reached, default=0) + 1)]

    def count_of(self, nodes: Sequence[int]) -> tuple[int, int]:
        """How many of these the model named, and how many the other drafter; one that both named counts twice."""
        return sum(self._model[node] is not None for node in nodes), sum(
            self._other[node] is not None for node in nodes
        )

    def proposal(self, nodes: Sequence[int], note: DraftNote) -> Proposal:
        """These candidates, closed under parents, with the odds of each behind its parent."""
        chosen = sorted(nodes)
        place = {node: row for row, node in enumerate(chosen)} | {-1: -1}
        return Proposal(
            torch.tensor([self.tokens[node] for node in chosen], dtype=torch.int64),
            tuple(place[self.parents[node]] for node in chosen),
            confidence=tuple(self.share(node) for node in chosen),
            note=note,
        )
