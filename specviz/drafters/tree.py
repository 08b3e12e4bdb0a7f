"""Shapes of drafts with branches: how many guesses each level takes, and what hangs from which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specviz.drafters.options import Option
from specviz.errors import ConfigError

__all__ = ["FEATURE_TREE", "MAX_RANK", "MAX_TREE_NODES", "TREE", "GrowingTree", "Tree", "parse_growing", "parse_tree"]

TREE = Option(
    "tree",
    "chain",
    "chain, or children per level such as 4,2,1, or paths of ranks such as paths:0/1/00/01",
    essential=True,
)

FEATURE_TREE = Option(
    "tree",
    "chain",
    "chain, or growing for as many of the likeliest candidates as pay on this machine, or growing:7 for 7 of them, or "
    "a fixed shape: children per level such as 4,2,1, or paths of ranks such as paths:0/1/00/01",
    essential=True,
)

MAX_RANK = 10
"""Guesses taken from one head. A path names them by one digit each."""

MAX_TREE_NODES = 64
"""On a processor every node is a row of the target's pass, and 64 rows cost several plain passes already."""


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


@dataclass(frozen=True, slots=True)
class GrowingTree:
    """A draft whose shape follows the draft's own probabilities: `num_nodes` candidates with the likeliest paths, of
    which `breadth` a level are read on. Source: Li et al. (2024), EAGLE-2, arXiv 2406.16858, section 4."""

    num_nodes: int | None
    breadth: int = 4


def parse_growing(spec: str) -> GrowingTree | None:
    """What "growing" and "growing:15" mean; None for the words that `parse_tree` reads.

    Raises:
        ConfigError: not a number of nodes from 1 to MAX_TREE_NODES.
    """
    text = spec.strip().lower()
    if not text.startswith("growing"):
        return None
    if text == "growing":
        return GrowingTree(None)
    number = text.removeprefix("growing").removeprefix(":").strip()
    if not re.fullmatch(r"\d{1,3}", number) or not 1 <= int(number) <= MAX_TREE_NODES:
        raise ConfigError(f"tree growing:N takes a number of candidates from 1 to {MAX_TREE_NODES}; got {spec[:40]!r}.")
    return GrowingTree(int(number))


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
