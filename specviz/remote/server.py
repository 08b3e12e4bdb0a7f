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

__all__ = ["Drafting", "Identity", "Server"]

ANSWER_S = 5.0
"""How long a question may take. A busy engine answers these beside its work."""

_ENGINES = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
"""By `owned_by` of the model list."""

_NO_METRICS = "shows no metrics. SGLang does with --enable-metrics, llama.cpp with --metrics."


@dataclass(frozen=True, slots=True)
class Drafting:
    """How an SGLang speculates, as its flags name it: algorithm ("EAGLE3", ...), num_steps deep, topk wide,
    num_draft_tokens rows to check, the root among them. 0 where it does not say."""

    algorithm: str
    num_steps: int
    topk: int
    num_draft_tokens: int

    @property
    def is_chain(self) -> bool:
        return self.topk == 1 and self.num_draft_tokens == self.num_steps + 1


@dataclass(frozen=True, slots=True)
class Identity:
    """engine: "vLLM", ... or "" where it does not say. model: the first one served. max_len: its context, 0 unknown.

    drafting: where it says so; only SGLang does.
    """

    engine: str
    version: str
    model: str
    max_len: int
    drafting: Drafting | None = None

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
        engine = _ENGINES.get(str(first.get("owned_by")), "")
        told = self._about("/server_info", "/get_server_info") if engine == "SGLang" else self._about("/version")
        return Identity(
            engine=engine,
            version=whole_text(told.get("version"))[:40],
            model=whole_text(first["id"])[:200],
            max_len=_whole(first.get("max_model_len")),
            drafting=_drafting(told),
        )

    def _about(self, *paths: str) -> dict[str, Any]:
        """What it says of itself on the first of these paths that it knows, {} if on none."""
        for path in paths:
            try:
                told = self._json(path)
            except RemoteError:
                continue
            if isinstance(told, dict):
                return told
        return {}

    def counters(self, model: str = "") -> ServerCounters:
        """Its counters now.

        Raises:
            RemoteError: it does not answer, or has no metrics.
        """
        text = self._get("/metrics", _NO_METRICS)
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

    def _get(self, path: str, missing: str = "") -> str:
        try:
            response = self._client.get(path)
        except httpx.HTTPError as error:
            raise problem_of(error, self.address) from error
        if response.status_code == 404 and missing:
            raise RemoteError(f"{self.name} {missing}")
        if response.status_code != 200:
            raise refusal(response.status_code, response.text, self.address)
        return response.text


def _drafting(told: dict[str, Any]) -> Drafting | None:
    """Of an SGLang's settings, among which its keys are, these alone."""
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    algorithm = whole_text(told.get("speculative_algorithm"))[:40]
    return Drafting(algorithm, *(_whole(told.get(name)) for name in names)) if algorithm else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
