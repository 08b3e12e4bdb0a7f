"""A serving engine's own counters, read from its Prometheus text. Pure: text in, numbers out.

SGLang counts when a request finishes: verification passes (each of which had a draft), tokens and requests. What was
accepted follows: each request's first token comes with the prompt, and each pass writes one token of the target's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

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
    "sglang:spec_verify_calls_total": "num_drafts",
    "sglang:generation_tokens_total": "num_generated",
    "sglang:num_requests_total": "num_finished",
    "sglang:realtime_tokens_total": "num_decoded",
    "vllm:inter_token_latency_seconds_sum": "gaps_s",
    "vllm:inter_token_latency_seconds_count": "num_gaps",
    "sglang:inter_token_latency_seconds_sum": "gaps_s",
    "sglang:inter_token_latency_seconds_count": "num_gaps",
}
_GAUGES = {
    "sglang:num_running_reqs": "num_running",
    "sglang:num_queue_reqs": "num_waiting",
    "sglang:spec_accept_length": "accept_length",
    "sglang:spec_num_steps": "draft_depth",
    "sglang:spec_num_draft_tokens": "draft_rows",
}
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_PREFIXES = (_BY_POSITION, *_NAMES, *_GAUGES)
_MAX_POSITIONS = 64


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Counts since the server started, over all its engines; None for what it does not tell.

    num_drafts: verification passes that had a draft. accepted_at: [positions] accepted tokens by place in the draft.
    num_generated: tokens written for all requests. num_running, num_waiting: requests at this moment.
    source: whose names these are, "vllm", "llamacpp" or "sglang".
    gaps_s: seconds in all from one message of a request to its next. num_gaps: how many, for vLLM a step each, for
    SGLang a token each. num_engines: copies of the model behind this one address, which batch apart.

    SGLang's alone: num_finished: requests. num_decoded: tokens written so far, also of requests that go on.
    accept_length: tau as it says it itself, over its last passes. draft_depth: the most tokens a pass accepts, and
    num_drafted_each: those that it checks, which are more where drafts are trees; both are settings of the moment.
    """

    num_drafts: int | None = None
    num_drafted: int | None = None
    num_accepted: int | None = None
    accepted_at: tuple[int, ...] = ()
    num_generated: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    source: str = ""
    num_finished: int | None = None
    num_decoded: int | None = None
    accept_length: float | None = None
    draft_depth: int | None = None
    num_drafted_each: int | None = None
    gaps_s: float | None = None
    num_gaps: int | None = None
    num_engines: int = 1

    @property
    def speculates(self) -> bool | None:
        """Whether the server drafts: vLLM counts drafts where it does, SGLang once a request has finished.

        None: nothing here would say so.
        """
        if self.num_drafts is not None or self.num_drafted_each or self.accept_length:
            return True
        return False if self.source == "vllm" or (self.source == "sglang" and self.num_finished) else None

    @property
    def gamma(self) -> int:
        """The most tokens that a step accepts, 0 where that is not known."""
        return len(self.accepted_at) or self.draft_depth or 0

    def since(self, before: ServerCounters) -> ServerCounters | None:
        """What was counted after `before`; requests stay those of this moment. None where a count fell: a restart."""
        totals = {name: _less(getattr(self, name), getattr(before, name)) for name in _TOTALS}
        if self.source == "sglang" and totals["num_accepted"] is not None:  # only follows from the others
            totals["num_accepted"] = max(0, totals["num_accepted"])
        earlier = before.accepted_at + (0,) * (len(self.accepted_at) - len(before.accepted_at))
        places = [now - then for now, then in zip(self.accepted_at, earlier, strict=False)]
        if any(value is not None and value < 0 for value in (*totals.values(), *places)):
            return None
        delta = replace(self, **totals, accepted_at=tuple(places))  # type: ignore[arg-type]
        is_steady = self.num_drafted_each is not None and self.num_drafted_each == before.num_drafted_each
        return delta.with_drafts_of(self.num_drafted_each or 0) if is_steady else delta

    def with_drafts_of(self, each: int) -> ServerCounters:
        """With the number of drafted tokens where only that of drafts is told, each of which had so many."""
        if self.num_drafts is None or self.num_drafted is not None or each < 1:
            return self
        return replace(self, num_drafted=self.num_drafts * each)

    def counts(self, *, is_bound: bool) -> EngineCounts | None:
        """These as the counts of a run; None where the server does not tell enough."""
        if self.num_drafts is None or self.num_drafted is None or self.num_accepted is None:
            return None
        return EngineCounts(self.num_drafts, self.num_drafted, self.num_accepted, self.accepted_at, is_bound)


_TOTALS = (
    "num_drafts",
    "num_drafted",
    "num_accepted",
    "num_generated",
    "num_finished",
    "num_decoded",
    "num_gaps",
    "gaps_s",
)


def read_counters(text: str, model: str = "") -> ServerCounters:
    """The counters in a server's metrics, summed over its engines; of one model where several are labelled.

    Raises:
        ValueError: one of those lines is not Prometheus text.
    """
    found: dict[str, Any] = {}
    engines: set[str] = set()
    places: dict[int, int] = {}
    gauges: dict[str, dict[str, float]] = {}
    source = ""
    for name, labels, value in _samples(text):
        source = name.partition(":")[0]
        if model and labels.get("model_name", model) != model:
            continue
        engines.add(labels.get("dp_rank" if source == "sglang" else "engine", ""))
        if name == _BY_POSITION:
            place = int(labels.get("position", "-1"))
            if 0 <= place < _MAX_POSITIONS:
                places[place] = places.get(place, 0) + int(value)
        elif name in _GAUGES:
            ranks = gauges.setdefault(_GAUGES[name], {})
            rank = labels.get("dp_rank", "")
            ranks[rank] = max(ranks.get(rank, 0.0), value)
        elif name in _NAMES and labels.get("mode", "decode") == "decode":
            field = _NAMES[name]
            found[field] = found.get(field, 0) + (value if field == "gaps_s" else int(value))
    accepted_at = tuple(places.get(place, 0) for place in range(max(places) + 1)) if places else ()
    num_engines = max(1, len(engines - {""}))
    counters = ServerCounters(**found, accepted_at=accepted_at, source=source, num_engines=num_engines)
    return _of_sglang(counters, gauges) if source == "sglang" else counters


def _of_sglang(counters: ServerCounters, gauges: Mapping[str, Mapping[str, float]]) -> ServerCounters:
    """With what follows from its counts, and its gauges: [data-parallel rank], the same in each of its processes."""
    accepted = None
    if counters.num_drafts is not None:
        accepted = max(0, (counters.num_generated or 0) - (counters.num_finished or 0) - counters.num_drafts)
    requests = {name: int(sum(gauges[name].values())) for name in ("num_running", "num_waiting") if name in gauges}
    lengths = [value for value in gauges.get("accept_length", {}).values() if value]
    depth, rows = (int(max(gauges.get(name, {}).values(), default=0)) for name in ("draft_depth", "draft_rows"))
    return replace(
        counters,
        **requests,  # type: ignore[arg-type]
        num_accepted=accepted,
        accept_length=sum(lengths) / len(lengths) if lengths else None,
        draft_depth=depth or None,
        num_drafted_each=rows - 1 if rows > 1 else None,
    )


def _samples(text: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """The samples of our own names: an engine exports thousands of lines, most of them histograms."""
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES)]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if math.isfinite(sample.value):
                yield sample.name, sample.labels, sample.value


def _less(now: float | None, before: float | None) -> float | None:
    return None if now is None else now - (before or 0)
