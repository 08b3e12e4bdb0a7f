"""A smaller or coarser language model drafts, one token after the other.

Source: Leviathan, Kalman, Matias (2023), arXiv 2211.17192; Chen et al. (2023), arXiv 2302.01318. A draft with another
tokenizer: see `specviz.drafters.translation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.drafters.base import DraftContext, Need, Outcome
from specviz.drafters.translation import Translation
from specviz.events import DraftNote
from specviz.models.carry import require_states
from specviz.models.session import Session
from specviz.proposal import Proposal
from specviz.sampling import choose, draw, own_probability, probabilities, spread

__all__ = ["ModelDrafter"]


_LONGEST = 4
"""How many of the draft's tokens a token of another tokenizer is given room for, on average."""


class ModelDrafter:
    """Any causal LM: the pair's own draft, or a quantized copy of the target.

    Its cache holds some prefix of the text. Before drafting it is rolled back to what still agrees and fed what is
    missing: one token after a refusal, two after a full acceptance, more after steps without a draft.
    """

    needs = frozenset({Need.SAME_TOKENIZER})

    def __init__(
        self,
        name: str,
        model: Any,
        *,
        vocab_size: int,
        max_new_tokens: int,
        stop_below: float = 0.0,
        notes: tuple[str, ...] = (),
        translation: Translation | None = None,
    ) -> None:
        """
        Args:
            vocab_size: ids that target and tokenizer share; the draft never proposes one at or above it.
            max_new_tokens: bounds the cache.
            stop_below: drafting stops behind a token whose q is under this. The token itself is still proposed:
                dropping it would make the rest a biased choice.
            translation: for a draft with another tokenizer than the target's.
        Raises:
            CacheNotCroppableError: the model's past cannot be rolled back, whatever the prompt.
        """
        require_states(model)
        self.name = name
        self.notes = notes
        self._model = model
        self._vocab_size = vocab_size
        self._output_ids: Tensor | None = getattr(model, "output_ids", None)  # of a trained draft, see models.trunk
        self._translation = translation
        self._max_new_tokens = max_new_tokens
        self._stop_below = stop_below
        config = model.config.get_text_config(decoder=True)
        self._num_known = int(config.vocab_size)
        self._max_context = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
        self._room = self._max_context
        self._session: Session | None = None
        self._fed: list[int] = []  # in the draft's own tokens

    @property
    def num_bytes(self) -> int:
        return self._session.num_bytes if self._session else 0

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self.close()
        text = self._readable(prompt_ids)
        longest = 1 if self._translation is None else _LONGEST
        capacity = self._room = min(len(text) + longest * self._max_new_tokens, self._max_context)
        self._session = Session(self._model, capacity=capacity)
        if 1 < len(text) <= self._max_context:
            self._fed = text[:-1]
            self._session.extend(self._fed)

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        assert self._session is not None, "reset comes first"
        ids = list(context.token_ids)
        text = self._readable(ids)
        if not text:
            return Proposal.empty(DraftNote("model", "the draft cannot read this text"))
        max_tokens = min(max_tokens, self._max_context - len(text), self._room - len(text) + 1)
        if max_tokens < 1:
            note = f"the draft reads {self._room} tokens at most: the target goes on alone"
            return Proposal.empty(DraftNote("model", note))
        logits = self._catch_up(text)
        drafted: list[int] = []
        probs: list[Tensor] = []
        confidence: list[float] = []
        while True:
            token = self._pick(logits, context, ids, probs, confidence, rng)
            drafted.append(token)
            ids.append(token)
            if len(drafted) == max_tokens or confidence[-1] < self._stop_below:
                break
            read = self._readable([token])
            self._fed += read
            logits = self._aligned(self._session.extend(read)[0])
        return Proposal.chain(drafted, torch.stack(probs) if probs else None, confidence, DraftNote("model"))

    def observe(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
        self._fed = []

    def _catch_up(self, text: list[int]) -> Tensor:
        """Roll back to the common prefix with `text`, feed the rest, return the logits behind the last token."""
        assert self._session is not None
        same = 0
        for mine, theirs in zip(self._fed, text[:-1], strict=False):
            if mine != theirs:
                break
            same += 1
        self._session.roll_back(same)
        self._fed = text[:]
        logits = self._aligned(self._session.extend(text[same:])[0])
        self._session.mark()
        return logits

    def _readable(self, ids: Sequence[int]) -> list[int]:
        """The ids in the draft's own tokens, where it has others. Ids without a row are replaced: it guesses worse
        behind them, and goes on."""
        if self._translation is not None:
            return [own for token in ids for own in self._translation.read(token)]
        return [token if token < self._num_known else 0 for token in ids]

    def _pick(
        self,
        logits: Tensor,
        context: DraftContext,
        ids: list[int],
        probs: list[Tensor],
        confidence: list[float],
        rng: torch.Generator,
    ) -> int:
        params = context.sampling
        if params.is_greedy:
            token = choose(logits, params, ids)
            confidence.append(own_probability(logits, token))
            return token
        q = probabilities(logits, params, ids)
        token = draw(q, rng)
        probs.append(q)
        confidence.append(float(q[token]))
        return token

    def _aligned(self, logits: Tensor) -> Tensor:
        """[vocab] logits over the ids the tokenizer knows: padding rows cut off, missing rows never drawn."""
        if self._translation is not None:
            shared = logits[self._translation.draft_ids.to(logits.device)]
            return spread(shared, self._translation.target_ids, self._vocab_size)
        return spread(logits, self._output_ids, self._vocab_size)
