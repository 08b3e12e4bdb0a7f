"""A few decoder layers between the target's own embedding and rows of its output layer: what trained drafts consist of.
Only the layers and a norm are stored; embedding and head are the target's, shared in memory.

Layers that were taken over from other people may have another form than the target's: then the manifest holds it, as
settings of Llama, and names the norms that they lack. They may also bring an embedding and a head of their own. The
first of them may read a pair, [rows, 2 d_model]: a token's embedding behind the input norm and a state behind a norm of
its own, side by side (Li et al. (2025), EAGLE-3, arXiv 2503.01840, section 3.1).

The output vocabulary may be trimmed to the ids that answers mostly consist of: the head is the dearest part of a small
draft. Proposals map back to the full vocabulary, q is zero elsewhere, and verification makes up for what q leaves out.

Source: trimming as in Zhao et al. (2025), FR-Spec, arXiv 2502.14856; a draft from some of the target's layers as in
Zhang et al. (2024), Draft & Verify, arXiv 2309.08168.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specviz.errors import ModelLoadError
from specviz.models.cache import InPlaceCache
from specviz.models.convert import quiet_libraries
from specviz.models.decoder import LeanDecoder
from specviz.models.stored import read_tensors

__all__ = [
    "FORM",
    "MANIFEST",
    "PAIR_FORM",
    "build_trunk",
    "config_refusal",
    "cut_head",
    "load_trunk",
    "read_manifest",
    "save_trunk",
    "trunk_logits",
    "trunk_refusal",
    "trunk_shapes",
    "write_trunk",
]

LAYOUT = "specviz-trunk-1"
MANIFEST = "draft.json"

FORM = frozenset(
    {
        "attention_bias",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
    }
)
"""The settings of Llama that layers of another form than the target's are built by."""

PAIR_FORM = frozenset({"norm_before_residual", "reads_pair"})
"""Settings of our own beside those, both false where they are missing: whether the first layer reads a pair, and
whether its attention's output is then added to the state behind its norm or to the state as it came."""


def trunk_refusal(target: Any) -> str | None:
    """Why no draft can be built from this target's layers, in a sentence; None if one can."""
    return None if LeanDecoder.knows(target) else _unknown(target.config)


def config_refusal(config: Any) -> str | None:
    """The same, from the target's configuration alone."""
    return None if LeanDecoder.knows_config(config) else _unknown(config)


def _unknown(config: Any) -> str:
    kind = getattr(config.get_text_config(decoder=True), "model_type", type(config).__name__)
    return (
        "Trained drafts reuse the layers of Llama, Mistral, Qwen2 or Qwen3 targets, and this one is of the kind "
        f"“{kind}”. `train ngrams` works for every target."
    )


def build_trunk(
    target: Any,
    num_layers: int,
    output_ids: Tensor,
    form: Mapping[str, Any] | None = None,
    lacks: Sequence[str] = (),
) -> Any:
    """A causal LM of transformers with the target's embedding, new layers, and the target's head cut to some ids.

    Args:
        target: of the family that the lean decoder knows.
        output_ids: [v] int64, ascending; what the model's logits stand for. Kept as its attribute `output_ids`.
        form: settings in FORM and PAIR_FORM for layers of their own form; None for layers like the target's.
        lacks: norms that these layers do without, by the names in the files, as "layers.1.input_layernorm" and "norm".
    Raises:
        ModelLoadError: a form that the lean decoder does not run, or norms that it does not have.
    """
    if form is None:
        config = copy.deepcopy(target.config)
        config.num_hidden_layers = num_layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:num_layers]
        config.vocab_size, config.pad_token_id, config.tie_word_embeddings = 8, None, False  # 8: replaced below
        model = _blank(type(target), config)
    else:
        model = _foreign_blank(form, num_layers, lacks)
        # A head is trained on short texts, and RoPE goes on beyond them: the target's own end is the one that counts.
        model.config.max_position_embeddings = target.config.max_position_embeddings
    model.config.vocab_size = target.config.vocab_size
    model.model.embed_tokens = target.model.embed_tokens
    cut_head(model, target, output_ids)
    return model


def cut_head(model: Any, target: Any, output_ids: Tensor) -> None:
    """Give a trunk the rows of the target's output layer that stand for these ids.

    Args:
        output_ids: [v] int64, ascending.
    """
    weight = target.get_output_embeddings().weight.detach()
    size = len(output_ids)
    whole = torch.equal(output_ids.cpu(), torch.arange(size))  # the first rows, or all: no copy
    head = torch.nn.Linear(weight.shape[1], size, bias=False, device="meta")
    rows = weight[:size] if whole else weight[output_ids.to(weight.device)].clone()
    head.weight = torch.nn.Parameter(rows, requires_grad=False)
    model.lm_head = head
    model.output_ids, model.has_own_head = output_ids, False


