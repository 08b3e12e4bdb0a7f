"""From events to what the page reads: small JSON deltas, numbered, at most UPDATES_PER_S a second.

A delta is one JSON object with any of these keys besides `run` and `seq`:

    run, seq    run id; number of the delta within the run, from 0 without gaps. The last one may arrive twice.
    mode        "live" or "recorded"; a recorded run arrives whole and the page plays it on its own clock
    status      {"text", "fraction"}: what goes on before, between and after steps (loading, queued, plain run, done)
    start       RunStarted as JSON; with it "names": what the values of "counters", "drafted" and "emitted" mean
    prefill     PrefillDone as JSON
    steps       list of StepDone as `steps.step_json` writes it, and "counters" of that moment, without their names
    counters    all counts and rates of the run by name (`Counters.to_json`, and the rolling ones), with `finish`
    positions   {"conditional": [...], "unconditional": [...]}, with `finish`
    finish      RunFinished as JSON
    told        with `finish`: [index, num_drafted, num_accepted, origin of its last token or null] of steps that a
                serving engine told of at the end only; what the order of its list leaves open is not among them
    plain       Baseline as JSON, once it has been measured
    verdict     headline, rest, detail, reason, kind, speed_up (`words.verdict`)
    still       of a recorded run: true where it is not to play by itself
    source      of a recorded run: {"gallery", "title", "damage"}: its name and title in the gallery, "" for a visitor's
                file; in words what is wrong with the file, or ""
    error       a sentence for the visitor

JavaScript adds nothing up: every number it shows is in here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from specviz.detokenize import visible_part
from specviz.events import Event, PrefillDone, RunFinished, RunStarted, StepDone, event_to_json
from specviz.matching import match_steps
from specviz.metrics import Baseline, Counters
from specviz.ui.wire.steps import TOKEN_NAMES, short_floats, step_json
from specviz.words import finish_sentence, progress_sentence, verdict

__all__ = ["UPDATES_PER_S", "DeltaEncoder", "coalesce", "cut_short", "recorded_delta", "stoppable"]

UPDATES_PER_S = 14.0


class DeltaEncoder:
    """Folds events into numbered deltas of one run. Holds no text of the run but what the next delta carries.

    plain_follows: set where plain decoding is about to be measured, so that the verdict promises the speed-up.
    """

    def __init__(self, run_id: str, mode: str = "live") -> None:
        self.run_id = run_id
        self.mode = mode
        self.counters = Counters()
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.plain: Baseline | None = None
        self.plain_follows = False
        self._seq = -1
        self._cache_len = 0
        self._untold: list[int] = []

    def encode(self, events: Iterable[Event], **extra: Any) -> str:
        """One delta for these events; `extra` keys are put in as they are."""
        delta: dict[str, Any] = {"mode": self.mode}
        steps = []
        for event in events:
            began_s = self.counters.decode_s
            self.counters.update(event)
            if isinstance(event, RunStarted):
                self.started, delta["start"] = event, event_to_json(event)
                delta["names"] = {"counters": list(self._moment()), **TOKEN_NAMES}
            elif isinstance(event, PrefillDone):
                delta["prefill"] = event_to_json(event)
                self._cache_len = event.prompt_len - 1  # the last token of the prompt is fed by the first step
            elif isinstance(event, StepDone):
                step = step_json(event, began_s, self._cache_len)
                steps.append(step | {"counters": list(self._moment().values())})
                self._cache_len = event.cache_len
                self._untold += [len(event.emitted)] if event.num_drafted is None else []
            else:
                self.finished, delta["finish"] = event, event_to_json(event)
                if told := self._told(event):
                    delta["told"] = told
        if steps:
            delta["steps"] = steps
            delta["status"] = {"text": progress_sentence(self.counters), "fraction": None}
        if self.finished is not None and "finish" in delta:
            delta["counters"] = self._moment()
            delta["status"] = {"text": finish_sentence(self.finished), "fraction": None}
            delta["positions"] = {
                "conditional": self.counters.by_position(),
                "unconditional": self.counters.by_position(unconditional=True),
            }
            delta |= self._verdict()
        return self._pack(delta | extra)

    def encode_plain(self, plain: Baseline, **extra: Any) -> str:
        """The delta that carries a measured baseline and the verdict that follows from it."""
        self.plain = plain
        return self._pack({"mode": self.mode, "plain": plain.to_json()} | self._verdict() | extra)

    def without_plain(self, text: str) -> str:
        """The delta that says why no baseline came after all."""
        self.plain_follows = False
        return self.status(text, **self._verdict())

    def status(self, text: str, fraction: float | None = None, **extra: Any) -> str:
        """A delta that only says what is going on."""
        return self._pack({"mode": self.mode, "status": {"text": text, "fraction": fraction}} | extra)

    def error(self, text: str) -> str:
        """A delta that shows a sentence as normal content of the page."""
        return self._pack({"mode": self.mode, "error": text, "status": {"text": text, "fraction": None}})

    def _told(self, event: RunFinished) -> list[tuple[int, int, int, str | None]]:
        counts = event.counts
        if counts is None or not counts.drafted_by_step or len(self._untold) != self.counters.num_steps:
            return []
        found = match_steps(self._untold, counts.drafted_by_step, counts.accepted_by_step)
        return [(i, told.num_drafted, told.num_accepted, told.own) for i, told in enumerate(found, 1) if told]

    def _moment(self) -> dict[str, Any]:
        c = self.counters
        return c.to_json() | {
            "rolling_alpha": c.rolling_alpha,
            "rolling_acceptance_rate": c.rolling_acceptance_rate,
            "rolling_tokens_per_s": c.rolling_tokens_per_s,
        }

    def _verdict(self) -> dict[str, Any]:
        if self.started is None:
            return {}
        recorded, follows = self.mode == "recorded", self.plain_follows
        return {"verdict": verdict(self.started, self.counters, self.plain, recorded=recorded, plain_follows=follows)}

    def _pack(self, delta: dict[str, Any]) -> str:
        self._seq += 1
        delta = short_floats({"run": self.run_id, "seq": self._seq} | delta)
        return json.dumps(delta, separators=(",", ":"), allow_nan=False)


def coalesce(encoder: DeltaEncoder, events: Iterable[Event], per_second: float = UPDATES_PER_S) -> Iterator[str]:
    """Deltas of a live run: the first event at once, then everything since the last delta, per_second times a second.

    A closed consumer closes `events` too, so that the run's memory is freed.
    """
    waiting: list[Event] = []
    last = 0.0
    try:
        for event in events:
            waiting.append(event)
            now = time.perf_counter()
            if not isinstance(event, StepDone) or now - last >= 1.0 / per_second:
                yield encoder.encode(waiting)
                waiting, last = [], now
        if waiting:
            yield encoder.encode(waiting)
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()


def stoppable(events: Iterator[Event], stopped: Callable[[], bool]) -> Iterator[Event]:
    """The same events; after a step at which `stopped` is true the run is closed and ends in reason "cancelled"."""
    seen: list[Event] = []
    try:
        for event in events:
            yield event
            seen.append(event)
            if stopped() and not isinstance(event, RunFinished):
                break
        else:
            return
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()
    yield cut_short(seen)


def cut_short(events: Iterable[Event], message: str = "") -> RunFinished:
    """The end that a run comes to after these events, of which none is its own end."""
    counters, text, token_ids = Counters(), "", []
    for event in events:
        counters.update(event)
        if isinstance(event, StepDone | PrefillDone):
            text += "".join(visible_part(token) for token in event.emitted)
            token_ids += [token.token_id for token in event.emitted]
    return RunFinished(
        "cancelled",
        text,
        tuple(token_ids),
        len(token_ids),
        counters.num_steps,
        counters.prefill_s,
        counters.first_token_s,
        counters.decode_s,
        message,
    )


def recorded_delta(
    events: Iterable[Event], plain: Baseline | None, name: str, source: Mapping[str, str] | None = None
) -> str:
    """A whole recorded run as one delta, with the verdict it ended in; the page plays it by itself."""
    encoder = DeltaEncoder(name, "recorded")
    encoder.plain = plain
    more: dict[str, Any] = {"plain": plain.to_json()} if plain else {}
    return encoder.encode(events, **more, **({"source": dict(source)} if source else {}))
