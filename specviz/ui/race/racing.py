"""A race: up to four methods on one prompt, each measured alone, as deltas for the view. No Gradio in here.

A delta is {"run", "seq", "race"}, numbered like those of `ui.wire.stream`; `race` has any of these keys:

    mode        "live" or "recorded"
    status      {"text", "fraction"}: what goes on
    problem     a sentence for the visitor
    start       {"prompt", "titles"}: a new race has begun; the names of its lanes, plain decoding first
    lanes       measured lanes (`lanes.lane_json`), in that order: one a delta in a live race, all in a recorded one
    result      the end of the race: headline and texts (`race_words.race_verdict`), and `order`, the methods of whole
                runs by tokens a second
    origin      of a recorded race: where and when it was measured

The page replays the lanes side by side from their recorded times. JavaScript adds nothing up.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from specviz.baseline import explain_difference
from specviz.config import RunConfig
from specviz.errors import ConfigError
from specviz.events import Event, RunStarted, StepDone
from specviz.generate.titles import PEERS
from specviz.metrics import Baseline, Counters, fold
from specviz.ui.access.attached import Session
from specviz.ui.access.host import EngineHost
from specviz.ui.access.visits import Visit
from specviz.ui.access.waiting import wait_for_engine
from specviz.ui.problems import sentence_for
from specviz.ui.race.lanes import Lane, lane_json, ranked, title_of
from specviz.ui.race.words import race_verdict
from specviz.ui.settings import WatchSettings
from specviz.ui.wire.stream import UPDATES_PER_S, stoppable
from specviz.words import finish_sentence, progress_sentence

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["MAX_RACERS", "RaceEncoder", "RaceSettings", "recorded_race", "run_race"]

MAX_RACERS = 3
"""Beside plain decoding: more lanes cannot be told apart at a glance."""

WARM_UP_TOKENS = 8
"""Before each measured run: weights are read and kernels chosen on first use, and that belongs to no method."""

Stopped = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class RaceSettings:
    """A race as a visitor asked for it, checked.

    plain: what all lanes share. racers: name and settings of the others; a sentence where a method refuses them.
    """

    plain: WatchSettings
    racers: tuple[tuple[str, RunConfig | str], ...]

    @classmethod
    def read(cls, values: Mapping[str, Any], racers: Any, pairs: Sequence[str]) -> RaceSettings:
        """From raw values by the names of `settings.DEFAULTS`, and the names of the methods to race.

        Raises:
            ConfigError: what concerns all lanes, or no such methods, or too many of them.
        """
        plain = WatchSettings.read(dict(values) | {"method": "plain"}, pairs)
        if not isinstance(racers, list | tuple) or not all(isinstance(name, str) for name in racers):
            raise ConfigError("The methods to race must be a list of names.")
        names = [name for name in dict.fromkeys(racers) if name != "plain"]
        if not 1 <= len(names) <= MAX_RACERS:
            raise ConfigError(
                f"Choose 1 to {MAX_RACERS} methods to race against plain decoding; {len(names)} are chosen."
            )
        return cls(plain, tuple((name, _config_of(name, values, pairs)) for name in names))

    @property
    def titles(self) -> list[str]:
        return [title_of(name) for name in ("plain", *(name for name, _ in self.racers))]


def _config_of(name: str, values: Mapping[str, Any], pairs: Sequence[str]) -> RunConfig | str:
    """A method's own settings may be wrong while the others' are not: then its lane says so."""
    try:
        return WatchSettings.read(dict(values) | {"method": PEERS.get(name, name)}, pairs).config
    except ConfigError as error:
        return sentence_for(error)


class RaceEncoder:
    """Numbers the deltas of one race and keeps its lanes."""

    def __init__(self, run_id: str = "", mode: str = "live") -> None:
        self.run_id = run_id or f"race-{uuid.uuid4().hex[:12]}"
        self.mode = mode
        self.lanes: list[Lane] = []
        self.is_done = False
        self._seq = -1

    def status(self, text: str, fraction: float | None = None) -> str:
        return self.encode(status={"text": text, "fraction": fraction})

    def problem(self, sentence: str) -> str:
        return self.encode(problem=sentence, status={"text": "", "fraction": None})

    def start(self, prompt: str, titles: Sequence[str], **more: Any) -> str:
        return self.encode(start={"prompt": prompt, "titles": list(titles)}, **more)

    def lane(self, lane: Lane) -> str:
        delta = self.encode(lanes=[lane_json(lane, self.lanes)])
        self.lanes.append(lane)
        return delta

    def result(self, text: str) -> str:
        self.is_done = True
        return self.encode(result=_result(self.lanes), status={"text": text, "fraction": None})

    def encode(self, **race: Any) -> str:
        self._seq += 1
        delta = {"run": self.run_id, "seq": self._seq, "race": {"mode": self.mode} | race}
        return json.dumps(delta, separators=(",", ":"), allow_nan=False)


def run_race(host: EngineHost, visit: Visit, settings: RaceSettings, encoder: RaceEncoder) -> Iterator[str]:
    """Waits for the engine and keeps it until the last lane is measured.

    A method that fails has its sentence in its lane, and the others go on; without plain decoding there is no race.
    Closing this at any yield gives the engine back; `visit.ask_to_stop` ends the race after the step it is in.
    """
    plain = settings.plain
    try:
        with visit.running() as stop, closing(host.turn_here(plain.pair, plain.dtype, stop.is_set)) as turn:
            engine = yield from wait_for_engine(turn, encoder.status)
            if engine is None:
                yield encoder.status("Stopped before the race began. The page is unchanged.")
                return
            assert not isinstance(engine, Session), "a turn here gives a model"
            yield from _Race(engine, settings, encoder, stop.is_set).deltas()
    except Exception as error:
        yield encoder.problem(sentence_for(error))


def recorded_race(lanes: Sequence[Lane], run_id: str = "recorded-race") -> str:
    """A whole race that was measured earlier, plain decoding first, as one delta."""
    started = lanes[0].started
    assert started is not None
    titles = [title_of(lane.method) for lane in lanes]
    names = ("machine", "started_at", "pair", "dtype")
    return RaceEncoder(run_id, "recorded").start(
        started.prompt,
        titles,
        lanes=[lane_json(lane, lanes[:i], recorded=True) for i, lane in enumerate(lanes)],
        result=_result(lanes),
        origin={name: getattr(started, name) for name in names},
    )


def _result(lanes: Sequence[Lane]) -> dict[str, Any]:
    return {**race_verdict(lanes), "order": [lane.method for lane in ranked(lanes)]}


class _Race:
    """The measuring of one race, the engine in hand."""

    def __init__(
        self, engine: SpeculativeGenerator, settings: RaceSettings, encoder: RaceEncoder, stopped: Stopped
    ) -> None:
        self.engine = engine
        self.prompt = settings.plain.prompt
        self.settings = settings
        self.encoder = encoder
        self.stopped = stopped
        self.plain: list[Event] = []
        self.seed: int | None = None

    def deltas(self) -> Iterator[str]:
        config, encoder = self.settings.plain.config, self.encoder
        self.plain = yield from self._measure(0, config, self.engine.stream_plain)
        yield encoder.start(self.prompt, self.settings.titles)
        yield encoder.lane(_lane("plain", self.plain))
        self.seed = _seed_of(self.plain)
        for number, (name, config_or_problem) in enumerate(self.settings.racers, start=1):
            if self.stopped() or not encoder.lanes[0].is_whole:
                break  # without plain decoding there is nothing to race against
            lane = yield from self._race(number, name, config_or_problem)
            yield encoder.lane(lane)
        yield encoder.result(_end(encoder.lanes, self.stopped()))

    def _race(self, number: int, name: str, config: RunConfig | str) -> Generator[str, None, Lane]:
        if isinstance(config, str):
            return Lane(name, problem=config)
        config = replace(config, sampling=replace(config.sampling, seed=self.seed))
        try:
            run = yield from self._measure(number, config, self._stream_of(name))
            lane = _lane(name, run)
            if lane.is_whole and self.encoder.lanes[0].is_whole:
                base = yield from self._compare(number, config, run)
                lane = replace(lane, plain=base)
            return lane
        except Exception as error:
            return Lane(name, problem=sentence_for(error))

    def _stream_of(self, name: str) -> Callable[[str, RunConfig], Iterator[Event]]:
        if name not in PEERS:
            return self.engine.stream
        from specviz.generate.peers import stream_peer  # brings transformers along, which loading a pair did by now

        return partial(stream_peer, self.engine, name)

    def _measure(
        self, number: int, config: RunConfig, stream: Callable[[str, RunConfig], Iterator[Event]]
    ) -> Generator[str, None, list[Event]]:
        """The events of one run, after a short one that warms up, with progress on the way."""
        yield self._status(number, "warming up")
        for _ in stoppable(stream(self.prompt, replace(config, max_new_tokens=WARM_UP_TOKENS)), self.stopped):
            pass
        expected = fold(self.plain).num_tokens or config.max_new_tokens
        events: list[Event] = []
        counters, last = Counters(), 0.0
        source = stoppable(stream(self.prompt, config), self.stopped)
        try:
            for event in source:
                events.append(event)
                counters.update(event)
                now = time.perf_counter()
                if isinstance(event, StepDone) and now - last >= 4.0 / UPDATES_PER_S:
                    yield self._status(number, progress_sentence(counters), counters.num_tokens / expected)
                    last = now
        finally:
            source.close()  # type: ignore[attr-defined]
        return events

    def _compare(self, number: int, config: RunConfig, run: list[Event]) -> Generator[str, None, Baseline | None]:
        base = Baseline.of(self.plain, run)
        if base is not None and base.same_text is False:
            yield self._status(number, "looking at where its text differs, and why", 1.0)
            base = explain_difference(
                self.engine, self.prompt, config, run, base, partial(stoppable, stopped=self.stopped)
            )
        return base

    def _status(self, number: int, what: str, done: float = 0.0) -> str:
        """ "2 of 4: Prompt lookup, 45 tokens in 14 steps" """
        titles = self.settings.titles
        fraction = (number + min(1.0, done)) / len(titles)
        return self.encoder.status(f"{number + 1} of {len(titles)}: {titles[number]}, {what}", fraction)


def _lane(name: str, run: list[Event]) -> Lane:
    lane = Lane(name, tuple(run))
    return lane if lane.is_whole or lane.finished is None else replace(lane, problem=finish_sentence(lane.finished))


def _seed_of(run: list[Event]) -> int | None:
    """All lanes draw from the seed that plain decoding drew from."""
    started = run[0]
    assert isinstance(started, RunStarted)
    seed = started.settings.get("seed")
    return seed if isinstance(seed, int) else None


def _end(lanes: Sequence[Lane], stopped: bool) -> str:
    if stopped:
        return "Stopped. Measured lanes are kept."
    return f"Measured one after another: {len(lanes)} runs."
