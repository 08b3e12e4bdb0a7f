"""From the messages of a stream to the events of a run. Pure: no network, no clock of its own.

vLLM: a message after the first is one engine step: accepted drafts and one token of the target. The first token comes
with the prompt and is no step. What was refused is not told, nor whether a step that wrote one token had drafted.
llama.cpp: a message is one token; its running counts of drafted and accepted tokens say where a step begins, and what
it drafted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specviz.detokenize import visible_part
from specviz.events import DraftNote, EmittedToken, Origin, PrefillDone, StepDone
from specviz.remote.chunks import UNTOLD_ID, DraftTimings, StreamChunk, StreamToken
from specviz.remote.pieces import emitted_tokens

__all__ = ["StepReader"]

_MAX_GROWN = 4096


@dataclass(slots=True)
class _Block:
    """The tokens of a llama.cpp step as they come in, one a message."""

    num_drafted: int = 0
    num_accepted: int = 0
    tokens: list[EmittedToken] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.tokens) > self.num_accepted


class StepReader:
    """Feed it the messages of one run in order; it remembers what the run's end needs to know.

    Args:
        gamma: the most tokens the server drafts a step, 0 where that is not known.
        speculates: whether it drafts at all; None where that is not known.
        by_usage: whether each message says how many tokens there are so far, for one that names none.

    text, token_ids: the answer so far. sizes: [steps] tokens of each. num_merged: messages of more than one step.
    is_timed: whether steps tell what they drafted. tokens_are_told: false where a message's tokens are not known, so
    that it counts as one. tokens_are_named: whether any message named its own.
    """

    def __init__(self, gamma: int, speculates: bool | None, *, by_usage: bool = False) -> None:
        self.gamma, self.speculates, self.by_usage = gamma, speculates, by_usage
        self.text = ""
        self.token_ids: list[int] = []
        self.prompt_len = 0
        self.prefill: PrefillDone | None = None
        self.sizes: list[int] = []
        self.num_accepted = 0
        self.num_merged = 0
        self.decode_s = 0.0
        self.tokens_are_told, self.tokens_are_named = True, False
        self._last_s = 0.0
        self.is_timed = False
        self._timings: DraftTimings | None = None
        self._block = _Block()

    @property
    def num_steps(self) -> int:
        return len(self.sizes)

    def feed(self, chunk: StreamChunk) -> list[PrefillDone | StepDone]:
        """The events that a message completes, none for one without text or tokens."""
        self.prompt_len = len(chunk.prompt_ids) or chunk.num_prompt or self.prompt_len
        self.tokens_are_named |= bool(chunk.tokens)
        if not chunk.tokens:
            grown = self._grown(chunk)
            if not chunk.text and not grown:
                return []
            self.tokens_are_told &= chunk.timings is not None or grown > 0
            chunk = replace(chunk, tokens=(StreamToken(UNTOLD_ID),) * max(1, grown))
        ahead: list[Origin] = ["target"] if self.prefill is None else []
        emitted = emitted_tokens(chunk, [*ahead, *self._origins(len(chunk.tokens) - len(ahead))])
        self.text += "".join(visible_part(token) for token in emitted)
        self.token_ids += [token.token_id for token in emitted]
        out: list[PrefillDone | StepDone] = []
        if self.prefill is None:
            self.prefill = PrefillDone(self.prompt_len, chunk.at_s, emitted[:1])
            self._last_s, self._timings = chunk.at_s, chunk.timings
            out, emitted = [self.prefill], emitted[1:]
        if not emitted:
            return out
        if chunk.timings is not None:
            self.is_timed = True
            return [*out, *self._timed(chunk.timings, emitted, chunk.at_s)]
        return [*out, self._step(emitted, chunk.at_s)]

    def _grown(self, chunk: StreamChunk) -> int:
        """How many tokens a message that names none carries, by the count of all so far; 0 where that says nothing."""
        if not self.by_usage or self.tokens_are_named or chunk.num_completion is None:
            return 0
        grown = chunk.num_completion - len(self.token_ids)
        return grown if 0 < grown <= _MAX_GROWN else 0

    def end(self) -> list[StepDone]:
        """The step that the end of the stream leaves unfinished, if there is one."""
        return self._close(self._last_s) if self._block.tokens else []

    # --- vLLM: a message is a step ------------------------------------------------------------------------------------

    def _passes(self, num_tokens: int) -> int:
        """The fewest steps that can have written so many tokens."""
        return 1 if not self.gamma and self.speculates is not False else math.ceil(num_tokens / (self.gamma + 1))

    def _origins(self, num_tokens: int) -> list[Origin]:
        """Each step's last token is the target's. In merged steps the places of the others are not told: full steps."""
        passes = self._passes(num_tokens)
        own = {num_tokens - 1, *((self.gamma + 1) * (i + 1) - 1 for i in range(passes - 1))}
        return ["target" if place in own else "accepted" for place in range(num_tokens)]

    def _step(self, emitted: Sequence[EmittedToken], at_s: float) -> StepDone:
        passes = self._passes(len(emitted))
        note = None
        if passes > 1:
            self.num_merged += 1
            text = f"{len(emitted)} tokens came in one message: at least {passes} steps."
            note = DraftNote("merged", f"{text} Which were drafted is not told.", {"passes": passes})
        return self._done(
            emitted,
            num_drafted=0 if self.speculates is False else None,
            num_accepted=sum(token.origin == "accepted" for token in emitted),
            passes=passes,
            at_s=at_s,
            note=note,
        )

    # --- llama.cpp: a message is a token ------------------------------------------------------------------------------

    def _timed(self, timings: DraftTimings, emitted: Sequence[EmittedToken], at_s: float) -> list[StepDone]:
        out: list[StepDone] = []
        if timings != self._timings:  # a step that drafted has begun
            before = self._timings or DraftTimings(0, 0)
            out += self.end()
            accepted = max(0, timings.num_accepted - before.num_accepted)
            self._block = _Block(max(accepted, timings.num_drafted - before.num_drafted), accepted)
            self._timings = timings
        self._block.tokens += emitted
        return out + (self._close(at_s) if self._block.is_full else [])

    def _close(self, at_s: float) -> list[StepDone]:
        block, self._block = self._block, _Block()
        accepted = min(block.num_accepted, len(block.tokens))
        own: Origin = "target"
        if block.num_drafted:
            own = "corrected" if block.num_accepted < block.num_drafted else "bonus"
        tokens = [replace(t, origin="accepted" if i < accepted else own) for i, t in enumerate(block.tokens)]
        return [self._done(tokens, num_drafted=block.num_drafted, num_accepted=accepted, passes=1, at_s=at_s)]

    def _done(
        self,
        emitted: Sequence[EmittedToken],
        *,
        num_drafted: int | None,
        num_accepted: int,
        passes: int,
        at_s: float,
        note: DraftNote | None = None,
    ) -> StepDone:
        """A step whose parts the server does not time: all its seconds are `other_s`."""
        seconds, self._last_s = max(0.0, at_s - self._last_s), max(at_s, self._last_s)
        self.sizes.append(len(emitted))
        self.num_accepted += num_accepted
        self.decode_s += seconds
        return StepDone(
            index=self.num_steps,
            drafted=(),
            num_drafted=num_drafted,
            emitted=tuple(emitted),
            num_accepted=num_accepted,
            rows=0,
            target_work=float(passes),
            draft_s=0.0,
            verify_s=0.0,
            other_s=seconds,
            cache_len=self.prompt_len + len(self.token_ids) - 1,
            gamma=self.gamma,
            note=note,
        )
