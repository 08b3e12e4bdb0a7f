"""What the ways of transformers' `generate` are called."""

from __future__ import annotations

__all__ = ["PEERS", "SUMMARIES", "TITLES"]

TITLES = {
    "transformers": "transformers: plain decoding",
    "transformers-assisted": "transformers: assisted generation",
    "transformers-lookup": "transformers: prompt lookup",
    "transformers-early-exit": "transformers: early exit",
    "transformers-universal": "transformers: universal assisted generation",
}
"""By the method of a watched run."""

SUMMARIES = {
    "transformers": "transformers' generate without an assistant, watched.",
    "transformers-assisted": "A smaller model drafts, in transformers' own generate, watched.",
    "transformers-lookup": "Copies what followed the same words earlier, in transformers' own generate, watched.",
    "transformers-early-exit": "The target's first layers draft, in transformers' own generate, watched.",
    "transformers-universal": "A model with another tokenizer drafts, in transformers' own generate, watched.",
}

PEERS = {"transformers-assisted": "draft-model", "transformers-lookup": "prompt-lookup"}
"""Those that can be raced, and the method of specviz that drafts with the same: they take that one's settings."""
