"""A visitor's run from the press of the button to the measured baseline, as deltas for the view. No Gradio in here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from specviz.baseline import WHOLE, explain_difference
from specviz.drafters.base import Need
from specviz.drafters.registry import get_method
from specviz.events import Event, RunFinished, RunStarted, StepDone
from specviz.metrics import Baseline
from specviz.remote.request import METHOD
from specviz.ui.access.attached import Session
from specviz.ui.access.host import EngineHost
from specviz.ui.access.visits import LastRun, Visit
from specviz.ui.access.waiting import wait_for_engine
from specviz.ui.problems import sentence_for
from specviz.ui.settings import WatchSettings
from specviz.ui.wire.stream import UPDATES_PER_S, DeltaEncoder, coalesce, stoppable
from specviz.words import finish_sentence

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator
    from specviz.ui.access.host import Engine

__all__ = ["can_measure_later", "measure_plain", "new_encoder", "run_live"]

_NOT_BEGUN = "Stopped before the run began. The page is unchanged."


def new_encoder() -> DeltaEncoder:
    """Deltas of a new run on the page."""
    return DeltaEncoder(uuid.uuid4().hex[:12])


def run_live(host: EngineHost, visit: Visit, settings: WatchSettings, encoder: DeltaEncoder) -> Iterator[str]:
    """Waits, runs, and measures plain decoding where that was asked for.

    A failure becomes the last delta. Closing this at any yield gives the engine back; `visit.ask_to_stop` ends the run
    after the step it is in and keeps what is there.
    """
    if settings.pair in host.servers:  # a server cannot be asked to decode plainly
        settings = replace(settings, measure_plain=False)
    try:
        with visit.running() as stop, closing(host.turn(settings.pair, settings.dtype, stop.is_set)) as turn:
            engine = yield from wait_for_engine(turn, encoder.status)
            if engine is None:
                yield encoder.status(_NOT_BEGUN)
                return
            yield encoder.status(_getting_ready(settings, engine))
            run = LastRun(settings, encoder, [])
            encoder.plain_follows = settings.measure_plain
            events = engine.stream(settings.prompt, settings.config)
            yield from coalesce(encoder, _kept(stoppable(events, stop.is_set), run.events))
            if not run.events:  # a server was waited for in vain
                yield encoder.status(_NOT_BEGUN)
                return
            visit.last = run
            finished = encoder.finished
            if settings.measure_plain and _can_measure(run) and finished is not None:
                if finished.reason in WHOLE and not isinstance(engine, Session):
                    yield from _plain(engine, run, stop.is_set)
                else:
                    yield encoder.without_plain(finish_sentence(finished))
    except Exception as error:
        yield encoder.error(sentence_for(error))


def measure_plain(host: EngineHost, visit: Visit) -> Iterator[str]:
    """Plain decoding for a run that was made without it."""
    run = visit.last
    if run is None or not _can_measure(run):
        encoder = new_encoder() if run is None else run.encoder
        yield encoder.status("There is no run to compare with yet. Press Run first.")
        return
    pair, dtype = run.settings.pair, run.settings.dtype
    try:
        with visit.running() as stop, closing(host.turn(pair, dtype, stop.is_set)) as turn:
            engine = yield from wait_for_engine(turn, run.encoder.status)
            if engine is not None and not isinstance(engine, Session):
                yield from _plain(engine, run, stop.is_set)
    except Exception as error:
        yield run.encoder.error(sentence_for(error))


def can_measure_later(run: LastRun | None) -> bool:
    """Whether a button to measure the baseline makes sense after this run."""
    return run is not None and not run.plain and _can_measure(run)


def _can_measure(run: LastRun) -> bool:
    finished = run.encoder.finished
    is_here = run.encoder.started is not None and run.encoder.started.method not in ("plain", METHOD)
    return is_here and finished is not None and finished.num_tokens > 0


def _getting_ready(settings: WatchSettings, engine: Engine) -> str:
    if isinstance(engine, Session):
        return f"Waiting for the first token of {engine.name}"
    needs_model = Need.SAME_TOKENIZER in get_method(settings.config.method).needs
    if needs_model and engine.loaded.draft is None:
        return "Loading the draft model"
    return "Reading the prompt"


def _plain(engine: SpeculativeGenerator, run: LastRun, stopped: Callable[[], bool]) -> Iterator[str]:
    """Measure and send the baseline: as many tokens as the run wrote, the run's own seed, one token a pass."""
    encoder, finished = run.encoder, run.encoder.finished
    assert finished is not None
    config = replace(run.settings.config, max_new_tokens=min(run.settings.config.max_new_tokens, finished.num_tokens))
    started = run.events[0]
    if isinstance(started, RunStarted) and config.sampling.seed is None:
        config = replace(config, sampling=replace(config.sampling, seed=started.settings.get("seed")))
    plain: list[Event] = []
    tokens, last = 0, 0.0
    events = stoppable(engine.stream_plain(run.settings.prompt, config), stopped)
    try:
        for event in events:
            plain.append(event)
            if isinstance(event, StepDone):
                tokens += len(event.emitted)
                now = time.perf_counter()
                if now - last >= 4.0 / UPDATES_PER_S:
                    text = f"Measuring plain decoding of the same prompt: {tokens} of {finished.num_tokens} tokens"
                    yield encoder.status(text, min(1.0, tokens / finished.num_tokens))
                    last = now
    finally:
        events.close()  # type: ignore[attr-defined]
    end = plain[-1]
    status = {"text": finish_sentence(finished), "fraction": None}
    if isinstance(end, RunFinished) and end.reason in WHOLE and (base := Baseline.of(plain, run.events)) is not None:
        run.plain = plain
        if base.same_text is False:
            yield encoder.status("The text differs from plain decoding. Finding out where and why.")
            watched = partial(stoppable, stopped=stopped)
            base = explain_difference(engine, run.settings.prompt, config, run.events, base, watched)
        yield encoder.encode_plain(base, status=status)
    elif isinstance(end, RunFinished) and end.reason == "error":
        yield encoder.error(end.message)
    else:
        yield encoder.without_plain("Measuring plain decoding did not finish. The run is unchanged.")


def _kept(events: Iterator[Event], kept: list[Event]) -> Iterator[Event]:
    try:
        for event in events:
            kept.append(event)
            yield event
    finally:
        events.close()  # type: ignore[attr-defined]
