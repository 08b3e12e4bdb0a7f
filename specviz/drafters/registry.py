"""All methods by name. Feeds the menu, the command line, the README table and the contract test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from specviz.config import RunConfig
from specviz.drafters.base import Drafter, Need
from specviz.drafters.model import ModelDrafter
from specviz.drafters.options import Option
from specviz.drafters.plain import PlainDrafter
from specviz.drafters.prompt_lookup import PromptLookupDrafter
from specviz.errors import ConfigError
from specviz.events import Exactness, ModelInfo
from specviz.models.loader import LoadedPair

__all__ = ["METHODS", "Method", "get_method", "names"]

Built = tuple[Drafter, ModelInfo | None]


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft.

    title: for the menu. summary: one line, what it does. exactness: the greedy word at default settings.
    build: a drafter for one run, and which model drafts, if one does. It finds the method's own settings, checked and
        complete, in `config.options`.
    options: those settings.
    """

    name: str
    title: str
    summary: str
    exactness: Exactness
    build: Callable[[LoadedPair, RunConfig], Built]
    needs: frozenset[Need] = field(default_factory=frozenset)
    options: tuple[Option, ...] = ()

    def refusal(self, loaded: LoadedPair) -> str | None:
        """Why this method cannot run on this pair, in a sentence; None if it can."""
        if Need.DRAFT in self.needs and loaded.pair.draft is None:
            return (
                f"The pair {loaded.pair.name} has no draft model of its own. "
                "Choose quantized-copy, which drafts with a 4-bit copy of the target, or prompt-lookup."
            )
        return None


def _model_draft(name: str, *, copy: bool) -> Callable[[LoadedPair, RunConfig], Built]:
    def build(loaded: LoadedPair, config: RunConfig) -> Built:
        model, info = loaded.draft_model(config.draft_quant, copy=copy)
        vocab_size, limit = loaded.vocab_size, config.max_new_tokens
        stop = config.confidence if config.draft_length == "confidence" else 0.0
        return ModelDrafter(name, model, vocab_size=vocab_size, max_new_tokens=limit, stop_below=stop), info

    return build


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("plain", "Plain decoding", "No draft: one token a pass. The baseline.", "exact", lambda *_: (PlainDrafter(), None)),
        Method("prompt-lookup", "Prompt lookup", "Copies what followed the same words earlier in the text.", "exact", lambda *_: (PromptLookupDrafter(), None)),
        Method("quantized-copy", "Quantized copy of the target", "The target's own weights, held in 4 bits, draft.", "exact", _model_draft("quantized-copy", copy=True), frozenset({Need.SAME_TOKENIZER})),
        Method("draft-model", "Draft model", "The pair's own smaller model drafts.", "exact", _model_draft("draft-model", copy=False), frozenset({Need.SAME_TOKENIZER, Need.DRAFT})),
    )
}  # fmt: skip


def names() -> list[str]:
    """All method names, the baseline first."""
    return list(METHODS)


def get_method(name: str) -> Method:
    """Raises ConfigError, listing the names, where there is none of that name."""
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"Unknown method {name[:40]!r}. Known are {', '.join(METHODS)}.")
    return method
