"""Which drafted tokens the target keeps. Pure functions of logits, a proposal and a random stream.

Greedy: keep while the drafted token is the target's first choice.
Sampling: speculative sampling (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2), and for the siblings
of a tree its two multi-candidate forms: tokens drawn from q, and tokens chosen without a draw (point masses). A chain
drawn from q can be judged as a whole: block verification (Sun et al. 2024, arXiv 2403.10444, Algorithm 2).
These leave the target's own distribution untouched. Two rules do not, and say so: typical acceptance (Cai et al. 2024,
Medusa, section 2.3.1) and a fixed threshold keep whatever the target finds likely enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specviz.config import SamplingParams
from specviz.events import Origin
from specviz.proposal import Proposal, Trial, Verdict
from specviz.sampling import (
    choose,
    coin,
    draw,
    first_choices,
    own_probabilities,
    own_probability,
    probabilities,
    residual,
)

__all__ = ["verify_block", "verify_greedy", "verify_likely", "verify_sampling"]


def verify_greedy(
    proposal: Proposal, logits: Tensor, params: SamplingParams, history: Sequence[int], *, detail: bool = False
) -> Verdict:
    """The longest path on which every token is the target's first choice, and the target's token behind it.

    Args:
        logits: [n + 1, vocab]; row 0 belongs to the last committed token, row i + 1 to node i.
        history: every committed id, for the repetition penalty; drafted tokens on the path are added on the way.
    """
    children = proposal.children_of()
    firsts = first_choices(logits) if params.repetition_penalty == 1.0 else None
    path: list[int] = []
    trials: list[Trial] = []
    seen = list(history)
    node = -1
    while True:
        row = logits[node + 1]
        first = firsts[node + 1] if firsts is not None else choose(row, params, seen)
        tried = children.get(node, [])
        tokens = [int(proposal.token_ids[child]) for child in tried]
        kept = tried[tokens.index(first)] if first in tokens else None
        if kept is not None:
            tokens = tokens[: tokens.index(first) + 1]
        probs = own_probabilities(row, [*tokens, first])
        for child, token, prob in zip(tried, tokens, probs, strict=False):
            dist = torch.softmax(row.float(), -1) if detail else None
            trials.append(Trial(child, token == first, prob, target_dist=dist))
        if kept is None:
            return Verdict(tuple(path), first, _origin(children, node), tuple(trials), probs[-1])
        path.append(kept)
        seen.append(first)
        node = kept


def verify_sampling(
    proposal: Proposal,
    logits: Tensor,
    params: SamplingParams,
    history: Sequence[int],
    rng: torch.Generator,
    *,
    detail: bool = False,
) -> Verdict:
    """Keep drafted tokens so that what is emitted follows the target's distribution exactly.

    Arguments as in `verify_greedy`. Siblings are tried in turn. Drawn from q (`proposal.probs`, with siblings drawn
    before left out): accept with min(1, p/q), else p becomes norm(max(p - q, 0)). Chosen (`probs` None): accept with
    p(x), else x is taken out of p. The coin must fall below, not on, the threshold: p = 0 is never accepted.
    """
    children = proposal.children_of()
    path: list[int] = []
    trials: list[Trial] = []
    seen = list(history)
    node = -1
    while True:
        p = probabilities(logits[node + 1], params, seen)
        kept = None
        for child in children.get(node, ()):
            trial, p_after = _try(proposal, child, p, rng, detail)
            trials.append(trial)
            if trial.accepted:
                kept = child
                break
            p = p_after
        if kept is None:
            token = draw(p, rng)
            return Verdict(tuple(path), token, _origin(children, node), tuple(trials), float(p[token]))
        path.append(kept)
        seen.append(int(proposal.token_ids[kept]))
        node = kept


def verify_block(
    proposal: Proposal,
    logits: Tensor,
    params: SamplingParams,
    history: Sequence[int],
    rng: torch.Generator,
    *,
    detail: bool = False,
) -> Verdict:
    """Judge a drawn chain as a whole, so that luck at one place makes up for bad luck before it.

    With p_0 = 1 and p_i = min(p_(i-1) p(x_i) / q(x_i), 1), what the target has left behind i kept tokens is
    r_i = sum max(p_i p - q, 0) over the vocabulary, and h_i = r_i / (r_i + 1 - p_i); behind the last, h = p. Each place
    has a coin, and the longest prefix whose own coin falls under its h is kept: a failed coin before it ends nothing.
    The token behind it is drawn from norm(max(p_i p - q, 0)), behind the whole chain from p. The distribution is the
    target's, and the mean number of kept tokens is never below that of `verify_sampling`.

    Arguments as in `verify_sampling`; `proposal.is_drawn_chain` must hold.
    Source: Sun et al. (2024), Block Verification Accelerates Speculative Decoding, arXiv 2403.10444, Algorithm 2.
    """
    assert proposal.probs is not None and proposal.is_drawn_chain, "a block is a chain drawn from q"
    tokens: list[int] = proposal.token_ids.tolist()
    n = len(tokens)
    targets = [probabilities(logits[0], params, history)]
    drafts: list[Tensor] = []
    prefixes: list[float] = []
    trials: list[Trial] = []
    prefix = 1.0
    kept = 0
    for node, token in enumerate(tokens):
        p = targets[node]
        q = proposal.probs[node].to(p.dtype)
        drafts.append(q)
        prefixes.append(prefix)
        known = 0 <= token < p.shape[-1]
        p_token, q_token = (float(p[token]), float(q[token])) if known else (0.0, 0.0)
        ratio = p_token / q_token if q_token > 0 else 0.0
        prefix = min(1.0, prefix * ratio)
        block_prob = prefix
        if prefix > 0:
            targets.append(probabilities(logits[node + 1], params, [*history, *tokens[: node + 1]]))
            if node + 1 < n:
                block_prob = _block_prob(prefix, targets[-1], proposal.probs[node + 1])
        toss = coin(rng)
        if prefix > 0 and toss < block_prob:
            kept = node + 1
        trials.append(
            Trial(node, False, p_token, q_token, min(1.0, ratio), toss, prefix_prob=prefix, block_prob=block_prob)
        )
        if prefix == 0:
            break  # nothing longer can be kept
    rest = targets[kept]
    if kept < n:
        rest = residual(prefixes[kept] * rest, drafts[kept])
    token = draw(rest, rng)
    for node, trial in enumerate(trials):
        trials[node] = replace(
            trial,
            accepted=node < kept,
            is_behind=node > kept,
            overlap=float(torch.minimum(targets[node], drafts[node]).sum()) if node <= kept else None,
            target_dist=targets[node] if detail and node <= kept else None,
            draft_dist=drafts[node] if detail and node <= kept else None,
            residual=rest if detail and node == kept else None,
        )
    path = tuple(range(kept))
    return Verdict(path, token, "bonus" if kept == n else "corrected", tuple(trials), float(rest[token]))


def _block_prob(prefix: float, p: Tensor, q: Tensor) -> float:
    """h of a prefix of probability `prefix` that p and q follow."""
    left = float(torch.clamp(prefix * p - q.to(p.dtype), min=0.0).sum())
    refused = left + (1.0 - prefix)  # in this order: beside 1, what is left of equal p and q is lost to rounding
    return left / refused if refused > 0 else 1.0


def verify_likely(
    proposal: Proposal,
    logits: Tensor,
    params: SamplingParams,
    history: Sequence[int],
    rng: torch.Generator,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    threshold: float = 0.0,
    detail: bool = False,
) -> Verdict:
    """Keep drafted tokens the target finds likely enough. Approximate: the answer follows another distribution.

    Typical acceptance (`epsilon` given): keep x if p(x) > min(epsilon, delta * exp(-H(p))), H the entropy in nats.
    Threshold: keep x if p(x) >= threshold. p is taken at the run's temperature, in a greedy run at temperature 1.
    The longest kept path wins, among equals the likeliest. The token behind it is the target's own, chosen or drawn.
    Other arguments as in `verify_sampling`.
    """
    likelihood = replace(params, temperature=1.0) if params.is_greedy else params
    children = proposal.children_of()
    trials: list[Trial] = []
    best: tuple[int, float, tuple[int, ...]] = (0, 0.0, ())
    waiting: list[tuple[int, float, tuple[int, ...]]] = [(-1, 0.0, ())]
    while waiting:
        node, score, path = waiting.pop()
        best = max(best, (len(path), score, path), key=lambda entry: entry[:2])
        if not children.get(node):
            continue
        p = probabilities(logits[node + 1], likelihood, _seen(proposal, history, path))
        floor = threshold if epsilon is None else min(epsilon, delta * math.exp(-float(torch.special.entr(p).sum())))
        for child in children[node]:
            token = int(proposal.token_ids[child])
            prob = float(p[token]) if 0 <= token < p.shape[-1] else 0.0
            kept = prob > floor if epsilon is not None else prob >= floor and prob > 0.0
            trials.append(Trial(child, kept, prob, target_dist=p if detail else None))
            if kept:
                waiting.append((child, score + math.log(prob), (*path, child)))
    path = best[2]
    node = path[-1] if path else -1
    p = probabilities(logits[node + 1], params, _seen(proposal, history, path))
    token = int(p.argmax()) if params.is_greedy else draw(p, rng)
    prob = own_probability(logits[node + 1], token) if params.is_greedy else float(p[token])
    return Verdict(path, token, _origin(children, node), tuple(trials), prob)


def _seen(proposal: Proposal, history: Sequence[int], path: Sequence[int]) -> list[int]:
    """Committed ids and those on a path, for the penalty."""
    return [*history, *(int(proposal.token_ids[node]) for node in path)]


def _try(proposal: Proposal, child: int, p: Tensor, rng: torch.Generator, detail: bool) -> tuple[Trial, Tensor]:
    """One coin for one token: the trial, and what p becomes if it is refused."""
    token = int(proposal.token_ids[child])
    p_token = float(p[token]) if 0 <= token < p.shape[-1] else 0.0
    if proposal.probs is None:
        q, q_token, accept_prob, overlap = None, 1.0, p_token, p_token
        after = p.clone()
        if p_token > 0:
            after[token] = 0.0
        total = after.sum()
        after = after / total if total > 0 else p
    else:
        q = proposal.probs[child].to(p.dtype)
        q_token = float(q[token]) if 0 <= token < q.shape[-1] else 0.0
        accept_prob = min(1.0, p_token / q_token) if q_token > 0 else 0.0
        overlap = float(torch.minimum(p, q).sum())
        after = residual(p, q)
    toss = coin(rng)
    trial = Trial(
        child,
        toss < accept_prob,
        p_token,
        q_token,
        accept_prob,
        toss,
        overlap,
        p if detail else None,
        q if detail else None,
        after if detail else None,
    )
    return trial, after


def _origin(children: dict[int, list[int]], node: int) -> Origin:
    """corrected where a candidate was refused, bonus behind the last kept one, target where nothing was drafted."""
    if children.get(node):
        return "corrected"
    return "bonus" if children else "target"
