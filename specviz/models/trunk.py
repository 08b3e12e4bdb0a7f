"""A few decoder layers between the target's own embedding and rows of its output layer: what trained drafts consist of.
Only the layers and a norm are stored; embedding and head are the target's, shared in memory.

The output vocabulary may be trimmed to the ids that answers mostly consist of: the head is the dearest part of a small
draft. Proposals map back to the full vocabulary, q is zero elsewhere, and verification makes up for what q leaves out.

Source: trimming as in Zhao et al. (2025), FR-Spec, arXiv 2502.14856; a draft from some of the target's layers as in
Zhang et al. (2024), Draft & Verify, arXiv 2309.08168.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specviz.errors import ModelLoadError
from specviz.models.decoder import LeanDecoder

__all__ = ["MANIFEST", "build_trunk", "load_trunk", "read_manifest", "save_trunk", "trunk_refusal"]

LAYOUT = "specviz-trunk-1"
MANIFEST = "draft.json"


def trunk_refusal(target: Any) -> str | None:
    """Why no draft can be built from this target's layers, in a sentence; None if one can."""
    if LeanDecoder.knows(target):
        return None
    kind = getattr(target.config.get_text_config(decoder=True), "model_type", type(target).__name__)
    return (
        "Trained drafts reuse the layers of Llama, Mistral, Qwen2 or Qwen3 targets, and this one is of the kind "
        f"“{kind}”. `train ngrams` works for every target."
    )


def build_trunk(target: Any, num_layers: int, output_ids: Tensor) -> Any:
    """A causal LM of transformers with the target's embedding, new layers, and the target's head cut to some ids.

    Args:
        target: of the family that the lean decoder knows.
        output_ids: [v] int64, ascending; what the model's logits stand for. Kept as its attribute `output_ids`.
    """
    config = copy.deepcopy(target.config)
    vocab_size = config.vocab_size
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    config.vocab_size, config.pad_token_id, config.tie_word_embeddings = 8, None, False  # 8: replaced two lines below
    with torch.random.fork_rng():  # the weights it begins with are drawn, and all of them replaced
        model = type(target)(config)
    config.vocab_size = vocab_size
    model.model.embed_tokens = target.model.embed_tokens
    weight = target.get_output_embeddings().weight.detach()
    head = torch.nn.Linear(weight.shape[1], len(output_ids), bias=False, device="meta")
    head.weight = torch.nn.Parameter(weight[output_ids.to(weight.device)].clone(), requires_grad=False)
    model.lm_head = head
    model.output_ids = output_ids
    return model


def save_trunk(folder: Path, model: Any, extra: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the layers of a trunk, one file a layer, in bfloat16; norm, ids and `extra` in a file of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Tensor]] = {}
    for number, layer in enumerate(model.model.layers, start=1):
        files[f"layer-{number:02d}.safetensors"] = {
            f"layers.{number}.{name}": tensor for name, tensor in layer.state_dict().items()
        }
    rest = {"norm.weight": model.model.norm.weight, **extra}
    files["rest.safetensors"] = rest
    digest = hashlib.sha256()
    for name, tensors in files.items():
        stored = {key: tensor.detach().to("cpu", torch.bfloat16).contiguous() for key, tensor in tensors.items()}
        if name == "rest.safetensors":
            stored["output_ids"] = model.output_ids.to(torch.int32).contiguous()
        save_file(stored, folder / name)
        digest.update((folder / name).read_bytes())
    manifest = {"layout": LAYOUT, "num_layers": len(model.model.layers), "files": list(files), **about}
    manifest["sha256"] = digest.hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


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
        The model, the tensors that do not belong to it, and the manifest.
    Raises:
        ModelLoadError: files that are missing, damaged or made for a target of another size.
    """
    refusal = trunk_refusal(target)
    if refusal:
        raise ModelLoadError(refusal)
    manifest = read_manifest(folder)
    tensors = _tensors(folder, manifest)
    num_layers = manifest.get("num_layers")
    if type(num_layers) is not int or not 1 <= num_layers <= 64:
        raise ModelLoadError(f"The trained draft should have 1 to 64 layers; {MANIFEST} says {num_layers!r:.20}.")
    weight = target.get_output_embeddings().weight
    ids = tensors.pop("output_ids", torch.zeros(0)).to(torch.int64)
    if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= weight.shape[0] or len(ids.unique()) != len(ids):
        raise ModelLoadError("The trained draft's list of output ids is missing, or not of this target's vocabulary.")
    ids = ids[ids < vocab_size]
    with torch.no_grad():
        model = build_trunk(target, num_layers, ids)
        wanted = {"norm.weight": model.model.norm.weight}
        for number, layer in enumerate(model.model.layers, start=1):
            wanted |= {f"layers.{number}.{name}": param for name, param in layer.named_parameters()}
        for name, param in wanted.items():
            tensor = tensors.pop(name, None)
            if tensor is None:
                raise ModelLoadError(f"The trained draft lacks {name}.")
            if tensor.shape != param.shape:
                raise ModelLoadError(
                    f"The trained draft holds {name} of shape {tuple(tensor.shape)}; this target needs "
                    f"{tuple(param.shape)}. Drafts fit the one model they were trained for."
                )
            param.data = tensor.to(weight.device, weight.dtype)
    model.model.rotary_emb.to(weight.device)
    return model.eval().requires_grad_(False), tensors, manifest


def _tensors(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    names: Sequence[Any] = manifest.get("files") or []
    if not isinstance(names, list) or not all(
        isinstance(name, str) and re.fullmatch(r"[\w-]+\.safetensors", name) for name in names
    ):
        raise ModelLoadError(f"{MANIFEST} of the trained draft does not list its files.")
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{name} of the trained draft is missing or damaged.") from error
    return tensors
