"""The one place that knows how transformers' `generate` goes about its rounds.

What is public is used: a StoppingCriteria is called at the end of every round with all tokens so far, hooks of the
module see each pass of the target, and a CandidateGenerator's `get_candidates` and `update_candidate_strategy` tell
what was drafted and what both models said. Patched, on this one instance and while it is watched, are two names:

    generate                    to add the StoppingCriteria, and to know where a call begins and ends
    _get_candidate_generator    private: nothing public hands out the CandidateGenerator of a call

Nothing draws a random number or changes a tensor, so `generate` writes what it writes unwatched.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor
from transformers import GenerationMixin, StoppingCriteria, StoppingCriteriaList

from specviz.errors import ConfigError

__all__ = ["BUILT_FOR", "Adapter", "Call", "Listener", "Round", "check_transformers"]

BUILT_FOR = "5.24"
"""The version of transformers that this was written for and is tested against."""

_NEEDED = {"generation_config", "input_ids", "logits_processor", "model_kwargs", "assistant_model"}


@dataclass(slots=True)
class Call:
    """One call of `generate`. arguments: as it was called, by name. drafter: its CandidateGenerator, None without one.

    config, num_prompt: the GenerationConfig that `generate` made of all settings, and the number of tokens it began
        with; None without a drafter, where they stay inside.
    """

    arguments: Mapping[str, Any]
    drafter: Any = None
    config: Any = None
    num_prompt: int | None = None


@dataclass(slots=True)
class Round:
    """One round: a draft, if there is a drafter, and the target's pass over it.

    token_ids: [1, n] everything so far. drafted: [1, n'] everything before the round with the draft behind it.
    draft_logits: [1, d, V'] that the draft was chosen from, None where `generate` gets none.
    target_logits: [1, d + 1, V] after the logits processors; without a drafter [1, 1, V] before them.
    asked: tokens the drafter may draft. num_draft_passes: passes of the target itself while it drafted (early exit).
    draft_s, verify_s: seconds in the drafter, and in the target's passes. total_s: of the whole round.
    """

    token_ids: Tensor
    drafted: Tensor | None = None
    draft_logits: Tensor | None = None
    target_logits: Tensor | None = None
    asked: int = 0
    num_draft_passes: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0


class Listener(Protocol):
    """Who is told. What these take is in no round's time."""

    def begins(self, call: Call) -> None: ...
    def wrote(self, call: Call, round_: Round) -> None:
        """A round is over. What is raised here ends `generate`."""

    def ended(self, call: Call, sequences: Tensor | None, error: BaseException | None) -> None:
        """sequences: what `generate` returns, None where it failed with `error`."""


def check_transformers() -> None:
    """Raises ConfigError where the installed transformers is built differently from the one this was written for."""
    make = getattr(GenerationMixin, "_get_candidate_generator", None)
    missing = _NEEDED if make is None else _NEEDED - set(inspect.signature(make).parameters)
    if missing:
        what = "_get_candidate_generator" if make is None else f"the {', '.join(sorted(missing))} of its drafters"
        raise ConfigError(
            f"specviz.watch knows the generate of transformers {BUILT_FOR}; the installed {transformers.__version__} "
            f"is built differently ({what} is not there). Install transformers {BUILT_FOR}, or a newer specviz."
        )


@dataclass(slots=True)
class _State:
    """Of the call under way."""

    call: Call
    thread: int
    began: float
    current: Round | None = None
    pass_began: float = 0.0
    depth: int = 0
    is_drafting: bool = False
    sizes: dict[str, int] = field(default_factory=dict)


class Adapter:
    """Watches one model from `attach` to `detach`, one call at a time; calls from other threads pass unseen."""

    def __init__(self, model: GenerationMixin, listener: Listener) -> None:
        self.model: Any = model
        self.listener = listener
        self._before: dict[str, Any] = {}
        self._hooks: list[Any] = []
        self._state: _State | None = None
        self._lock = threading.Lock()

    def attach(self) -> None:
        """Raises ConfigError where transformers is built differently, or this model is being watched already."""
        check_transformers()
        if isinstance(self.model.__dict__.get("generate"), _Generate):
            raise ConfigError("This model is being watched already. Leave that `with` block first, or use its run.")
        self._before = {name: self.model.__dict__.get(name) for name in ("generate", "_get_candidate_generator")}
        self._hooks = [
            self.model.register_forward_pre_hook(self._pass_begins, prepend=True),
            self.model.register_forward_hook(self._pass_ends),
        ]
        self._candidates = self.model._get_candidate_generator
        self.model.generate = _Generate(self, self.model.generate)
        self.model._get_candidate_generator = self._make_drafter

    def detach(self) -> None:
        """The model as it was. A call under way goes on unseen."""
        self._state = None
        for hook in self._hooks:
            hook.remove()
        for name, value in self._before.items():
            if value is None:
                self.model.__dict__.pop(name, None)
            else:
                setattr(self.model, name, value)
        self._hooks, self._before = [], {}

    # --- one call -----------------------------------------------------------------------------------------------------

    def call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `model.generate` is while it is watched."""
        state = self._mine()
        if state is not None:  # the target drafts for itself (early exit): part of the call under way
            state.depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                state.depth -= 1
        if not self._lock.acquire(blocking=False):
            return original(*args, **kwargs)
        try:
            return self._call(original, *_with_criteria(original, args, kwargs, _RoundEnd(self)))
        finally:
            self._state = None
            self._lock.release()

    def _call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], named: Any) -> Any:
        call = Call(named)
        self.listener.begins(call)
        self._state = _State(call, threading.get_ident(), self._now())
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            self._state = None
            self.listener.ended(call, None, error)
            raise
        self._state = None
        self.listener.ended(call, getattr(result, "sequences", result), None)
        return result

    def _make_drafter(self, *args: Any, **kwargs: Any) -> Any:
        drafter = self._candidates(*args, **kwargs)
        state = self._mine()
        if state is not None and not state.depth and state.call.drafter is None:
            state.call.drafter = drafter
            state.call.config = kwargs["generation_config"]
            state.call.num_prompt = kwargs["input_ids"].shape[1]
            _follow(self, drafter)
        return drafter

    # --- within a round -----------------------------------------------------------------------------------------------

    def draft(self, drafter: Any, get: Callable[..., Any], input_ids: Tensor, kwargs: dict[str, Any]) -> Any:
        """`get_candidates`, timed."""
        state = self._mine()
        if state is None:
            return get(input_ids, **kwargs)
        state.current = current = Round(input_ids)
        current.asked = int(getattr(drafter, "num_assistant_tokens", getattr(drafter, "num_output_tokens", 0)))
        state.is_drafting = True
        began = self._now()
        try:
            current.drafted, current.draft_logits = found = get(input_ids, **kwargs)
        finally:
            state.is_drafting = False
            current.draft_s = self._now() - began
        return found

    def checked(self, scores: Tensor) -> None:
        """What the target said of the draft, after the logits processors."""
        state = self._mine()
        if state is not None and state.current is not None:
            state.current.target_logits = scores

    def _pass_begins(self, module: Any, args: Any) -> None:
        state = self._mine()
        if state is None:
            return
        if state.depth or state.is_drafting:
            if state.current is not None:
                state.current.num_draft_passes += 1
            return
        state.pass_began = self._now()

    def _pass_ends(self, module: Any, args: Any, output: Any) -> None:
        state = self._mine()
        if state is None or state.depth or state.is_drafting:
            return
        if state.current is None:
            state.current = Round(torch.empty(0))
        state.current.verify_s += self._now() - state.pass_began
        logits = getattr(output, "logits", None)
        if state.call.drafter is None and logits is not None:
            state.current.target_logits = logits[:, -1:].clone()  # a view would keep the prompt's logits alive

    def round_ends(self, input_ids: Tensor) -> None:
        """Called by the StoppingCriteria."""
        state = self._mine()
        if state is None or state.depth:
            return
        current = state.current or Round(input_ids)
        current.token_ids, current.total_s = input_ids, self._now() - state.began
        state.current = None
        try:
            self.listener.wrote(state.call, current)
        finally:
            state.began = time.perf_counter()

    def _mine(self) -> _State | None:
        state = self._state
        return state if state is not None and state.thread == threading.get_ident() else None

    def _now(self) -> float:
        """A GPU works on behind the program: a pass is over when the device says so."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        elif self.model.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()


class _Generate:
    """Stands for `model.generate`."""

    def __init__(self, adapter: Adapter, original: Callable[..., Any]) -> None:
        self.adapter, self.original = adapter, original
        self.__doc__, self.__wrapped__ = original.__doc__, original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.adapter.call(self.original, args, kwargs)


class _RoundEnd(StoppingCriteria):
    """Stops nothing."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        self.adapter.round_ends(input_ids)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _follow(adapter: Adapter, drafter: Any) -> None:
    """Have this one object tell what it drafts. It stays itself: transformers asks for its class behind the loop."""
    get, update = drafter.get_candidates, drafter.update_candidate_strategy

    def get_candidates(input_ids: Tensor, **kwargs: Any) -> Any:
        return adapter.draft(drafter, get, input_ids, kwargs)

    def update_candidate_strategy(input_ids: Tensor, scores: Tensor, num_matches: int) -> Any:
        adapter.checked(scores)
        return update(input_ids, scores, num_matches)

    drafter.get_candidates, drafter.update_candidate_strategy = get_candidates, update_candidate_strategy


def _with_criteria(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], mine: StoppingCriteria
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The call with one more StoppingCriteria, behind the caller's own, and all its arguments by name."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    rest = next((p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
    given = (
        bound.arguments if "stopping_criteria" in bound.signature.parameters else bound.arguments.setdefault(rest, {})
    )
    given["stopping_criteria"] = StoppingCriteriaList([*(given.get("stopping_criteria") or ()), mine])
    return bound.args, bound.kwargs, {**bound.arguments, **bound.arguments.get(rest, {})}
