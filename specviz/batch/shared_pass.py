"""One pass of the target over rows of several sequences.

All products are made over all rows at once. Attention goes sequence by sequence, over its own pages, with the very
call that it would make alone: so a sequence's numbers are its own to the bit, wherever a product's row does not depend
on the rows beside it. `specviz.batch.company` asks the machine whether that is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specviz.batch.paged_cache import PagedCache
from specviz.models.attention import additive
from specviz.models.decoder import LeanDecoder
from specviz.models.session import PassRequest

__all__ = ["run_shared"]


def run_shared(decoder: LeanDecoder, requests: Sequence[PassRequest]) -> list[Tensor]:
    """Make the passes of several sequences in one. Their caches are `PagedCache`s of one store, opened for the pass.

    Returns:
        What `PassRequest.run` would have returned for each.
    """
    parts = []
    first = 0
    for request in requests:
        parts.append(_Part(request, first, decoder))
        first += len(request.ids)
    rows = first
    with torch.inference_mode():
        ids = torch.tensor([token for request in requests for token in request.ids], device=decoder.device)
        last = decoder.max_positions - 1
        places = [min(position, last) for request in requests for position in request.positions]
        positions = torch.tensor(places, device=decoder.device)
        least = max(request.session.min_rows for request in requests)
        x = decoder.filled(decoder.embed(ids), least)
        attention = _SharedAttention(parts, decoder, len(x))
        taps = sorted({tap for request in requests for tap in request.session.taps})
        tapped: dict[int, Tensor] = {}
        for begin, end in pairwise((0, *taps, decoder.num_layers)):
            x = decoder.run(x, positions, attention, begin, end)
            tapped[end] = x
        x = decoder.normed(x[:rows])
        wanted = [part.first + row for part in parts for row in part.wanted()]
        logits = decoder.project(decoder.filled(x[wanted], least))[: len(wanted)] if wanted else x[:0]
    answers = []
    done = 0
    for part, request in zip(parts, requests, strict=True):
        stop, count = part.first + len(request.ids), request.num_logits
        session = request.session
        states = torch.stack([tapped[tap][part.first : stop] for tap in session.taps], 1) if session.taps else None
        hidden = x[part.first : stop] if session.keeps_hidden else None
        answers.append(session.take(request, logits[done : done + count], hidden, states))
        done += count
    return answers


class _Part:
    """One sequence's rows in the pass. blocks: rows attended together, with those that only fill them up."""

    def __init__(self, request: PassRequest, first: int, decoder: LeanDecoder) -> None:
        cache = request.session.cache
        assert isinstance(cache, PagedCache)
        self.request, self.cache, self.first = request, cache, first
        self.places = cache.places(len(request.ids))
        seen = request.session.seen(request, request.rows)
        positions = torch.tensor(request.positions, device=seen.device)
        if request.rows > len(positions):
            more = torch.arange(1, request.rows - len(positions) + 1, device=seen.device)
            positions = torch.cat((positions, positions[-1] + more))
        seen = decoder.narrowed(seen, positions, cache.start)
        groups, dtype = decoder.heads.groups, decoder.dtype
        blocks = request.blocks or [(0, request.rows, request.key_len)]
        self.blocks = [
            (begin, end, keys, additive(seen[begin:end, :keys].repeat(groups, 1), dtype)) for begin, end, keys in blocks
        ]

    def wanted(self) -> range:
        """The rows whose logits are asked for."""
        return range(len(self.request.ids) - self.request.num_logits, len(self.request.ids))


class _SharedAttention:
    """Attention of several sequences, each over its own pages.

    Queries are brought into the order of the calls in one go, and what the calls return is put back in one go.
    """

    def __init__(self, parts: Sequence[_Part], decoder: LeanDecoder, num_rows: int) -> None:
        self._parts, self._heads = parts, decoder.heads
        heads, device = decoder.heads, decoder.device
        kv = parts[0].cache.store.kv
        self._keys, self._values = kv[:, 0].unbind(0), kv[:, 1].unbind(0)
        self._places = torch.tensor([place for part in parts for place in part.places], device=device)
        self._sizes: list[int] = []
        queries, goals = [], torch.zeros(num_rows, heads.num, dtype=torch.int64)
        all_heads = torch.arange(heads.num).view(heads.num_keys, heads.groups, 1)
        done = 0
        for part in parts:
            num = len(part.request.ids)
            for begin, end, _, _ in part.blocks:
                count = end - begin
                rows = torch.arange(begin, end).clamp(max=num - 1)  # rows that fill up repeat the last one
                queries.append(((part.first + rows) * (heads.num + heads.num_keys) + all_heads).flatten())
                # A call's output is [groups * count, key heads]: group by group, row by row.
                at = done + all_heads % heads.groups * count + torch.arange(count)  # [key heads, groups, count]
                at = at * heads.num_keys + torch.arange(heads.num_keys)[:, None, None]
                real = min(end, num) - begin
                goals[part.first + begin : part.first + begin + real] = at[..., :real].flatten(0, 1).T
                self._sizes.append(heads.num_keys * heads.groups * count)
                done += heads.groups * count
        self._queries = torch.cat(queries).to(device)
        self._goals = goals.flatten().to(device)
        self._views = [part.cache.views() for part in parts]

    def __call__(self, layer: int, qk: Tensor, v: Tensor) -> Tensor:
        heads = self._heads
        self._keys[layer].index_copy_(1, self._places, qk[:, heads.num :].transpose(0, 1))
        self._values[layer].index_copy_(1, self._places, v.transpose(0, 1))
        ordered = qk.view(-1, heads.head_dim).index_select(0, self._queries).split(self._sizes)
        done = iter(ordered)
        outputs = []
        for part, views in zip(self._parts, self._views, strict=True):
            keys, values = part.cache.gathered(layer) if views is None else views[2 * layer : 2 * layer + 2]
            whole = part.request.key_len
            for _, _, num_keys, mask in part.blocks:
                q = next(done).view(1, heads.num_keys, -1, heads.head_dim)
                k, v_ = (keys, values) if num_keys == whole else (keys[:, :, :num_keys], values[:, :, :num_keys])
                outputs.append(
                    scaled_dot_product_attention(q, k, v_, attn_mask=mask, scale=heads.scale).transpose(1, 2)
                )
        flat = torch.cat(outputs, 1).view(-1, heads.head_dim)
        return flat.index_select(0, self._goals).view(-1, heads.width)
