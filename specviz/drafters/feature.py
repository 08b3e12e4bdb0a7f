"""The feature head drafts: one decoder layer over the target's hidden states, autoregressive in feature space.

A run's head keeps keys and values of its own, one entry a token whose states the target has made. Before drafting it
reads the states of the tokens that were accepted since; what it drafts itself counts for nothing and is dropped.

Source: see `specviz.drafters.feature_head`; trees of fixed shape as in EAGLE, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.config import SamplingParams
from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.budget import Budget
from specviz.drafters.context_head import ContextHead
from specviz.drafters.feature_head import Eagle3Parts, EagleParts, FeatureParts, FusedParts
from specviz.drafters.growth import Growth
from specviz.drafters.tree import MAX_TREE_NODES, GrowingTree, Tree
from specviz.errors import ModelLoadError
from specviz.events import DraftNote
from specviz.models.cache import InPlaceCache
from specviz.models.decoder import LeanDecoder
from specviz.models.loader import TrainedDraft
from specviz.models.session import PREFILL_ROWS, Session
from specviz.proposal import Proposal
from specviz.sampling import choose, draw, own_probability, penalise, probabilities, spread

__all__ = ["EAGLE", "EAGLE_3", "FeatureDrafter", "read_parts"]

EAGLE = "eagle"
"""What a manifest says under "parts" where an EAGLE-1 or EAGLE-2 head of other people was taken over."""

EAGLE_3 = "eagle-3"
"""The same of an EAGLE-3 head."""


def read_parts(trained: TrainedDraft) -> tuple[FeatureParts, tuple[int, ...]]:
    """What stands before the layer, in the trunk's number format, and the taps.

    Raises:
        ModelLoadError: missing, of another size, or of a kind that this version does not know.
    """
    kind = trained.about.get("parts", "")
    if kind == EAGLE:
        size = trained.model.get_input_embeddings().weight.shape[1]
        bias = _part(trained, "fc.bias", (size,)) if "fc.bias" in trained.extra else None
        return EagleParts(_part(trained, "fc.weight", (size, 2 * size)), bias), ()
    if kind == EAGLE_3:
        return _eagle_3_parts(trained)
    if kind:
        raise ModelLoadError(f"The feature head has parts of the kind {str(kind)[:40]!r}, which are not known here.")
    taps = _taps(trained)
    size = trained.model.get_input_embeddings().weight.shape[1]
    fuse, mix = _part(trained, "fuse", (size, (len(taps) + 1) * size)), _part(trained, "mix", (size, 2 * size))
    return FusedParts(fuse, mix).requires_grad_(False), taps


def _eagle_3_parts(trained: TrainedDraft) -> tuple[FeatureParts, tuple[int, ...]]:
    taps, size = _taps(trained), trained.model.get_input_embeddings().weight.shape[1]
    norms = {"input_norm": (len(taps) * size,), "fc_norm": (len(taps), size)}  # a head has one of them at most
    norm = next((_part(trained, name, shape) for name, shape in norms.items() if name in trained.extra), None)
    output_norm = trained.model.model.norm.weight if trained.about.get("norm_output") is True else None
    fuse = _part(trained, "fc.weight", (size, len(taps) * size))
    return Eagle3Parts(fuse, norm, output_norm, float(trained.model.config.rms_norm_eps)), taps


def _taps(trained: TrainedDraft) -> tuple[int, ...]:
    """After how many of the target's layers the head reads a state, ascending."""
    taps = trained.about.get("taps")
    num_layers = trained.about.get("target_layers")
    if not isinstance(taps, list) or not all(type(tap) is int and tap >= 1 for tap in taps):
        raise ModelLoadError("The feature head does not say which of the target's layers it reads.")
    if type(num_layers) is not int or sorted(set(taps)) != taps or any(tap >= num_layers for tap in taps):
        raise ModelLoadError("The feature head reads layers that this target does not have.")
    return tuple(taps)


