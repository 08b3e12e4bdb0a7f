"""Serving engines elsewhere, as a source of the same events: vLLM, SGLang, llama.cpp and their like."""

from __future__ import annotations

from specviz.remote.address import Address, read_addresses
from specviz.remote.engine import RemoteEngine
from specviz.remote.request import METHOD

__all__ = ["METHOD", "Address", "RemoteEngine", "attach", "read_addresses"]


def attach(url: str) -> RemoteEngine:
    """The engine at this address; its key is in SPECVIZ_ATTACH_KEY. Raises ConfigError for what is no address."""
    return RemoteEngine(read_addresses([url])[0])
