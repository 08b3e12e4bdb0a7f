"""A run as a file: JSON Lines, a header first, then one event a line. Also to pandas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from specviz.config import RunConfig, SamplingParams
from specviz.errors import TraceError
from specviz.events import (
    SCHEMA_VERSION,
    EngineCounts,
    Event,
    PrefillDone,
    RunFinished,
    RunStarted,
    StepDone,
    event_from_json,
    event_to_json,
)

if TYPE_CHECKING:
    import pandas

__all__ = [
    "MAX_BYTES",
    "MAX_LINE",
    "MAX_LINES",
    "MAX_UPLOAD_BYTES",
    "Trace",
    "dump_trace",
    "load_trace",
    "open_upload",
    "parse_trace",
    "plain_lines",
    "steps_frame",
    "tokens_frame",
    "write_events",
]

MAX_BYTES = 64_000_000
MAX_UPLOAD_BYTES = 16_000_000
"""Of a file from a visitor: read, a trace takes ten times its size. 4,000 tokens with every detail are 4 MB."""

MAX_LINE = 1_000_000
MAX_LINES = 20_000
"""Of a run and the plain run beside it: more than twice the longest answer."""

NUMERIC_SETTINGS = {
    field.name
    for field in (*fields(SamplingParams), *fields(RunConfig))
    if field.type in ("int", "float", "int | None")
}
"""Of a run's settings, which are free-form otherwise: those that are compared and written out as numbers."""

MAX_DRAFTED = 4096
"""Tokens that a step may say were drafted without listing them; counters keep a place for each."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run. plain: events of the plain run measured beside it, empty if none.

    damage: in words where reading stopped early, "" if the file was whole.
    """

    events: tuple[Event, ...]
    plain: tuple[Event, ...] = ()
    damage: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the run reached its end in the file."""
        return isinstance(self.events[-1], RunFinished)

    @property
    def started(self) -> RunStarted:
        first = self.events[0]
        assert isinstance(first, RunStarted)
        return first


def dump_trace(events: Iterable[Event], plain: Iterable[Event] = ()) -> str:
    """The whole file as text: header, the run's events, then the plain run's, marked "of": "plain"."""
    lines = [_line({"type": "SpecvizTrace", "schema_version": SCHEMA_VERSION})]
    lines += [_line(event_to_json(event)) for event in events]
    return "\n".join(lines) + "\n" + plain_lines(plain)


def plain_lines(plain: Iterable[Event]) -> str:
    """The lines of the plain run that was measured beside a run; they follow the run's own."""
    return "".join(_line({"of": "plain"} | event_to_json(event)) + "\n" for event in plain)


def write_events(events: Iterable[Event], file: IO[str]) -> Iterator[Event]:
    """Write each event as it passes through, so that a run that is cut short leaves what it had."""
    file.write(_line({"type": "SpecvizTrace", "schema_version": SCHEMA_VERSION}) + "\n")
    for event in events:
        file.write(_line(event_to_json(event)) + "\n")
        yield event


