"""One serving engine as it answers questions: who it is, and what its counters stand at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from specviz.errors import RemoteError
from specviz.remote.address import Address
from specviz.remote.chunks import whole_text
from specviz.remote.counters import ServerCounters, read_counters
from specviz.remote.messages import headers
from specviz.remote.problems import problem_of, refusal

__all__ = ["Identity", "Server"]

ANSWER_S = 5.0
"""How long a question may take. A busy engine answers these beside its work."""

_ENGINES = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
"""By `owned_by` of the model list."""


@dataclass(frozen=True, slots=True)
class Identity:
    """engine: "vLLM", ... or "" where it does not say. model: the first one served. max_len: its context, 0 unknown."""

    engine: str
    version: str
    model: str
    max_len: int

    @property
    def title(self) -> str:
        """ "vLLM 0.32.0" """
        return " ".join(word for word in (self.engine or "server", self.version) if word)


class Server:
    """Questions to one server, over one connection pool; safe from several threads."""

    def __init__(self, address: Address, answer_s: float = ANSWER_S) -> None:
        self.address = address
        self._client = httpx.Client(base_url=address.url, headers=headers(address), timeout=answer_s)

    @property
    def name(self) -> str:
        return self.address.name

    def identify(self) -> Identity:
        """Who answers. A server without `/version` is taken as it is.

        Raises:
            RemoteError: it does not answer, refuses the key, or lists no model.
        """
        models = self._json("/v1/models")
        listed = models.get("data") if isinstance(models, dict) else None
        first = listed[0] if isinstance(listed, list) and listed else None
        if not isinstance(first, dict) or not isinstance(first.get("id"), str):
            raise RemoteError(f"{self.name} answers, but lists no model. Wait until it has loaded one.")
        try:
            version = self._json("/version")
        except RemoteError:
            version = None
        told = version.get("version") if isinstance(version, dict) else ""
        length = first.get("max_model_len")
        return Identity(
            engine=_ENGINES.get(str(first.get("owned_by")), ""),
            version=whole_text(told)[:40],
            model=whole_text(first["id"])[:200],
            max_len=length if isinstance(length, int) and not isinstance(length, bool) else 0,
        )

    def counters(self, model: str = "") -> ServerCounters:
        """Its counters now.

        Raises:
            RemoteError: it does not answer, or has no metrics.
        """
        text = self._get("/metrics")
        try:
            return read_counters(text, model)
        except ValueError as error:
            raise RemoteError(f"The metrics of {self.name} cannot be read: {str(error)[:120]}.") from error

    def close(self) -> None:
        self._client.close()

    def _json(self, path: str) -> Any:
        try:
            return json.loads(self._get(path))
        except ValueError as error:
            raise RemoteError(f"{self.name} does not answer {path} with JSON. Is it a model server?") from error

    def _get(self, path: str) -> str:
        try:
            response = self._client.get(path)
        except httpx.HTTPError as error:
            raise problem_of(error, self.address) from error
        if response.status_code != 200:
            raise refusal(response.status_code, response.text, self.address)
        return response.text
