"""What a call of transformers' `generate` is, in the words of a run: which way it drafts, its settings, and what stays
unknown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.generation import (
    AssistedCandidateGenerator,
    EarlyExitCandidateGenerator,
    PromptLookupCandidateGenerator,
)

from specviz.events import Exactness, ModelInfo
from specviz.generate.adapter import Call

__all__ = ["Facts", "info_of"]

_DEFAULTS: dict[str, Any] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}
_ASSISTANTS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
_OWN_SETTINGS = {
    "transformers-assisted": _ASSISTANTS,
    "transformers-universal": _ASSISTANTS,
    "transformers-lookup": ("prompt_lookup_num_tokens", "max_matching_ngram_size"),
    "transformers-early-exit": ("assistant_early_exit", "num_assistant_tokens_schedule"),
}


class Facts:
    """Of one call, once its first round has been seen."""

    def __init__(self, model: Any, call: Call) -> None:
        self.model = model
        self.call = call
        self.method = _method(call)
        self.assistant = getattr(call.drafter, "assistant_model", None)
        self.is_sampled = bool(self.asked("do_sample"))
        self.ensemble = self.asked("assistant_ensemble_weight") if call.drafter is not None else None

    def asked(self, name: str) -> Any:
        """A setting of generation: as transformers settled it, where that is to be had, else as it was asked for."""
        sources = (
            [self.call.config]
            if self.call.config is not None
            else [self.call.arguments, self.call.arguments.get("generation_config"), self.model.generation_config]
        )
        for source in sources:
            value = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
            if value is not None:
                return value
        return _DEFAULTS.get(name)

    @property
    def verify(self) -> str:
        if not self.is_sampled:
            return "greedy"
        return "sample and compare" if self.method == "transformers-lookup" else "speculative sampling"

    @property
    def exactness(self) -> tuple[Exactness, str]:
        if self.ensemble is not None:
            return "approximate", "An ensemble weight mixes the draft's distribution into the target's."
        if self.call.drafter is None:
            return "lossless", "Plain decoding by transformers: nothing is drafted."
        return "lossless", "transformers checks each draft by a lossless rule; this machine's rounding was not tested."

    def settings(self) -> dict[str, Any]:
        """As the page names them, then the assistant's own."""
        found: dict[str, Any] = {"temperature": float(self.asked("temperature")) if self.is_sampled else 0.0}
        if self.is_sampled:
            found |= {name: self.asked(name) for name in ("top_k", "top_p")}
        found["repetition_penalty"] = float(self.asked("repetition_penalty"))
        limit = self.asked("max_new_tokens")
        if limit is not None:
            found["max_new_tokens"] = int(limit)
        for name in _OWN_SETTINGS.get(self.method, ()):
            source = self.assistant.generation_config if name.startswith("num_") and self.assistant else None
            value = getattr(source, name, None) if source is not None else self.asked(name)
            if isinstance(value, bool | int | float | str):
                found[name] = value
        return found

    def eos_ids(self) -> frozenset[int]:
        value = self.asked("eos_token_id")
        if value is None:
            return frozenset()
        listed = value.flatten().tolist() if isinstance(value, Tensor) else value
        return frozenset(listed if isinstance(listed, list | tuple) else [listed])

    def notes(self, has_texts: bool) -> Iterator[str]:
        """Sentences: what this run cannot know, and what has to be known to read it."""
        drafts = self.call.drafter is not None
        yield (
            "transformers reads the prompt in the pass that checks the first draft, so the first step's time is in the "
            "prompt's."
            if drafts
            else "transformers takes the first token from the pass that reads the prompt: its time is the prompt's."
        )
        if drafts and self.is_sampled:
            yield "The coins of its check are not known: transformers keeps them to itself."
            is_twice = self.method in ("transformers-assisted", "transformers-early-exit")
            if is_twice and self.asked("temperature") != 1.0:
                yield "transformers applies the temperature twice to its draft; q is what the draft was drawn from."
        if self.method == "transformers-lookup":
            yield "Prompt lookup copies, so it has no probabilities of its own (q)."
        elif self.method == "transformers-universal" and not self.is_sampled:
            yield "The draft's probabilities (q) are over its own tokens, and transformers drops them."
        if not drafts and self.is_sampled:
            yield "The target's probabilities are not known: transformers keeps those after temperature to itself."
        if not has_texts:
            yield "No tokenizer was at hand, so tokens are shown by their ids."

    def draft_info(self) -> ModelInfo | None:
        is_other = self.assistant is not None and self.assistant is not self.model
        return info_of(self.assistant) if is_other else None


def _method(call: Call) -> str:
    drafter = call.drafter
    if drafter is None:
        return "transformers"
    if isinstance(drafter, PromptLookupCandidateGenerator):
        return "transformers-lookup"
    if isinstance(drafter, EarlyExitCandidateGenerator):
        return "transformers-early-exit"
    if isinstance(drafter, AssistedCandidateGenerator) and hasattr(drafter, "assistant_tokenizer"):
        return "transformers-universal"
    return "transformers-assisted"


def info_of(model: Any) -> ModelInfo:
    """A model by its name and size; of one from a folder only the folder's name, for a trace may travel."""
    tensors = [*model.parameters(), *model.buffers()]
    name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    return ModelInfo(
        name=Path(name).resolve().name if Path(name).is_absolute() or Path(name).exists() else name,
        dtype=str(model.dtype).removeprefix("torch."),
        num_params=sum(p.numel() for p in model.parameters()),
        num_bytes=sum(t.numel() * t.element_size() for t in tensors),
    )
