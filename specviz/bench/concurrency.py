"""`python -m specviz bench --attach A --attach B --concurrency 1,2,4,8`: the crossing, on running servers.

The same requests go to each server with so many at once, in turns; each server is compared with the first, and where
that one does not draft, the draft length that would pay at each number of requests follows from the times of both.
"""

from __future__ import annotations

import itertools
import queue
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.bench.runner import Entry
from specviz.bench.table import print_table, show
from specviz.config import RunConfig, check_int
from specviz.errors import ConfigError, RemoteError
from specviz.progress import Line
from specviz.remote import METHOD, RemoteEngine
from specviz.remote.advice import MIN_DRAFTS, Load, advise, places_of, settings_line
from specviz.remote.advice_words import answer, sums
from specviz.remote.counters import ServerCounters
from specviz.remote.history import Stretch
from specviz.remote.messages import Messages
from specviz.remote.replicas import total_of
from specviz.remote.request import counts_on, request_of
from specviz.remote.server import Identity
from specviz.remote.steps import StepReader

__all__ = ["bench_concurrency", "print_concurrency", "read_concurrency"]

MOST = 256

_LEGEND = """
tok/s: all tokens over the time from the first request to the last answer; ms a token: median over requests, behind the
first token, as messages arrived here; both are medians over repeats. ÷ first compares with the first server. τ comes
from the server's own counters: other requests on it would be counted too.
"""


@dataclass(frozen=True, slots=True)
class _Answer:
    num_tokens: int
    num_steps: int
    first_s: float
    decode_s: float

    @property
    def s_per_token(self) -> float | None:
        return self.decode_s / (self.num_tokens - 1) if self.num_tokens > 1 else None


@dataclass(slots=True)
class _Measured:
    """One server with so many requests at once, over all repeats. counted: its counters' growth, where it has some."""

    rates: list[float] = field(default_factory=list)
    answers: list[_Answer] = field(default_factory=list)
    counted: list[ServerCounters] = field(default_factory=list)

    @property
    def s_per_token(self) -> float | None:
        told = [answer.s_per_token for answer in self.answers if answer.s_per_token is not None]
        return statistics.median(told) if told else None

    def load(self, requests: int) -> Load | None:
        drafts = sum(counted.num_drafts or 0 for counted in self.counted)
        steps = max(drafts, sum(answer.num_steps for answer in self.answers))  # a message may carry several steps
        if not steps:
            return None
        return Load(requests, sum(answer.decode_s for answer in self.answers) / steps, steps, min(1.0, drafts / steps))


