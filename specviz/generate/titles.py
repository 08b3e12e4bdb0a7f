"""What the ways of transformers' `generate` are called."""

from __future__ import annotations

__all__ = ["PEERS", "TITLES"]

TITLES = {
    "transformers": "transformers: plain decoding",
    "transformers-assisted": "transformers: assisted generation",
    "transformers-lookup": "transformers: prompt lookup",
    "transformers-early-exit": "transformers: early exit",
    "transformers-universal": "transformers: universal assisted generation",
}
"""By the method of a watched run."""

PEERS = {"transformers-assisted": "draft-model", "transformers-lookup": "prompt-lookup"}
"""Those that can be raced, and the method of specviz that drafts with the same: they take that one's settings."""
