"""EAGLE heads that other projects trained, taken over into our own layout.

EAGLE-1 and EAGLE-2, by their authors: `fc.weight` [d_model, 2 d_model], perhaps `fc.bias`, and Llama layers
`layers.0.…` of the form that config.json names. The first has no norm before its attention, and none stands behind the
last: its output is projected by the target's own output layer, and is the state that the next token is drafted from.
speculators' copies say `fusion_fc.weight` and `transformer.…`.

EAGLE-3: `fc.weight` [d_model, k d_model] fuses the target's states behind k layers (three of them, unless config.json
lists others). The first layer (`midlayer.…` with the authors, `layers.0.…` with speculators) has `hidden_norm.weight`,
and its attention reads [rows, 2 d_model]: embedding and state, each behind its norm. `norm.weight` and `lm_head.weight`
[v, d_model] stand behind the last layer; row i means the target's id i + `d2t`[i], and `t2d` marks the same ids. Some
bring an embedding of their own. speculators may also norm the states before they are fused (`input_norm.weight` over
all, `fc_norm.i.weight` over each), and hand back the output behind its norm (`norm_output` in config.json).

Source: SafeAILab/EAGLE, eagle/model/cnets1.py (1 and 2, commit cb7e084), cnets.py (3, commit 148042c) and
modeling_llama_kv.py for the layers that are read; vllm/model_executor/models/llama_eagle.py and llama_eagle3.py, commit
00bd149; vllm-project/speculators, convert/converters/eagle.py, models/eagle.py, and models/eagle3/core.py, config.py
and model_definitions.py, commit c05b95b3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.feature import EAGLE, EAGLE_3, FeatureDrafter
from specviz.errors import ModelLoadError
from specviz.models.trunk import FORM, config_refusal, trunk_shapes, write_trunk

__all__ = ["is_eagle", "is_eagle_3", "target_sizes", "write_eagle", "write_eagle_3"]

_Form = dict[str, int | float | str | dict[str, Any]]

_LACKS = ("layers.1.input_layernorm", "norm")
"""Norms that EAGLE-1 and EAGLE-2 do without."""

_ROTARY = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\..+")
"""Tables that older libraries saved; they are made anew from config.json."""

_VERIFIERS = frozenset({"verifier_norm.weight", "verifier_lm_head.weight"})
"""The target's own, which speculators train against."""


def is_eagle(names: Set[str]) -> bool:
    """Whether tensors of these names, without "model." before them, make an EAGLE head of version 1 or 2."""
    return bool(names & {"fc.weight", "fusion_fc.weight"}) and any("self_attn.q_proj." in name for name in names)


def is_eagle_3(names: Set[str]) -> bool:
    """The same of version 3."""
    return "d2t" in names or any(name.startswith(("midlayer.", "layers.0.hidden_norm.")) for name in names)


def target_sizes(target: Any) -> tuple[int, int]:
    """(d_model, rows of the output layer) of a target, from its configuration."""
    text = target.get_text_config(decoder=True)
    return int(text.hidden_size), int(text.vocab_size)


def write_eagle(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: Any, base: str
) -> list[Path]:
    """The layers of EAGLE-1 or EAGLE-2 as a trunk that proposes from the whole vocabulary, and `fc` beside it.

    Args:
        tensors, config: as downloaded. target: its configuration. base: the model that the head was trained on.
    Returns:
        The files.
    Raises:
        ModelLoadError: sizes of another target, tensors that are missing or too many.
    """
    sizes = _check_target(target)
    renamed = _renamed(tensors)
    form = _form(config, renamed, sizes)
    needed = _layer_shapes(form, renamed, _LACKS) | {"fc.weight": (sizes[0], 2 * sizes[0])}
    found = _fitting(renamed, needed, {"fc.bias": (sizes[0],), "embed_tokens.weight": (sizes[1], sizes[0])})
    found.pop("embed_tokens.weight", None)  # a copy of the target's own, which is read instead
    about = {"parts": EAGLE, "lacks": list(_LACKS)}
    return _write(folder, found, torch.arange(sizes[1]), form, base, about)


