"""Medusa: extra heads on the target's last hidden state guess several tokens at once, as a chain or as a tree.

The hidden state h of the last token in the cache is what the target chose the last committed token by. Head k guesses
the token k places behind that one: logits = output layer of (h + SiLU(W h + b)), one such block or several in a row.
The output layer is the target's own, unless heads that others trained bring their own (`specviz.drafters.foreign`).
Guesses are point masses: chosen, not drawn.

Source: Cai et al. (2024), Medusa, arXiv 2401.10774, section 2.1. There a tree's nodes are verified together under one
mask; here too. Without trained heads the blocks add nothing, so every head says what the target itself just said.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, silu

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.tree import Tree
from specviz.errors import ConfigError, ModelLoadError
from specviz.events import DraftNote
from specviz.models.decoder import Decoder
from specviz.models.loader import LoadedPair
from specviz.models.session import Session
from specviz.models.stored import read_tensors
from specviz.proposal import Proposal
from specviz.sampling import penalise

__all__ = [
    "MANIFEST",
    "MAX_SHARD_BYTES",
    "UNTRAINED_HEADS",
    "Heads",
    "MedusaDrafter",
    "build_heads",
    "check_sizes",
    "find_heads",
    "load_heads",
    "medusa_refusal",
    "save_heads",
    "untrained_heads",
]

UNTRAINED_HEADS = 4
LAYOUT = "specviz-medusa-1"
MANIFEST = "heads.json"
MAX_SHARD_BYTES = 9_000_000
_NAME = re.compile(r"heads\.\d+\.(blocks\.\d+\.(weight|bias)|output)")
_OLD = re.compile(r"(medusa_heads?\.)?\d+\.\d+\.(linear\.)?(weight|bias)")


# --- heads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """The residual blocks of all heads.

    weights: per block in a row [heads, d_model, d_model]. biases: likewise [heads, d_model].
    trained: False for heads that add nothing. target_sha256: of the weights they were trained on; "" if untold.
    outputs: per head [vocab, d_model], its own output layer; empty where all share the target's.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    num_heads: int
    trained: bool = True
    target_sha256: str = ""
    outputs: tuple[Tensor, ...] = ()

    def __call__(self, hidden: Tensor) -> Tensor:
        """[d_model] hidden state to [heads, d_model], what each head hands to the output layer."""
        states = hidden[None].expand(self.num_heads, -1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            states = states + silu(torch.baddbmm(bias[:, None], states[:, None], weight.mT)[:, 0])
        return states

    def project(self, states: Tensor, decoder: Decoder) -> Tensor:
        """[rows, d_model], what the first heads hand over, to [rows, vocab] logits."""
        if not self.outputs:
            return decoder.project(states)
        return torch.stack([linear(*pair) for pair in zip(states, self.outputs, strict=False)])

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.weights, *self.biases, *self.outputs))


def untrained_heads(num_heads: int = UNTRAINED_HEADS) -> Heads:
    """Heads whose blocks add nothing: each says what the target said."""
    return Heads((), (), num_heads, trained=False)


_held: weakref.WeakKeyDictionary[Any, tuple[Any, Heads]] = weakref.WeakKeyDictionary()
"""By target, freed with it: heads with output layers of their own take longer to read than a short run lasts."""


def find_heads(loaded: LoadedPair) -> tuple[Heads, tuple[str, ...]]:
    """The pair's heads or untrained ones, and what a reader of their runs has to know about them.

    Raises:
        ModelLoadError: the pair has heads that do not fit its target, or are damaged.
    """
    folder = loaded.folder_of(MedusaDrafter.name)
    if folder is None:
        return untrained_heads(), (
            f"The pair {loaded.pair.name} has no trained Medusa heads. These untrained heads repeat what the target "
            "just said, so nearly all they draft is refused.",
        )
    weight = loaded.target.get_output_embeddings().weight
    hidden_size = int(loaded.target.config.get_text_config(decoder=True).hidden_size)
    sizes = {"hidden_size": hidden_size, "vocab_size": int(weight.shape[0])}
    found = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(folder.iterdir())]
    key = (folder, found, loaded.dtype)
    held_key, heads = _held.get(loaded.target, (None, None))
    if heads is None or held_key != key:
        heads = load_heads(folder, **sizes, dtype=loaded.dtype, device=loaded.device)
        _held[loaded.target] = (key, heads)
    ours, theirs = loaded.target_info.sha256, heads.target_sha256
    if ours and theirs and ours != theirs:
        return heads, (
            f"The Medusa heads were trained on other weights ({theirs[:8]}…) than this target's ({ours[:8]}…). "
            "The text stays right; fewer drafts are accepted.",
        )
    return heads, ()