def read_concurrency(text: str) -> list[int]:
    """ "1,2,4,8" as numbers, without doubles, in order. Raises ConfigError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"concurrency must be numbers apart by commas, like 1,2,4,8; got {text[:40]!r}.")
    return sorted({check_int("concurrency", int(word), 1, MOST) for word in words})


def bench_concurrency(
    engines: Sequence[RemoteEngine],
    entries: Sequence[Entry],
    levels: Sequence[int],
    *,
    limit: int,
    repeat: int,
    line: Line,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(rows by level and server, advice by server that drafts), both as JSON.

    Raises:
        RemoteError: a server does not answer, or breaks off.
    """
    identities = [engine.server.identify() for engine in engines]
    count = -(-max(len(entries), 2 * max(levels)) // len(entries)) * len(entries)
    prompts = [entry.prompt for entry in itertools.islice(itertools.cycle(entries), count)]
    config = RunConfig(method=METHOD, max_new_tokens=limit)
    found = {(n, i): _Measured() for n in levels for i in range(len(engines))}
    for engine, identity in zip(engines, identities, strict=True):  # nobody counts the first one
        line(f"Warm-up of {engine.name}", None)
        _ask(engine, identity, prompts[0], config)
    total, done = repeat * len(found), 0
    for turn in range(repeat):
        for place, n in enumerate(levels):
            order = list(range(len(engines)))
            for i in order if (turn + place) % 2 == 0 else order[::-1]:
                line(f"{n} at once, {engines[i].name}", done / total)
                _measure(engines[i], identities[i], prompts, config, n, found[n, i])
                done += 1
    rows = [_row(n, engines[i].name, found[n, i], found[n, 0]) for n in levels for i in range(len(engines))]
    return rows, _advice(engines, identities, levels, found)


def print_concurrency(rows: Sequence[dict[str, Any]], advice: Sequence[dict[str, Any]]) -> None:
    lines = [["at once", "", "tok/s", "÷ first", "ms a token", "first token ms", "τ"]]
    for row in rows:
        lines.append(
            [
                str(row["requests"]),
                row["name"],
                show(row["tokens_per_s"], 1),
                show(row["over_first"], 2),
                show(row["s_per_token"] and 1000 * row["s_per_token"], 1),
                show(1000 * row["first_token_s"], 0),
                show(row["acceptance_length"], 2),
            ]
        )
    print_table(lines, 2)
    print(_LEGEND)
    for one in advice:
        print(f"{one['name']}: {one['answer']}")
        for text in one["sums"]:
            print(f"  {text}")
        if one["line"]:
            print(f"  {one['line']}")
        print()


def _measure(
    engine: RemoteEngine, identity: Identity, prompts: Sequence[str], config: RunConfig, n: int, into: _Measured
) -> None:
    """All prompts with n at once: each of n threads takes the next one when it has its answer."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for prompt in prompts:
        waiting.put(prompt)
    answers: list[_Answer] = []
    failures: list[RemoteError] = []

    def work() -> None:
        while not failures:
            try:
                answers.append(_ask(engine, identity, waiting.get_nowait(), config))
            except queue.Empty:
                return
            except RemoteError as error:
                failures.append(error)

    before = _counters(engine, identity)
    threads = [threading.Thread(target=work, name="specviz-crowd", daemon=True) for _ in range(n)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    into.rates.append(sum(answer.num_tokens for answer in answers) / seconds)
    into.answers += answers
    wrote = sum(answer.num_tokens for answer in answers)
    delta = _settled(engine, identity, before, wrote)
    if delta is not None:
        into.counted.append(delta)


def _ask(engine: RemoteEngine, identity: Identity, prompt: str, config: RunConfig) -> _Answer:
    """One request, without the questions that `RemoteEngine.stream` asks before and after: they would hold a place."""
    steps, heard, is_done = StepReader(0, None, by_usage=counts_on(identity)), time.monotonic(), False
    messages = Messages(engine.server.address, *request_of(identity, prompt, config))
    try:
        while True:
            try:
                chunk = messages.get(1.0)
            except queue.Empty:
                limit = engine.patience.next_s if steps.prefill else engine.patience.first_s
                if time.monotonic() - heard > limit:
                    raise RemoteError(f"{engine.name} has been silent for {limit:g} s.") from None
                continue
            heard = time.monotonic()
            if chunk is None:
                break
            if chunk.error:
                raise RemoteError(f"{engine.name} failed: {chunk.error}")
            is_done |= bool(chunk.finish)
            steps.feed(chunk)
    finally:
        messages.close()
    steps.end()
    if steps.prefill is None or not is_done:
        raise RemoteError(f"{engine.name} ended an answer before it was done. Look at its log.")
    return _Answer(len(steps.token_ids), steps.num_steps, steps.prefill.prefill_s, steps.decode_s)


def _counters(engine: RemoteEngine, identity: Identity) -> ServerCounters | None:
    try:
        return engine.server.counters(identity.model)
    except RemoteError:
        return None


def _settled(
    engine: RemoteEngine, identity: Identity, before: ServerCounters | None, wrote: int
) -> ServerCounters | None:
    """The counters' growth, once they have caught up with what was written here."""
    end = time.monotonic() + engine.patience.settle_s
    while before is not None and (now := _counters(engine, identity)) is not None:
        delta = now.since(before)
        if delta is None or (delta.num_generated or 0) >= wrote or time.monotonic() > end:
            return delta
        time.sleep(engine.patience.poll_s)
    return None


def _row(n: int, name: str, mine: _Measured, first: _Measured) -> dict[str, Any]:
    rate, base = statistics.median(mine.rates), statistics.median(first.rates)
    drafts = sum(counted.num_drafts or 0 for counted in mine.counted)
    accepted = sum(counted.num_accepted or 0 for counted in mine.counted)
    return {
        "requests": n,
        "name": name,
        "tokens_per_s": rate,
        "over_first": rate / base if base else None,
        "s_per_token": mine.s_per_token,
        "first_token_s": statistics.median(answer.first_s for answer in mine.answers),
        "acceptance_length": 1 + accepted / drafts if drafts else None,
        "num_answers": len(mine.answers),
    }


def _advice(
    engines: Sequence[RemoteEngine],
    identities: Sequence[Identity],
    levels: Sequence[int],
    found: dict[tuple[int, int], _Measured],
) -> list[dict[str, Any]]:
    """For each server that drafts; times against the first one, where that does not."""
    loads = [{n: load for n in levels if (load := found[n, i].load(n)) is not None} for i in range(len(engines))]
    plain = loads[0] if all(not load.drafted_share for load in loads[0].values()) else {}
    out: list[dict[str, Any]] = []
    for i, (engine, identity) in enumerate(zip(engines, identities, strict=True)):
        grown = [counted for n in levels for counted in found[n, i].counted]
        total = total_of(grown)
        by_place = places_of(Stretch(1.0, total))
        if total.num_drafts and total.num_drafts < MIN_DRAFTS:
            few = f"{total.num_drafts} drafts are too few to say what pays. Give more prompts (--per-regime)."
            out.append({"name": engine.name, "answer": few, "sums": [], "best": [], "line": ""})
        if not by_place:
            continue
        advice = advise(by_place, loads[i], plain)
        out.append(
            {
                "name": engine.name,
                "answer": answer(advice, engine.name),
                "sums": sums(advice),
                "best": [[n, gamma] for n, gamma in advice.best.items()],
                "line": settings_line(identity, advice),
            }
        )
    return out
