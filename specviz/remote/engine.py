"""A serving engine as a source of the same events as the loop in `specviz.generator`.

    engine = RemoteEngine(Address("http://127.0.0.1:8000", "127.0.0.1:8000"))
    for event in engine.stream("Why is the sky blue?", RunConfig(max_new_tokens=64)):
        ...

The server drafts and verifies; its method, draft length and number format are its own. What its stream does not tell,
its counters tell for the whole run: they are read before and after. Where other requests ran beside, they are bounds,
unless the engine counts each request by itself and says so in the last message, as SGLang does, and vLLM when told to.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specviz.config import RunConfig
from specviz.errors import ConfigError, RemoteError
from specviz.events import EngineCounts, Event, FinishReason, RunFinished
from specviz.models.chat import clean_text
from specviz.remote.address import Address
from specviz.remote.chunks import RequestCounts, StreamChunk
from specviz.remote.counters import ServerCounters
from specviz.remote.messages import Messages
from specviz.remote.problems import broken_off
from specviz.remote.request import counts_on, request_of, start_of
from specviz.remote.run_counts import counts_of
from specviz.remote.server import Identity, Server
from specviz.remote.steps import StepReader

__all__ = ["HOW_TO_COUNT_REQUESTS", "Patience", "RemoteEngine"]

HOW_TO_COUNT_REQUESTS = (
    "Started with --per-request-spec-decode-metrics detailed, a recent vLLM counts each request by itself: then no "
    "count is a bound, whatever runs beside."
)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds until a server counts as hung: to its first token, and from one message to the next.

    poll_s: how late a stop is noticed. settle_s: how long its counters may lag behind its last message.
    """

    first_s: float = 120.0
    next_s: float = 30.0
    poll_s: float = 0.1
    settle_s: float = 2.0