def save_heads(
    folder: Path,
    heads: Heads,
    *,
    hidden_size: int,
    vocab_size: int,
    target: str = "",
    max_bytes: int | None = MAX_SHARD_BYTES,
) -> list[Path]:
    """Write heads as safetensors, and a manifest.

    Args:
        target: the name of the model they were trained on.
        max_bytes: of a file; None for one file a head, however large: for the user's own disk, not for what we ship.
    Raises:
        ConfigError: a single block or output layer is larger than a file may be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = []
    size = 0
    for head in range(heads.num_heads):
        name = f"heads.{head + 1}"
        parts = [
            {f"{name}.blocks.{block}.weight": weight[head], f"{name}.blocks.{block}.bias": bias[head]}
            for block, (weight, bias) in enumerate(zip(heads.weights, heads.biases, strict=True), start=1)
        ]
        parts += [{f"{name}.output": output} for output in heads.outputs[head : head + 1]]
        if max_bytes is None:
            shards.append({})
        for part in parts:
            num_bytes = sum(tensor.nbytes for tensor in part.values()) + 1024  # the header's share, rounded up
            if max_bytes is not None:
                if num_bytes > max_bytes:
                    raise ConfigError(f"A block of {num_bytes} bytes is larger than a file of {max_bytes} may be.")
                if not shards or size + num_bytes > max_bytes:
                    shards.append({})
                    size = 0
            shards[-1] |= {key: tensor.contiguous() for key, tensor in part.items()}
            size += num_bytes
    names = [f"heads-{number:02d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name)
    manifest = {
        "layout": LAYOUT,
        "num_heads": heads.num_heads,
        "num_blocks": len(heads.weights),
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "target": target,
        "target_sha256": heads.target_sha256,
        "files": names,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return [folder / name for name in (*names, MANIFEST)]


def load_heads(
    folder: Path,
    *,
    hidden_size: int,
    vocab_size: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Heads:
    """Read what `save_heads` wrote.

    Args:
        hidden_size, vocab_size: of the target; vocab_size counts the rows of its output layer.
    Raises:
        ModelLoadError: no heads there, another layout, another size, a tensor that is missing or damaged. Named.
    """
    manifest = _manifest(folder)
    check_sizes((manifest.get("hidden_size"), manifest.get("vocab_size")), (hidden_size, vocab_size))
    counts = manifest.get("num_heads"), manifest.get("num_blocks")
    heads = build_heads(_tensors(folder, manifest), *counts, hidden_size=hidden_size, vocab_size=vocab_size)
    return Heads(
        tuple(weight.to(device, dtype) for weight in heads.weights),
        tuple(bias.to(device, dtype) for bias in heads.biases),
        heads.num_heads,
        target_sha256=str(manifest.get("target_sha256") or ""),
        outputs=tuple(output.to(device, dtype, copy=True) for output in heads.outputs),  # out of the mapped file
    )


def check_sizes(theirs: tuple[Any, Any], ours: tuple[int, int]) -> None:
    """Raises ModelLoadError where heads made for one (hidden size, vocabulary) meet a target of another."""
    for name, found, needed in zip(("hidden size", "vocabulary"), theirs, ours, strict=True):
        if found != needed:
            raise ModelLoadError(
                f"The Medusa heads were made for a target with {name} {found}, and this one has "
                f"{needed}. Heads fit the one model they were trained on."
            )


def build_heads(
    tensors: Mapping[str, Tensor], num_heads: Any, num_blocks: Any, *, hidden_size: int, vocab_size: int
) -> Heads:
    """Heads from tensors of this version's names, in the number format that these have.

    Args:
        tensors: `heads.1.blocks.1.weight` and `.bias`, ...; `heads.1.output`, ... where heads have output layers.
    Raises:
        ModelLoadError: numbers out of range, a tensor that is missing, too many or of another shape. Named.
    """
    if not (type(num_heads) is int and type(num_blocks) is int and 1 <= num_heads <= 15 and 0 <= num_blocks <= 8):
        raise ModelLoadError(
            f"The Medusa heads should be 1 to 15 heads of 0 to 8 blocks; found are {num_heads!r:.20} of "
            f"{num_blocks!r:.20}."
        )
    left = dict(tensors)
    numbers = range(1, num_heads + 1)
    weights, biases, outputs = [], [], []
    for block in range(1, num_blocks + 1):
        keys = [f"heads.{head}.blocks.{block}" for head in numbers]
        weights.append(torch.stack([_take(left, f"{key}.weight", (hidden_size, hidden_size)) for key in keys]))
        biases.append(torch.stack([_take(left, f"{key}.bias", (hidden_size,)) for key in keys]))
    if "heads.1.output" in left:
        outputs = [_take(left, f"heads.{head}.output", (vocab_size, hidden_size)) for head in numbers]
    if left:
        raise ModelLoadError(f"The Medusa heads hold a tensor that nothing reads: {sorted(left)[0][:80]!r}.")
    return Heads(tuple(weights), tuple(biases), num_heads, outputs=tuple(outputs))


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(
            f"There are no Medusa heads of the layout {LAYOUT}: {MANIFEST} is missing. "
            "`python -m specviz train import` takes over heads of other projects."
        ) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"The Medusa heads are damaged: {MANIFEST} is not JSON.") from error
    layout = found.get("layout") if isinstance(found, dict) else None
    if layout != LAYOUT:
        raise ModelLoadError(f"The Medusa heads are of the layout {str(layout)[:40]!r}; this version reads {LAYOUT}.")
    checked: Mapping[str, Any] = found
    return checked


def _tensors(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = read_tensors(folder, manifest.get("files"), MANIFEST, "the Medusa heads")
    for key in tensors:
        if _OLD.fullmatch(key):
            raise ModelLoadError(
                f"The Medusa heads hold {key!r}, a name of the authors' layout. "
                "`python -m specviz train import` takes over heads of that kind."
            )
        if not _NAME.fullmatch(key):
            raise ModelLoadError(f"The Medusa heads hold a tensor of unknown name: {key[:80]!r}.")
    return tensors


def _take(tensors: dict[str, Tensor], key: str, shape: tuple[int, ...]) -> Tensor:
    tensor = tensors.pop(key, None)
    if tensor is None:
        raise ModelLoadError(f"The Medusa heads lack {key}.")
    if tuple(tensor.shape) != shape:
        raise ModelLoadError(f"The Medusa heads hold {key} of shape {tuple(tensor.shape)}; needed is {shape}.")
    return tensor


# --- drafting -----------------------------------------------------------------------------------------------------


def medusa_refusal(model: Any) -> str | None:
    """Why heads cannot sit on this model, in a sentence; None if they can."""
    if not callable(getattr(model, "get_output_embeddings", None)) or model.get_output_embeddings() is None:
        return (
            "medusa reads the target's hidden states through its output layer, and this target shows none. "
            "Choose prompt-lookup."
        )
    return None


class MedusaDrafter:
    """Guesses from the hidden state that the loop hands over; holds the heads and nothing of a run."""

    name = "medusa"
    needs = frozenset({Need.HIDDEN})
    num_bytes = 0

    def __init__(
        self, decoder: Decoder, heads: Heads, tree: Tree, *, vocab_size: int, notes: tuple[str, ...] = ()
    ) -> None:
        """
        Args:
            decoder: of the target, for its output layer.
            tree: one deeper than there are heads is cut, and a note says so.
            vocab_size: ids at or above are padding of the output layer, never drafted.
            notes: sentences about the run, for the page.
        """
        self._decoder = decoder
        self._heads = heads
        self._vocab_size = vocab_size
        self._is_chain = tree.is_chain
        self._tree = tree.cut(heads.num_heads, vocab_size)
        self._remark = "" if heads.trained else "; untrained heads"
        self.notes = notes
        if tree.depth > heads.num_heads and not self._is_chain:
            self.notes += (
                f"The tree has {tree.depth} levels and there are {heads.num_heads} heads, one a level: the tree is cut "
                f"to {heads.num_heads} levels.",
            )

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        pass

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        if context.hidden is None:  # a prompt of one token: nothing has been through the target yet
            return Proposal.empty(self._note([], "no hidden state yet"))
        tree = self._tree.cut(max_tokens)
        if not tree.paths:
            return Proposal.empty(self._note([], "the vocabulary is smaller than the ranks asked for"))
        with torch.inference_mode():
            states = self._heads(context.hidden)[: tree.depth]
            logits = self._heads.project(states, self._decoder)[:, : self._vocab_size].cpu()
            logits = logits if logits.dtype == torch.float64 else logits.float()
            penalty = context.sampling.repetition_penalty
            if penalty != 1.0:
                logits = torch.stack([penalise(row, context.token_ids, penalty) for row in logits])
            probs, ids = torch.softmax(logits, -1).topk(1 + max(max(path) for path in tree.paths))
        guesses, sure = ids.tolist(), probs.tolist()
        places = [(len(path) - 1, path[-1]) for path in tree.paths]
        tokens = torch.tensor([guesses[level][rank] for level, rank in places], dtype=torch.int64)
        confidence = tuple(min(1.0, sure[level][rank]) for level, rank in places)
        return Proposal(tokens, tree.parents(), None, (), confidence, self._note(tree.levels()))

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        pass

    def _note(self, levels: list[int], words: str = "") -> DraftNote:
        if not words and self._is_chain:
            words = f"{len(levels)} {'head' if len(levels) == 1 else 'heads'}, one guess each"
        elif not words:
            words = f"{sum(levels)} candidates on {len(levels)} {'level' if len(levels) == 1 else 'levels'}"
        data = {"levels": levels, "num_heads": self._heads.num_heads, "trained": self._heads.trained}
        return DraftNote("tree", words + self._remark, data)
