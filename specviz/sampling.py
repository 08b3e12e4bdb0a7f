"""From logits to probabilities, and from probabilities to a token. p and q both come out of `probabilities`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specviz.config import SamplingParams

__all__ = [
    "choose",
    "coin",
    "draw",
    "first_choices",
    "own_probabilities",
    "own_probability",
    "penalise",
    "probabilities",
    "residual",
    "spread",
    "uniform_generator",
]


def uniform_generator(seed: int) -> torch.Generator:
    """A run's own random stream. Nothing ever draws from torch's global one."""
    return torch.Generator(device="cpu").manual_seed(seed)


def coin(rng: torch.Generator) -> float:
    """A uniform draw from [0, 1)."""
    return float(torch.rand((), generator=rng, dtype=torch.float64))


def penalise(logits: Tensor, history: Iterable[int], penalty: float) -> Tensor:
    """[vocab] logits with every token of `history` made less likely (penalty > 1) once, whatever its count.

    Source: Keskar et al. (2019), CTRL, section 4.1; positive logits are divided, negative ones multiplied.
    """
    if penalty == 1.0:
        return logits
    seen = torch.tensor(
        sorted({i for i in history if 0 <= i < logits.shape[-1]}), dtype=torch.int64, device=logits.device
    )
    scores = logits[seen]
    return logits.index_copy(0, seen, torch.where(scores > 0, scores / penalty, scores * penalty))


def choose(logits: Tensor, params: SamplingParams, history: Iterable[int] = ()) -> int:
    """The greedy token of [vocab] logits: the argmax behind the penalty, the smallest id among equals."""
    logits = _wide(logits)
    return int(penalise(logits, history, params.repetition_penalty).argmax())


def _wide(logits: Tensor) -> Tensor:
    """In at least float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def first_choices(logits: Tensor) -> list[int]:
    """The greedy token of each row of [rows, vocab] logits without a penalty, the smallest id among equals."""
    # torch looks for the largest of many bfloat16 numbers four times as long as for that of float32 ones.
    logits = _wide(logits)
    found: list[int] = logits.argmax(-1).tolist()
    return found


def own_probability(logits: Tensor, token_id: int) -> float:
    """The model's own probability of a token: softmax of [vocab] logits at temperature 1. For information only."""
    return own_probabilities(logits, (token_id,))[0]


def own_probabilities(logits: Tensor, token_ids: Sequence[int]) -> list[float]:
    """`own_probability` of several tokens for one place."""
    logits = logits.float()
    total = float(torch.logsumexp(logits, -1))
    size = logits.shape[-1]
    return [math.exp(float(logits[token_id]) - total) if 0 <= token_id < size else 0.0 for token_id in token_ids]


def probabilities(logits: Tensor, params: SamplingParams, history: Iterable[int] = ()) -> Tensor:
    """The distribution a token is drawn from: penalty, temperature, top-k, top-p, in this order.

    Args:
        logits: [vocab] of any float type; the maths is done in at least float32.
        history: ids the penalty looks at: prompt, answer, and the tokens drafted earlier in the same block.
    Returns:
        [vocab], sums to 1. In a greedy run all of it on the argmax.
    """
    logits = _wide(logits)
    if params.is_greedy:
        return torch.nn.functional.one_hot(
            penalise(logits, history, params.repetition_penalty).argmax(), logits.shape[-1]
        ).to(logits.dtype)
    scores = penalise(logits, history, params.repetition_penalty) / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        kth = torch.topk(scores, params.top_k).values[-1]
        scores = scores.masked_fill(scores < kth, float("-inf"))
    probs = torch.softmax(scores, -1)
    if params.top_p < 1.0:
        probs = _nucleus(probs, params.top_p)
    return probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of likeliest tokens whose mass reaches top_p (Holtzman et al. 2020), at least one."""
    ordered, ids = torch.sort(probs, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    return torch.zeros_like(probs).scatter(0, ids, ordered / ordered.sum())


def draw(probs: Tensor, rng: torch.Generator) -> int:
    """One token from [vocab] probabilities by inverting the cumulative sum; never one of probability 0."""
    cumulative = probs.double().cumsum(-1)
    point = coin(rng) * cumulative[-1]
    index = int(torch.searchsorted(cumulative, point, right=True))
    if index >= probs.shape[-1] or probs[index] <= 0:  # the product was rounded up to the total
        index = int(torch.nonzero(probs)[-1])
    return index


def spread(logits: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """[vocab_size] logits of a draft in at least float32, minus infinity where it has none.

    Args:
        logits: [v]. ids: [v] int64, which tokens they belong to; None for 0 to v - 1.
    """
    own = logits.cpu() if logits.dtype == torch.float64 else logits.cpu().float()
    if ids is None:
        own = own[:vocab_size]
        missing = vocab_size - own.shape[-1]
        return torch.nn.functional.pad(own, (0, missing), value=float("-inf")) if missing > 0 else own
    return own.new_full((vocab_size,), float("-inf")).index_copy_(0, ids, own)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(p - q, 0)): what a refused token is replaced from. p itself where nothing is left but rounding.

    Source: Leviathan et al. (2023), section 2.3; Chen et al. (2023), Equation 3.
    """
    rest = torch.clamp(p - q, min=0.0)
    total = rest.sum()
    return rest / total if total > 0 else p
