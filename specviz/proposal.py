"""What a drafter proposes and what the verifier decided about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specviz.events import DraftNote, Origin

__all__ = ["Proposal", "Trial", "Verdict"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A token tree hanging from the last committed token; a chain is its plain case.

    token_ids: [n] int64; n = 0 is legal.
    parents: [n], index of the parent node, -1 = the last committed token; parents come before their children.
    probs: [n, vocab] what each token was really drawn from; None = point mass (chosen, not drawn).
    scored_only: [n] rows that the target scores for the drafter's own use: no fate, no counter. Empty = none.
    confidence: [n] the draft's own probability of each token, for the page; verification never reads it. Empty = none.
    note: what the page shows about this draft.
    Raises AssertionError for a malformed tree: that is a fault of the drafter, not of a user.
    """

    token_ids: Tensor
    parents: tuple[int, ...]
    probs: Tensor | None = None
    scored_only: tuple[bool, ...] = ()
    confidence: tuple[float, ...] = ()
    note: DraftNote = field(default_factory=DraftNote)

    def __post_init__(self) -> None:
        n = len(self.parents)
        assert self.token_ids.dtype == torch.int64 and self.token_ids.shape == (n,), "token_ids must be [n] int64"
        assert all(-1 <= parent < node for node, parent in enumerate(self.parents)), "a parent must precede its child"
        assert self.probs is None or self.probs.shape[0] == n, "probs must be [n, vocab]"
        for per_node in (self.scored_only, self.confidence):
            assert len(per_node) in (0, n), "one entry a node, or none"

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def empty(cls, note: DraftNote | None = None) -> Proposal:
        """Nothing to offer: the target takes one plain step."""
        return cls(torch.empty(0, dtype=torch.int64), (), note=note or DraftNote())

    @classmethod
    def chain(
        cls,
        token_ids: Sequence[int],
        probs: Tensor | None = None,
        confidence: Sequence[float] = (),
        note: DraftNote | None = None,
    ) -> Proposal:
        """One token after the other."""
        ids = torch.tensor(list(token_ids), dtype=torch.int64)
        return cls(ids, tuple(range(-1, len(ids) - 1)), probs, (), tuple(confidence), note or DraftNote())

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def is_drawn_chain(self) -> bool:
        """Whether it is one token after the other, each drawn from its row of `probs` and each a candidate."""
        return self.probs is not None and len(self) > 0 and self.is_chain and not any(self.scored_only)

    def depth_of(self) -> list[int]:
        """[n] tokens on the path from the root to each node, itself included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return depths

    def is_scored_only(self, node: int) -> bool:
        return bool(self.scored_only) and self.scored_only[node]

    def children_of(self) -> dict[int, list[int]]:
        """Node -> its candidate children in order of trial; -1 for the root. Scored-only rows are no candidates."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            if not self.is_scored_only(node):
                children.setdefault(parent, []).append(node)
        return children

    def keep(self, nodes: Sequence[int]) -> Proposal:
        """The same tree with only `nodes`, an ascending list closed under parents."""
        if len(nodes) == len(self):
            return self
        index = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        rows = torch.tensor(list(nodes), dtype=torch.int64)
        return Proposal(
            self.token_ids[rows],
            tuple(index[self.parents[node]] for node in nodes),
            None if self.probs is None else self.probs[rows],
            tuple(self.scored_only[node] for node in nodes) if self.scored_only else (),
            tuple(self.confidence[node] for node in nodes) if self.confidence else (),
            self.note,
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One drafted token put to the test.

    target_prob, draft_prob: p and q of the token; in a greedy run the target's own probability at temperature 1 and
        None. accept_prob: min(1, p/q), coin: the uniform draw; both None in a greedy run.
    overlap: sum min(p, q), which is p of the token where q is a point mass; None where the run is greedy.
    prefix_prob, block_prob: p_i and h_i of block verification, None under another rule. There the coin must fall under
        h_i, and accept_prob is what the token rule would ask of it.
    is_behind: a block tosses a coin for each of its tokens; this one lies behind the place where the draft ended.
    target_dist, draft_dist, residual: [vocab] float32, kept only on request (detail).
    """

    node: int
    accepted: bool
    target_prob: float | None = None
    draft_prob: float | None = None
    accept_prob: float | None = None
    coin: float | None = None
    overlap: float | None = None
    target_dist: Tensor | None = None
    draft_dist: Tensor | None = None
    residual: Tensor | None = None
    prefix_prob: float | None = None
    block_prob: float | None = None
    is_behind: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification.

    path: accepted nodes from the root downwards. next_token: the target's own token behind them.
    origin: corrected, bonus or target, of next_token. trials: every token tried, in order of trial.
    next_prob: the target's probability of next_token, as in `Trial.target_prob`.
    """

    path: tuple[int, ...]
    next_token: int
    origin: Origin
    trials: tuple[Trial, ...] = ()
    next_prob: float | None = None