def load_trace(path: str | Path, max_bytes: int = MAX_BYTES) -> Trace:
    """Read a trace file. Raises TraceError: missing, too large, not a trace, or of an unknown schema."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise TraceError(f"The trace has {size / 1e6:.0f} MB; at most {max_bytes / 1e6:.0f} MB can be opened.")
        return parse_trace(path.read_bytes())
    except OSError as error:
        raise TraceError(f"The trace {path.name!r} cannot be read: {error.strerror or error}.") from error


def open_upload(path: str | Path) -> Trace:
    """A trace file that a visitor uploaded: `load_trace` with the limits that strangers get.

    The file is read and nothing it names is: no code, no path, no address. Texts in it are the visitor's, fit for JSON
    and UTF-8, and not for markup. `damage` is a sentence to show, "" for a whole file.

    Args:
        path: where the web server put the upload; never a path that the visitor wrote.
    Raises:
        TraceError: too large, not a trace, of an unknown schema, or without one whole event; a sentence to show.
    """
    return load_trace(path, MAX_UPLOAD_BYTES)


def parse_trace(data: bytes) -> Trace:
    """A trace from the bytes of its file. A damaged file opens up to the damage and says so.

    Raises:
        TraceError: no header, an unknown schema version, or not one whole event.
    """
    lines = data.split(b"\n", MAX_LINES)
    _check_header(lines[0])
    runs: dict[str, list[Event]] = {"run": [], "plain": []}
    damage = ""
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        if number > MAX_LINES:
            damage = f"The file has more than {MAX_LINES:,} lines. Shown is what stands before the rest."
            break
        try:
            of, event = _parse_line(line)
            _check_order(runs[of], event)
        except TraceError as error:
            damage = f"Line {number} is damaged ({error}) Shown is what stands before it."
            break
        runs[of].append(event)
    if not runs["run"]:
        raise TraceError(f"The trace holds no run. {damage}".strip())
    if not damage and not isinstance(runs["run"][-1], RunFinished):
        damage = "The file ends before the run does. Shown is what is there."
    plain = runs["plain"]
    if plain and not isinstance(plain[-1], RunFinished):
        plain = []
        damage = damage or "The file ends before the plain run beside this one does. That one is left out."
    return Trace(tuple(runs["run"]), tuple(plain), damage)


def steps_frame(events: Iterable[Event]) -> pandas.DataFrame:
    """One row a step: counts, times in seconds, note."""
    import pandas

    rows = []
    for event in events:
        if isinstance(event, StepDone):
            row = event_to_json(event)
            for heavy in ("type", "drafted", "emitted"):
                row.pop(heavy, None)
            rows.append(row | {"num_emitted": len(event.emitted), "text": "".join(t.text for t in event.emitted)})
    return pandas.DataFrame(rows)


def tokens_frame(events: Iterable[Event]) -> pandas.DataFrame:
    """One row a drafted or emitted token: step, role, text, fate or origin, probabilities, coin."""
    import pandas

    rows: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, StepDone):
            for role, tokens in (("drafted", event.drafted), ("emitted", event.emitted)):
                for place, token in enumerate(tokens):
                    fields = {
                        key: value for key, value in event_to_json_token(token).items() if not key.endswith("_top")
                    }
                    rows.append({"step": event.index, "role": role, "place": place} | fields)
    return pandas.DataFrame(rows)


def event_to_json_token(token: Any) -> dict[str, Any]:
    """All fields of a token, defaults included."""
    return {name: getattr(token, name) for name in type(token).__dataclass_fields__}


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _check_header(line: bytes) -> None:
    try:
        header = _loads(line)
    except TraceError as error:
        raise TraceError("This is no specviz trace: its first line is not a header.") from error
    if header.get("type") != "SpecvizTrace":
        raise TraceError("This is no specviz trace: its first line is not a header.")
    version = header.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TraceError(f"The trace has schema version {str(version)[:20]}; this specviz reads {SCHEMA_VERSION}.")


def _parse_line(line: bytes) -> tuple[str, Event]:
    data = _loads(line)
    of = data.pop("of", "run")
    if of not in ("run", "plain"):
        raise TraceError("unknown run.")
    return of, event_from_json(data)


def _check_order(before: list[Event], event: Event) -> None:
    """A run starts once, fills its caches once, counts its steps up from 1, and ends once."""
    last = before[-1] if before else None
    if isinstance(event, RunStarted):
        fits = last is None
        _check_settings(event.settings)
    elif isinstance(event, PrefillDone):
        fits = isinstance(last, RunStarted)
    elif isinstance(event, StepDone):
        fits = isinstance(last, PrefillDone | StepDone)
        _check_step(event)
    else:
        fits = last is not None and not isinstance(last, RunFinished)
        if event.counts is not None:
            _check_counts(event.counts)
    if not fits:
        raise TraceError("the events are out of order.")
    if isinstance(event, StepDone) and event.index != (last.index + 1 if isinstance(last, StepDone) else 1):
        raise TraceError("a step is missing.")


def _check_settings(settings: dict[str, Any]) -> None:
    for name in NUMERIC_SETTINGS & settings.keys():
        value = settings[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TraceError(f"the setting {name} is no number.")


def _check_step(step: StepDone) -> None:
    """What counters and page rely on: trees without circles, and counts that the listed tokens bear out."""
    if any(token.parent >= i for i, token in enumerate(step.drafted)):
        raise TraceError("a drafted token names a parent that does not precede it.")
    if step.num_accepted > len(step.emitted):
        raise TraceError("more tokens are said to be accepted than were emitted.")
    if step.num_drafted is not None:
        listed = len(step.drafted)
        if step.num_drafted < step.num_accepted or step.num_drafted > MAX_DRAFTED:
            raise TraceError(f"{step.num_drafted} tokens cannot have been drafted.")
        if listed and listed != step.num_drafted:
            raise TraceError(f"{step.num_drafted} tokens are said to be drafted, and {listed} are listed.")


def _check_counts(counts: EngineCounts) -> None:
    """What a serving engine lists must be what it counts."""
    drafted, accepted = counts.drafted_by_step, counts.accepted_by_step
    fits = len(drafted) == len(accepted) and all(
        0 <= a <= d <= MAX_DRAFTED for d, a in zip(drafted, accepted, strict=False)
    )
    if not fits or (drafted and (len(drafted), sum(drafted), sum(accepted)) != _totals(counts)):
        raise TraceError("the steps that a server lists do not add up to its counts.")


def _totals(counts: EngineCounts) -> tuple[int, int, int]:
    return counts.num_drafts, counts.num_drafted, counts.num_accepted


def _loads(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise TraceError("the line is too long.")
    try:
        data = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise TraceError("not valid JSON.") from error
    if not isinstance(data, dict):
        raise TraceError("not a JSON object.")
    return data


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
