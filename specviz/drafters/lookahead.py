"""Lookahead decoding and its plain case, Jacobi decoding: the target guesses several places of the future at once, and
what the guesses settle into is drafted. Needs no draft model.

Source: Fu, Bailis, Stoica, Zhang (2024), "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
arXiv 2402.02057, section 3. Jacobi decoding: Santilli et al. (2023), arXiv 2305.10427.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.options import Option
from specviz.events import DraftNote
from specviz.models.session import Session
from specviz.proposal import Proposal
from specviz.sampling import first_choices

__all__ = ["LOOKAHEAD_OPTIONS", "JacobiDrafter", "LookaheadDrafter", "NgramPool"]

LOOKAHEAD_OPTIONS = (
    Option("window", 3, "columns guessed ahead in every pass", 1, 16, essential=True),
    Option("ngram", 4, "tokens of an n-gram: one that is looked up and the ones guessed to follow", 2, 8),
    Option("guesses", 2, "n-grams kept and checked per looked-up token", 1, 16),
    Option("pool", "text", "text: prompt and answer fill the pool too; window: it alone", choices=("text", "window")),
)
"""The defaults fill at most (3 + 2) * (4 - 1) = 15 rows of a pass; all at their highest 224, under MAX_NODES."""


class NgramPool:
    """First token -> the n-grams that began with it, the latest `per_key` of them."""

    def __init__(self, per_key: int) -> None:
        self._per_key = per_key
        self._guesses: dict[int, dict[tuple[int, ...], None]] = {}  # a dict keeps its order: the latest is last
        self.size = 0

    def add(self, ngram: Sequence[int]) -> None:
        """Enter an n-gram or make it the latest of its key; the oldest beyond `per_key` is forgotten."""
        key, guess = ngram[0], tuple(ngram[1:])
        known = self._guesses.setdefault(key, {})
        self.size -= len(known)
        known.pop(guess, None)
        known[guess] = None
        if len(known) > self._per_key:
            del known[next(iter(known))]
        self.size += len(known)

    def find(self, key: int) -> list[tuple[int, ...]]:
        """What followed `key`, the latest first."""
        return list(reversed(self._guesses.get(key, {})))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Every n-gram, key included."""
        return ((key, *guess) for key, known in self._guesses.items() for guess in known)

    def clear(self) -> None:
        self._guesses.clear()
        self.size = 0


