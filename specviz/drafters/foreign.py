"""Drafts that other projects trained: what a downloaded folder holds, and how it is turned into our own layout.

Medusa heads, by their authors: `0.1.linear.weight` and `.bias` are block 1 of head 0, counted from 0; `0.2.weight`
behind the last block is the head's own output layer [vocab, d_model]; heads without one share the target's (version 2).
Names may begin with `medusa_head.`, as they do inside a whole model (Medusa-2), or `medusa_heads.`. vLLM's copies say
`blocks.0.layers.1.weight` and `lm_heads.0.weight`. Heads are counted in the file, not in config.json: the authors' own
says 2 where the file has 5.

EAGLE heads: see `specviz.drafters.foreign_eagle`.

Source: FasterDecoding/Medusa, medusa/model/medusa_model.py and medusa_model_legacy.py, commit e2a5d20;
vllm/model_executor/models/medusa.py.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specviz.drafters.feature import FeatureDrafter
from specviz.drafters.foreign_eagle import is_eagle, is_eagle_3, target_sizes, write_eagle, write_eagle_3
from specviz.drafters.medusa import MANIFEST, Heads, MedusaDrafter, build_heads, check_sizes, save_heads
from specviz.errors import ConfigError, ModelLoadError
from specviz.models.catalog import ModelPair, get_pair
from specviz.models.convert import Progress
from specviz.models.fetch import fetch_pair, part_folder, silent
from specviz.models.stored import own_folder
from specviz.models.trunk import MANIFEST as TRUNK_MANIFEST

__all__ = ["FEATURE", "Kind", "import_draft", "recognise"]

FEATURE = FeatureDrafter.name
"""The method that EAGLE heads draft for."""

_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "*.safetensors", "pytorch_model*.bin")
"""The first of these that is there is read; heads lie beside a whole model's files in some folders."""

_PREFIX = r"(?:medusa_heads?\.)?"
_BLOCK = re.compile(_PREFIX + r"(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)")
_OUTPUT = re.compile(_PREFIX + r"(?:(\d+)\.(\d+)|lm_heads\.(\d+))\.weight")
_BACKBONE = re.compile(r"(model|lm_head)\..+")


Writer = Callable[[Path, Mapping[str, Tensor], Mapping[str, Any], Any, str], list[Path]]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a folder holds.

    name: for a sentence, as in "Medusa heads". method: what it would draft for, "" where that cannot be told.
    refusal: why this version cannot use it, in a sentence; "" if it can.
    write: puts what it holds into our layout: (folder, tensors, config.json, the target's configuration, the name of
        the model that it was trained on) to the files.
    """

    name: str
    method: str = ""
    refusal: str = ""
    write: Writer | None = field(default=None, compare=False)


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
    write = kind.write or _write_medusa
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
    if "mask_hidden" in names:
        why = "This EAGLE head drafts all its tokens in one pass (P-EAGLE), which this version does not run."
        return Kind("a P-EAGLE head", FEATURE, why)
    if is_eagle_3(names):
        return Kind("an EAGLE-3 head", FEATURE, write=write_eagle_3)
    if is_eagle(names):
        return Kind("an EAGLE-1 or EAGLE-2 head", FEATURE, write=write_eagle)  # their weights are alike
    if "embed_tokens.weight" in names:
        return Kind("a whole model", "", "This is a whole model without heads on it; only heads are imported.")
    some = ", ".join(repr(key[:60]) for key in sorted(tensors)[:3]) or "none"
    why = f"No layout known here names its tensors so: {some}. Known are Medusa and EAGLE heads."
    return Kind("an unknown layout", "", why)


def _write_medusa(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], target: Any, base: str
) -> list[Path]:
    hidden_size, vocab_size = target_sizes(target)
    heads = _heads(tensors, hidden_size, vocab_size, shared=config.get("original_lm_head") is True)
    return save_heads(folder, heads, hidden_size=hidden_size, vocab_size=vocab_size, target=base, max_bytes=None)


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
