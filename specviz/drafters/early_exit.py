"""Early exit: the target's own first layers draft, and verification goes on where they stopped.

The layers' keys and values lie in the target's own cache and are written once: drafting fills them, checking fills the
layers above. Each draft pass leaves its hidden state behind; checking starts from those states and computes the first
layers for the last drafted token alone, which no draft pass has read.

Source: Elhoushi et al. (2024), LayerSkip, arXiv 2404.16710, section 4.3; there the model was trained to leave early.
A model that was not can still do it, and guesses worse.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.options import Option
from specviz.errors import ConfigError
from specviz.events import DraftNote
from specviz.models.decoder import LeanDecoder, decoder_for
from specviz.models.session import Session
from specviz.proposal import Proposal
from specviz.sampling import choose, draw, own_probability, probabilities

__all__ = ["EXIT_LAYER", "EarlyExitDrafter", "early_exit_refusal", "read_exit_layer"]

EXIT_LAYER = Option(
    "exit_layer",
    0,
    "how many of the target's first layers draft, 1 to one less than it has; 0 takes a third of them",
    low=0,
    high=1000,
    essential=True,
)


def early_exit_refusal(model: Any) -> str | None:
    """Why the first layers of this model cannot draft, in a sentence; None if they can."""
    decoder = decoder_for(model)
    kind = getattr(model.config.get_text_config(decoder=True), "model_type", type(model).__name__)
    if not isinstance(decoder, LeanDecoder):
        return (
            f"early-exit runs the target layer by layer, which this version does for models of the Llama family and "
            f"not for “{kind}”. Choose a Llama, Mistral, Qwen2 or Qwen3 target, or prompt-lookup."
        )
    if decoder.num_layers < 2:
        return "early-exit needs a target of at least two layers; this one has one. Choose prompt-lookup."
    return None


def read_exit_layer(value: int, num_layers: int) -> int:
    """The layer that a setting means on a model of `num_layers` >= 2 layers: 0 is about a third of them.

    Raises:
        ConfigError: not in 1..num_layers - 1 and not 0, with the range of this model.
    """
    if value == 0:
        return max(1, round(num_layers / 3))
    if not 1 <= value < num_layers:
        raise ConfigError(
            f"exit-layer must lie between 1 and {num_layers - 1} for this target of {num_layers} layers, or be 0 for a "
            f"third of them; got {value}."
        )
    return value


class EarlyExitDrafter:
    """Drafts in the run's own session, and holds nothing itself.

    relative_cost: of a drafted token over a plain step, in layers.
    """

    name = "early-exit"
    needs = frozenset({Need.LAYERS})
    num_bytes = 0

    def __init__(
        self,
        exit_layer: int,
        num_layers: int,
        *,
        vocab_size: int,
        eos_ids: Collection[int] = (),
        stop_below: float = 0.0,
    ) -> None:
        """
        Args:
            exit_layer: layers that draft, 1 to num_layers - 1.
            vocab_size: ids at or above are padding of the output layer, never drafted.
            eos_ids: drafting ends behind one of these, since nothing may follow it.
            stop_below: drafting ends behind a token whose q is under this; the token itself is still proposed.
        """
        self.relative_cost = exit_layer / num_layers
        self._exit_layer = exit_layer
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._stop_below = stop_below
        words = f"{_span(1, exit_layer)} drafted, {_span(exit_layer + 1, num_layers)} checked"
        self._note = DraftNote("layers", words, {"exit_layer": exit_layer, "num_layers": num_layers})

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        pass

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        assert context.target is not None, "early exit drafts in the run's own session"
        params = context.sampling
        ids = list(context.token_ids)
        drafted: list[int] = []
        probs: list[Tensor] = []
        confidence: list[float] = []
        while len(drafted) < max_tokens:
            logits = context.target.draft_pass([context.token_ids[-1], *drafted], self._exit_layer)
            logits = logits[: self._vocab_size].cpu()
            if params.is_greedy:
                token = choose(logits, params, ids)
                confidence.append(own_probability(logits, token))
            else:
                q = probabilities(logits, params, ids)
                token = draw(q, rng)
                probs.append(q)
                confidence.append(float(q[token]))
            drafted.append(token)
            ids.append(token)
            if token in self._eos_ids or confidence[-1] < self._stop_below:
                break
        return Proposal.chain(drafted, torch.stack(probs) if probs else None, confidence, self._note)

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        pass


def _span(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first} to {last}"
