"""Medusa: extra heads on the target's last hidden state guess several tokens at once, as a chain or as a tree.

The hidden state h of the last token in the cache is what the target chose the last committed token by. Head k guesses
the token k places behind that one: logits = output layer of (h + SiLU(W h + b)), one such block or several in a row.
The output layer is the target's own; only the blocks belong to a head. Guesses are point masses: chosen, not drawn.

Source: Cai et al. (2024), Medusa, arXiv 2401.10774, section 2.1. There a tree's nodes are verified together under one
mask; here too. Without trained heads the blocks add nothing, so every head says what the target itself just said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.options import Option
from specviz.drafters.stored import draft_folder
from specviz.errors import ConfigError, ModelLoadError
from specviz.events import DraftNote
from specviz.models.decoder import Decoder
from specviz.models.loader import LoadedPair
from specviz.proposal import Proposal
from specviz.sampling import penalise

__all__ = [
    "MAX_RANK",
    "MAX_SHARD_BYTES",
    "MAX_TREE_NODES",
    "TREE",
    "UNTRAINED_HEADS",
    "Heads",
    "MedusaDrafter",
    "Tree",
    "find_heads",
    "load_heads",
    "medusa_refusal",
    "parse_tree",
    "save_heads",
    "untrained_heads",
]

TREE = Option("tree", "chain", "chain, or children per level such as 4,2,1, or paths of ranks such as paths:0/1/00/01")

MAX_RANK = 10
"""Guesses taken from one head. A path names them by one digit each."""

MAX_TREE_NODES = 64
"""On a processor every node is a row of the target's pass, and 64 rows cost several plain passes already."""

UNTRAINED_HEADS = 4
LAYOUT = "specviz-medusa-1"
MANIFEST = "heads.json"
MAX_SHARD_BYTES = 9_000_000
_BLOCK = re.compile(r"heads\.(\d+)\.blocks\.(\d+)\.(weight|bias)")
_OLD = re.compile(r"(medusa_heads?\.)?\d+\.\d+\.(linear\.)?(weight|bias)")


# --- trees --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tree:
    """The shape of a draft. Each path is a node: the rank of its guess at every level from the root downwards.

    paths: parents before children, siblings by rank.
    """

    paths: tuple[tuple[int, ...], ...]

    @property
    def depth(self) -> int:
        return max((len(path) for path in self.paths), default=0)

    @property
    def is_chain(self) -> bool:
        return len(self.paths) == self.depth

    def cut(self, depth: int, rank: int = MAX_RANK) -> Tree:
        """Without the nodes below level `depth` and without those that take a guess of rank `rank` or worse."""
        return Tree(tuple(path for path in self.paths if len(path) <= depth and max(path) < rank))

    def parents(self) -> tuple[int, ...]:
        """[n] index of each node's parent, -1 for the root."""
        index = {path: node for node, path in enumerate(self.paths)} | {(): -1}
        return tuple(index[path[:-1]] for path in self.paths)

    def levels(self) -> list[int]:
        """Nodes on each level."""
        return [sum(len(path) == level for path in self.paths) for level in range(1, self.depth + 1)]


def parse_tree(spec: str, max_depth: int = 15) -> Tree:
    """The tree that a setting means.

    Args:
        spec: "chain"; or children per node, level by level, as in "4,2,1"; or "paths:" and one path a node, its guesses
            by rank from 0, as in "paths:0/1/00/01" (two guesses, and two behind the better one).
        max_depth: of a chain.
    Raises:
        ConfigError: another form, a rank of MAX_RANK or more, more than MAX_TREE_NODES nodes, a path without its
        beginning, a path named twice.
    """
    text = spec.strip().lower()
    if text == "chain":
        return Tree(tuple((0,) * level for level in range(1, max_depth + 1)))
    if text.startswith("paths:"):
        return _tree_of_paths(re.split(r"[\s/]+", text.removeprefix("paths:").strip(" /")))
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d{1,2}", word) and 1 <= int(word) <= MAX_RANK for word in words):
        raise ConfigError(
            f"tree must be chain, or children per level from 1 to {MAX_RANK} such as 4,2,1, or paths of ranks such as "
            f"paths:0/1/00/01; got {spec[:40]!r}."
        )
    paths: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for word in words:
        level = [(*path, rank) for path in level for rank in range(int(word))]
        paths += level
        if len(paths) > MAX_TREE_NODES:
            raise ConfigError(f"tree may have 1 to {MAX_TREE_NODES} nodes; {spec[:40]!r} has more.")
    return Tree(tuple(paths))


