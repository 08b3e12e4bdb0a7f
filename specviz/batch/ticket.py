"""One run in a batch: where it stands, and what it asks for next."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from specviz.batch.paged_cache import PagedCache
from specviz.batch.record import PassRows, SequenceLeft
from specviz.errors import sentence_for
from specviz.events import Event, RowFate, RunFinished, StepDone
from specviz.models.session import KEY_BLOCK, PassRequest
from specviz.run import Run, Steps

__all__ = ["Ticket"]


@dataclass(slots=True, eq=False)
class Ticket:
    """A run's place in a batch.

    number: in the order of arrival. alone: why its passes hold no rows of others, "" where they can. events: its own
    stream, as if it were alone; whoever reads it takes them out. request: the pass that it waits for.
    state: waiting for its first pass; running; preempted, its pages given back; over.
    """

    number: int
    run: Run
    alone: str
    arrived: float
    state: Literal["waiting", "running", "preempted", "over"] = "waiting"
    events: deque[Event] = field(default_factory=deque)
    request: PassRequest | None = None
    is_cancelled: bool = False
    num_preempted: int = 0
    num_shared: int = 0
    num_passes: int = 0
    sum_company: int = 0
    num_tokens: int = 0
    first_token_s: float | None = None
    finished: RunFinished | None = None
    message: str = ""
    _posted: float = 0.0
    _steps: Steps | None = None

    def cancel(self) -> None:
        """End the run before the batch's next pass. What it has written stays in its events."""
        self.is_cancelled = True

    @property
    def is_over(self) -> bool:
        return self.state == "over"

    @property
    def cache(self) -> PagedCache | None:
        """Its pages; None where the target keeps its own kind of cache."""
        cache = self.run.session.cache
        return cache if isinstance(cache, PagedCache) else None

    def wish(self, max_rows: int) -> PassRequest:
        """The next pass: what the run asks for, or a piece of what it had before it was preempted."""
        assert self.request is not None
        session = self.run.session
        return session.again(max_rows) if session.is_aside else self.request

    def go_on(self, answer: Tensor | BaseException | None = None) -> StepDone | None:
        """Give the run what it waits for, and let it go on until it asks for its next pass or ends.

        Returns:
            The step that it finished on the way, if it did.
        """
        done = None
        self.request = None
        try:
            if self._steps is None:
                self._steps = self.run.steps()
            item = self._steps.throw(answer) if isinstance(answer, BaseException) else self._steps.send(answer)
            while not isinstance(item, PassRequest):
                self.events.append(item)
                if isinstance(item, StepDone):
                    done = item
                    self.num_tokens += len(item.emitted)
                    if self.first_token_s is None:
                        self.first_token_s = time.perf_counter() - self.arrived
                elif isinstance(item, RunFinished):
                    self.finished = item
                item = next(self._steps)
            self.request, self._posted = item, time.perf_counter()
        except StopIteration:
            self.state = "over"
        except Exception as error:  # closing a drafter failed; what the run had to say is in its events
            self.state = "over"
            self.message = sentence_for(error, stays="What is there stays.")
        return done

    def waited(self) -> float:
        """Seconds since it asked for the pass."""
        return time.perf_counter() - self._posted

    def close(self) -> None:
        """Free what the run holds, at whatever point it is."""
        self.state = "over"
        try:
            if self._steps is None:
                self.run.close()
            else:
                self._steps.close()
        except Exception as error:
            self.message = sentence_for(error, stays="What is there stays.")

    def pages_for(self) -> int:
        """Free pages that it takes to begin, or to come back and go on."""
        known = len(self.run.session.token_ids)
        stop = max(known, len(self.run.context)) + (self.request.rows if self.request is not None else 1)
        return -(-stop // KEY_BLOCK)

    def rows(self, request: PassRequest, place: int, step: StepDone | None, alone: bool) -> PassRows:
        """What is recorded of its part in a pass. place: entry of the request's first row."""
        if request.kind != "check":
            read: tuple[RowFate, ...] = tuple("read" for _ in request.ids)
            return PassRows(self.number, request.kind, read, place, self.run.session.length, alone=alone)
        if step is None:  # it failed
            lost: tuple[RowFate, ...] = tuple("discarded" for _ in request.ids)
            return PassRows(self.number, "check", lost, place, place, alone=alone)
        padding: tuple[RowFate, ...] = tuple("padding" for _ in range(len(request.ids), request.rows)) if alone else ()
        fates, texts = self.run.row_fates()
        return PassRows(
            self.number,
            "check",
            (*fates, *padding),
            place,
            step.cache_len,
            (*texts, *("",) * len(padding)),
            "".join(token.text for token in step.emitted),
            len(step.emitted),
            len(step.drafted),
            step.num_accepted,
            step.index,
            step.draft_s,
            step.other_s,
            alone,
        )

    def left(self, at_s: float) -> SequenceLeft:
        """What is recorded of its end."""
        reason = "cancelled" if self.finished is None else self.finished.reason
        return SequenceLeft(
            self.number,
            "error" if self.finished is None and self.message else reason,
            self.num_tokens,
            at_s,
            self.first_token_s,
            self.num_passes,
            self.sum_company / self.num_passes if self.num_passes else 0.0,
            self.num_preempted,
            self.num_shared,
            self.message or (self.finished.message if self.finished else ""),
        )