class _Filler:
    """Start values for places nobody has guessed yet: the prompt's own ids, one after the other, round and round.

    Deterministic, so that equal runs are equal and a greedy run draws nothing. The paper takes random ids.
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._ids = list(prompt_ids) or [0]
        self._next = 0

    def take(self, count: int) -> list[int]:
        """The next `count` ids; the call after this one begins one id further on."""
        ids = [self._ids[(self._next + i) % len(self._ids)] for i in range(count)]
        self._next += 1
        return ids


@dataclass(slots=True)
class _Column:
    """N - 1 guesses of past iterations, oldest first: row r of column c stands c + r places behind the last token.

    age: passes since it held start values only; from N - 2 on, all but its first token are the target's.
    """

    tokens: list[int]
    age: int = 0


class LookaheadDrafter:
    """Two branches in one pass of the target.

    *Lookahead*: a window of W columns and N - 1 rows of tokens that are only scored. Row 0 is a chain that begins with
    the last committed token; below each of its tokens hangs a column. So row r of column c attends to row 0 up to
    column c and then down its column. This is the mask of the paper, and as a tree it needs no duplicates: the window
    takes W (N - 1) rows of the pass, that of the last committed token included. The argmax behind the last row is the
    next iteration: it ends the column's n-gram, which goes into the pool, and the column drops its oldest token.
    *Verification*: the n-grams of the pool that begin with the last token, as a trie of point masses, the latest first.

    After k accepted tokens the window moves k columns to the left, to stay where its guesses were made for, and
    k columns of start values join on the right. A column feeds the pool once the start values are out of its lower
    rows: N - 2 passes of warm-up.
    """

    name = "lookahead"
    needs = frozenset({Need.TREE})
    num_bytes = 0

    def __init__(
        self,
        *,
        window: int,
        ngram: int,
        guesses: int,
        pool: str,
        max_new_tokens: int,
        name_of: Callable[[int], str] = str,
    ) -> None:
        """
        Args:
            window: W >= 1. ngram: N >= 2. guesses: most guesses of one step, and per key of the pool.
            pool: "text": the n-grams of prompt and answer feed the pool as well; "window": only the window does.
            max_new_tokens: of the run: columns that would reach behind its end are left out.
            name_of: what the page calls a token by.
        """
        self._name_of = name_of
        self._width, self._n = window, ngram
        self._reads_text = pool == "text"
        self._max_new_tokens = max_new_tokens
        self.pool = NgramPool(guesses)
        self._filler = _Filler(())
        self._columns: list[_Column] = []
        self._recent: list[int] = []
        self._prompt_len = 0
        self._asked: list[int] | None = None  # ids of the scored rows of the pass under way
        self._root = 0

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self.close()
        self._filler = _Filler(prompt_ids)
        self._prompt_len = len(prompt_ids)
        self._fill()
        self._read(prompt_ids)

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        self._root = context.token_ids[-1]
        remaining = self._max_new_tokens - (len(context.token_ids) - self._prompt_len)
        # The last step that looks anything up begins remaining - 2 places from here.
        self._columns = self._columns[: max(remaining - 2, 0)]
        guesses = [guess[:max_tokens] for guess in self.pool.find(self._root)]
        tokens, parents = _trie(guesses)
        num_candidates = len(tokens)
        above = -1
        for c, column in enumerate(self._columns):
            if c:  # row 0 of column 0 is the last committed token, the root
                tokens.append(column.tokens[0])
                parents.append(above)
                above = len(tokens) - 1
            parent = above
            for token in column.tokens[1:]:
                tokens.append(token)
                parents.append(parent)
                parent = len(tokens) - 1
        self._asked = tokens[num_candidates:]
        scored_only = tuple(node >= num_candidates for node in range(len(tokens)))
        ids = torch.tensor(tokens, dtype=torch.int64)
        return Proposal(ids, tuple(parents), scored_only=scored_only, note=self._note(guesses))

    def observe(self, outcome: Outcome) -> None:
        new = self._next_row(outcome)
        if new is None:  # the window was not in the pass: it only moves on
            self._columns = self._columns[len(outcome.token_ids) :]
        else:
            # The note is read after this, and shows what the pass made of the window.
            outcome.proposal.note.data["answers"] = [self._name_of(token) for token in new]
            for c, column in enumerate(self._columns):
                if c == 0:
                    column.tokens[0] = self._root
                if column.age >= self._n - 2:
                    self.pool.add([*column.tokens, new[c]])
                column.tokens = [*column.tokens[1:], new[c]]
                column.age += 1
            self._columns = self._columns[len(outcome.token_ids) - 1 :]
        self._fill()
        self._read(outcome.token_ids)
        self._asked = None

    def close(self) -> None:
        self.pool.clear()
        self._columns = []
        self._recent = []
        self._asked = None

    def _next_row(self, outcome: Outcome) -> list[int] | None:
        """[W] the target's first choice behind each column, whatever the temperature; None if it was not asked.

        The pool needs what is likely to follow; sampling has its say when a guess is checked.
        """
        proposal, logits = outcome.proposal, outcome.scored_logits
        ids = proposal.token_ids.tolist()
        scored = [token for node, token in enumerate(ids) if proposal.is_scored_only(node)]
        if self._asked is None or scored != self._asked or (scored and logits is None):
            return None
        firsts = first_choices(logits) if logits is not None else []
        # Column 0 has one scored row less than the others. With N = 2 it has none: it is the root, whose row is checked
        # and not scored, and what follows it is known by now.
        ends = [(self._n - 1) * (c + 1) - 2 for c in range(len(self._columns))]
        return [firsts[end] if end >= 0 else outcome.token_ids[0] for end in ends]

    def _fill(self) -> None:
        while len(self._columns) < self._width:
            self._columns.append(_Column(self._filler.take(self._n - 1)))

    def _read(self, token_ids: Sequence[int]) -> None:
        """Feed the pool from committed text."""
        if not self._reads_text:
            return
        for token in token_ids:
            self._recent = [*self._recent[1 - self._n :], token]
            if len(self._recent) == self._n:
                self.pool.add(self._recent)

    def _note(self, guesses: Sequence[Sequence[int]]) -> DraftNote:
        """window: rows of ids, row 0 with the last committed token; window_texts: their names. num_warm: columns that
        feed the pool this step, from the left. `observe` adds answers: what the target says behind each column."""
        rows = [[column.tokens[r] for column in self._columns] for r in range(self._n - 1)]
        if self._columns:
            rows[0][0] = self._root
        num_warm = sum(column.age >= self._n - 2 for column in self._columns)
        count = len(guesses)
        text = "nothing in the pool begins with this token"
        if count:
            text = f"{count} guess{'es' * (count > 1)} from the pool"
        if num_warm == 0 and self._columns:
            text += "; the window is warming up"
        data = {
            "window": rows,
            "window_texts": [[self._name_of(token) for token in row] for row in rows],
            "pool_hits": count,
            "pool_size": self.pool.size,
            "guesses": [list(guess) for guess in guesses],
            "num_warm": num_warm,
        }
        return DraftNote("lookahead", text, data)


class JacobiDrafter:
    """Guesses several places ahead, lets the target correct all at once, and offers the corrections as next guesses.

    Lookahead with one row, no pool, and the window itself as the candidate: a chain of as many tokens as it is asked
    for. What the target says behind each guess is the next guess for the place after it, also behind a refused one.
    Alone it hardly speeds anything up: a guess settles about one place a pass.
    """

    name = "jacobi"
    needs: frozenset[Need] = frozenset()
    num_bytes = 0

    def __init__(self) -> None:
        self._filler = _Filler(())
        self._guesses: list[int] = []

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self._filler = _Filler(prompt_ids)
        self._guesses = []

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        missing = max_tokens - len(self._guesses)
        num_start = max(missing, 0)
        if missing > 0:
            self._guesses += self._filler.take(missing)
        chain = self._guesses[:max_tokens]
        text = f"{len(chain) - num_start} guesses of the last pass, {num_start} start values"
        return Proposal.chain(chain, note=DraftNote("lookahead", text, {"window": [chain], "num_start": num_start}))

    def observe(self, outcome: Outcome) -> None:
        checked = outcome.proposal.token_ids.tolist()
        if outcome.logits is None or not checked or checked != self._guesses[: len(checked)]:
            self._guesses = self._guesses[len(outcome.token_ids) :]  # another draft was checked: the guesses move on
        else:
            # Rows up to the last kept guess speak of places that are committed by now.
            self._guesses = first_choices(outcome.logits[len(outcome.kept) + 1 :])

    def close(self) -> None:
        self._guesses = []


def _trie(guesses: Iterable[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Tokens and parents of a tree in which guesses share their common beginnings; a parent precedes its child."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    for guess in guesses:
        parent = -1
        for token in guess:
            if (parent, token) not in nodes:
                nodes[parent, token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            parent = nodes[parent, token]
    return tokens, parents
