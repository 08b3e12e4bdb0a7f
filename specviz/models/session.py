"""One sequence in one model: passes, and taking them back. Hides the cache and how the model is called."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from specviz.errors import CacheNotCroppableError
from specviz.models.attention import Block
from specviz.models.cache import InPlaceCache, KeyValues
from specviz.models.decoder import Decoder, LeanDecoder, decoder_for
from specviz.models.states import has_states, layers_of
from specviz.models.windows import check_croppable

__all__ = ["KEY_BLOCK", "MAX_NODES", "NO_TREES", "PREFILL_ROWS", "PassRequest", "Session"]

KEY_BLOCK = 64
"""In exact mode attention reads a key length rounded up to a multiple of this; unused places are masked."""

MAX_NODES = 256
"""Most drafted rows a pass, window rows included. The cache keeps room for them, a larger tree is cut."""

NO_TREES = (
    "This target keeps a recurrent state, which reads one token behind the other: it cannot check a tree. "
    "Choose a chain, with --tree chain or prompt-lookup."
)

PREFILL_ROWS = 256
"""Prompt tokens a pass. Bounds the memory of a long prompt, and the time until a closed run stops."""


@dataclass(slots=True, eq=False)
class PassRequest:
    """Rows of one sequence that it wants the target to read: alone by `run`, or in a pass that others share.

    kind: reading tokens for good, reading again what `Session.set_aside` gave up, or checking a draft.
    ids: one a row. positions: of each. key_len: places that its attention reads, unused ones included.
    rows: of its own pass, with those that only fill it up. parents: of a tree's nodes behind the root, None = a chain.
    blocks: rows to be attended apart, see `specviz.models.attention`. num_logits: how many of the last rows' it wants.
    seconds: that it took, once it is done. company: sequences that shared the pass, this one included.
    """

    session: Session
    kind: Literal["prompt", "again", "check"]
    ids: list[int]
    positions: Sequence[int]
    key_len: int
    rows: int
    num_logits: int
    parents: tuple[int, ...] | None = None
    blocks: Sequence[Block] = ()
    seconds: float = 0.0
    company: int = 1

    def run(self) -> Tensor:
        """Make the pass, for this sequence alone. Returns [num_logits, vocab]."""
        began = time.perf_counter()
        logits = self.session.run(self)
        if logits.device.type == "cuda":
            torch.cuda.synchronize()  # a pass is over when the device says so
        self.seconds = time.perf_counter() - began
        return logits


class Session:
    """One per run; nothing is stored on the model, so visitors never meet.

    length: cache entries that count. hidden: [rows, d_model] last hidden states of the last pass where asked for.
    token_ids: of all entries that count, those that were set aside among them.
    tail: [d_model] of them, that of the last token that counts, where asked for: what its successor was chosen by.
    taps: after how many layers `take_states` wants the states as well; None where it is not used.
    work: what the step that `keep_path` ended has cost, in full passes: 1, with early exit more, and 2 where tokens had
        to be read again. num_again: how many these were, see `keep_path`.
    min_rows: fewest rows of a chain's pass (padded on the right, rolled back), whose key length is rounded up as well;
        0 = as many rows and keys as there are tokens. With enough rows and a rounded key length a position's logits do
        not depend on how many tokens are checked with it, which is what bit-exact verification rests on. How many are
        enough is asked of the machine, see `specviz.models.exactness`.
    """

    def __init__(
        self,
        model: Any,
        *,
        capacity: int,
        min_rows: int = 0,
        keep_hidden: bool = False,
        taps: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            model: a transformers causal LM in eval mode.
            capacity: most tokens the sequence may hold; a pass may be `min_rows` rows or MAX_NODES nodes longer.
            keep_hidden: hand out `hidden` and `tail`. taps: collect states for `take_states`.
        Raises:
            CacheNotCroppableError: the model's past cannot be rolled back.
        """
        check_croppable(model)
        kinds = layers_of(model) if has_states(model) else ()
        assert not (kinds and (min_rows or taps)), "a recurrent state that has read padding is lost"
        room = -(-(capacity + max(min_rows, 1 + MAX_NODES)) // KEY_BLOCK) * KEY_BLOCK
        self.min_rows = min_rows
        self.hidden: Tensor | None = None
        self.tail: Tensor | None = None
        self.rows = self.num_padding = self.num_again = 0
        self.token_ids: list[int] = []
        self.work = 0.0
        self._layers_run = 0
        self._early: list[tuple[int, Tensor]] = []  # tokens behind `length` that have their first layers done
        self._exit_layer = 0
        self._decoder: Decoder | None = decoder_for(model)
        own = InPlaceCache(self._decoder.num_layers, room, kinds)
        self._cache: KeyValues = own
        self._recurrent = own.states  # false where the model has none
        self._num_checked = 0  # rows that they have read of a check whose outcome is not known
        self._keep_hidden = keep_hidden or taps is not None
        self._taps = taps
        self._tapped: Tensor | None = None
        self._states: list[Tensor] = []
        self._num_taken = 0
        self._num_read = 0
        self._ids: list[int] = []  # of the rows of the last pass
        self._device = self._decoder.device

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def cache(self) -> KeyValues:
        return self._cache

    @property
    def num_read(self) -> int:
        """How many entries, from the first on, were read as a prompt."""
        return self._num_read

    @property
    def taps(self) -> tuple[int, ...]:
        """After how many layers passes have to hand out the states; empty where nobody asks."""
        return tuple(self._taps or ())

    @property
    def keeps_hidden(self) -> bool:
        return self._keep_hidden

    @property
    def keeps_states(self) -> bool:
        """Whether the states of every token are collected, those of the prompt too."""
        return self._taps is not None

    @property
    def can_share(self) -> bool:
        """Whether the target's passes can hold rows of other sequences."""
        return isinstance(self._decoder, LeanDecoder)

    def use(self, cache: KeyValues, token_ids: Sequence[int] = ()) -> None:
        """Keep keys and values in another cache, before the first pass. token_ids: of the entries it has already, which
        count as read."""
        assert not self.token_ids and len(token_ids) == cache.length
        self._cache = cache
        self.token_ids = list(token_ids)
        self._num_read = len(token_ids)

    @property
    def num_bytes(self) -> int:
        """Memory of the cache entries that count, and of recurrent states."""
        return self._cache.num_bytes

    @property
    def packed_bytes(self) -> int:
        """Memory of weights that are held a second time, in the order that the processor multiplies fastest."""
        assert self._decoder is not None, "the session is closed"
        return self._decoder.num_bytes

    def extend(self, token_ids: Sequence[int], *, num_logits: int = 1) -> Tensor:
        """Append tokens for good, as many rows as there are tokens.

        Returns:
            [num_logits, vocab] logits of the last `num_logits` tokens.
        """
        assert token_ids, "nothing to append"
        if self._recurrent and self.is_aside and not self._num_checked:  # in one pass with what is owed
            owed = self.token_ids[self.length :]
            token_ids = [*owed, *token_ids]
            del self.token_ids[self.length :]
        for start in range(0, len(token_ids), PREFILL_ROWS):
            logits = self.read(token_ids[start:], num_logits=num_logits).run()
        return logits

    def read(self, token_ids: Sequence[int], *, max_rows: int = PREFILL_ROWS, num_logits: int = 1) -> PassRequest:
        """A pass that appends the first `max_rows` of these tokens for good.

        Rows are attended a page at a time where that is possible: what a page says then depends on the tokens up to its
        end alone, and neither on how a prompt is cut into passes nor on who reads it.

        max_rows: a multiple of KEY_BLOCK.
        """
        self._settle()
        ids = list(token_ids[:max_rows])
        start, stop = self.length, self.length + len(ids)
        blocks = _pages(start, stop) if start % KEY_BLOCK == 0 else ()
        return PassRequest(
            self, "prompt", ids, range(start, stop), stop, len(ids), min(num_logits, len(ids)), blocks=blocks
        )

    def draft_pass(self, tokens: Sequence[int], exit_layer: int) -> Tensor:
        """What the first layers alone, with the final norm and head, say behind some tokens (early exit).

        The keys and values of those layers stay in this cache, and so do the tokens' states: a `score` of the same
        tokens goes on from there. A prefix that the last call saw is not computed again. Nothing counts until
        `keep_path`. In exact mode the pass has as many rows and keys as every other pass, so that what it leaves
        behind is equal to the bit.

        Args:
            tokens: the last committed token and what is drafted behind it so far. exit_layer: 1 to num_layers - 1.
        Returns:
            [vocab] logits behind the last of `tokens`.
        """
        assert isinstance(self._decoder, LeanDecoder), "only a model that runs layer by layer can leave early"
        if exit_layer != self._exit_layer:
            self._early.clear()
            self._exit_layer = exit_layer
        known = self._num_early(tokens)
        with torch.inference_mode():
            if known < len(tokens):
                self._run_first_layers(tokens, known)
            return self._decoder.head(self._early[len(tokens) - 1][1][None])[0]

    def score(self, root: int, token_ids: Tensor, parents: Sequence[int]) -> Tensor:
        """Logits for the last committed token and for every drafted one, in one pass that counts for nothing yet.

        Args:
            root: the last committed token, which is not in the cache. token_ids: [n] int64. parents: [n].
        Returns:
            [n + 1, vocab]; row 0 belongs to root, row i + 1 to node i and sees only its own path.
        """
        return self.check(root, token_ids, parents).run()

    def check(self, root: int, token_ids: Tensor, parents: Sequence[int]) -> PassRequest:
        """The pass that `score` makes, not made yet.

        Raises:
            CacheNotCroppableError: a tree, in a model with recurrent states, which know no branches.
        """
        n = len(parents)
        chain = all(parent == node - 1 for node, parent in enumerate(parents))
        if self._recurrent:
            if not chain:
                raise CacheNotCroppableError(NO_TREES)
            self._settle()
            if n:
                self._recurrent.keep(self.length)
            self._num_checked = n + 1
        rows, key_len = n + 1, self.length + n + 1
        if self.min_rows and chain:
            rows = max(rows, self.min_rows)
            key_len = -(-(self.length + rows) // KEY_BLOCK) * KEY_BLOCK
        self.rows, self.num_padding = rows, rows - n - 1
        ids = [root, *token_ids.tolist()]
        if chain:
            return PassRequest(self, "check", ids, range(self.length, self.length + n + 1), key_len, rows, n + 1)
        depths = [0]
        for parent in parents:
            depths.append(depths[parent + 1] + 1)
        positions = [self.length + depth for depth in depths]
        return PassRequest(self, "check", ids, positions, key_len, rows, n + 1, tuple(parents))

    def keep_path(self, nodes: Sequence[int], *, is_last: bool = False) -> None:
        """After `score`: keep root and this root-to-node path, drop the rest.

        Recurrent states that have read more are brought back to before the check, and what is kept is read again, which
        is a second pass; `is_last` leaves that until somebody asks.
        """
        start = self.length + 1
        if any(node != i for i, node in enumerate(nodes)):
            with torch.inference_mode():
                self._cache.gather([start + node for node in nodes], start)
        kept = [0, *(node + 1 for node in nodes)]
        has_read_more, self._num_checked, self.num_again = len(kept) < self._num_checked, 0, 0
        if not has_read_more:
            self._commit(kept)
            return
        self._recurrent.bring_back(self.length)
        self._commit(kept, in_cache=False)
        if not is_last:
            self.num_again = len(kept)
            self._settle()
            self.work += 1

    def mark(self) -> None:
        """Copy recurrent states, if there are any: rolling back to here or later then reads only what lies between, and
        rolling back further reads everything again."""
        if self._recurrent:
            self._settle()
            self._recurrent.keep(self.length)

    def _settle(self) -> None:
        """Bring recurrent states to where `token_ids` end: a check that nobody answered is dropped, and what is missing
        is read. What the last pass said stays at hand."""
        if self._num_checked:
            self._roll_states_back(len(self.token_ids))
        while self._recurrent and self.is_aside:
            self.again(PREFILL_ROWS).run()

    def _roll_states_back(self, length: int) -> None:
        """To the copy of them, or to the start where that lies behind `length`; the rest is set aside."""
        if not 0 <= length <= len(self.token_ids):
            raise ValueError(f"Cannot roll a cache of {len(self.token_ids)} entries back to {length}.")
        if self._num_checked or length < self.length:
            self._num_checked = 0
            self._cache.roll_back(min(self._recurrent.bring_back(length), self.length))

    def take_states(self) -> tuple[int, Tensor]:
        """What the target knew behind each token that has come to count since the last call.

        Returns:
            The index of the first of these tokens, and [m, k + 1, d_model] the states of the k taps and the last hidden
            state of each.
        """
        assert self._taps is not None, "the session was not asked to collect states"
        first, states = self._num_taken, self._states
        self._num_taken, self._states = self.length, []
        return first, torch.cat(states) if states else torch.zeros(0, device=self._device)

    def roll_back(self, length: int) -> None:
        """Forget everything from token `length` on.

        Raises:
            ValueError: `length` is negative or more than is there.
        """
        if self._recurrent:
            self._roll_states_back(length)
        else:
            self._cache.roll_back(length)
        del self.token_ids[length:]
        self._num_read = min(self._num_read, length)
        self._early.clear()
        self.tail = None
        if self._states:
            self._states = [torch.cat(self._states)[: max(0, length - self._num_taken)]]
        self._num_taken = min(self._num_taken, length)

    def set_aside(self) -> None:
        """Give the cache's memory back for now. `length` falls to 0, and `again` brings back what was there."""
        self._cache.roll_back(0)
        self._early.clear()

    @property
    def is_aside(self) -> bool:
        """Whether something is missing that `set_aside` gave up."""
        return self.length < len(self.token_ids)

    def again(self, max_rows: int) -> PassRequest:
        """The next pass on the way back, of about so many rows, and with the bits of the first time: what was read as a
        prompt is read as one, and what came by checking in blocks as small as those of checks."""
        start = self.length
        if self._recurrent:
            ids = self.token_ids[start : start + max_rows]
            rows, key_len, blocks = len(ids), start + len(ids), []
        elif start < self._num_read:
            ids = self.token_ids[start : min(start + max_rows, self._num_read)]
            rows, key_len = len(ids), start + len(ids)
            blocks = _pages(start, key_len)
        else:
            ids = self.token_ids[start : start + max_rows]
            step = max(2, self.min_rows)
            rows = -(-len(ids) // step) * step
            ends = range(step, rows + 1, step)
            blocks = [(end - step, end, -(-(start + end) // KEY_BLOCK) * KEY_BLOCK) for end in ends]
            key_len = blocks[-1][2]
        return PassRequest(self, "again", ids, range(start, start + len(ids)), key_len, rows, 0, blocks=blocks)

    def close(self) -> None:
        """Free the keys and values."""
        self._cache.close()
        own = InPlaceCache(0, 0)
        self._cache, self._recurrent, self._num_checked = own, own.states, 0
        self._decoder = None
        self._early.clear()
        self._states.clear()
        self.hidden = self.tail = self._tapped = None

    # --- one pass ---------------------------------------------------------------------------------------------

    def run(self, request: PassRequest) -> Tensor:
        """The pass of a request, for this sequence alone. Returns [request.num_logits, vocab]."""
        assert self._decoder is not None, "the session is closed"
        n, rows = len(request.ids), request.rows
        if request.kind == "check" and request.parents is None and self._num_early(request.ids):
            self._ids = request.ids
            return self._finish_early(request.ids, rows, request.key_len)[:n]
        self._cache.open(rows, request.key_len)
        padded = [*request.ids, *[request.ids[-1]] * (rows - n)]
        positions = [*request.positions, *range(self.length + n, self.length + rows)]
        with torch.inference_mode():
            logits, hidden, tapped = self._decoder.forward(
                torch.tensor(padded, device=self._device),
                self._places(positions),
                self.seen(request, rows),
                self._cache,
                num_logits=max(1, request.num_logits + rows - n),
                hidden=self._keep_hidden,
                taps=self._taps or (),
                blocks=request.blocks,
                least_rows=self.min_rows,
            )
        return self.take(request, logits, hidden, tapped)

    def take(self, request: PassRequest, logits: Tensor, hidden: Tensor | None, tapped: Tensor | None) -> Tensor:
        """What a pass found out for a request, wherever it was made.

        Args:
            logits: of the request's last rows, as many as it wants or more. hidden, tapped: as of `Decoder.forward`.
        Returns:
            [request.num_logits, vocab].
        """
        assert self._decoder is not None, "the session is closed"
        self._early.clear()  # the pass has written over what they left in the cache
        if request.kind == "again":
            self._cache.commit(len(request.ids))  # all else is still known
            return logits[:0]
        self._layers_run += self._decoder.num_layers
        self.hidden, self._tapped, self._ids = hidden, tapped, request.ids
        if request.kind == "prompt":
            if self.length == self._num_read:
                self._num_read += len(request.ids)
            self._commit(range(len(request.ids)))
        return logits[: request.num_logits]

    def seen(self, request: PassRequest, rows: int) -> Tensor:
        """[rows, key_len] bool: which places each row of a request reads, its chain continued to `rows` rows."""
        if request.parents is None:
            return self._chain_mask(rows, request.key_len)
        return self._tree_mask(request.parents, request.key_len)

    def _commit(self, rows: Sequence[int], *, in_cache: bool = True) -> None:
        """Count entries in; `rows` are their rows in the last pass. Outside the cache they are set aside."""
        assert self._decoder is not None, "the session is closed"
        if in_cache:
            self._cache.commit(len(rows))
        self.token_ids += [self._ids[row] for row in rows]
        self._early.clear()
        self.tail = None if self.hidden is None else self.hidden[rows[-1]]
        if self._taps is not None:
            assert self.hidden is not None
            kept = torch.as_tensor(rows, device=self._device)
            states = self.hidden[kept, None]
            self._states.append(states if self._tapped is None else torch.cat((self._tapped[kept], states), 1))
        self.work, self._layers_run = self._layers_run / self._decoder.num_layers, 0

    def _places(self, positions: Sequence[int]) -> Tensor:
        """[rows] int64. Learned position tables end; a padding row past the end takes the last valid place, nobody
        reads it."""
        assert self._decoder is not None, "the session is closed"
        last = self._decoder.max_positions - 1
        return torch.tensor([min(position, last) for position in positions], device=self._device)

    def _chain_mask(self, rows: int, key_len: int, ahead: int = 0) -> Tensor:
        """[rows, key_len] bool: each row sees the cache, `ahead` entries behind it, and the rows up to itself."""
        start = self.length + ahead
        last_seen = torch.arange(start, start + rows, device=self._device)
        return torch.arange(key_len, device=self._device) <= last_seen[:, None]

    def _tree_mask(self, parents: Sequence[int], key_len: int) -> Tensor:
        """[n + 1, key_len] bool: each row sees the cache, the root, its ancestors and itself."""
        rows = len(parents) + 1
        seen = torch.zeros(rows, key_len, dtype=torch.bool)
        seen[:, : self.length + 1] = True
        for node, parent in enumerate(parents):
            seen[node + 1] |= seen[parent + 1]
            seen[node + 1, self.length + 1 + node] = True
        return seen.to(self._device)

    # --- early exit -------------------------------------------------------------------------------------------

    def _num_early(self, ids: Sequence[int]) -> int:
        """How many of `ids`, from the first on, have their first layers done."""
        same = 0
        for (mine, _), theirs in zip(self._early, ids, strict=False):
            if mine != theirs:
                break
            same += 1
        return same

    def _run_first_layers(self, ids: Sequence[int], known: int) -> None:
        """The first layers on ids[known:], behind `known` tokens that have them done. In inference mode."""
        decoder = self._decoder
        assert isinstance(decoder, LeanDecoder)
        del self._early[known:]
        real = len(ids) - known
        rows = max(real, self.min_rows)
        start = self.length + known
        key_len = -(-(start + rows) // KEY_BLOCK) * KEY_BLOCK if self.min_rows else start + rows
        self._cache.open(rows, key_len, known)
        padded = [*ids[known:], *[ids[-1]] * (rows - real)]
        states = decoder.run_layers(
            decoder.embed(torch.tensor(padded, device=self._device)),
            self._places(range(start, start + rows)),
            self._chain_mask(rows, key_len, known),
            self._cache,
            0,
            self._exit_layer,
        )
        self._early += zip(ids[known:], states, strict=False)
        self._layers_run += self._exit_layer

    def _finish_early(self, ids: list[int], rows: int, key_len: int) -> Tensor:
        """[rows, vocab] logits of `ids`, of which some have their first layers done: what is missing, no more."""
        decoder = self._decoder
        assert isinstance(decoder, LeanDecoder)
        with torch.inference_mode():
            known = self._num_early(ids)
            if known < len(ids):
                self._run_first_layers(ids, known)
            states = [state for _, state in self._early[: len(ids)]]
            states += [states[-1]] * (rows - len(ids))
            self._cache.open(rows, key_len)
            through = decoder.run_layers(
                torch.stack(states),
                self._places(range(self.length, self.length + rows)),
                self._chain_mask(rows, key_len),
                self._cache,
                self._exit_layer,
                decoder.num_layers,
            )
            self._layers_run += decoder.num_layers - self._exit_layer
            logits, self.hidden = decoder.finish(through, num_logits=rows, hidden=self._keep_hidden)
        return logits


def _pages(start: int, stop: int) -> list[Block]:
    """The rows of entries start .. stop - 1 by page, `start` being the first of one; each reads up to its own end."""
    ends = [*range(start + KEY_BLOCK, stop, KEY_BLOCK), stop]
    return [(first - start, end - start, end) for first, end in zip([start, *ends], ends, strict=False)]