def _tree_of_paths(words: Sequence[str]) -> Tree:
    if not all(re.fullmatch(r"[0-9]+", word) for word in words):
        given = "/".join(words)[:60]
        raise ConfigError(f"tree takes paths of ranks from 0 to {MAX_RANK - 1}, such as 01; got {given!r}.")
    paths = sorted((tuple(int(rank) for rank in word) for word in words), key=lambda path: (len(path), path))
    if len(paths) > MAX_TREE_NODES:
        raise ConfigError(f"tree may have 1 to {MAX_TREE_NODES} nodes; got {len(paths)}.")
    for path in paths:
        name = "".join(map(str, path))
        if paths.count(path) > 1:
            raise ConfigError(f"tree names the path {name} twice.")
        if len(path) > 1 and path[:-1] not in paths:
            raise ConfigError(f"tree has the path {name} without its beginning {name[:-1]}. Name every node.")
    return Tree(tuple(paths))


# --- heads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """The residual blocks of all heads.

    weights: per block in a row [heads, d_model, d_model]. biases: likewise [heads, d_model].
    trained: False for heads that add nothing. target_sha256: of the weights they were trained on; "" if untold.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    num_heads: int
    trained: bool = True
    target_sha256: str = ""

    def __call__(self, hidden: Tensor) -> Tensor:
        """[d_model] hidden state to [heads, d_model], what each head hands to the output layer."""
        states = hidden[None].expand(self.num_heads, -1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            states = states + silu(torch.baddbmm(bias[:, None], states[:, None], weight.mT)[:, 0])
        return states

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.weights, *self.biases))


def untrained_heads(num_heads: int = UNTRAINED_HEADS) -> Heads:
    """Heads whose blocks add nothing: each says what the target said."""
    return Heads((), (), num_heads, trained=False)


def find_heads(loaded: LoadedPair) -> tuple[Heads, tuple[str, ...]]:
    """The pair's heads or untrained ones, and what a reader of their runs has to know about them.

    Raises:
        ModelLoadError: the pair has heads that do not fit its target, or are damaged.
    """
    folder = draft_folder(loaded.pair.name, MedusaDrafter.name)
    if folder is None:
        return untrained_heads(), (
            f"The pair {loaded.pair.name} has no trained Medusa heads. These untrained heads repeat what the target "
            "just said, so nearly all they draft is refused.",
        )
    weight = loaded.target.get_output_embeddings().weight
    hidden_size = int(loaded.target.config.get_text_config(decoder=True).hidden_size)
    sizes = {"hidden_size": hidden_size, "vocab_size": int(weight.shape[0])}
    heads = load_heads(folder, **sizes, dtype=loaded.dtype, device=loaded.device)
    ours, theirs = loaded.target_info.sha256, heads.target_sha256
    if ours and theirs and ours != theirs:
        return heads, (
            f"The Medusa heads were trained on other weights ({theirs[:8]}…) than this target's ({ours[:8]}…). "
            "The text stays right; fewer drafts are accepted.",
        )
    return heads, ()


