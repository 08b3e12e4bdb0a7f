"""A batch as a stream of typed events: plain numbers and strings, JSON both ways.

Order: BatchStarted; SequenceArrived, PassDone and SequenceLeft as they happen; BatchFinished. A sequence is named by
its number, from 0 in the order of arrival. Beside this stream each run has its own, as if it were alone, see
`specviz.events`: `run_id` joins the two, and run_id with `step` finds a pass's StepDone and its tokens.

Seconds end in `_s` and, where they are a time of day, count from the start of the batch. Counts start with `num_`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from specviz.events import Exactness, FinishReason, RowFate, event_from_json, event_to_json

__all__ = [
    "BatchEvent",
    "BatchFinished",
    "BatchStarted",
    "PassDone",
    "PassRows",
    "SequenceArrived",
    "SequenceLeft",
    "SequencePages",
    "batch_event_from_json",
    "batch_event_to_json",
]

RowKind = Literal["prompt", "again", "check"]
"""What a sequence's rows were for: reading its prompt; reading again what it had before it was preempted; checking a
draft, or none, behind the last committed token."""


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """Everything that is known before the first pass.

    target: name of the model. page_tokens: tokens a page. num_pages: in the pool. page_bytes: of one page, all layers.
    max_running: sequences that share passes at most. max_rows: rows of a pass at most, beyond which prompts wait.
    exactness_reason: in a sentence, what the self-test found about passes that are shared, "" if it was not asked.
    """

    target: str
    dtype: str
    device: str
    page_tokens: int
    num_pages: int
    page_bytes: int
    max_running: int
    max_rows: int
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    started_at: str = ""
    exactness_reason: str = ""


@dataclass(frozen=True, slots=True)
class SequenceArrived:
    """A run joined the line.

    prompt: its beginning, for a label. gamma: most tokens drafted a step. at_s: when it came.
    alone: why its checks cannot share a pass, in a sentence; "" where they can.
    """

    sequence: int
    run_id: str
    method: str
    prompt: str
    prompt_len: int
    gamma: int
    max_new_tokens: int
    exactness: Exactness
    at_s: float
    alone: str = ""


@dataclass(frozen=True, slots=True)
class PassRows:
    """One sequence's part of a pass.

    fates: one a row, in the order of the rows; padding that attention alone saw is left out.
    texts: what each row's token reads as, "" for padding; empty for prompts.
    place: cache entry of the first row: the rows were written to entries place, place + 1, ...
    cache_len: entries that count after the pass; the others were given back.
    emitted: text this pass added to the answer; num_emitted: its tokens, num_drafted and num_kept: of its draft.
    step: index of the StepDone in the run's own events, 0 where it was no check.
    draft_s: time inside the drafter, before and after the pass. other_s: verification and the rest, for this sequence.
    alone: whether these rows had a pass of their own.
    """

    sequence: int
    kind: RowKind
    fates: tuple[RowFate, ...]
    place: int
    cache_len: int
    texts: tuple[str, ...] = ()
    emitted: str = ""
    num_emitted: int = 0
    num_drafted: int = 0
    num_kept: int = 0
    step: int = 0
    draft_s: float = 0.0
    other_s: float = 0.0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class SequencePages:
    """A sequence's block table: page i holds its entries i * page_tokens and following. A page in more than one table
    is shared."""

    sequence: int
    pages: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class PassDone:
    """One pass of the target over rows of several sequences, and the state of the batch after it.

    at_s: when the pass's drafting began. seconds: until its last sequence was served; target_s: of the target alone.
    num_rows: of all sequences, padding included.
    tables: block tables after the pass; one page in several tables is shared. num_used + num_free is the whole pool.
    cached: free pages whose keys and values a later sequence with the same beginning can still take over.
    taken, freed, copied: pages handed out, given back, and copied before a write because others read them.
    waiting, running, preempted: sequences, each in the order in which it would be served.
    """

    index: int
    at_s: float
    seconds: float
    target_s: float
    num_rows: int
    rows: tuple[PassRows, ...]
    tables: tuple[SequencePages, ...]
    num_used: int
    num_free: int
    running: tuple[int, ...]
    waiting: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceLeft:
    """A run ended. first_token_s: from its arrival; None if it had none. num_preempted: how often it was put back.

    num_passes: passes it had rows in. mean_company: sequences in these passes, itself included, on average.
    num_shared: tokens of its prompt that it did not read because another sequence had.
    """

    sequence: int
    reason: FinishReason
    num_tokens: int
    at_s: float
    first_token_s: float | None = None
    num_passes: int = 0
    mean_company: float = 0.0
    num_preempted: int = 0
    num_shared: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """The end of a batch and its totals. seconds: in passes and between them, idle time left out."""

    num_sequences: int
    num_passes: int
    num_tokens: int
    num_rows: int
    seconds: float
    target_s: float
    most_used_pages: int


BatchEvent = BatchStarted | SequenceArrived | PassDone | SequenceLeft | BatchFinished

_TYPES: dict[str, type] = {
    cls.__name__: cls for cls in (BatchStarted, SequenceArrived, PassDone, SequenceLeft, BatchFinished)
}


def batch_event_to_json(event: BatchEvent) -> dict[str, Any]:
    """Plain dictionary with the class name under "type" and fields at their default left out."""
    return event_to_json(event)


def batch_event_from_json(data: Any) -> BatchEvent:
    """The event that `batch_event_to_json` wrote, checked field by field.

    Raises:
        TraceError: as `specviz.events.event_from_json`.
    """
    event: BatchEvent = event_from_json(data, _TYPES)
    return event
