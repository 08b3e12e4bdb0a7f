"""A draft that reads other tokens than the target: which tokens the two share, and how the others are read.

Only shared tokens are drafted: those that stand for the same bytes in both vocabularies, and control tokens of the same
name. q is the draft's distribution over these alone, so that verification is as lossless as ever. A token of the text
that the draft does not know is read as the longest tokens of its own that spell the same bytes.

Source: token-level intersection in Timor et al. (2025), Accelerating LLM Inference with Lossless Speculative Decoding
Algorithms for Heterogeneous Vocabularies, arXiv 2502.05202, section 4.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from specviz.detokenize import token_bytes
from specviz.errors import TokenizerMismatchError

__all__ = ["LEAST_SHARE", "Translation", "translation_for"]

LEAST_SHARE = 0.25
"""Of the target's tokens that the draft has to know. With fewer most words cannot be drafted at all."""

_translations: weakref.WeakKeyDictionary[Any, Translation] = weakref.WeakKeyDictionary()


class Translation:
    """From the target's tokens to the draft's.

    target_ids, draft_ids: [v] int64, the shared tokens, side by side. share: how many of the target's tokens these are,
    0 to 1.
    """

    def __init__(self, target: Any, draft: Any, *, vocab_size: int, num_rows: int) -> None:
        """
        Args:
            target, draft: tokenizers. vocab_size: of the target; ids at or above are left out. num_rows: of the draft.
        Raises:
            TokenizerMismatchError: too little is shared. The share is named.
        """
        self._texts = {key: what for key, what in token_bytes(target).items() if key < vocab_size}
        known: dict[tuple[bool, bytes], int] = {}
        for key, what in sorted(token_bytes(draft).items()):
            if key < num_rows and what[1]:
                known.setdefault(what, key)
        first: dict[tuple[bool, bytes], int] = {}
        for key, what in sorted(self._texts.items()):
            first.setdefault(what, key)  # one id a text: two that read the same could not both be told apart
        pairs = {key: known[what] for what, key in first.items() if what in known}
        self.share = len(pairs) / max(1, len(self._texts))
        if self.share < LEAST_SHARE:
            raise TokenizerMismatchError(
                f"The draft knows {self.share:.0%} of the target's tokens, and can draft no others; "
                f"{LEAST_SHARE:.0%} at least are needed. Choose a draft from the same family, or prompt lookup, which "
                "needs none."
            )
        self.target_ids = torch.tensor(sorted(pairs))
        self.draft_ids = torch.tensor([pairs[key] for key in sorted(pairs)])
        self._read: dict[int, tuple[int, ...]] = {key: (found,) for key, found in pairs.items()}
        self._plain = {data: key for (special, data), key in known.items() if not special}
        self._longest = max(map(len, self._plain), default=1)

    def read(self, token_id: int) -> tuple[int, ...]:
        """The draft's tokens for one of the target's; none for a control token that it does not have."""
        found = self._read.get(token_id)
        if found is None:
            special, data = self._texts.get(token_id, (True, b""))
            found = self._read[token_id] = () if special else self._spelled(data)
        return found

    def _spelled(self, data: bytes) -> tuple[int, ...]:
        found, at = [], 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in self._plain), 0)
            if size:
                found.append(self._plain[data[at : at + size]])
            at += max(1, size)  # a byte that the draft cannot spell is not read
        return tuple(found)


def translation_for(model: Any, target: Any, draft: Any, vocab_size: int) -> Translation:
    """The translation for a draft model, made once. See `Translation` for what is raised."""
    found = _translations.get(model)
    if found is None:
        num_rows = int(model.config.get_text_config(decoder=True).vocab_size)
        found = _translations[model] = Translation(target, draft, vocab_size=vocab_size, num_rows=num_rows)
    return found