class RemoteEngine:
    """Runs requests on one server, one after the other or, then with bounds for counts, at once.

    counts_requests: whether it counts each request by itself; None until a run of one that drafts has shown it.
    """

    def __init__(self, address: Address, patience: Patience | None = None) -> None:
        self.server = Server(address)
        self.patience = patience or Patience()
        self.counts_requests: bool | None = None

    @property
    def name(self) -> str:
        return self.server.name

    def stream(self, prompt: str, config: RunConfig, stopped: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """The events of one run.

        Draft settings of `config` are left out: they are the server's own. A failure before the first token is raised;
        one behind it ends the run in reason "error" and keeps what came.

        Args:
            stopped: asked while the server is waited for; true hangs up and ends the run in reason "cancelled", without
                any event if nothing has come yet.
        Raises:
            RemoteError: the server does not answer, or refuses. ConfigError: an empty prompt.
        """
        text = clean_text(prompt)[0]
        if not text.strip():
            raise ConfigError("The prompt is empty. Write something for the model to answer.")
        return _Run(self, text, config, stopped).events()


class _Run:
    """One request from its first question to its last event."""

    def __init__(self, engine: RemoteEngine, prompt: str, config: RunConfig, stopped: Callable[[], bool]) -> None:
        self.engine, self.server, self.patience = engine, engine.server, engine.patience
        self.prompt, self.config, self.stopped = prompt, config, stopped
        self.finish = StreamChunk(0.0)
        self.completion: int | None = None
        self.own_counts: RequestCounts | None = None
        self.prompt_ids: tuple[int, ...] = ()

    def events(self) -> Iterator[Event]:
        identity = self.server.identify()
        before = self._counters(identity)
        gamma, speculates = (before.gamma, before.speculates) if before else (0, None)
        if identity.drafting is not None:
            gamma, speculates = identity.drafting.num_steps or gamma, True
        steps = StepReader(gamma, speculates, by_usage=counts_on(identity))
        started = start_of(self.server.name, identity, self.prompt, self.config, steps.gamma)
        began = time.monotonic()
        messages = Messages(self.server.address, *request_of(identity, self.prompt, self.config))
        is_begun = False
        failure: RunFinished | None = None
        try:
            for chunk in self._chunks(messages, steps, began):
                found = steps.feed(chunk)
                if found and not is_begun:
                    is_begun = True
                    yield started(self.prompt_ids)
                yield from found
        except _EarlyEndError as end:
            if not is_begun and end.reason == "error":
                raise RemoteError(end.message) from end.__cause__
            failure = self._finished(steps, end.reason, end.message)
        finally:
            messages.close()
        if not is_begun:
            if failure is not None and failure.reason == "cancelled":  # nothing came, so there is no run to tell of
                return
            yield started(self.prompt_ids)
        yield from steps.end()
        yield failure or self._end(steps, identity, before)

    # --- waiting for messages -----------------------------------------------------------------------------------------

    def _chunks(self, messages: Messages, steps: StepReader, began: float) -> Iterator[StreamChunk]:
        """The messages until the answer is done. Raises _EarlyEndError in every other case."""
        heard = time.monotonic()
        while True:
            if self.stopped():
                raise _EarlyEndError("cancelled", "")
            if self.config.time_limit_s and time.monotonic() - began > self.config.time_limit_s:
                raise _EarlyEndError("time", "")
            try:
                chunk = messages.get(self.patience.poll_s)
            except queue.Empty:
                limit = self.patience.next_s if steps.prefill else self.patience.first_s
                if time.monotonic() - heard > limit:
                    raise self._broken(steps, f"has been silent for {limit:g} s") from None
                continue
            except RemoteError as error:
                if steps.prefill is None:
                    raise _EarlyEndError("error", str(error)) from error
                raise self._broken(steps, "broke off") from error
            heard = time.monotonic()
            if chunk is None:
                if self.finish.finish:
                    return
                raise self._broken(steps, "ended the stream before the answer was done")
            if chunk.error:
                raise self._broken(steps, f"failed ({chunk.error})")
            self.prompt_ids = self.prompt_ids or chunk.prompt_ids
            self.completion = chunk.num_completion if chunk.num_completion is not None else self.completion
            self.own_counts = chunk.counts or self.own_counts
            if chunk.finish:
                self.finish = chunk
            yield chunk

    def _broken(self, steps: StepReader, why: str) -> _EarlyEndError:
        return _EarlyEndError("error", broken_off(self.server.address, len(steps.token_ids), why))

    # --- counters and the end -----------------------------------------------------------------------------------------

    def _counters(self, identity: Identity) -> ServerCounters | None:
        """None where the server has no metrics: then refused tokens stay unknown."""
        try:
            return self.server.counters(identity.model)
        except RemoteError:
            return None

    def _end(self, steps: StepReader, identity: Identity, before: ServerCounters | None) -> RunFinished:
        reason = self._reason(steps, identity)
        counts, words = self._counts(steps, identity, before)
        if not steps.tokens_are_told:
            told = "" if self.completion is None else f" It counts {self.completion}."
            words = [f"The server does not report tokens, so each message counts as one.{told}", *words]
        elif steps.by_usage and not steps.tokens_are_named:
            words = ["The server names no tokens, so a message's text stands at its last one.", *words]
        if steps.prefill is not None and reason in _ENDS:
            words = [_ENDS[reason], *words]
        return self._finished(steps, reason, " ".join(words), counts)

    def _reason(self, steps: StepReader, identity: Identity) -> FinishReason:
        if self.finish.finish == "length":
            is_full = 0 < identity.max_len <= steps.prompt_len + len(steps.token_ids)
            return "context" if is_full else "length"
        if self.finish.finish in ("abort", "error"):
            return "error"
        return "stop" if self.finish.stop else "eos"

    def _counts(
        self, steps: StepReader, identity: Identity, before: ServerCounters | None
    ) -> tuple[EngineCounts | None, list[str]]:
        """The whole run's counts, and what has to be said of them."""
        if steps.is_timed:  # its steps have told all
            return None, []
        if self.own_counts is not None:
            self.engine.counts_requests = True
            own = counts_of(self.own_counts, steps.sizes, is_chain=_is_chain(identity, before))
            return own, _differences(steps, own)
        if before is None:
            return None, ["The server shows no metrics, so what was refused is not known."]
        if before.speculates is False:
            return None, ["The server does not speculate: every step wrote one token."]
        self.engine.counts_requests = False
        wrote = self.completion if self.completion is not None else len(steps.token_ids)
        delta = self._settled(identity, before, wrote)
        if delta is None or (generated := delta.num_generated or 0) < wrote:
            return None, ["The server's counters do not cover this run, so what was refused is not known."]
        if identity.drafting is not None:
            delta = delta.with_drafts_of(identity.drafting.num_draft_tokens - 1)
        is_bound = generated > wrote or bool(before.num_running) or bool(before.num_waiting)
        counts = delta.counts(is_bound=is_bound)
        if counts is None:
            return None, ["The server does not count what it drafts, so what was refused is not known."]
        if identity.engine == "SGLang" and not is_bound:
            own_counts = RequestCounts(counts.num_drafts, counts.num_drafted, counts.num_accepted)
            counts = counts_of(own_counts, steps.sizes, is_chain=_is_chain(identity, before))
        if is_bound:
            words = ["Other requests ran at the same time, so the drafted and refused counts are upper bounds."]
            return counts, words + ([HOW_TO_COUNT_REQUESTS] if identity.engine == "vLLM" else [])
        return counts, _differences(steps, counts)

    def _settled(self, identity: Identity, before: ServerCounters, wrote: int) -> ServerCounters | None:
        """The counters' growth over the run, once they have caught up with it."""
        end = time.monotonic() + self.patience.settle_s
        while True:
            now = self._counters(identity)
            delta = None if now is None else now.since(before)
            caught_up = delta is not None and (delta.num_generated or 0) >= wrote
            if caught_up or now is None or time.monotonic() > end or self.stopped():
                return delta
            time.sleep(self.patience.poll_s)

    def _finished(
        self, steps: StepReader, reason: FinishReason, message: str, counts: EngineCounts | None = None
    ) -> RunFinished:
        return RunFinished(
            reason,
            text=steps.text,
            token_ids=tuple(steps.token_ids),
            num_tokens=len(steps.token_ids),
            num_steps=steps.num_steps,
            prefill_s=steps.prefill.prefill_s if steps.prefill else 0.0,
            first_token_s=steps.prefill.prefill_s if steps.prefill else None,
            decode_s=steps.decode_s,
            message=message,
            counts=counts,
        )


class _EarlyEndError(Exception):
    """The answer is not done, and will not be."""

    def __init__(self, reason: FinishReason, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


_ENDS: dict[FinishReason, str] = {
    "eos": "The model ended its answer.",
    "stop": "A stop string was reached.",
    "length": "The length limit was reached.",
    "context": "The model's context is full.",
    "error": "The server gave the answer up.",
}
"""First sentence of a message that goes on to say what the server left open."""


def _is_chain(identity: Identity, counters: ServerCounters | None) -> bool:
    """Whether every step of this server drafts a chain of one length: an SGLang's do, unless it drafts trees."""
    if identity.drafting is not None:
        return identity.drafting.is_chain
    return counters is not None and bool(counters.draft_depth) and counters.draft_depth == counters.num_drafted_each


def _differences(steps: StepReader, counts: EngineCounts) -> list[str]:
    """Where the stream and the counters do not agree: both are the server's own words."""
    if steps.num_accepted > counts.num_accepted:
        return ["Some messages carried several steps: the text marks more tokens as accepted than the server counts."]
    if steps.num_accepted < counts.num_accepted:
        more = counts.num_accepted - steps.num_accepted
        return [f"The end cut the last step short: the server counts {more} more accepted."]
    return []