def write_eagle_3(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: Any, base: str
) -> list[Path]:
    """The layers of EAGLE-3 as a trunk that proposes the ids of `d2t` by a head of its own; see `write_eagle`."""
    (size, vocab), renamed = _check_target(target), _renamed(tensors)
    settings = {**config, **_mapping(config.get("eagle_config"))}
    _check_switches(settings, config, size)
    form = _form(config, renamed, (size, vocab))
    form |= {"reads_pair": True, "norm_before_residual": settings.get("norm_before_residual") is True}
    ids = _output_ids(renamed.pop("d2t", None), renamed.pop("t2d", None), vocab)
    num_layers = int(target.get_text_config(decoder=True).num_hidden_layers)
    taps = _taps(config, num_layers)
    num_taps = len(taps)
    needed: dict[str, tuple[int, ...]] = _layer_shapes(form, renamed, ()) | {"fc.weight": (size, num_taps * size)}
    perhaps: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocab, size), "lm_head.weight": (len(ids), size)}
    if len(ids) < vocab:
        needed["lm_head.weight"] = perhaps.pop("lm_head.weight")
    each = {f"fc_norm.{index}.weight": (size,) for index in range(num_taps)}
    if settings.get("fc_norm") is True or each.keys() & renamed.keys():
        needed |= each
    elif settings.get("norm_before_fc") is True:
        needed["input_norm.weight"] = (num_taps * size,)
    else:
        perhaps["input_norm.weight"] = (num_taps * size,)
    found = _fitting(renamed, needed, perhaps)
    if each.keys() <= found.keys():
        found["fc_norm"] = torch.stack([found.pop(name) for name in each])
    if "input_norm.weight" in found:
        found["input_norm"] = found.pop("input_norm.weight")
    order = ids.argsort()
    if "lm_head.weight" in found:
        found["lm_head.weight"] = found["lm_head.weight"][order]
    about = {
        "parts": EAGLE_3,
        "taps": taps,
        "target_layers": num_layers,
        "norm_output": settings.get("norm_output") is True,
    }
    return _write(folder, found, ids[order], form, base, about)


def _write(
    folder: Path, tensors: Mapping[str, Tensor], ids: Tensor, form: _Form, base: str, about: Mapping[str, Any]
) -> list[Path]:
    """Layers are counted from 0 there and from 1 here."""
    num_layers = len({key.split(".")[1] for key in tensors if key.startswith("layers.")})
    shifted = {_shifted(key, 1): tensor for key, tensor in tensors.items()}
    about = {"method": FeatureDrafter.name, "target": base, "source": "imported", "form": form, **about}
    return write_trunk(folder, shifted, num_layers, ids, about)


def _check_target(target: Any) -> tuple[int, int]:
    refusal = config_refusal(target)
    if refusal:
        raise ModelLoadError(refusal)
    return target_sizes(target)


def _check_switches(settings: Mapping[str, Any], config: Mapping[str, Any], hidden_size: int) -> None:
    """Refuse what changes how a head computes and cannot be seen in its tensors."""
    inner = _mapping(config.get("transformer_layer_config", config))
    theirs = settings.get("target_hidden_size")
    if theirs is not None and theirs != hidden_size:
        raise ModelLoadError(
            f"The EAGLE head was made for a target with hidden size {theirs!r:.20}, and this one has {hidden_size}. "
            "Heads fit the one model they were trained on."
        )
    if theirs is not None and inner.get("hidden_size", theirs) != theirs:
        raise ModelLoadError(
            f"The EAGLE head is {inner['hidden_size']!r:.20} wide and its target {theirs}; this version runs heads "
            "that are as wide as their target."
        )
    rope = {**_mapping(inner.get("rope_parameters")), **_mapping(inner.get("rope_scaling"))}
    refused = (
        (settings.get("use_aux_hidden_state") is False, "reads the target's last state alone"),
        ("sliding_attention" in (inner.get("layer_types") or ()), "attends within a sliding window"),
        (settings.get("logit_scale", 1.0) not in (None, 1, 1.0), "scales its logits"),
        (rope.get("partial_rotary_factor", 1.0) != 1.0, "rotates a part of each head's numbers"),
    )
    for is_so, what in refused:
        if is_so:
            raise ModelLoadError(f"The EAGLE head's config.json says that it {what}, which this version does not run.")


