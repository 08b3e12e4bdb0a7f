"""What the ways of transformers' `generate` are called."""

from __future__ import annotations

__all__ = ["TITLES"]

TITLES = {
    "transformers": "transformers: plain decoding",
    "transformers-assisted": "transformers: assisted generation",
    "transformers-lookup": "transformers: prompt lookup",
    "transformers-early-exit": "transformers: early exit",
    "transformers-universal": "transformers: universal assisted generation",
}
"""By the method of a watched run."""
