"""A serving engine's own counters, read from its Prometheus text. Pure: text in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from specviz.events import EngineCounts

__all__ = ["ServerCounters", "read_counters"]

_NAMES = {
    "vllm:spec_decode_num_drafts_total": "num_drafts",
    "vllm:spec_decode_num_draft_tokens_total": "num_drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "num_accepted",
    "vllm:generation_tokens_total": "num_generated",
    "vllm:num_requests_running": "num_running",
    "vllm:num_requests_waiting": "num_waiting",
    "llamacpp:tokens_predicted_total": "num_generated",
    "llamacpp:requests_processing": "num_running",
    "llamacpp:requests_deferred": "num_waiting",
}
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_PREFIXES = (_BY_POSITION, *_NAMES)
_MAX_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Counts since the server started, over all its engines; None for what it does not tell.

    num_drafts: verification passes that had a draft. accepted_at: [positions] accepted tokens by place in the draft.
    num_generated: tokens written for all requests. num_running, num_waiting: requests at this moment.
    source: whose names these are, "vllm" or "llamacpp".
    """

    num_drafts: int | None = None
    num_drafted: int | None = None
    num_accepted: int | None = None
    accepted_at: tuple[int, ...] = ()
    num_generated: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    source: str = ""

    @property
    def speculates(self) -> bool | None:
        """Whether the server drafts: vLLM counts drafts where it does. None: nothing here would say so."""
        if self.num_drafts is not None:
            return True
        return False if self.source == "vllm" else None

    def since(self, before: ServerCounters) -> ServerCounters | None:
        """What was counted after `before`; requests stay those of this moment. None where a count fell: a restart."""
        totals = {name: _less(getattr(self, name), getattr(before, name)) for name in _TOTALS}
        earlier = before.accepted_at + (0,) * (len(self.accepted_at) - len(before.accepted_at))
        places = [now - then for now, then in zip(self.accepted_at, earlier, strict=False)]
        if any(value is not None and value < 0 for value in (*totals.values(), *places)):
            return None
        return ServerCounters(
            **totals,  # type: ignore[arg-type]
            accepted_at=tuple(places),
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            source=self.source,
        )

    def counts(self, *, is_bound: bool) -> EngineCounts | None:
        """These as the counts of a run; None where the server does not tell enough."""
        if self.num_drafts is None or self.num_drafted is None or self.num_accepted is None:
            return None
        return EngineCounts(self.num_drafts, self.num_drafted, self.num_accepted, self.accepted_at, is_bound)


_TOTALS = ("num_drafts", "num_drafted", "num_accepted", "num_generated")


def read_counters(text: str, model: str = "") -> ServerCounters:
    """The counters in a server's metrics, summed over its engines; of one model where several are labelled.

    Raises:
        ValueError: one of those lines is not Prometheus text.
    """
    found: dict[str, int] = {}
    places: dict[int, int] = {}
    source = ""
    for name, labels, value in _samples(text):
        source = name.partition(":")[0]
        if model and labels.get("model_name", model) != model:
            continue
        if name == _BY_POSITION:
            place = int(labels.get("position", "-1"))
            if 0 <= place < _MAX_POSITIONS:
                places[place] = places.get(place, 0) + int(value)
        elif name in _NAMES:
            field = _NAMES[name]
            found[field] = found.get(field, 0) + int(value)
    accepted_at = tuple(places.get(place, 0) for place in range(max(places) + 1)) if places else ()
    return ServerCounters(**found, accepted_at=accepted_at, source=source)


def _samples(text: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """The samples of our own names: an engine exports thousands of lines, most of them histograms."""
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if math.isfinite(sample.value):
                yield sample.name, sample.labels, sample.value


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)
