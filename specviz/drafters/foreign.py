"""Drafts that other projects trained: what a downloaded folder holds, and how it is turned into our own layout.

Medusa heads, by their authors: `0.1.linear.weight` and `.bias` are block 1 of head 0, counted from 0; `0.2.weight`
behind the last block is the head's own output layer [vocab, d_model]; heads without one share the target's (version 2).
Names may begin with `medusa_head.`, as they do inside a whole model (Medusa-2), or `medusa_heads.`. vLLM's copies say
`blocks.0.layers.1.weight` and `lm_heads.0.weight`. Heads are counted in the file, not in config.json: the authors' own
says 2 where the file has 5.

EAGLE-1 and EAGLE-2 heads, by their authors: `fc.weight` [d_model, 2 d_model], perhaps `fc.bias`, and Llama layers
`layers.0.…` of the form that config.json names. The first has no norm before its attention, and none stands behind the
last: its output is projected by the target's own output layer, and is the state that the next token is drafted from.
speculators' copies say `fusion_fc.weight` and `transformer.…`. EAGLE-3 heads are refused with the reason.

Source: FasterDecoding/Medusa, medusa/model/medusa_model.py and medusa_model_legacy.py, commit e2a5d20; SafeAILab/EAGLE,
eagle/model/cnets1.py (1 and 2, commit cb7e084), configs.py and cnets.py (3); vllm/model_executor/models/medusa.py,
llama_eagle.py, llama_eagle3.py; speculators, convert/converters/eagle.py and models/eagle.py.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specviz.drafters.feature import EAGLE
from specviz.drafters.medusa import MANIFEST, Heads, MedusaDrafter, build_heads, check_sizes, save_heads
from specviz.errors import ConfigError, ModelLoadError
from specviz.models.catalog import ModelPair, get_pair
from specviz.models.convert import Progress
from specviz.models.fetch import fetch_pair, part_folder, silent
from specviz.models.stored import own_folder
from specviz.models.trunk import FORM, config_refusal, trunk_shapes, write_trunk
from specviz.models.trunk import MANIFEST as TRUNK_MANIFEST

__all__ = ["FEATURE", "Kind", "import_draft", "recognise"]

FEATURE = "feature"
"""The method that EAGLE heads draft for."""

_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "*.safetensors", "pytorch_model*.bin")
"""The first of these that is there is read; heads lie beside a whole model's files in some folders."""

_PREFIX = r"(?:medusa_heads?\.)?"
_BLOCK = re.compile(_PREFIX + r"(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)")
_OUTPUT = re.compile(_PREFIX + r"(?:(\d+)\.(\d+)|lm_heads\.(\d+))\.weight")
_BACKBONE = re.compile(r"(model|lm_head)\..+")

_EAGLE_LACKS = ("layers.1.input_layernorm", "norm")
_ROTARY = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\..+")
"""Tables that older libraries saved; they are made anew from config.json."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a folder holds.

    name: for a sentence, as in "Medusa heads". method: what it would draft for, "" where that cannot be told.
    refusal: why this version cannot use it, in a sentence; "" if it can.
    """

    name: str
    method: str = ""
    refusal: str = ""


def recognise(folder: Path) -> Kind:
    """What kind of draft lies in a downloaded folder. Nothing in it is run.

    Raises:
        ModelLoadError: no weights there, a file that is damaged or holds more than tensors.
    """
    for manifest, method in ((MANIFEST, MedusaDrafter.name), (TRUNK_MANIFEST, "")):
        if (folder / manifest).is_file():
            place = own_folder("<pair>", method or "<method>")
            why = f"This draft is in specviz's own layout already ({manifest}). Put the folder at {place} as it is."
            return Kind("a draft of specviz", method, why)
    return _kind(_read(folder))


