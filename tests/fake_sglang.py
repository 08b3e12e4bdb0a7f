"""A server that speaks as an SGLang does: the names of its metrics, messages and settings are those of its source.

No SGLang runs here, so nothing of this is recorded. `steps` says what each request's passes keep.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Sglang", "sglang"]


@dataclass
class Sglang:
    """kept: [steps] drafted tokens each pass keeps. depth: of its drafts. topk, rows: as its settings name them.

    tells_request: whether a request's own counts come with its last message. tells_settings, tells_metrics: whether
    `/get_server_info` and `/metrics` are there. beside: (requests, tokens, passes) that others finish while one runs.
    step_s: a pass's time, pass_s: as its metrics tell it. names_tokens: whether its messages do. drafts: false makes it
    a plain server, whose `kept` is all 0.
    """

    kept: list[int] = field(default_factory=lambda: [3, 0, 1, 3, 2])
    depth: int = 3
    topk: int = 1
    rows: int = 4
    tells_request: bool = True
    tells_settings: bool = True
    tells_metrics: bool = True
    beside: tuple[int, int, int] = (0, 0, 0)
    step_s: float = 0.0
    drafts: bool = True
    pass_s: float = 0.02
    names_tokens: bool = True
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    num_finished: int = 7
    num_generated: int = 300
    num_verified: int = 100
    num_running: int = 0
    most_at_once: int = 0
    num_gaps: int = 0
    gaps_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def metrics(self) -> str:
        own = '{engine_type="unified",model_name="m",dp_rank="0",tp_rank="0"}'
        twin = '{engine_type="unified",model_name="m",dp_rank="0",tp_rank="1"}'
        lines = [
            f'sglang:generation_tokens_total{{model_name="m",is_streaming="true"}} {self.num_generated - 40}',
            'sglang:generation_tokens_total{model_name="m",is_streaming="false"} 40',
            f'sglang:spec_verify_calls_total{{model_name="m"}} {self.num_verified}',
            f'sglang:num_requests_total{{model_name="m"}} {self.num_finished}',
            f'sglang:inter_token_latency_seconds_count{{model_name="m"}} {self.num_gaps}',
            f'sglang:inter_token_latency_seconds_sum{{model_name="m"}} {self.gaps_s}',
            f"sglang:num_running_reqs{own} {self.num_running}",
            f"sglang:num_running_reqs{twin} {self.num_running}",
            f"sglang:num_queue_reqs{own} 0.0",
            f"sglang:spec_accept_length{own} 2.5",
            f"sglang:spec_accept_rate{own} 0.5",
            f"sglang:spec_num_steps{own} {self.depth}",
            f"sglang:spec_num_draft_tokens{own} {self.rows}",
            'sglang:e2e_request_latency_seconds_bucket{le="0.1",model_name="m"} 3.0',
        ]
        lines = [line for line in lines if self.drafts or "spec_" not in line]
        return "# HELP sglang:num_running_reqs The number of running requests.\n" + "\n".join(lines) + "\n"

    def settings(self) -> dict[str, Any]:
        if not self.drafts:
            return {"version": "0.5.21", "speculative_algorithm": None}
        return {
            "version": "0.5.21",
            "api_key": "never shown",
            "speculative_algorithm": "EAGLE3",
            "speculative_num_steps": self.depth,
            "speculative_eagle_topk": self.topk,
            "speculative_num_draft_tokens": self.rows,
        }

    def messages(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The stream of one request: the first token, then a message a pass, the end, and its own counts."""
        yield _message({"role": "assistant", "content": ""})
        number = 0
        for size in (1, *(kept + 1 for kept in self.kept)):
            words = [f" w{number + i}" for i in range(size)]
            number += size
            if number > 1:  # a gap a token, as SGLang counts them
                with self.lock:
                    self.num_gaps, self.gaps_s = self.num_gaps + size, self.gaps_s + self.pass_s
            message = _message({"content": "".join(words)})
            if self.names_tokens:
                message["choices"][0]["logprobs"] = {"content": [_token(word) for word in words]}
            if body.get("stream_options", {}).get("continuous_usage_stats"):
                message["usage"] = {"prompt_tokens": 5, "completion_tokens": number, "total_tokens": 5 + number}
            yield message
        yield _message({}, finish_reason="stop", matched_stop=2)
        if self.drafts and self.tells_request and body.get("return_spec_tokens_details"):
            histogram = [self.kept.count(k) for k in range(max(self.kept) + 1)]
            details = {
                "spec_accept_rate": 0.5,
                "spec_verify_ct": len(self.kept),
                "spec_num_proposed_drafts": len(self.kept) * (self.rows - 1),
                "spec_num_correct_drafts": sum(self.kept),
                "spec_correct_drafts_histogram": histogram,
            }
            yield {"choices": [], "sglext": {"spec_tokens_details": details}}
        usage = {"prompt_tokens": 5, "completion_tokens": number, "total_tokens": 5 + number}
        with self.lock:
            self.num_finished += 1 + self.beside[0]
            self.num_generated += number + self.beside[1]
            self.num_verified += len(self.kept) + self.beside[2]
        yield {"choices": [], "usage": usage}


def _message(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None} | choice]}


def _token(word: str) -> dict[str, Any]:
    return {"token": word, "bytes": list(word.encode()), "logprob": -0.25, "top_logprobs": []}


@contextmanager
def sglang(**how: Any) -> Iterator[Sglang]:
    fake = Sglang(**how)
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake: Sglang

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "m", "owned_by": "sglang", "max_model_len": 4096}]}
        if self.path == "/metrics" and self.fake.tells_metrics:
            self._send(200, self.fake.metrics())
        elif self.path == "/v1/models":
            self._send(200, json.dumps(models))
        elif self.path == "/get_server_info" and self.fake.tells_settings:
            self._send(200, json.dumps(self.fake.settings()))
        else:
            self._send(404, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.requests.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with self.fake.lock:
            self.fake.num_running += 1
            self.fake.most_at_once = max(self.fake.most_at_once, self.fake.num_running)
        for message in self.fake.messages(body):
            time.sleep(self.fake.step_s)
            self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())
            self.wfile.flush()
        with self.fake.lock:
            self.fake.num_running -= 1
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
