"""Visitors over HTTP, as the page and as programs are: for load tests, small ones here and long ones in scripts/."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from gradio_client.utils import apply_diff

__all__ = ["PageVisitor", "Run", "Usage", "usage"]


@dataclass(slots=True)
class Run:
    """One press of Run. deltas: what reached the view, in order. began, ended: seconds of `time.monotonic`."""

    deltas: list[dict[str, Any]] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0

    def problems(self, prompt: str) -> list[str]:
        """What is wrong with it, in words; nothing for a run that arrived whole and is the visitor's own."""
        found = [delta["error"] for delta in self.deltas if "error" in delta]
        starts = [delta["start"] for delta in self.deltas if "start" in delta]
        ends = [delta["finish"] for delta in self.deltas if "finish" in delta]
        if len(starts) != 1 or len(ends) != 1:
            return [*found, f"{len(starts)} starts, {len(ends)} ends"]
        if starts[0]["prompt"] != prompt:
            found.append("another visitor's prompt")
        numbers = [delta["seq"] for delta in self.deltas]
        if numbers != sorted(numbers) or set(numbers) != set(range(len(set(numbers)))):  # the last may come twice
            found.append("an update is missing")
        steps = [step for delta in self.deltas for step in delta.get("steps", ())]
        shown = [token[0] for step in steps for token in step["emitted"]]
        if shown != ends[0]["token_ids"]:
            found.append("the tokens that arrived are not those of the run")
        return found


class PageVisitor:
    """A tab of the page: the same requests as the browser's, with a session of its own."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self.url, self.client = url.rstrip("/") + "/gradio_api", client
        self.session = os.urandom(6).hex()
        config = client.get(f"{url.rstrip('/')}/config").json()
        calls = {entry["api_name"]: entry for entry in config["dependencies"]}
        self._run, self._results = calls["_run"], calls["_results"]
        components = {item["id"]: item["props"] for item in config["components"]}
        props = [components[i] for i in self._run["inputs"]]
        self._names = [item.get("elem_id") or item.get("label") for item in props]
        self._values = [item.get("value") for item in props]
        ids = {item["props"].get("elem_id"): item["id"] for item in config["components"]}
        self._view = self._run["outputs"].index(ids["view"])

    def run(self, prompt: str, *, leave_after: int | None = None, **settings: Any) -> Run:
        """Press Run and read to the end, or close the tab after so many messages. settings: by the page's element ids,
        dashes written as underscores."""
        values = list(self._values)
        values[self._names.index("prompt")] = prompt
        for name, value in settings.items():
            values[self._names.index(name.replace("_", "-"))] = value
        done = Run(began=time.monotonic())
        body = {"fn_index": self._run["id"], "data": values, "session_hash": self.session}
        self.client.post(f"{self.url}/queue/join", json=body).raise_for_status()
        state: list[Any] = []
        for number, message in enumerate(self._messages()):
            data = message.get("output", {}).get("data") or []
            if message["msg"] == "process_generating":
                state = [apply_diff(old, new) for old, new in zip(state, data, strict=True)] if state else list(data)
                self._read(state[self._view], done)
            if leave_after is not None and number >= leave_after:
                break
        else:
            body = {"fn_index": self._results["id"], "data": [], "session_hash": self.session}
            self.client.post(f"{self.url}/run/predict", json=body).raise_for_status()
        done.ended = time.monotonic()
        return done

    def _messages(self) -> Iterator[dict[str, Any]]:
        with self.client.stream("GET", f"{self.url}/queue/data", params={"session_hash": self.session}) as lines:
            for line in lines.iter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                yield message
                if message["msg"] == "process_completed":
                    return

    def _read(self, value: Any, run: Run) -> None:
        if isinstance(value, str):
            delta = json.loads(value)
            if not run.deltas or delta != run.deltas[-1]:
                run.deltas.append(delta)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process. resident: bytes."""

    resident: int
    threads: int
    files: int


def usage(pid: int | None = None) -> Usage:
    """What a process holds now; this one where none is named. Linux only."""
    home = Path("/proc") / (str(pid) if pid else "self")
    fields = dict(line.split(":", 1) for line in (home / "status").read_text().splitlines() if ":" in line)
    files = 0
    with contextlib.suppress(OSError):
        files = len(list((home / "fd").iterdir()))
    return Usage(int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"]), files)