def import_draft(
    folder: Path, pair: str, method: str | None = None, progress: Progress | None = None
) -> tuple[Path, tuple[str, ...]]:
    """Take over a draft that another project trained, into the user's own folder, where runs look first.

    Args:
        folder: as downloaded: weights, and config.json if there is one. pair: a name of the catalog.
        method: what it has to be for; None for whatever it is.
    Returns:
        The folder written, and what a reader of its runs has to know.
    Raises:
        ConfigError: unknown pair, another method's draft, or the pair has a draft of its own for it already.
        ModelLoadError: a kind that this version does not run, another target's sizes, damaged files. Named.
    """
    entry = get_pair(pair)
    report = progress or silent
    report("Reading the checkpoint", None)
    kind = recognise(folder)
    if kind.refusal:
        raise ModelLoadError(kind.refusal)
    if method not in (None, kind.method):
        raise ConfigError(f"The folder holds {kind.name}, for the method {kind.method}, not {method}.")
    out = own_folder(pair, kind.method)
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"{pair} has a draft for {kind.method} already, in {out}. Move it away, then import again.")
    target = _target_config(entry, report)
    tensors, config = _read(folder), _config(folder)
    base = _base(config)
    part = out.with_name(f".{out.name}-partial")
    write = _write_eagle if kind.method == FEATURE else _write_medusa
    try:  # a killed import leaves nothing that a run would find
        shutil.rmtree(part, ignore_errors=True)
        report(f"Writing {kind.name}", None)
        for file in write(part, tensors, config, target, base):
            file.chmod(0o644)  # safetensors writes private files, and a shared cache is read by others
        if out.is_dir():
            out.rmdir()
        part.rename(out)
    except SafetensorError as error:
        raise ModelLoadError(f"The draft could not be written into {out.parent}: {error}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    with_backbone = kind.method == MedusaDrafter.name and any(_BACKBONE.fullmatch(key) for key in tensors)
    return out, _notes(entry, base, with_backbone)


def _kind(tensors: Mapping[str, Tensor]) -> Kind:
    names = {key.removeprefix("model.") for key in tensors}
    if any(_BLOCK.fullmatch(key) or _OUTPUT.fullmatch(key) for key in tensors):
        why = ""
        if "token_map" in names:
            why = (
                "These Medusa heads guess in a vocabulary of their own, cut down by `token_map` as in vLLM, which this "
                "version does not run."
            )
        return Kind("Medusa heads", MedusaDrafter.name, why)
    if any(name.startswith("hydra_") for name in names):
        why = "These are Hydra heads: each also reads the tokens drafted before it, which this version does not run."
        return Kind("Hydra heads", "", why)
    if "d2t" in names or any(name.startswith(("midlayer.", "layers.0.hidden_norm.")) for name in names):
        why = (
            "This is an EAGLE-3 head: its attention reads embedding and state side by side (2 d_model), which this "
            "version does not run."
        )
        return Kind("an EAGLE-3 head", FEATURE, why)
    if names & {"fc.weight", "fusion_fc.weight"} and any("self_attn.q_proj." in name for name in names):
        return Kind("an EAGLE-1 or EAGLE-2 head", FEATURE)  # their weights are alike
    if "embed_tokens.weight" in names:
        return Kind("a whole model", "", "This is a whole model without heads on it; only heads are imported.")
    some = ", ".join(repr(key[:60]) for key in sorted(tensors)[:3]) or "none"
    why = f"No layout known here names its tensors so: {some}. Known are Medusa and EAGLE heads."
    return Kind("an unknown layout", "", why)


def _write_medusa(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: Any, base: str
) -> list[Path]:
    hidden_size, vocab_size = _sizes(target)
    heads = _heads(tensors, hidden_size, vocab_size, shared=config.get("original_lm_head") is True)
    return save_heads(folder, heads, hidden_size=hidden_size, vocab_size=vocab_size, target=base, max_bytes=None)


def _write_eagle(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: Any, base: str
) -> list[Path]:
    """The layers as a trunk that proposes from the whole vocabulary, and `fc` beside it."""
    refusal = config_refusal(target)
    if refusal:
        raise ModelLoadError(refusal)
    sizes = _sizes(target)
    renamed = {_eagle_name(key): tensor for key, tensor in tensors.items()}
    renamed = {key: tensor for key, tensor in renamed.items() if not _ROTARY.fullmatch(key)}
    form = _eagle_form(config, renamed, sizes)
    num_layers = max(1, len({key.split(".")[1] for key in renamed if key.startswith("layers.")}))
    shapes = {_shifted(key, -1): shape for key, shape in trunk_shapes(form, num_layers, _EAGLE_LACKS).items()}
    found = _eagle_tensors(renamed, shapes, *sizes)
    about = {
        "method": FEATURE,
        "parts": EAGLE,
        "target": base,
        "source": "imported",
        "form": form,
        "lacks": list(_EAGLE_LACKS),
    }
    ids = torch.arange(sizes[1])
    return write_trunk(folder, {_shifted(key, 1): tensor for key, tensor in found.items()}, num_layers, ids, about)


def _eagle_form(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], sizes: tuple[int, int]
) -> dict[str, int | float | str | dict[str, Any]]:
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


def _eagle_tensors(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], hidden_size: int, vocab_size: int
) -> dict[str, Tensor]:
    """Those of the layers, which have to be of these shapes, and of `fc`. Names as with the authors."""
    left = dict(tensors)
    perhaps = {"fc.bias": (hidden_size,), "embed_tokens.weight": (vocab_size, hidden_size)}
    shapes = {**shapes, "fc.weight": (hidden_size, 2 * hidden_size)}
    shapes |= {key: shape for key, shape in perhaps.items() if key in left}
    for key in shapes:  # heads of Qwen2 have biases on three projections, Llama on the fourth as well
        if key.endswith("o_proj.bias"):
            left.setdefault(key, torch.zeros(hidden_size))
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
    found.pop("embed_tokens.weight", None)  # a copy of the target's own, which is read instead
    return found


def _eagle_name(key: str) -> str:
    """The authors' name of a tensor of vLLM or of speculators."""
    key = key.removeprefix("model.")
    key = re.sub(r"^transformer\.", "layers.0.", key)
    return re.sub(r"^fusion_fc\.", "fc.", key)