def save_heads(folder: Path, heads: Heads, *, hidden_size: int, vocab_size: int, target: str = "") -> list[Path]:
    """Write heads as safetensors of at most MAX_SHARD_BYTES a file, and a manifest.

    Raises:
        ConfigError: a single block is larger than a file may be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for head in range(heads.num_heads):
        for block, (weight, bias) in enumerate(zip(heads.weights, heads.biases, strict=True)):
            prefix = f"heads.{head + 1}.blocks.{block + 1}"
            part = {f"{prefix}.weight": weight[head].contiguous(), f"{prefix}.bias": bias[head].contiguous()}
            num_bytes = sum(tensor.nbytes for tensor in part.values()) + 1024  # the header's share, rounded up
            if num_bytes > MAX_SHARD_BYTES:
                raise ConfigError(f"A block of {num_bytes} bytes is larger than a file of {MAX_SHARD_BYTES} may be.")
            if size + num_bytes > MAX_SHARD_BYTES:
                shards.append({})
                size = 0
            shards[-1] |= part
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
    for name, theirs, ours in (
        ("hidden size", manifest.get("hidden_size"), hidden_size),
        ("vocabulary", manifest.get("vocab_size"), vocab_size),
    ):
        if theirs != ours:
            raise ModelLoadError(
                f"The Medusa heads were made for a target with {name} {theirs}, and this one has "
                f"{ours}. Heads fit the one model they were trained on."
            )
    num_heads, num_blocks = manifest.get("num_heads"), manifest.get("num_blocks")
    if not (type(num_heads) is int and type(num_blocks) is int and 1 <= num_heads <= 15 and 0 <= num_blocks <= 8):
        raise ModelLoadError(
            f"The Medusa heads should be 1 to 15 heads of 0 to 8 blocks; their manifest says "
            f"{num_heads!r:.20} of {num_blocks!r:.20}."
        )
    tensors = _tensors(folder, manifest)
    weights, biases = [], []
    for block in range(1, num_blocks + 1):
        keys = [f"heads.{head}.blocks.{block}" for head in range(1, num_heads + 1)]
        weights.append(torch.stack([_take(tensors, f"{key}.weight", (hidden_size, hidden_size)) for key in keys]))
        biases.append(torch.stack([_take(tensors, f"{key}.bias", (hidden_size,)) for key in keys]))
    if tensors:
        raise ModelLoadError(f"The Medusa heads hold a tensor that nothing reads: {sorted(tensors)[0][:80]!r}.")
    return Heads(
        tuple(weight.to(device, dtype) for weight in weights),
        tuple(bias.to(device, dtype) for bias in biases),
        num_heads,
        target_sha256=str(manifest.get("target_sha256") or ""),
    )


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(
            f"There are no Medusa heads of the layout {LAYOUT}: {MANIFEST} is missing. "
            "Heads in the layouts of other projects are not read."
        ) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"The Medusa heads are damaged: {MANIFEST} is not JSON.") from error
    layout = found.get("layout") if isinstance(found, dict) else None
    if layout != LAYOUT:
        raise ModelLoadError(f"The Medusa heads are of the layout {str(layout)[:40]!r}; this version reads {LAYOUT}.")
    checked: Mapping[str, Any] = found
    return checked


def _tensors(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    names = manifest.get("files")
    if not isinstance(names, list) or not all(
        isinstance(name, str) and re.fullmatch(r"[\w-]+\.safetensors", name) for name in names
    ):
        raise ModelLoadError(f"{MANIFEST} of the Medusa heads does not list its files.")
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{name} of the Medusa heads is missing or damaged.") from error
    for key in tensors:
        if _OLD.fullmatch(key):
            raise ModelLoadError(
                f"The Medusa heads hold {key!r}, a name of the authors' layout with an output layer "
                f"for every head. This version reads {LAYOUT}, where heads share the target's."
            )
        if not _BLOCK.fullmatch(key):
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

    def reset(self, prompt_ids: Sequence[int]) -> None:
        pass

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        if context.hidden is None:  # a prompt of one token: nothing has been through the target yet
            return Proposal.empty(self._note([], "no hidden state yet"))
        tree = self._tree.cut(max_tokens)
        if not tree.paths:
            return Proposal.empty(self._note([], "the vocabulary is smaller than the ranks asked for"))
        with torch.inference_mode():
            states = self._heads(context.hidden)[: tree.depth]
            logits = self._decoder.project(states)[:, : self._vocab_size].cpu()
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
