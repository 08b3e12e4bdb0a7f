"""Many prompts answered at once by plain decoding: one pass a token for all of them.

Rows are padded on the right and each writes its keys and values at its own place, so that no padding is ever seen and
positions are those of a single run. A row that has ended leaves the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from specviz.config import GREEDY_BELOW
from specviz.models.loader import LoadedPair
from specviz.models.windows import check_croppable

__all__ = ["answer_batch", "choose_tokens"]

PREFILL_TOKENS = 4096
"""Prompt tokens a pass, padding included. Bounds the memory of many long prompts."""

FIRST_CANDIDATES = 256
"""Likeliest tokens among which top-p is looked for first: to sort the whole vocabulary costs as much as a pass."""


def answer_batch(
    loaded: LoadedPair,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    max_new_tokens: int,
    top_p: float,
    rng: np.random.Generator,
    tick: Callable[[int], None],
) -> list[list[int]]:
    """The target's answer to each prompt, cut behind its end token.

    Args:
        prompts: ids, at least one each; with `max_new_tokens` more they fit the context.
        temperatures: of each prompt; 0 is greedy.
        rng: gives one number a row and step, greedy rows included.
        tick: told after every step how many tokens it made.
    Raises:
        CacheNotCroppableError: the target has no plain cache of keys and values.
    """
    longest = max(map(len, prompts))
    check_croppable(loaded.target, longest + max_new_tokens)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    cache = _RowsCache(loaded.target, len(prompts), longest + max_new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # which prompt each row of the batch belongs to
    heat = torch.tensor(temperatures, dtype=torch.float64, device=loaded.device)
    with torch.inference_mode():
        _prefill(loaded, ids[:, :-1].to(loaded.device), cache)
        places = torch.tensor([len(prompt) - 1 for prompt in prompts], device=loaded.device)
        last = ids.to(loaded.device).gather(1, places[:, None])
        while rows:
            key_len = int(places.max()) + 1
            seen = torch.arange(key_len, device=loaded.device) <= places[:, None]
            logits = _pass(loaded, last, places[:, None], seen[:, None, None], cache)[:, -1, : loaded.vocab_size]
            coins = torch.from_numpy(rng.random(len(rows))).to(loaded.device)
            last = choose_tokens(logits, heat, top_p, coins)[:, None]
            places = places + 1
            tick(len(rows))
            going = []
            for row, token in enumerate(last[:, 0].tolist()):
                answer = answers[rows[row]]
                answer.append(token)
                if token not in loaded.eos_ids and len(answer) < max_new_tokens:
                    going.append(row)
            if len(going) < len(rows):
                order = cache.keep(going)
                rows = [rows[row] for row in order]
                index = torch.tensor(order, dtype=torch.int64, device=loaded.device)
                heat, places, last = heat[index], places[index], last[index]
    return answers


def choose_tokens(logits: Tensor, temperatures: Tensor, top_p: float, coins: Tensor) -> Tensor:
    """The next token of every row, from the distribution that `specviz.sampling.probabilities` makes.

    Args:
        logits: [n, vocab]. temperatures, coins: [n] float64; coins are uniform in [0, 1).
    Returns:
        [n] int64.
    """
    tokens = logits.argmax(-1)
    warm = temperatures >= GREEDY_BELOW
    if bool(warm.any()):
        scores = logits[warm] if logits.dtype == torch.float64 else logits[warm].float()
        probs = torch.softmax(scores / temperatures[warm, None].to(scores.dtype), -1)
        tokens[warm] = _draw(probs, top_p, coins[warm], FIRST_CANDIDATES)
    return tokens


def _draw(probs: Tensor, top_p: float, coins: Tensor, num_candidates: int) -> Tensor:
    """[n] tokens drawn from the smallest sets of likeliest tokens whose mass reaches top_p."""
    vocab = probs.shape[-1]
    num_candidates = vocab if top_p >= 1.0 else min(num_candidates, vocab)
    kept, ids = probs.topk(num_candidates, -1)
    below = kept.cumsum(-1) - kept  # mass of the likelier ones
    short = kept.sum(-1) < top_p
    kept = kept.masked_fill(below >= top_p, 0.0).double()
    sums = kept.cumsum(-1)
    picks = torch.searchsorted(sums, (coins * sums[:, -1])[:, None], right=True)
    # A product rounded up to the total would fall behind the last one kept.
    picks = torch.minimum(picks, (kept > 0).sum(-1, keepdim=True) - 1)
    tokens = ids.gather(1, picks)[:, 0]
    if num_candidates < vocab and bool(short.any()):
        tokens[short] = _draw(probs[short], top_p, coins[short], 16 * num_candidates)
    return tokens


def _prefill(loaded: LoadedPair, ids: Tensor, cache: _RowsCache) -> None:
    """Keys and values of all but the last prompt token; [n, t]. What lands behind a row's end is written over later."""
    num_rows, longest = ids.shape
    block = max(1, PREFILL_TOKENS // num_rows)
    for start in range(0, longest, block):
        stop = min(start + block, longest)
        places = torch.arange(start, stop, device=ids.device)
        seen = torch.arange(stop, device=ids.device) <= places[:, None]
        _pass(loaded, ids[:, start:stop], places.expand(num_rows, -1), seen[None, None], cache)


def _pass(loaded: LoadedPair, ids: Tensor, places: Tensor, seen: Tensor, cache: _RowsCache) -> Tensor:
    """[n, 1, vocab] logits of the last of [n, t] ids. places: [n, t]. seen: [n or 1, 1, t, key_len] bool."""
    cache.open(places, seen.shape[-1])
    # Added to the scores: a mask that every kind of attention takes.
    mask = torch.zeros(seen.shape, dtype=loaded.dtype, device=seen.device)
    mask = mask.masked_fill(~seen, torch.finfo(loaded.dtype).min)
    output = loaded.target(
        input_ids=ids,
        position_ids=places,
        attention_mask=mask,
        use_cache=True,
        logits_to_keep=1,
        **{cache.argument: cache.handle},
    )
    logits: Tensor = output.logits
    return logits


class _RowsCache:
    """Keys and values of a batch in buffers of fixed size. handle: what the model takes under the name `argument`."""

    def __init__(self, model: Any, num_rows: int, capacity: int) -> None:
        self.num_rows, self.capacity = num_rows, capacity
        self.places = torch.zeros(0)
        self.key_len = 0
        num_layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        self.argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._layers = [_RowsLayer(self) for _ in range(num_layers)]
        self.handle = Cache(layers=self._layers)

    def open(self, places: Tensor, key_len: int) -> None:
        """Prepare a pass that writes at [n, t] places and reads key_len of them."""
        self.places, self.key_len = places, key_len

    def keep(self, going: Sequence[int]) -> list[int]:
        """Drop all rows but these, moving as few as can be. Returns the rows in their new order."""
        stay = len(going)
        movers = [row for row in going if row >= stay]
        order = list(range(stay))
        for hole in sorted(set(order) - set(going)):
            order[hole] = movers.pop()
        holes = [row for row in range(stay) if order[row] != row]
        if holes:
            for layer in self._layers:
                layer.move([order[hole] for hole in holes], holes)
        self.num_rows = stay
        return order


class _RowsLayer(DynamicLayer):
    def __init__(self, cache: _RowsCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        # Zeros, not garbage: masked places are multiplied by 0, and 0 * NaN is NaN.
        shape = (*key_states.shape[:2], self._cache.capacity)
        self.keys = key_states.new_zeros((*shape, key_states.shape[-1]))
        self.values = value_states.new_zeros((*shape, value_states.shape[-1]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        num_rows, places, key_len = self._cache.num_rows, self._cache.places, self._cache.key_len
        rows = torch.arange(num_rows, device=places.device)[:, None]
        self.keys[rows, :, places] = key_states.transpose(1, 2)
        self.values[rows, :, places] = value_states.transpose(1, 2)
        return self.keys[:num_rows, :, :key_len], self.values[:num_rows, :, :key_len]

    def move(self, sources: list[int], holes: list[int]) -> None:
        assert self.keys is not None and self.values is not None
        self.keys[holes] = self.keys[sources]
        self.values[holes] = self.values[sources]

    def get_seq_length(self) -> int:
        return int(self._cache.key_len)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.key_len, 0