def _taps(config: Mapping[str, Any], num_layers: int) -> list[int]:
    """After how many of the target's layers the head reads a state, ascending, as it was trained to.

    speculators count as we do. In `eagle_config`, as SGLang reads it, a number names the layer itself, from 0.
    """
    numbers: Any = config.get("eagle_aux_hidden_state_layer_ids")
    inner: Any = _mapping(config.get("eagle_config")).get("eagle_aux_hidden_state_layer_ids")
    for found in (numbers, inner):
        if found and not (isinstance(found, list) and all(type(number) is int for number in found)):
            raise ModelLoadError("The EAGLE head's config.json should list the target's layers by whole numbers.")
    taps = numbers or [number + 1 for number in inner or ()] or [2, num_layers // 2, num_layers - 3]
    taps = sorted(taps)
    if len(set(taps)) != len(taps) or not 1 <= taps[0] <= taps[-1] < num_layers:
        behind = ", ".join(map(str, taps[:8]))
        raise ModelLoadError(
            f"The EAGLE head reads the target's states behind layers {behind}, and this target has {num_layers} "
            "layers. They have to differ, and to stand before the last."
        )
    return taps


def _output_ids(d2t: Tensor | None, t2d: Tensor | None, vocab_size: int) -> Tensor:
    """[v] int64, the target's id for each row of the head's output layer: i + d2t[i]."""
    if d2t is None:
        if t2d is not None and not bool(t2d.all()):
            raise ModelLoadError("The EAGLE head lacks d2t, which says what its own vocabulary means.")
        return torch.arange(vocab_size)
    if d2t.ndim != 1 or not len(d2t) or d2t.is_floating_point() or d2t.dtype == torch.bool:
        raise ModelLoadError("The EAGLE head's d2t is no list of whole numbers.")
    ids = torch.arange(len(d2t)) + d2t.to(torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) != len(ids):
        raise ModelLoadError(
            f"The EAGLE head's d2t leads to ids outside the target's {vocab_size}, or to one id twice. "
            "Heads fit the one model they were trained on."
        )
    if t2d is not None and len(ids) < vocab_size:  # where nothing is cut down, the authors leave zeros there
        marked = torch.zeros(vocab_size, dtype=torch.bool)
        marked[ids] = True
        if not torch.equal(marked, t2d.to(torch.bool)):
            raise ModelLoadError("The EAGLE head's t2d and d2t speak of different ids: one of them is damaged.")
    return ids


def _form(config: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: tuple[int, int]) -> _Form:
    """The settings of the layers. What config.json leaves out is Llama's default, there as here.

    Raises:
        ModelLoadError: there are no settings, or they are of another target's size.
    """
    inner = config.get("transformer_layer_config", config)  # speculators keep them there
    if not isinstance(inner, dict) or not inner:
        raise ModelLoadError("The EAGLE head has no config.json, and its weights do not tell how many heads they make.")
    form = {"hidden_size": 4096} | {key: inner[key] for key in sorted(FORM) if inner.get(key) is not None}
    theirs = form["hidden_size"], inner.get("vocab_size", 32000)
    for name, found, needed in zip(("hidden size", "vocabulary"), theirs, sizes, strict=True):
        if found != needed:
            raise ModelLoadError(
                f"The EAGLE head was made for a target with {name} {found!r:.20}, and this one has {needed}. "
                "Heads fit the one model they were trained on."
            )
    return form | {"attention_bias": "layers.0.self_attn.q_proj.bias" in tensors}


def _layer_shapes(form: _Form, tensors: Mapping[str, Tensor], lacks: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """What the layers need, as many as there are tensors of. Names as with the authors."""
    num_layers = max(1, len({key.split(".")[1] for key in tensors if key.startswith("layers.")}))
    return {_shifted(key, -1): shape for key, shape in trunk_shapes(form, num_layers, lacks).items()}


def _fitting(
    tensors: Mapping[str, Tensor], needed: Mapping[str, tuple[int, ...]], perhaps: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Those of these names, which have to be of these shapes; there may be no others."""
    left = dict(tensors)
    shapes = {**needed, **{key: shape for key, shape in perhaps.items() if key in left}}
    for key, shape in needed.items():  # heads of Qwen2 have biases on three projections, Llama on the fourth as well
        if key.endswith("o_proj.bias"):
            left.setdefault(key, torch.zeros(shape))
    found = {}
    for key, shape in shapes.items():
        tensor = left.pop(key, None)
        if tensor is None:
            raise ModelLoadError(f"The EAGLE head lacks {key}.")
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelLoadError(f"The EAGLE head holds {key} as {kind}; quantized heads are not read.")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"The EAGLE head holds {key} of shape {tuple(tensor.shape)}; needed is {shape}.")
        found[key] = tensor
    if left:
        raise ModelLoadError(f"The EAGLE head holds a tensor that its layout does not have: {min(left)[:80]!r}.")
    return found


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the names of speculators' EAGLE-3 and of the authors' EAGLE-1, without what nothing here reads."""
    renamed = {}
    for key, tensor in tensors.items():
        key = key.removeprefix("model.")
        key = re.sub(r"^(transformer|midlayer)\.", "layers.0.", key)
        key = re.sub(r"^fusion_fc\.", "fc.", key)
        if not _ROTARY.fullmatch(key) and key not in _VERIFIERS:
            renamed[key] = tensor
    return renamed


def _shifted(key: str, by: int) -> str:
    return re.sub(r"^layers\.(\d+)", lambda found: f"layers.{int(found[1]) + by}", key)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