def _part(trained: TrainedDraft, name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = trained.extra.get(name)
    if tensor is None or tuple(tensor.shape) != shape:
        raise ModelLoadError(f"The feature head lacks {name} of shape {shape}.")
    embedding = trained.model.get_input_embeddings().weight
    return tensor.to(embedding.device, embedding.dtype)


_ROOM = 1 + MAX_TREE_NODES
"""Entries of one draft, which never count."""

FOLLOWS = 0.45
"""Odds that one of the head's guesses behind a kept candidate is kept too: what a further level may be hoped to add."""


class FeatureDrafter:
    """Guesses from the states that the target leaves behind; greedy guesses or, when sampling, draws from its q.

    taps: after how many of the target's layers it reads the state, besides the last. budget: what its trees follow.
    """

    name = "feature"
    needs = frozenset({Need.STATES, Need.TRAINED})

    def __init__(
        self,
        decoder: LeanDecoder,
        parts: FeatureParts,
        head: ContextHead,
        taps: Sequence[int],
        tree: Tree | GrowingTree,
        *,
        vocab_size: int,
        max_new_tokens: int,
        stop_below: float = 0.0,
        budget: Budget | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            decoder: of the trunk, one layer or a few. parts: what stands before it.
            head: what the trunk's states are projected with.
            vocab_size: ids at or above are never drafted.
            max_new_tokens: bounds the cache. stop_below: a chain ends behind a token whose q is under this; the token
                itself is still proposed. budget: what a tree without a fixed size follows; without one it takes
                every candidate that there is room for.
        """
        self.taps = tuple(taps)
        self.notes = notes
        self._decoder = decoder
        self._parts = parts
        self._head = head
        self._tree = tree
        self._vocab_size = vocab_size
        self._max_new_tokens = max_new_tokens
        self._stop_below = stop_below
        self.budget = budget
        self._levels = 0
        self._cache = InPlaceCache(decoder.num_layers, 0)
        self._read = 0
        self._behind: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        return self._cache.num_bytes

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self.close()
        self._head.reset()
        if self.budget is not None:
            self.budget.reset()
        self._cache = InPlaceCache(self._decoder.num_layers, len(prompt_ids) + self._max_new_tokens + _ROOM)
        if target is not None:
            self._catch_up(prompt_ids, target)

    @property
    def joins(self) -> bool:
        """Whether another drafter's candidates can grow in one tree with the head's own."""
        return isinstance(self._tree, GrowingTree)

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        return self.propose_with(context, max_tokens, rng, None)

    def propose_with(
        self, context: DraftContext, max_tokens: int, rng: torch.Generator, others: Proposal | None
    ) -> Proposal:
        """A tree over the head's candidates and those of `others`, which tell a confidence; where `joins`."""
        assert context.target is not None, "the head reads the target's states"
        self._catch_up(context.token_ids, context.target)
        if self._behind is None:  # a prompt of one token: nothing has been through the target yet
            return Proposal.empty(DraftNote("tree", "no hidden state yet"))
        with torch.inference_mode():
            self._head.read(context.token_ids)
            if isinstance(self._tree, GrowingTree):
                return self._grow(context, max_tokens, self._tree, others)
            if self._tree.is_chain:
                return self._chain(context, max_tokens, rng)
            return self._branches(context, self._tree.cut(max_tokens, len(self._head.ids)))

    def observe(self, outcome: Outcome) -> None:
        if self.budget is not None:
            self.budget.spend(len(outcome.token_ids), 1 + len(outcome.proposal), self._levels)
        self._levels = 0

    def close(self) -> None:
        self._cache = InPlaceCache(self._decoder.num_layers, 0)
        self._read = 0
        self._behind = None

    def _catch_up(self, ids: Sequence[int], target: Session) -> None:
        """Read the states of the tokens that have come to count, each with the embedding of its successor."""
        first, states = target.take_states()
        count = len(states)
        if first != self._read:  # another session, or one that was rolled back
            self._read = min(first, self._read)
            self._cache.roll_back(self._read)
            self._behind = None
        if not count or first > self._read:
            return
        assert self._read + count < len(ids), "every token with a state has a successor"
        with torch.inference_mode():
            for start in range(0, count, PREFILL_ROWS):
                block = states[start : start + PREFILL_ROWS]
                tokens = self._ids(ids[self._read + 1 : self._read + 1 + len(block)])
                x = self._parts.enter(self._decoder.embed(tokens), self._parts.begin(block))
                out = self._pass(x, list(range(self._read, self._read + len(block))), 0, None)
                self._cache.commit(len(block))
                self._read += len(block)
                self._behind = out[-1]

    def _chain(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        params, ids = context.sampling, list(context.token_ids)
        drafted: list[int] = []
        probs: list[Tensor] = []
        confidence: list[float] = []
        state = self._behind
        assert state is not None
        while True:
            token, sure, q = self._pick(self._head(state[None])[0], params, ids, rng)
            drafted.append(token)
            self._levels = len(drafted)
            ids.append(token)
            confidence.append(sure)
            if q is not None:
                probs.append(q)
            if len(drafted) == max_tokens or sure < self._stop_below:
                break
            x = self._parts.enter(self._decoder.embed(self._ids([token])), self._parts.follow(state[None]))
            ahead = len(drafted) - 1
            state = self._pass(x, [self._read + ahead], ahead, None)[0]
        note = self._note([1] * len(drafted))
        return Proposal.chain(drafted, torch.stack(probs) if probs else None, confidence, note)

    def _branches(self, context: DraftContext, tree: Tree) -> Proposal:
        """A tree of fixed shape, level by level; its guesses are the head's best, chosen and not drawn."""
        parents = tree.parents()
        inner = set(parents)  # nodes that others hang from have to be read
        tokens = [0] * len(parents)
        sure = [0.0] * len(parents)
        states: dict[int, Tensor] = {}
        assert self._behind is not None
        level, behind = [-1], self._behind[None]
        ids = list(context.token_ids)
        for depth in range(1, tree.depth + 1):
            self._levels = depth
            logits = self._head(behind)
            rank = 1 + max(path[-1] for path in tree.paths if len(path) == depth)
            full = [penalise(self._spread(row), ids, context.sampling.repetition_penalty) for row in logits]
            best = [torch.softmax(row, -1).topk(rank) for row in full]
            here = [node for node, path in enumerate(tree.paths) if len(path) == depth]
            for node in here:
                row = best[level.index(parents[node])]
                tokens[node] = int(row.indices[tree.paths[node][-1]])
                sure[node] = min(1.0, float(row.values[tree.paths[node][-1]]))
            level = [node for node in here if node in inner]
            if not level:
                break
            behind = self._read_level(level, depth, tokens, parents, states)
        return Proposal(torch.tensor(tokens), parents, None, (), tuple(sure), self._note(tree.levels()))

    def _grow(
        self, context: DraftContext, max_depth: int, tree: GrowingTree, others: Proposal | None = None
    ) -> Proposal:
        """A tree that follows the head's own probabilities, and those of another drafter's candidates where it is given
        some. Candidates are the best, not draws."""
        assert self._behind is not None
        budget = self.budget if tree.num_nodes is None else None
        most = tree.num_nodes or MAX_TREE_NODES
        growth = Growth()
        if others is not None:
            growth.add_others(others)
        states: dict[int, Tensor] = {}
        level, behind = [-1], self._behind[None]
        for depth in range(1, max_depth + 1):
            self._levels = depth
            for parent, guesses in zip(level, self._guesses(behind, context, min(tree.breadth, most)), strict=True):
                growth.add(parent, guesses)
            growth.weigh()
            order = growth.likeliest()
            if depth == max_depth:
                break
            last_in = growth.odds(order[most - 1]) if len(order) >= most else 0.0
            readable = [node for node in growth.on_level(depth) if depth == 1 or growth.parents[node] in states]
            level = sorted(node for node in readable[: tree.breadth] if growth.odds(node) > last_in)
            if not level:  # no path through these can still be among the likeliest
                break
            if budget is not None and not budget.pays_level(FOLLOWS * sum(growth.odds(node) for node in level)):
                break
            behind = self._read_level(level, depth, growth.tokens, growth.parents, states)
        chosen = order[:most]
        if budget is not None:
            chosen = chosen[: budget.best_size([growth.odds(node) for node in chosen])]
        return growth.proposal(chosen, self._note(growth.levels(chosen)))

    def _guesses(self, behind: Tensor, context: DraftContext, breadth: int) -> list[list[tuple[int, float]]]:
        """The likeliest tokens behind each of [nodes, d_model] states, with their probabilities."""
        logits, penalty = self._head(behind).cpu(), context.sampling.repetition_penalty
        if penalty == 1.0:
            wide = logits if logits.dtype == torch.float64 else logits.float()
            warmth = 1.0 if context.sampling.is_greedy else context.sampling.temperature
            best = torch.softmax(wide / warmth, -1).topk(min(breadth, wide.shape[-1]))
            found = self._head.ids[best.indices]
        else:
            full = torch.stack([penalise(self._spread(row), list(context.token_ids), penalty) for row in logits])
            best = torch.softmax(full, -1).topk(min(breadth, len(self._head.ids)))
            found = best.indices
        rows = zip(found.tolist(), best.values.tolist(), strict=True)
        return [list(zip(tokens, probs, strict=True)) for tokens, probs in rows]

    def _read_level(
        self, level: Sequence[int], depth: int, tokens: Sequence[int], parents: Sequence[int], states: dict[int, Tensor]
    ) -> Tensor:
        """[nodes, d_model] states behind the nodes of one level, each read behind its parent's state.

        Args:
            depth: of the level, from 1. tokens, parents: of all nodes. states: of the nodes read before, in the order
                of their rows in the cache; the new ones are added.
        """
        assert self._behind is not None
        before = torch.stack([self._behind if parents[node] == -1 else states[parents[node]] for node in level])
        embedding = self._decoder.embed(self._ids([tokens[node] for node in level]))
        x = self._parts.enter(embedding, self._parts.follow(before))
        seen = self._tree_mask(level, list(states), parents)
        behind = self._pass(x, [self._read + depth - 1] * len(level), len(states), seen)
        states.update(zip(level, behind, strict=True))
        return behind

    def _tree_mask(self, level: Sequence[int], read: Sequence[int], parents: Sequence[int]) -> Tensor:
        """[rows, keys] bool: each node of this level sees every token read, its ancestors and itself."""
        keys = [*read, *level]
        seen = torch.zeros(len(level), self._read + len(keys), dtype=torch.bool)
        seen[:, : self._read] = True
        for row, node in enumerate(level):
            while node != -1:
                seen[row, self._read + keys.index(node)] = True
                node = parents[node]
        return seen.to(self._decoder.device)

    def _pass(self, x: Tensor, places: Sequence[int], ahead: int, seen: Tensor | None) -> Tensor:
        """[rows, d_model] through the layers, written behind `ahead` entries that do not count."""
        rows, start = len(x), self._read + ahead
        key_len = start + rows
        device = self._decoder.device
        self._cache.open(rows, key_len, ahead)
        if seen is None:
            seen = torch.arange(key_len, device=device) <= torch.arange(start, key_len, device=device)[:, None]
        last = self._decoder.max_positions - 1
        positions = torch.tensor([min(place, last) for place in places], device=device)
        return self._decoder.run_layers(x, positions, seen, self._cache, 0, self._decoder.num_layers)

    def _pick(
        self, logits: Tensor, params: SamplingParams, ids: Sequence[int], rng: torch.Generator
    ) -> tuple[int, float, Tensor | None]:
        """The next token, its q, and all of q where it was drawn."""
        if params.is_greedy and params.repetition_penalty == 1.0:
            best = int(logits.argmax())
            return int(self._head.ids[best]), own_probability(logits, best), None
        full = self._spread(logits)
        if params.is_greedy:
            token = choose(full, params, ids)
            return token, own_probability(full, token), None
        q = probabilities(full, params, ids)
        token = draw(q, rng)
        return token, float(q[token]), q

    def _spread(self, logits: Tensor) -> Tensor:
        return spread(logits, self._head.ids, self._vocab_size)

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(list(tokens), device=self._decoder.device)

    def _note(self, levels: list[int]) -> DraftNote:
        """levels: candidates on each. taps: after which of the target's layers the head reads, besides the last."""
        if sum(levels) == len(levels):
            words = f"{len(levels)} {'token' if len(levels) == 1 else 'tokens'} in a row"
        else:
            words = f"{sum(levels)} candidates on {len(levels)} {'level' if len(levels) == 1 else 'levels'}"
        return DraftNote("tree", words, {"levels": levels, "taps": list(self.taps)})
