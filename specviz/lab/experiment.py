"""An experiment of the Lab: what is asked, what comes of it, and how it reports while it goes on. No page in here."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from specviz.config import RunConfig
from specviz.drafters.registry import get_method
from specviz.errors import ConfigError, TraceError
from specviz.events import Event
from specviz.models.machine import probe

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["Ask", "Check", "Finding", "Measure", "Report", "Stopped", "about", "breaking_off", "conduct", "needs_draft"]

SHOW_ESTIMATE_FROM = 0.04
"""Part of the work that has to be done before the time left is told from it."""

Check = Callable[[], None]
"""Called often by an experiment; raises Stopped once nobody wants to go on."""


class Stopped(Exception):  # noqa: N818, the word for it
    """The visitor pressed Stop, or the time is up."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is measured: a prompt under settings.

    repeat: runs of each setting in a sweep. num_samples: of the sampling test.
    """

    prompt: str
    config: RunConfig
    repeat: int = 3
    num_samples: int = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """What an experiment has found so far, as plain data: strict JSON both ways.

    about: where, when and with what. rows: one table. facts: single figures, and sentences for a reader.
    is_whole: whether it went on to its end.
    """

    name: str
    about: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    facts: dict[str, Any] = field(default_factory=dict)
    is_whole: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"rows": list(self.rows)}

    @classmethod
    def from_json(cls, data: Any) -> Finding:
        """Raises TraceError where it is not the JSON of a finding."""
        try:
            return cls(
                str(data["name"]), dict(data["about"]), tuple(map(dict, data["rows"])), dict(data["facts"]),
                bool(data["is_whole"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"This is no record of the Lab ({type(error).__name__}: {error}).") from error


@dataclass(frozen=True, slots=True)
class Report:
    """text: what goes on. fraction: part done, 0 to 1. finding: the newest one, where there is a new one."""

    text: str
    fraction: float
    finding: Finding | None = None


Measure = Callable[["SpeculativeGenerator", Ask, Check], Iterator[Report]]
"""The form of every experiment. It may be closed at any yield, and `Check` may break it off anywhere."""


def conduct(
    measure: Measure, engine: SpeculativeGenerator, ask: Ask, stopped: Callable[[], bool], limit_s: float
) -> Iterator[Report]:
    """An experiment's reports, with the time left as measured so far; ends early once `stopped`, or after `limit_s`.

    Raises:
        SpecvizError: what was asked for cannot be measured.
    """
    began = time.monotonic()
    why = ""

    def check() -> None:
        nonlocal why
        if stopped():
            why = "Stopped."
        elif time.monotonic() - began > limit_s:
            why = f"The time limit of {limit_s:.0f} s was reached."
        if why:
            raise Stopped

    found = False
    fraction = 0.0
    try:
        for report in measure(engine, ask, check):
            found = found or report.finding is not None
            fraction = report.fraction
            yield Report(report.text + _time_left(time.monotonic() - began, fraction), fraction, report.finding)
            check()
    except Stopped:
        stays = " Everything so far is kept." if found else " Nothing was measured yet."
        yield Report(why + stays, fraction)
    else:
        yield Report(f"Measured in {_duration(time.monotonic() - began)}.", 1.0)


def _time_left(elapsed: float, fraction: float) -> str:
    if not SHOW_ESTIMATE_FROM <= fraction < 1.0:
        return ""
    return f". About {_duration(elapsed * (1.0 - fraction) / fraction)} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(1, round(seconds)), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def about(engine: SpeculativeGenerator, ask: Ask) -> dict[str, Any]:
    """Date, machine, pair and settings: what a figure is known by."""
    loaded, config = engine.loaded, ask.config
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": probe().processor,
        "threads": torch.get_num_threads(),
        "device": str(loaded.device),
        "pair": loaded.pair.name,
        "title": loaded.pair.title,
        "dtype": loaded.target_info.dtype,
        "method": config.method,
        "method_title": get_method(config.method).title,
        "gamma": config.gamma,
        "temperature": config.sampling.temperature,
        "max_new_tokens": config.max_new_tokens,
        "prompt": ask.prompt,
    }


def breaking_off(check: Check) -> Callable[[Iterator[Event]], Iterator[Event]]:
    """What a run's events pass through so that Stop ends it after the step it is in."""

    def through(events: Iterator[Event]) -> Iterator[Event]:
        try:
            for event in events:
                yield event
                check()
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()

    return through


def needs_draft(ask: Ask) -> None:
    """Raises ConfigError where the settings draft nothing."""
    if ask.config.method == "plain":
        raise ConfigError("Plain decoding drafts nothing. Choose another method under “How to draft”, then measure.")
