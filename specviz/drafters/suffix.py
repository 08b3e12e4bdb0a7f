"""Suffix decoding: continue as this run, or texts of the target read beforehand, most often did after the same tokens.

Two sources count what followed: the run itself, and an index of the target's answers to other prompts, which
`python -m specviz train suffix` makes. No text of another visitor is in either. The longest phrases that the text ends
with and that stand in a source begin a draft each; the draft from which the most accepted tokens are expected is
proposed, so its length follows from what is known about the place.

Source: Oliaro et al. (2024), SuffixDecoding, arXiv 2411.04975, section 3: a token's score is the product of relative
frequencies along its path, and a draft's is the sum over its tokens. One thing differs. There a phrase of p tokens
begins drafts of at most `factor` x p tokens, for one seen once is certain of itself; here its shares are taken down
first, by as much as held-out answers showed them to be too high (`_doubt`), so scores are expected accepted tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.options import Option
from specviz.drafters.suffix_index import LONGEST_MATCH, SuffixIndex
from specviz.drafters.suffix_run import RunText
from specviz.drafters.tree import MAX_TREE_NODES, GrowingTree, parse_growing
from specviz.errors import ConfigError
from specviz.events import DraftNote, ModelInfo
from specviz.models.loader import LoadedPair
from specviz.models.session import Session
from specviz.models.stored import draft_folder
from specviz.proposal import Proposal

__all__ = ["SUFFIX_OPTIONS", "SuffixDrafter", "load_index", "read_suffix_tree"]

INDEX_FILE = "index.npz"

SUFFIX_TREE = Option(
    "tree", "chain", "chain, or growing:5 for the 5 likeliest candidates of both sources", essential=True
)
SOURCES = Option(
    "sources",
    "both",
    "what is searched: this run's text, answers of the target read beforehand, or both",
    choices=("both", "run", "answers"),
)
LEAST_PROB = Option(
    "least_prob", 0.1, "drafting stops in front of a token that is kept less often than this, by what is counted", 0, 1
)
FACTOR = Option("factor", 4.0, "tokens drafted for each token that matched, at most", 0.25, 16)
DEPTH = Option("depth", LONGEST_MATCH, "tokens that are compared, at most", 1, LONGEST_MATCH)
SUFFIX_OPTIONS = (SUFFIX_TREE, SOURCES, LEAST_PROB, FACTOR, DEPTH)

MOST_MATCHES = 3
"""Phrases of one source that begin a draft: the longest, then shorter ones in more places. Six gave no more."""

MOST_CHILDREN = 4
"""Followers of one phrase that become siblings in a tree."""


def read_suffix_tree(words: str) -> GrowingTree | None:
    """The shape that `tree` asks for; None for a chain. Raises ConfigError: neither chain nor growing:N."""
    if words.strip().lower() == "chain":
        return None
    shape = parse_growing(words)
    if shape is None:
        raise ConfigError(f"suffix takes tree chain, or growing:N such as growing:5; got {words[:40]!r}.")
    return shape


def load_index(loaded: LoadedPair) -> tuple[SuffixIndex, ModelInfo, tuple[str, ...]] | None:
    """The pair's index, where it came from, and what a reader of its runs has to know; None where there is none.

    Raises:
        ConfigError: its ids are those of another vocabulary.
        ModelLoadError: the file is damaged.
    """
    pair = loaded.pair.name
    folder = draft_folder(pair, SuffixDrafter.name)
    if folder is None:
        return None
    path = folder / INDEX_FILE
    found = path.stat() if path.is_file() else None
    index, sha256 = _load_once(path, found.st_mtime_ns if found else 0, found.st_size if found else 0)
    if index.vocab_size != loaded.vocab_size:
        raise ConfigError(
            f"The suffix index of {pair} holds ids of a vocabulary of {index.vocab_size} tokens, and this target has "
            f"{loaded.vocab_size}: the same ids mean other text. Make one for this target with "
            f"`python -m specviz train suffix --pair {pair} --corpus FILE`, or choose --sources run."
        )
    notes: tuple[str, ...] = ()
    ours = loaded.target_info.sha256
    if ours and index.target_sha256 and ours != index.target_sha256:
        notes = (
            f"The suffix index was made from answers of other weights ({index.target_sha256[:8]}…) than this target's "
            f"({ours[:8]}…). The text stays right; fewer drafts are accepted.",
        )
    source = str(index.about.get("corpus", ""))
    return index, ModelInfo("suffix index", source=source, sha256=sha256, num_bytes=index.num_bytes), notes


@dataclass(frozen=True, slots=True)
class _Guess:
    """A drafted token: what follows `count` of `total` times, and the odds that it and all before it are kept."""

    token: int
    parent: int
    count: int
    total: int
    share: float
    odds: float


@dataclass(frozen=True, slots=True)
class _Draft:
    """What one phrase of one source led to. stop: full, factor, doubt, unsure or end; doubted: where it is doubt."""

    source: str
    length: int
    num_places: int
    guesses: tuple[_Guess, ...]
    stop: str
    doubted: _Guess | None

    @property
    def expected(self) -> float:
        """Accepted tokens to expect."""
        return sum(guess.odds for guess in self.guesses)


class SuffixDrafter:
    """Finds the text's last tokens in the run and in the index, and proposes the draft that promises most."""

    name = "suffix"
    needs: frozenset[Need] = frozenset()

    def __init__(
        self,
        index: SuffixIndex | None,
        *,
        shape: GrowingTree | None = None,
        sources: str = "both",
        least_prob: float = 0.1,
        factor: float = 4.0,
        depth: int = LONGEST_MATCH,
        stop_below: float = 0.0,
        name_of: Callable[[int], str] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            index: None where the pair has none; then only the run is searched.
            shape: a tree of so many candidates; None for a chain.
            stop_below: drafting stops behind a token whose share is under this.
            name_of: what a token is called on the page.
            notes: sentences about the run, for the page.
        """
        self.notes = notes
        self._index = index if sources != "run" else None
        self._text: RunText | None = RunText() if sources != "answers" else None
        self._shape = shape
        self._least = least_prob
        self._factor = factor
        self._depth = depth
        self._stop_below = stop_below
        self._name_of = name_of or str
        self._expected = 0.0

    @property
    def num_bytes(self) -> int:
        return self._text.num_bytes if self._text else 0

    @property
    def expected_accepted(self) -> float:
        """Tokens of the last proposal that the target is expected to keep, in a greedy run; costs nothing to ask.

        A sum of estimates made from counts. 0 where nothing was proposed.
        """
        return self._expected

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self._expected = 0.0
        if self._text:
            self._text.clear()
            self._text.extend(prompt_ids)

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        drafts = self._drafts(context.token_ids, max_tokens)
        if not drafts:
            self._expected = 0.0
            return Proposal.empty(DraftNote("suffix", "neither this run nor the answers tell what follows"))
        best = max(drafts, key=lambda draft: draft.expected)  # of equal ones the first: the run's, the longest
        guesses = best.guesses if self._shape is None else _merged(drafts, self._shape.num_nodes or MAX_TREE_NODES)
        self._expected = sum(guess.odds for guess in guesses)
        return Proposal(
            torch.tensor([guess.token for guess in guesses], dtype=torch.int64),
            tuple(guess.parent for guess in guesses),
            confidence=tuple(guess.share for guess in guesses),
            note=self._note(best, drafts, guesses),
        )

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        self._expected = 0.0
        if self._text:
            self._text.clear()

    def _drafts(self, ids: Sequence[int], max_tokens: int) -> list[_Draft]:
        """What each phrase promises, those that promise something."""
        begun: list[tuple[str, Any, Any]] = []
        if self._text is not None:
            self._text.extend(ids)
            begun += [("run", self._text, found) for found in self._text.matches(self._depth, MOST_MATCHES)]
        if self._index is not None:
            tail = [int(token) for token in ids[-self._depth :]]
            begun += [("answers", self._index, found) for found in self._index.matches(tail, self._depth, MOST_MATCHES)]
        grow = self._chain if self._shape is None else self._tree
        drafts = [grow(name, source, found, max_tokens) for name, source, found in begun]
        return [draft for draft in drafts if draft.guesses]

    def _chain(self, name: str, source: Any, found: Any, max_tokens: int) -> _Draft:
        limit = min(max_tokens, max(1, int(self._factor * found.length)))
        guesses: list[_Guess] = []
        odds, here, stop, doubted = 1.0, found, "end", None
        while here.count:
            if len(guesses) == limit:
                stop = "full" if limit == max_tokens else "factor"
                break
            ((token, count, behind),) = source.followers(here, 1)
            share = count / (here.count + _doubt(name, here.length))
            guess = _Guess(token, len(guesses) - 1, count, here.count, share, odds * share)
            if guess.odds < self._least:
                stop, doubted = "doubt", guess
                break
            guesses.append(guess)
            if share < self._stop_below:
                stop = "unsure"
                break
            odds, here = guess.odds, behind
        return _Draft(name, found.length, found.count, tuple(guesses), stop, doubted)

    def _tree(self, name: str, source: Any, found: Any, max_tokens: int) -> _Draft:
        """The likeliest candidates first, as in EAGLE-2's growing trees, until there are enough."""
        assert self._shape is not None
        limit = min(max_tokens, max(1, int(self._factor * found.length)))
        guesses: list[_Guess] = []
        waiting: list[tuple[float, int, int, _Guess, Any]] = []  # the odds decide, then the order of finding
        order = 0
        stop, doubted = "end", None

        def look_behind(parent: int, depth: int, odds: float, here: Any) -> None:
            nonlocal order
            for token, count, behind in source.followers(here, MOST_CHILDREN):
                share = count / (here.count + _doubt(name, here.length))
                guess = _Guess(token, parent, count, here.count, share, odds * share)
                heapq.heappush(waiting, (-guess.odds, order, depth, guess, behind))
                order += 1

        look_behind(-1, 1, 1.0, found)
        while waiting:
            if len(guesses) == (self._shape.num_nodes or MAX_TREE_NODES):
                stop = "full"
                break
            _, _, depth, guess, behind = heapq.heappop(waiting)
            if guess.odds < self._least:
                stop, doubted = "doubt", guess
                break
            guesses.append(guess)
            if depth < limit and behind.count and guess.share >= self._stop_below:
                look_behind(len(guesses) - 1, depth + 1, guess.odds, behind)
        return _Draft(name, found.length, found.count, tuple(guesses), stop, doubted)

    def _note(self, best: _Draft, drafts: Sequence[_Draft], guesses: Sequence[_Guess]) -> DraftNote:
        """The phrase, its counts, what else was found, and why the draft ends where it ends."""
        n = best.length
        where = "in this run" if best.source == "run" else "in answers read beforehand"
        top = guesses[0]
        times = "once" if best.num_places == 1 else f"{best.num_places} times"
        text = (
            f"the same {n} token{'s' if n > 1 else ''} {where} {times}; "
            f"{top.count} of {top.total} went on like this; {self._expected:.1f} tokens expected"
        )
        data: dict[str, Any] = {
            "match_len": n,
            "source": best.source,
            "counts": [guess.count for guess in guesses],
            "totals": [guess.total for guess in guesses],
            "expected": round(self._expected, 2),
            "asked": [[d.source, d.length, d.num_places, len(d.guesses), round(d.expected, 2)] for d in drafts],
            "stop": best.stop,
            "doubted": None,
            "least": self._least,
        }
        if (doubted := best.doubted) is not None:
            data["doubted"] = [self._name_of(doubted.token), doubted.count, doubted.total, round(doubted.odds, 3)]
        return DraftNote("suffix", text, data)


def _doubt(source: str, length: int) -> float:
    """How many more times a phrase of this length counts as having gone on otherwise.

    A follower seen `count` of `total` times is kept with odds of about count / (total + this). Found on 130 greedy
    answers of the default target to topics held out: a phrase of one token seen once in the run is right 23 times of
    100, one of four 73 times, one of eight or more 91 times; in the index, of two, four and eight, 32, 27 and 67 times.
    """
    return 3 / float(length) ** 1.5 if source == "run" else 10 / (length + 2)


def _merged(drafts: Sequence[_Draft], num_nodes: int) -> tuple[_Guess, ...]:
    """The likeliest candidates of all drafts in one tree. Each draft's odds fall along a path, so parents are among
    them wherever a child is."""
    best: dict[tuple[int, ...], _Guess] = {}
    for draft in drafts:
        paths: list[tuple[int, ...]] = []
        for guess in draft.guesses:
            path = (*(paths[guess.parent] if guess.parent >= 0 else ()), guess.token)
            paths.append(path)
            if path not in best or best[path].odds < guess.odds:
                best[path] = guess
    chosen = sorted(best, key=lambda path: (-best[path].odds, len(path)))[:num_nodes]
    node_of = {path: node for node, path in enumerate(chosen)} | {(): -1}
    return tuple(
        _Guess(path[-1], node_of[path[:-1]], guess.count, guess.total, guess.share, guess.odds)
        for path in chosen
        for guess in (best[path],)
    )


@lru_cache(maxsize=2)
def _load_once(path: Path, modified_ns: int, size: int) -> tuple[SuffixIndex, str]:
    """(index, SHA-256 of its file), kept while the file stays as it is."""
    import hashlib

    index = SuffixIndex.load(path)
    return index, hashlib.sha256(path.read_bytes()).hexdigest()
