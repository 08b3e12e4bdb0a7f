"""How a model is run for one pass: through transformers, or through a lean loop over the same weights.

The lean loop covers the common decoder family (Llama, Mistral, Qwen2, Qwen3 and what shares their shape, SmolLM2 among
them). It builds no masks in Python, fuses the projections that read the same input, writes keys and values in place and
lets oneDNN keep weights in its own order. Everything else goes through transformers. Both give the same numbers up to
rounding; `SPECVIZ_LEAN=0` switches the lean loop off.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, silu

from specviz.models.attention import Attention, Block, Heads, SingleAttention, additive
from specviz.models.cache import InPlaceCache, KeyValues
from specviz.models.int8 import Int8Linear
from specviz.models.states import layers_of, needs_mask, step_through_scans
from specviz.models.windows import layer_types, narrowed, windows_of

__all__ = ["Decoder", "LeanDecoder", "TransformersDecoder", "decoder_for"]

_log = logging.getLogger(__name__)

PACKED_ROWS = 8
"""Rows oneDNN is told to expect; other numbers work as well."""

FAST_ROWS = 5
"""A packed product of so many rows is often faster than one of fewer: its inner loops are written for blocks of four to
six. Where that is so, a product of fewer rows is filled up with zeros; no number that counts changes."""


class Decoder(Protocol):
    """One pass of a model over rows of one sequence."""

    num_layers: int
    max_positions: int
    device: torch.device
    num_bytes: int
    """Of weights that it holds besides the model's own."""

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        seen: Tensor,
        cache: KeyValues,
        *,
        num_logits: int,
        hidden: bool,
        taps: Sequence[int] = (),
        blocks: Sequence[Block] = (),
        least_rows: int = 0,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run `cache.open`ed rows and write their keys and values.

        Args:
            ids, positions: [rows] int64. seen: [rows, key_len] bool, what each row attends to.
            taps: ascending, after how many layers to hand out the states as well, each less than all layers.
            blocks: rows to be attended apart, and the keys they read; all at once where a decoder cannot.
            least_rows: products have so many rows at least, where the decoder makes them itself.
        Returns:
            [num_logits, vocab] logits of the last rows; [rows, d_model] last hidden states if asked for; and
            [rows, k, d_model] the states of the k taps, if there are any.
        """
        ...

    def project(self, states: Tensor) -> Tensor:
        """[rows, d_model] last hidden states, or what stands in for them, to [rows, vocab] logits."""
        ...


_decoders: weakref.WeakKeyDictionary[Any, Decoder] = weakref.WeakKeyDictionary()
_lean: weakref.WeakKeyDictionary[Any, LeanDecoder] = weakref.WeakKeyDictionary()


def decoder_for(model: Any) -> Decoder:
    """The fastest decoder that knows this model; the same one for every run, freed with the model."""
    found = _decoders.get(model)
    if found is None:
        lean = LeanDecoder.knows(model) and (os.environ.get("SPECVIZ_LEAN", "1") != "0" or _reads_pairs(model))
        found = LeanDecoder.of(model) if lean else TransformersDecoder(model)
        _decoders[model] = found
    return found


class TransformersDecoder:
    """Any causal LM of transformers, called as its authors meant it."""

    num_bytes = 0

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config(decoder=True)
        self._model = weakref.ref(model)  # the decoder is kept by model: a strong reference would keep both for ever
        self.num_layers = int(config.num_hidden_layers)
        self.max_positions = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
        self.device = next(model.parameters()).device
        self._adds_mask = getattr(config, "_attn_implementation", "sdpa") != "sdpa"
        self._dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        accepted = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._can_keep = "logits_to_keep" in accepted
        windows, types, kinds = windows_of(model), layer_types(config), layers_of(model)
        step_through_scans(model)
        attending = [i for i, kind in enumerate(kinds) if needs_mask(kind, types[i] if types else None)]
        self._windows = [windows[index] for index in attending]
        self._types = None if types is None else [types[index] for index in attending]
        self._stateful_types = {types[i]: None for i, kind in enumerate(kinds) if types and i not in attending}

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        seen: Tensor,
        cache: KeyValues,
        *,
        num_logits: int,
        hidden: bool,
        taps: Sequence[int] = (),
        blocks: Sequence[Block] = (),
        least_rows: int = 0,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        assert isinstance(cache, InPlaceCache), "the library's models write into its own kind of cache"
        arguments: dict[str, Any] = {
            "input_ids": ids[None],
            self._cache_name: cache.handle,
            "use_cache": True,
        }
        if self._windows:  # else no layer asks where a token stands
            arguments["position_ids"] = positions[None]
            arguments["attention_mask"] = self._masks(seen, positions, cache.start)
        if self._can_keep:
            arguments["logits_to_keep"] = num_logits
        if hidden or taps:
            arguments["output_hidden_states"] = True
        model = self._model()
        assert model is not None, "the model has been released"
        output = model(**arguments)
        states: Any = output.hidden_states if hidden or taps else None
        return (
            output.logits[0, -num_logits:],
            states[-1][0] if hidden else None,
            torch.stack([states[tap][0] for tap in taps], 1) if taps else None,
        )

    def _masks(self, seen: Tensor, positions: Tensor, start: int) -> Tensor | dict[str, Tensor | None]:
        """One mask where all layers that attend see alike, which every family takes; else one for each type."""
        made = {
            window: additive(shown, self._dtype, lowest=True) if self._adds_mask else shown[None, None]
            for window in set(self._windows)
            for shown in [narrowed(seen, positions, start, window)]
        }
        if len(made) == 1:
            return made[self._windows[0]]
        assert self._types is not None, "layers without types that differ"
        by_type = {name: made[window] for name, window in zip(self._types, self._windows, strict=True)}
        return self._stateful_types | by_type

    def project(self, states: Tensor) -> Tensor:
        model = self._model()
        assert model is not None, "the model has been released"
        logits: Tensor = model.get_output_embeddings()(states)
        return logits


class LeanDecoder:
    """The Llama family as a plain loop, with its own packed copies of the projections and the model's other tensors."""

    def __init__(self, model: Any) -> None:
        config = model.config
        body = model.model
        self.num_layers = int(config.num_hidden_layers)
        self.max_positions = int(config.max_position_embeddings)
        self.device = body.embed_tokens.weight.device
        attention = body.layers[0].self_attn
        self.heads = Heads(
            int(config.num_attention_heads),
            int(config.num_key_value_heads),
            int(attention.head_dim),
            float(attention.scaling),
        )
        self._embedding = body.embed_tokens.weight
        self.dtype = self._embedding.dtype
        self._layers = [_Layer(layer) for layer in body.layers]
        self._reads_pairs = _reads_pairs(model)
        self._norm = _norm(body.norm)
        self._head = _Projection([model.lm_head])
        self._least_rows = _least_rows([layer.down for layer in self._layers])
        self.num_bytes = self._head.num_bytes + sum(layer.num_bytes for layer in self._layers)
        self._window: int | None = getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
        self._rotary = body.rotary_emb
        self._cos = self._sin = torch.empty(0)

    @staticmethod
    def of(model: Any) -> LeanDecoder:
        """The model's lean decoder, the same one for every run; for callers that go layer by layer."""
        found = _lean.get(model)
        if found is None:
            found = _lean[model] = LeanDecoder(model)
        return found

    @staticmethod
    def knows(model: Any) -> bool:
        """Whether the model is of the family and has nothing that the loop leaves out."""
        return getattr(model, "model", None) is not None and LeanDecoder.knows_config(model.config)

    @staticmethod
    def knows_config(config: Any) -> bool:
        """The same of a model's configuration, before there is a model."""
        if getattr(config, "model_type", "") not in ("llama", "mistral", "qwen2", "qwen3"):
            return False
        if getattr(config, "hidden_act", "silu") != "silu" or getattr(config, "use_sliding_window", False):
            return False
        rope = getattr(config, "rope_parameters", None) or {}
        return str(rope.get("rope_type", "default")) in ("default", "linear", "llama3", "yarn")

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        seen: Tensor,
        cache: KeyValues,
        *,
        num_logits: int,
        hidden: bool,
        taps: Sequence[int] = (),
        blocks: Sequence[Block] = (),
        least_rows: int = 0,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        x = self.embed(ids)
        if self._reads_pairs:  # a pass that is only timed: no states are at hand
            x = torch.cat((x, x), -1)
        rows = len(x)
        x = self.filled(x, least_rows)
        attention = SingleAttention(self.narrowed(seen, positions, cache.start), cache, self.heads, x[:, :1], blocks)
        tapped = []
        for first, last in pairwise((0, *taps, self.num_layers)):
            x = self.run(x, positions, attention, first, last)
            tapped.append(x[:rows])
        logits, last_states = self.finish(x[:rows], num_logits=num_logits, hidden=hidden)
        return logits, last_states, torch.stack(tapped[:-1], 1) if taps else None

    def embed(self, ids: Tensor) -> Tensor:
        """[rows] ids to [rows, d_model]."""
        return torch.nn.functional.embedding(ids, self._embedding)

    def finish(self, states: Tensor, *, num_logits: int, hidden: bool) -> tuple[Tensor, Tensor | None]:
        """What `forward` returns, from [rows, d_model] states behind the last layer."""
        states = self._norm(states)
        return self.project(states[-num_logits:]), states if hidden else None

    def head(self, states: Tensor) -> Tensor:
        """[rows, d_model] states of any layer to [rows, vocab] logits through the final norm."""
        return self.project(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """[rows, d_model] states of the last layer, through the final norm."""
        return self._norm(states)

    def project(self, states: Tensor) -> Tensor:
        return self._head(self.filled(states))[: len(states)]

    def run_layers(self, x: Tensor, positions: Tensor, seen: Tensor, cache: KeyValues, first: int, last: int) -> Tensor:
        """[rows, d_model] states through layers first..last - 1, whose keys and values go to the cache.

        A first layer with a hidden norm takes [rows, 2 d_model], see `specviz.models.trunk`.
        """
        rows = len(x)
        x = self.filled(x)
        attention = SingleAttention(self.narrowed(seen, positions, cache.start), cache, self.heads, x[:, :1])
        return self.run(x, positions, attention, first, last)[:rows]

    def narrowed(self, seen: Tensor, positions: Tensor, start: int) -> Tensor:
        """A mask as the model's sliding window leaves it; `start`: the cache's entry of the first row."""
        return narrowed(seen, positions, start, self._window)

    def run(self, x: Tensor, positions: Tensor, attention: Attention, first: int, last: int) -> Tensor:
        """[rows or more, d_model] states through layers first..last - 1; there are as many rows as positions, and those
        behind them fill a product up."""
        rows, heads = len(positions), self.heads
        cos, sin = self._rotation(positions)
        kv = heads.num_keys * heads.head_dim
        for index in range(first, last):
            layer = self._layers[index]
            y, x = layer.enter(x)
            qkv = layer.qkv(y)[:rows]
            qk = qkv[:, :-kv].view(rows, heads.num + heads.num_keys, heads.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                qk = torch.cat((layer.q_norm(qk[:, : heads.num]), layer.k_norm(qk[:, heads.num :])), 1)
            qk = _rotate(qk, cos, sin)
            mixed = attention(index, qk, qkv[:, -kv:].view(rows, heads.num_keys, heads.head_dim))
            x = layer.out.added_to(x, mixed)
            x = layer.down.added_to(x, layer.gated(layer.norm_mid(x)))
        return x

    def filled(self, x: Tensor, least_rows: int = 0) -> Tensor:
        """[rows, width] with rows of zeros behind, where a product of more rows is faster, or asked for."""
        missing = max(self._least_rows, least_rows) - len(x)
        return pad(x, (0, 0, 0, missing)) if missing > 0 else x

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of [rows] positions, [rows, 1, head_dim]; kept as a table that grows by doubling."""
        needed = int(positions.max()) + 1
        if needed > self._cos.shape[0]:
            size = min(self.max_positions, max(1024, 1 << (needed - 1).bit_length()))
            places = torch.arange(max(size, needed), device=self.device)[None]
            cos, sin = self._rotary(self._embedding[:1], places)
            half = self.heads.head_dim // 2
            sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)
            self._cos, self._sin = cos[0].to(self.dtype), sin.to(self.dtype)
        return self._cos[positions, None], self._sin[positions, None]


class _Layer:
    """One decoder layer's tensors, projections that read the same input fused into one."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.norm_in, self.norm_mid = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
        self._hidden_norm = _norm(layer.hidden_norm) if hasattr(layer, "hidden_norm") else None
        self._adds_to_normed = bool(getattr(layer, "norm_before_residual", False))
        self.q_norm = _Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self.k_norm = _Norm(attention.k_norm) if hasattr(attention, "k_norm") else None
        self.qkv = _Projection([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out = _Projection([attention.o_proj])
        self._gate, self._up = _Projection([mlp.gate_proj]), _Projection([mlp.up_proj])
        self.down = _Projection([mlp.down_proj])
        self.num_bytes = sum(part.num_bytes for part in (self.qkv, self.out, self._gate, self._up, self.down))

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads, and the state that its output is added to."""
        if self._hidden_norm is None:
            return self.norm_in(x), x
        embedding, state = x.chunk(2, -1)
        normed = self._hidden_norm(state)
        return torch.cat((self.norm_in(embedding), normed), -1), normed if self._adds_to_normed else state.contiguous()

    def gated(self, x: Tensor) -> Tensor:
        """silu(gate x) * (up x); packed, oneDNN applies both while it writes the products."""
        gate = self._gate.silu(x)
        return self._up.times(gate, x)


class _Norm:
    """RMS norm, its mean in float32 as transformers has it."""

    def __init__(self, module: Any) -> None:
        self.weight = module.weight
        self.eps = float(getattr(module, "variance_epsilon", None) or module.eps)

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return self.weight * (wide * scale).to(x.dtype)


def _reads_pairs(model: Any) -> bool:
    """Whether the first layer reads embedding and state side by side, see `specviz.models.trunk`."""
    return hasattr(model.model.layers[0], "hidden_norm")


def _norm(module: Any) -> Any:
    """[..., d_model] to the same; a trunk has Identity in place of a norm that it lacks."""
    return module if type(module) is torch.nn.Identity else _Norm(module)


class _Projection:
    """One matrix product for several linear layers of the same input; quantized layers are called one by one."""

    def __init__(self, modules: list[Any]) -> None:
        self._modules: list[Any] = []
        self._weight = self._bias = self._packed = None
        self.num_bytes = 0
        if all(type(module) is Int8Linear for module in modules):
            self._modules = modules
            if len(modules) > 1:
                fused = Int8Linear.fused(modules)
                self._modules = [fused]
                self.num_bytes = sum(buffer.nbytes for buffer in fused.buffers())
            return
        if not all(type(module) is torch.nn.Linear for module in modules):
            self._modules = modules
            return
        with torch.inference_mode():
            biases = [module.bias for module in modules]
            self._bias = torch.cat(biases) if all(bias is not None for bias in biases) else None
            weight = modules[0].weight if len(modules) == 1 else torch.cat([module.weight for module in modules])
            packs = _can_pack(weight)
            if packs or len(modules) > 1:
                self.num_bytes = weight.nbytes
            if packs:
                self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), PACKED_ROWS)
            else:
                self._weight = weight

    @property
    def is_packed(self) -> bool:
        return self._packed is not None

    def example(self, rows: int) -> Tensor:
        """An input of so many rows, to take the time with."""
        assert self._packed is not None
        return torch.ones(rows, self._packed.shape[1], dtype=self._packed.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        if self._weight is not None:
            return linear(x, self._weight, self._bias)
        outputs = [module(x) for module in self._modules]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def silu(self, x: Tensor) -> Tensor:
        """silu(W x)."""
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "swish", [], "")
        return silu(self(x))

    def times(self, other: Tensor, x: Tensor) -> Tensor:
        """other * (W x)."""
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self._bias, "mul")
        return other * self(x)

    def added_to(self, other: Tensor, x: Tensor) -> Tensor:
        """other + W x."""
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self._bias, "add")
        return other + self(x)


def _least_rows(projections: list[_Projection]) -> int:
    """FAST_ROWS where this machine multiplies packed weights faster so than with one row, else 1. Takes some 0.1 s."""
    if not projections or not all(projection.is_packed for projection in projections):
        return 1
    with torch.inference_mode():
        inputs = {rows: projections[0].example(rows) for rows in (1, FAST_ROWS)}
        times: dict[int, list[float]] = {rows: [] for rows in inputs}
        for _ in range(7):  # in turns; the shortest time of each is that without anybody else
            for rows, x in inputs.items():
                began = time.perf_counter()
                for projection in projections:
                    projection(x)
                times[rows].append(time.perf_counter() - began)
    return min(times, key=lambda rows: min(times[rows]))


def _can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.bfloat16, torch.float32)
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [rows, heads, head_dim]; `sin` carries the sign of the half it multiplies."""
    halves = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return torch.addcmul(x * cos, halves, sin)
