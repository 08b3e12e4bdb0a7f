"""The lanes of a race: a measured run each, compared with plain decoding; as the page, a table and files hold them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specviz.baseline import WHOLE
from specviz.drafters.registry import METHODS
from specviz.events import Event, RunFinished, RunStarted, StepDone
from specviz.generate.titles import TITLES
from specviz.metrics import Baseline, Counters, fold
from specviz.trace import dump_trace, load_trace
from specviz.words import verdict

__all__ = ["Lane", "lane_json", "load_lanes", "ranked", "save_lanes", "text_owner", "title_of", "to_csv"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One contestant of a race.

    events: its run, empty where it could not run at all. problem: why it has no whole run, in a sentence, else "".
    plain: plain decoding of the same prompt, compared with this run; None in plain decoding's own lane and where one of
        the two runs is not whole.
    """

    method: str
    events: tuple[Event, ...] = ()
    plain: Baseline | None = None
    problem: str = ""

    @property
    def started(self) -> RunStarted | None:
        first = self.events[0] if self.events else None
        return first if isinstance(first, RunStarted) else None

    @property
    def finished(self) -> RunFinished | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, RunFinished) else None

    @property
    def is_whole(self) -> bool:
        """Whether the run came to an end of its own, so that it can be compared."""
        end = self.finished
        return end is not None and end.reason in WHOLE and end.num_tokens > 0

    @property
    def tokens_per_s(self) -> float | None:
        """Of a whole run; None where there is none."""
        return fold(self.events).decode_tokens_per_s if self.is_whole else None

    @property
    def speed_up(self) -> float | None:
        """Tokens a second over plain decoding's."""
        mine, base = self.tokens_per_s, self.plain.tokens_per_s if self.plain else None
        return mine / base if mine and base else None


def title_of(method: str) -> str:
    """The method's name in the menus, also for one that this version does not know."""
    return METHODS[method].title if method in METHODS else TITLES.get(method, method)


def ranked(lanes: Sequence[Lane]) -> list[Lane]:
    """Whole runs, most tokens a second first."""
    return sorted((lane for lane in lanes if lane.is_whole), key=lambda lane: -(lane.tokens_per_s or 0.0))


def text_owner(lane: Lane, lanes: Iterable[Lane]) -> Lane:
    """The first of the lanes that wrote the very tokens of this one; itself where none did before."""
    ids = lane.finished.token_ids if lane.finished else ()
    return next((other for other in lanes if other.finished and other.finished.token_ids == ids), lane)


def lane_json(lane: Lane, before: Sequence[Lane], *, recorded: bool = False) -> dict[str, Any]:
    """What the page needs to replay a lane. before: the lanes that were measured before it.

    text_of: the method whose text this one repeats token by token, its own where no lane before wrote the same.
    steps: a list for each step: seconds since the prompt was read, tokens so far, tokens a second so far, whether a
        draft was refused, and the tokens as [text, origin] or [text, origin, label].
    """
    counters = Counters()
    steps: list[list[Any]] = []
    for event in lane.events:
        refused_before = counters.num_rejections
        counters.update(event)
        if isinstance(event, StepDone):
            rate = counters.decode_tokens_per_s
            tokens = [[t.text, t.origin, t.label] if t.label else [t.text, t.origin] for t in event.emitted]
            refused = int(counters.num_rejections > refused_before)
            steps.append([round(counters.decode_s, 6), counters.num_tokens, rate and round(rate, 3), refused, tokens])
    started = lane.started
    judged = verdict(started, counters, lane.plain, recorded=recorded) if started and lane.is_whole else None
    return {
        "method": lane.method,
        "title": title_of(lane.method),
        "caption": _caption(started, counters),
        "steps": steps,
        "num_tokens": counters.num_tokens,
        "decode_s": counters.decode_s,
        "tokens_per_s": counters.decode_tokens_per_s,
        "whole": lane.is_whole,
        "text_of": text_owner(lane, before).method,
        "first_difference": lane.plain.first_difference if lane.plain else None,
        "speed_up": lane.speed_up,
        "verdict": judged,
        "problem": lane.problem,
    }


def _caption(started: RunStarted | None, counters: Counters) -> str:
    """Under a lane's title: the promise of the run, how much it drafts, and what its clock leaves out."""
    if started is None:
        return ""
    if started.method == "plain":
        return "one token a pass"
    weights = f", {started.draft.quantization or started.draft.dtype}" if started.draft else ""
    with_prompt = ". Its first step came with the prompt" if counters.num_untimed_steps else ""
    return f"{started.exactness}, γ {started.gamma}{weights}{with_prompt}"


_COLUMNS = (
    "method", "promise", "tokens", "decode_s", "tokens_per_s", "speed_up", "alpha", "tokens_per_pass", "same_text",
    "first_difference", "gap", "ended", "problem",
)  # fmt: skip


def to_csv(lanes: Sequence[Lane]) -> str:
    """The race as a table, a row a lane. first_difference counts tokens from 1; gap is between the two best logits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_rows(lanes))
    return out.getvalue()


def _rows(lanes: Sequence[Lane]) -> Iterator[list[Any]]:
    for lane in lanes:
        c, started, end = fold(lane.events), lane.started, lane.finished
        base = lane.plain
        first = None if base is None or base.first_difference is None else base.first_difference + 1
        yield [
            lane.method, started.exactness if started else None, c.num_tokens, c.decode_s, c.decode_tokens_per_s,
            lane.speed_up, c.alpha, c.block_efficiency, base.same_text if base else None, first,
            base.gap if base else None, end.reason if end else None, lane.problem,
        ]  # fmt: skip


_COMPARED = "compared.json"


def save_lanes(folder: Path, lanes: Sequence[Lane]) -> None:
    """One trace a lane, named so that they are read in this order, and what comparing with plain decoding found."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, lane in enumerate(lanes, start=1):
        (folder / f"{number}-{lane.method}.jsonl").write_text(dump_trace(lane.events), encoding="utf-8")
    found = {lane.method: asdict(lane.plain) for lane in lanes if lane.plain}
    (folder / _COMPARED).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def load_lanes(folder: Path) -> list[Lane]:
    """The race that `save_lanes` wrote; empty where there is no such folder.

    Raises:
        TraceError: a file is no trace.
    """
    if not folder.is_dir():
        return []
    found = json.loads((folder / _COMPARED).read_text(encoding="utf-8"))
    traces = [load_trace(path) for path in sorted(folder.glob("*.jsonl"))]
    plain = {name: Baseline(**fields) for name, fields in found.items()}
    return [Lane(trace.started.method, trace.events, plain.get(trace.started.method)) for trace in traces]
