"""A server that sends recorded streams of a real vLLM: with their own timing or at once, whole, cut short or spoilt.

`tests/data/vllm` holds what a vLLM 0.32 sent for six requests, and its counters before and after each. The last two
come from one that counted each request by itself; two other requests ran beside `detailed-busy`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["DETAILED", "NAMES", "Capture", "ReplayServer", "capture", "serving"]

DATA = Path(__file__).parent / "data" / "vllm"
NAMES = ("copy", "chat", "code", "emoji-sampled")
DETAILED = ("detailed-copy", "detailed-busy")


@dataclass(frozen=True)
class Capture:
    """One recorded request. lines: (seconds after the request, the line as it was sent)."""

    name: str
    request: dict[str, Any] = field(hash=False)
    lines: tuple[tuple[float, str], ...] = field(hash=False, repr=False)
    before: str
    after: str

    @cache  # noqa: B019  # six of them
    def growth(self) -> dict[str, float]:
        """How much each line of the metrics grew over the request."""
        before, after = (
            dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            for text in (self.before, self.after)
        )
        return {name: float(value) - float(before.get(name, 0)) for name, value in after.items()}

    @property
    def prompt(self) -> str:
        return self.request["messages"][0]["content"]

    def counter(self, name: str, **labels: str) -> int:
        """How much one counter grew over the request, read without the code under test."""
        wanted = [f"vllm:{name}{{", *(f'{key}="{value}"' for key, value in labels.items())]
        return int(sum(grown for line, grown in self.growth().items() if all(part in line for part in wanted)))


@cache
def capture(name: str) -> Capture:
    stream = (DATA / f"{name}.stream.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in stream.split("\n") if line]
    return Capture(
        name,
        json.loads((DATA / f"{name}.request.json").read_text(encoding="utf-8")),
        tuple((row["t_s"], row["line"]) for row in rows),
        (DATA / f"{name}.metrics_before.txt").read_text(encoding="utf-8"),
        (DATA / f"{name}.metrics_after.txt").read_text(encoding="utf-8"),
    )


@dataclass
class ReplayServer:
    """What the server does next; tests change it between requests.

    speed: how many times faster than recorded; 0 sends at once. cut: send only so many lines, then hang up.
    hang: stay silent behind that many lines. key: the one it wants. status: answer everything with it.
    edit: changes the lines before they are sent. metrics: changes the text of its metrics.
    answered: the requests whose counts its metrics hold; a test may add what others asked. names: what it can send.
    """

    speed: float = 0.0
    cut: int | None = None
    hang: int | None = None
    key: str = ""
    status: int = 200
    has_version: bool = True
    edit: Callable[[list[tuple[float, str]]], list[tuple[float, str]]] = lambda lines: lines
    metrics: Callable[[str], str] = lambda text: text
    answered: list[Capture] = field(default_factory=list)
    names: tuple[str, ...] = NAMES
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)

    def counters(self) -> str:
        """The recorded metrics, each count grown by what it grew over the requests answered so far."""
        lines = []
        for line in capture("copy").before.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                line = f"{name} {float(value) + sum(found.growth().get(name, 0.0) for found in self.answered)}"
            lines.append(line)
        return self.metrics("\n".join(lines) + "\n")


@contextmanager
def serving(**how: Any) -> Iterator[ReplayServer]:
    replay = ReplayServer(**how)
    handler = type("Handler", (_Handler,), {"replay": replay})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    replay.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield replay
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    replay: ReplayServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        replay = self.replay
        if self.path == "/metrics" and replay.status == 200:
            self._send(200, replay.counters(), "text/plain; version=0.0.4")
        elif self._is_refused():
            return
        elif self.path == "/v1/models":
            self._send(200, (DATA / "models.json").read_text())
        elif self.path == "/version" and replay.has_version:
            self._send(200, (DATA / "version.json").read_text())
        else:
            self._send(404, json.dumps({"detail": "Not Found"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_refused():
            return
        replay = self.replay
        replay.requests.append(body)
        found = next((c for c in map(capture, replay.names) if c.prompt == _asked(body)), capture("copy"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        try:
            self._stream(found, replay.edit(list(found.lines)))
        except OSError:
            replay.hung_up.set()

    def _stream(self, found: Capture, lines: list[tuple[float, str]]) -> None:
        replay, began = self.replay, time.monotonic()
        for number, (at_s, line) in enumerate(lines):
            if number == replay.cut:
                return
            while number == replay.hang:  # a write into a closed connection fails in the end
                time.sleep(0.05)
                self.wfile.write(b": \n")
                self.wfile.flush()
            if replay.speed:
                time.sleep(max(0.0, at_s / replay.speed - (time.monotonic() - began)))
            if number == len(lines) - 1:
                replay.answered.append(found)
            self.wfile.write(f"{line}\n\n".encode())
            self.wfile.flush()

    def _is_refused(self) -> bool:
        replay = self.replay
        if replay.status != 200:
            self._send(replay.status, json.dumps({"error": {"message": "EngineCore is not running."}}))
        elif replay.key and self.headers.get("Authorization") != f"Bearer {replay.key}":
            self._send(401, json.dumps({"error": "Unauthorized"}))
        else:
            return False
        return True

    def _send(self, status: int, text: str, kind: str = "application/json") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _asked(body: dict[str, Any]) -> str:
    return body["messages"][0]["content"] if "messages" in body else str(body.get("prompt"))
