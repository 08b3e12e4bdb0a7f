"""The rounds of one call of transformers' `generate` as events."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specviz.detokenize import Detokenizer, Piece, split_text, visible_text
from specviz.errors import ConfigError
from specviz.events import (
    DraftedToken,
    EmittedToken,
    Event,
    Fate,
    FinishReason,
    PrefillDone,
    RunFinished,
    RunStarted,
    StepDone,
    TopToken,
)
from specviz.generate.adapter import Call, Round
from specviz.generate.facts import Facts, info_of

__all__ = ["Recording"]


class Recording:
    """Events of one call; grows while `generate` goes on.

    Args:
        tokenizer: the target's; None shows tokens by their ids.
        detail: record top-5 lists and residuals.
        tell: called with each event as it is made; may raise, which ends `generate`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        about: dict[str, Any],
        *,
        detail: bool = False,
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.events: list[Event] = []
        self._model, self._tokenizer, self._about = model, tokenizer, about
        self._detail, self._tell = detail, tell
        self._texts = Detokenizer(tokenizer) if tokenizer is not None else None
        self._facts: Facts | None = None
        self._ids: list[int] = []
        self._num_prompt = 0

    @property
    def started(self) -> RunStarted | None:
        first = self.events[0] if self.events else None
        return first if isinstance(first, RunStarted) else None

    @property
    def emitted(self) -> list[EmittedToken]:
        return [token for event in self.events if isinstance(event, StepDone) for token in event.emitted]

    # --- what the adapter tells -------------------------------------------------------------------------------------

    def wrote(self, call: Call, round_: Round) -> None:
        """Add a round. Raises ConfigError where `generate` writes several answers at once."""
        if round_.token_ids.shape[0] != 1:
            raise ConfigError(
                f"specviz.watch follows one answer at a time, and this generate writes {round_.token_ids.shape[0]}. "
                "Give one prompt, with num_beams=1 and num_return_sequences=1."
            )
        ids: list[int] = round_.token_ids[0].tolist()
        is_first = self._facts is None
        if self._facts is None:
            self._facts = Facts(self._model, call)
            self._num_prompt = len(ids) - 1 if call.num_prompt is None else call.num_prompt
            self._ids = ids[: self._num_prompt]
            self._add(self._start(self._facts, round_))
            self._add(PrefillDone(self._num_prompt, round_.total_s))
        self._add(self._step(self._facts, round_, ids, is_first=is_first))
        self._ids = ids

    def ended(self, sequences: Any, error: BaseException | None) -> None:
        """Close the run. Nothing is recorded of a call that failed before its first round."""
        if self._facts is None:
            return
        if isinstance(sequences, Tensor):  # where stopping is decided one step late, the last one is taken back
            self._take_back(len(self._ids) - sequences.shape[1])
        rest = self._texts.finish() if self._texts else ""
        last = self.events[-1]
        if rest and isinstance(last, StepDone) and last.emitted:
            token = last.emitted[-1]
            piece = Piece(token.text, token.label, token.special).plus(rest)
            emitted = (*last.emitted[:-1], replace(token, text=piece.text, label=piece.label))
            self.events[-1] = replace(last, emitted=emitted)
        self._add(self._end(self._facts, error))

    # --- events -----------------------------------------------------------------------------------------------------

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self._tell(event)

    def _start(self, facts: Facts, round_: Round) -> RunStarted:
        ids = self._ids
        word, reason = facts.exactness
        texts = tuple(piece.text for piece in split_text(self._tokenizer, ids)) if self._tokenizer else ()
        config = self._model.config.get_text_config(decoder=True)
        target = info_of(self._model)
        return RunStarted(
            run_id=uuid.uuid4().hex[:12],
            method=facts.method,
            prompt="".join(texts),
            prompt_ids=tuple(ids),
            prompt_texts=texts or tuple(f"[{token}]" for token in ids),
            target=target,
            draft=facts.draft_info(),
            dtype=target.dtype,
            width=0,
            exactness=word,
            exactness_reason=reason,
            verify=facts.verify,
            gamma=round_.asked,
            settings=facts.settings() | {"method": facts.method, "gamma": round_.asked},
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            pair=target.name.rstrip("/").rsplit("/", 1)[-1],
            device=str(self._model.device),
            num_layers=int(getattr(config, "num_hidden_layers", 0) or 0),
            notes=tuple(facts.notes(self._texts is not None)),
            **self._about,
        )

    def _step(self, facts: Facts, round_: Round, ids: list[int], *, is_first: bool) -> StepDone:
        before = len(self._ids)
        written = ids[before:]
        guesses: list[int] = [] if round_.drafted is None else round_.drafted[0, before:].tolist()
        kept = next((i for i, pair in enumerate(zip(written, guesses, strict=False)) if pair[0] != pair[1]), None)
        if kept is None:
            kept = min(len(written), len(guesses))
        target, draft = self._probs(facts, round_, len(guesses))
        drafted = self._drafted(facts, guesses, kept, len(written) > kept, target, draft)
        emitted = self._emitted(guesses, written, kept, target)
        passes = round_.num_draft_passes
        share = facts.asked("assistant_early_exit") if passes else None
        layers = self._model.config.get_text_config(decoder=True).num_hidden_layers
        times = (0.0, 0.0, 0.0)
        if not is_first:
            times = (round_.draft_s, round_.verify_s, max(0.0, round_.total_s - round_.draft_s - round_.verify_s))
        return StepDone(
            index=1 if is_first else sum(isinstance(event, StepDone) for event in self.events) + 1,
            drafted=drafted,
            num_drafted=len(drafted),
            emitted=emitted,
            num_accepted=kept,
            rows=len(guesses) + 1,
            target_work=1.0 + (passes * share / layers if share else passes),
            draft_s=times[0],
            verify_s=times[1],
            other_s=times[2],
            cache_len=len(ids) - 1,
            gamma=round_.asked,
            with_prompt=is_first,
        )

    def _probs(self, facts: Facts, round_: Round, num: int) -> tuple[Tensor | None, Tensor | None]:
        """p: [num + 1, vocab] and q: [num, vocab], as far as they are known."""
        target, draft = round_.target_logits, round_.draft_logits
        if facts.call.drafter is None and facts.is_sampled:
            target = None  # before temperature: not what the token was drawn from
        p = None if target is None else target[0, -(num + 1) :].float().softmax(-1)
        q = None if draft is None or not num else draft[0, :num].float().softmax(-1)
        return p, q

    def _drafted(
        self, facts: Facts, guesses: list[int], kept: int, is_told: bool, p: Tensor | None, q: Tensor | None
    ) -> tuple[DraftedToken, ...]:
        """is_told: the target has written a token of its own behind the kept ones, so the next guess was refused."""
        pieces = self._texts.peek(guesses) if self._texts else [Piece("", f"id {token}") for token in guesses]
        out = []
        for place, (token_id, piece) in enumerate(zip(guesses, pieces, strict=True)):
            is_tested = place < kept or (place == kept and is_told)
            fate: Fate = "accepted" if place < kept else "rejected" if is_tested else "discarded"
            drafted = _at(q, place, token_id)
            out_of: dict[str, Any] = {"draft_prob": drafted, "draft_top": self._top(q, place)}
            if is_tested:
                wanted = _at(p, place, token_id)
                out_of |= {"target_prob": wanted, "target_top": self._top(p, place)}
                if facts.is_sampled and wanted is not None and facts.ensemble is None:
                    # A copied draft is kept where the target draws the very token: q is 1 there.
                    share = wanted if q is None else wanted / drafted if drafted else 1.0
                    out_of["accept_prob"] = min(1.0, share)
                if p is not None and q is not None and p.shape[-1] == q.shape[-1]:
                    out_of["overlap"] = min(1.0, float(torch.minimum(p[place], q[place]).sum()))
                    if fate == "rejected" and facts.is_sampled:
                        out_of["residual_top"] = self._top(_residual(p[place], q[place])[None], 0)
            out.append(DraftedToken(token_id, piece.text, place - 1, fate, piece.label, **out_of))
        return tuple(out)

    def _emitted(
        self, guesses: Sequence[int], written: list[int], kept: int, p: Tensor | None
    ) -> tuple[EmittedToken, ...]:
        out = []
        for place, token_id in enumerate(written):
            piece = self._texts.push(token_id) if self._texts else Piece("", f"id {token_id}")
            origin = "accepted" if place < kept else "corrected" if kept < len(guesses) else "bonus"
            out.append(
                EmittedToken(
                    token_id,
                    piece.text,
                    origin if guesses else "target",  # type: ignore[arg-type]
                    piece.label,
                    piece.special,
                    _at(p, place, token_id),
                )
            )
        return tuple(out)

    def _top(self, probs: Tensor | None, place: int) -> tuple[TopToken, ...]:
        if probs is None or not self._detail:
            return ()
        values, ids = torch.topk(probs[place], min(5, probs.shape[-1]))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return tuple(TopToken(token, self._name(token), prob) for token, prob in pairs if prob > 0)

    def _name(self, token_id: int) -> str:
        if self._tokenizer is None:
            return f"id {token_id}"
        piece = Detokenizer(self._tokenizer).push(token_id)
        return piece.text or piece.label

    def _take_back(self, num: int) -> None:
        while num > 0 and isinstance(last := self.events[-1], StepDone):
            self.events.pop()
            del self._ids[-len(last.emitted) :]
            num -= len(last.emitted)

    def _end(self, facts: Facts, error: BaseException | None) -> RunFinished:
        emitted = self.emitted
        steps = [event for event in self.events if isinstance(event, StepDone)]
        prefill = next(event for event in self.events if isinstance(event, PrefillDone))
        reason, message = _reason(facts, emitted, self._num_prompt, error)
        return RunFinished(
            reason,
            text=visible_text(emitted),
            token_ids=tuple(token.token_id for token in emitted),
            num_tokens=len(emitted),
            num_steps=len(steps),
            prefill_s=prefill.prefill_s,
            first_token_s=prefill.prefill_s,
            decode_s=sum(step.draft_s + step.verify_s + step.other_s for step in steps),
            message=message,
        )


def _reason(
    facts: Facts, emitted: list[EmittedToken], num_prompt: int, error: BaseException | None
) -> tuple[FinishReason, str]:
    if isinstance(error, Exception):
        return "error", f"generate failed: {type(error).__name__}: {str(error)[:200]}"
    if error is not None:
        return "cancelled", ""
    if emitted and emitted[-1].token_id in facts.eos_ids():
        return "eos", ""
    limit, total = facts.asked("max_new_tokens"), facts.asked("max_length")
    if limit is not None and len(emitted) >= limit:
        return "length", ""
    if limit is None and total is not None and num_prompt + len(emitted) >= total:
        return "length", ""
    return "stop", "A stopping criterion ended it."


def _at(probs: Tensor | None, place: int, token_id: int) -> float | None:
    """The token's probability; None where it is not known."""
    if probs is None or place >= probs.shape[0] or token_id >= probs.shape[-1]:
        return None
    return float(probs[place, token_id])


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(p - q, 0)), what is drawn from after a refusal (Leviathan et al. 2023)."""
    rest = (p - q).clamp(min=0)
    return rest / rest.sum().clamp(min=torch.finfo(rest.dtype).tiny)