def trunk_shapes(form: Mapping[str, Any], num_layers: int, lacks: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """What a file has to hold for layers of this form, see `build_trunk`, which says what is raised."""
    with torch.device("meta"):
        model = _foreign_blank(form, num_layers, lacks)
    return {name: tuple(param.shape) for name, param in _parameters(model).items()}


def trunk_logits(model: Any) -> Tensor:
    """[1, v] logits of a made-up input, by the loop that runs take: layers that read pairs have no other."""
    decoder, embedding = LeanDecoder.of(model), model.model.embed_tokens.weight
    reads_pairs = hasattr(model.model.layers[0], "hidden_norm")
    x = embedding.new_ones(1, (2 if reads_pairs else 1) * embedding.shape[1])
    cache = InPlaceCache(decoder.num_layers, 1)
    cache.open(1, 1)
    places, seen = torch.zeros(1, dtype=torch.int64, device=x.device), x.new_ones(1, 1, dtype=torch.bool)
    return decoder.head(decoder.run_layers(x, places, seen, cache, 0, decoder.num_layers))


def _blank(kind: Any, config: Any) -> Any:
    with torch.random.fork_rng():  # the weights it begins with are drawn, and all of them replaced
        return kind(config)


def _foreign_blank(form: Mapping[str, Any], num_layers: int, lacks: Sequence[str]) -> Any:
    """Llama layers of a form of their own, with Identity in place of the norms that they lack."""
    from transformers import LlamaConfig, LlamaForCausalLM

    known = FORM | PAIR_FORM
    if not isinstance(form, Mapping) or not form.keys() <= known:
        raise ModelLoadError(f"The form of the draft's layers holds something else than {', '.join(sorted(known))}.")
    pair = {name: form.get(name, False) for name in PAIR_FORM}
    if not all(type(value) is bool for value in pair.values()):
        raise ModelLoadError(f"{' and '.join(sorted(pair))} of the draft's layers should be true or false.")
    llama: dict[str, Any] = {name: value for name, value in form.items() if name in FORM}
    try:
        with quiet_libraries():
            config = LlamaConfig(
                **llama, num_hidden_layers=num_layers, vocab_size=8, pad_token_id=None, tie_word_embeddings=False
            )
    except Exception as error:  # the checks in there raise whatever the library of the day raises
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelLoadError(f"The form of the draft's layers makes no sense: {words}.") from error
    if not LeanDecoder.knows_config(config):
        raise ModelLoadError(
            "The draft's layers need an activation other than SiLU, or a kind of RoPE, that this version does not run."
        )
    if config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        raise ModelLoadError(
            f"The draft's layers cannot have {config.num_attention_heads} heads of {config.head_dim} numbers over "
            f"{config.num_key_value_heads} of keys and values."
        )
    model = _blank(LlamaForCausalLM, config)
    if pair["reads_pair"]:
        _read_pairs(model.model.layers[0], norm_before_residual=pair["norm_before_residual"])
    norms = {"norm": (model.model, "norm")}
    for number, layer in enumerate(model.model.layers, start=1):
        for name in ("input_layernorm", "post_attention_layernorm"):
            norms[f"layers.{number}.{name}"] = (layer, name)
    for name in lacks:
        if name not in norms:
            raise ModelLoadError(f"The draft's layers are said to lack {str(name)[:60]!r}, which is no norm of theirs.")
        setattr(*norms[name], torch.nn.Identity())
    return model


def _read_pairs(layer: Any, *, norm_before_residual: bool) -> None:
    """Let a layer read embedding and state side by side, see `specviz.models.decoder` for how it runs."""
    attention = layer.self_attn
    with torch.random.fork_rng():
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(attention, name)
            setattr(attention, name, torch.nn.Linear(2 * old.in_features, old.out_features, bias=old.bias is not None))
    layer.hidden_norm = copy.deepcopy(layer.input_layernorm)
    layer.norm_before_residual = norm_before_residual


def _parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """What a trunk has of its own, by the names in the files."""
    found = {f"norm.{name}": param for name, param in model.model.norm.named_parameters()}
    for number, layer in enumerate(model.model.layers, start=1):
        found |= {f"layers.{number}.{name}": param for name, param in layer.named_parameters()}
    return found


def save_trunk(folder: Path, model: Any, extra: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the layers of a trunk, one file a layer, in bfloat16; norm, ids and `extra` in a file of their own."""
    tensors = {name: tensor.detach().to(torch.bfloat16) for name, tensor in {**_parameters(model), **extra}.items()}
    write_trunk(folder, tensors, len(model.model.layers), model.output_ids, about)


def write_trunk(
    folder: Path, tensors: Mapping[str, Tensor], num_layers: int, output_ids: Tensor, about: Mapping[str, Any]
) -> list[Path]:
    """Write what makes a trunk, in the number format that it has.

    Args:
        tensors: "layers.1.…", counted from 1, and what stands beside the layers. output_ids: [v] int64.
        about: for the manifest; of layers of their own form "form" and "lacks" as well, see `build_trunk`.
    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Tensor]] = {}
    rest = dict(tensors)
    for number in range(1, num_layers + 1):
        names = [name for name in rest if name.startswith(f"layers.{number}.")]
        files[f"layer-{number:02d}.safetensors"] = {name: rest.pop(name) for name in names}
    files["rest.safetensors"] = {**rest, "output_ids": output_ids.to(torch.int32)}
    digest = hashlib.sha256()
    for name, part in files.items():
        # Copies: safetensors refuses tensors that lie in the same memory, as those of one checkpoint may.
        stored = {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in part.items()}
        save_file(stored, folder / name)
        digest.update((folder / name).read_bytes())
    manifest = {"layout": LAYOUT, "num_layers": num_layers, "files": list(files), **about}
    manifest["sha256"] = digest.hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return [folder / name for name in (*files, MANIFEST)]


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """Raises ModelLoadError where there is none, or one of another layout."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"The trained draft is damaged: its {MANIFEST} is missing or no JSON.") from error
    layout = found.get("layout") if isinstance(found, dict) else None
    if layout != LAYOUT:
        raise ModelLoadError(f"The trained draft is of the layout {str(layout)[:40]!r}; this version reads {LAYOUT}.")
    manifest: Mapping[str, Any] = found
    return manifest


def load_trunk(folder: Path, target: Any, vocab_size: int) -> tuple[Any, dict[str, Tensor], Mapping[str, Any]]:
    """The trunk in a folder, on the target's device and in its number format.

    Args:
        vocab_size: ids at or above are left out of what it can propose.
    Returns:
        The model, the tensors that do not belong to it, and the manifest. The model's attribute `has_own_head` says
        whether its output layer is its own: then it can propose no other ids than those of `output_ids`.
    Raises:
        ModelLoadError: files that are missing, damaged or made for a target of another size.
    """
    refusal = trunk_refusal(target)
    if refusal:
        raise ModelLoadError(refusal)
    manifest = read_manifest(folder)
    tensors = read_tensors(folder, manifest.get("files") or [], MANIFEST, "the trained draft")
    num_layers = manifest.get("num_layers")
    if type(num_layers) is not int or not 1 <= num_layers <= 64:
        raise ModelLoadError(f"The trained draft should have 1 to 64 layers; {MANIFEST} says {num_layers!r:.20}.")
    weight = target.get_output_embeddings().weight
    ids = tensors.pop("output_ids", torch.zeros(0)).to(torch.int64)
    if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= weight.shape[0] or len(ids.unique()) != len(ids):
        raise ModelLoadError("The trained draft's list of output ids is missing, or not of this target's vocabulary.")
    kept = ids < vocab_size
    ids = ids[kept]
    form, lacks = manifest.get("form"), manifest.get("lacks", [])
    if form is not None and (not isinstance(form, dict) or form.get("hidden_size") != weight.shape[1]):
        raise ModelLoadError(
            f"The trained draft was made for a hidden size other than this target's {weight.shape[1]}."
        )
    if not isinstance(lacks, list) or not all(isinstance(name, str) for name in lacks) or (lacks and form is None):
        raise ModelLoadError(f"{MANIFEST} of the trained draft says wrongly which norms its layers lack.")
    with torch.no_grad():
        model = build_trunk(target, num_layers, ids, form, lacks)
        for name, param in _parameters(model).items():
            tensor = tensors.pop(name, None)
            if tensor is None:
                raise ModelLoadError(f"The trained draft lacks {name}.")
            if tensor.shape != param.shape:
                raise ModelLoadError(
                    f"The trained draft holds {name} of shape {tuple(tensor.shape)}; this target needs "
                    f"{tuple(param.shape)}. Drafts fit the one model they were trained for."
                )
            param.data = tensor.to(weight.device, weight.dtype)
        _take_own_ends(model, tensors, target, kept)
    model.model.rotary_emb.to(weight.device)
    return model.eval().requires_grad_(False), tensors, manifest


def _take_own_ends(model: Any, tensors: dict[str, Tensor], target: Any, kept: Tensor) -> None:
    """Put a draft's own output layer and embedding, where its files hold them, in place of the target's.

    Args:
        tensors: of the files; the two are taken out. kept: [v] bool, which rows of the output layer are used.
    """
    weight, shared = target.get_output_embeddings().weight, target.get_input_embeddings().weight
    own = {}
    for name, rows in (("lm_head.weight", len(kept)), ("embed_tokens.weight", shared.shape[0])):
        tensor = tensors.pop(name, None)
        if tensor is not None and tuple(tensor.shape) != (rows, weight.shape[1]):
            raise ModelLoadError(
                f"The trained draft holds {name} of shape {tuple(tensor.shape)}; needed is {(rows, weight.shape[1])}."
            )
        own[name] = tensor
    head, embedding = own["lm_head.weight"], own["embed_tokens.weight"]
    model.has_own_head = head is not None
    if head is not None:
        model.lm_head.weight = torch.nn.Parameter(head[kept].to(weight.device, weight.dtype), requires_grad=False)
    if embedding is not None:
        embedding = embedding.to(shared.device, shared.dtype)
        if not torch.equal(embedding, shared):  # most are copies of the target's, which is in memory already
            model.model.embed_tokens = torch.nn.Embedding.from_pretrained(embedding)