def _shifted(key: str, by: int) -> str:
    """Layers are counted from 0 there and from 1 here."""
    return re.sub(r"^layers\.(\d+)", lambda found: f"layers.{int(found[1]) + by}", key)


def _heads(tensors: Mapping[str, Tensor], hidden_size: int, vocab_size: int, *, shared: bool) -> Heads:
    """Medusa heads of either layout. shared: their output layers are copies of the target's own."""
    renamed: dict[str, Tensor] = {}
    blocks, ends = {0}, set()
    for key, tensor in tensors.items():
        if found := _BLOCK.fullmatch(key):
            head, block, part = (group for group in found.groups() if group is not None)
            renamed[f"heads.{int(head) + 1}.blocks.{int(block) + 1}.{part}"] = tensor
            blocks.add(int(block) + 1)
        elif found := _OUTPUT.fullmatch(key):
            head = found[1] or found[3]
            ends |= {int(found[2])} if found[2] else set()
            if not shared:
                renamed[f"heads.{int(head) + 1}.output"] = tensor
        elif not _BACKBONE.fullmatch(key):
            raise ModelLoadError(f"The Medusa heads hold a tensor that their layout does not have: {key[:80]!r}.")
        else:
            continue
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelLoadError(f"The Medusa heads hold {key} as {kind}; quantized heads are not read.")
    num_blocks = max(blocks)
    if ends - {num_blocks}:
        raise ModelLoadError(
            f"The Medusa heads have {num_blocks} blocks and an output layer at place {max(ends)}: something stands "
            "between them that their layout does not have."
        )
    for key, tensor in renamed.items():
        if tensor.ndim == 2:
            rows = tensor.shape[0] if key.endswith(".output") else vocab_size
            check_sizes((tensor.shape[1], rows), (hidden_size, vocab_size))
    if not any(key.endswith(".bias") for key in renamed):  # vLLM's blocks have none unless told so
        weights = [(key, tensor) for key, tensor in renamed.items() if key.endswith(".weight")]
        renamed |= {key.removesuffix("weight") + "bias": tensor.new_zeros(hidden_size) for key, tensor in weights}
    num_heads = max((int(key.split(".")[1]) for key in renamed), default=0)
    return build_heads(renamed, num_heads, num_blocks, hidden_size=hidden_size, vocab_size=vocab_size)


def _notes(pair: ModelPair, base: str, with_backbone: bool) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if base and base.rstrip("/").rsplit("/", 1)[-1].lower() != pair.target.name.lower():
        notes += (
            f"The draft was trained on {base[:80]}, and the target of {pair.name} is {pair.target.repo}. "
            "The text stays right; where these differ, fewer drafts are accepted.",
        )
    if with_backbone:
        notes += (
            "The folder holds a whole model, which may have been trained along with its heads (Medusa-2). Only the "
            f"heads were taken: on the target of {pair.name} fewer drafts may be accepted. The text stays right.",
        )
    return notes


def _base(config: Mapping[str, Any]) -> str:
    """The model that a draft says it was trained on, "" if it does not."""
    base: Any = config.get("base_model_name_or_path")
    for key in ("speculators_config", "verifier", "name_or_path"):
        config = config.get(key, {}) if isinstance(config, dict) else {}
    return next((name for name in (base, config) if isinstance(name, str)), "")


def _target_config(pair: ModelPair, report: Progress) -> Any:
    """The configuration of a pair's target, which is fetched if it is not here yet."""
    from transformers import AutoConfig

    fetch_pair(pair, progress=report)
    return AutoConfig.from_pretrained(part_folder(pair, "target"), local_files_only=True, trust_remote_code=False)


def _sizes(target: Any) -> tuple[int, int]:
    """(d_model, rows of the output layer) of a target, from its configuration."""
    text = target.get_text_config(decoder=True)
    return int(text.hidden_size), int(text.vocab_size)


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"config.json in {folder} is damaged: it is not JSON.") from error
    return found if isinstance(found, dict) else {}


def _read(folder: Path) -> dict[str, Tensor]:
    """All tensors, mapped from the disk where the format allows it, so that those not needed cost nothing."""
    files = next((files for pattern in _FILES if (files := sorted(folder.glob(pattern)))), [])
    if not files:
        raise ModelLoadError(f"{folder} is no folder with weights. Looked for are {', '.join(_FILES)}.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read_file(file)
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # weights_only: the pickle may name tensors and plain containers, and nothing else is ever called.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except UnpicklingError as error:
        raise ModelLoadError(
            f"{path.name} was not loaded: it is a pickle that holds more than tensors, which could run code on this "
            "machine, or it is damaged. Look for the same weights as safetensors."
        ) from error
    except Exception as error:  # a damaged pickle fails in torch's reader in any way it likes
        raise ModelLoadError(
            f"{path.name} cannot be read ({type(error).__name__}): it is damaged, or was not downloaded whole."
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in found.items()
    ):
        raise ModelLoadError(f"{path.name} holds something else than named tensors, so it is not read.")
    return {key: tensor.detach() for key, tensor in found.items()}
