"""Who runs in a benchmark: specviz's methods and transformers' own, on the same weights, prompts and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specviz.config import RunConfig
from specviz.errors import ConfigError
from specviz.events import Event, PrefillDone, RunFinished, StepDone
from specviz.generate.peers import assistant_of
from specviz.generator import SpeculativeGenerator
from specviz.metrics import Counters
from specviz.remote import RemoteEngine

__all__ = ["PEERS", "Contestant", "Result", "peer", "specviz_method"]


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one contestant.

    prefill_s: until the first tokens are out, the step that wrote them included. rest_s, num_rest: seconds and tokens
    behind those, which is what decoding speed is taken from: both sides can be measured so.
    counters, memory_bytes: of a specviz run; None for a peer, which tells none. memory_bytes: weights, also where they
    are held twice, and caches at the end of the run.
    """

    token_ids: tuple[int, ...]
    prefill_s: float
    rest_s: float
    num_rest: int
    counters: Counters | None = None
    memory_bytes: int | None = None

    @property
    def tokens_per_s(self) -> float | None:
        return self.num_rest / self.rest_s if self.num_rest and self.rest_s > 0 else None


@dataclass(frozen=True, slots=True)
class Contestant:
    """A name and how it answers a prompt of ids, or of text, with at most so many tokens."""

    name: str
    run: Callable[[Any, int], Result]


def specviz_method(
    engine: SpeculativeGenerator | RemoteEngine,
    config: RunConfig,
    name: str | None = None,
    through: Callable[[Iterator[Event]], Iterator[Event]] = iter,
) -> Contestant:
    """One of specviz's methods, or a serving engine, under these settings.

    through: what its events pass, so that a run can be broken off.
    """

    def run(asked: Any, limit: int) -> Result:
        counters = Counters()
        first_s = prefill_s = 0.0
        num_first = 0
        for event in through(engine.stream(asked, replace(config, max_new_tokens=limit))):
            counters.update(event)
            if isinstance(event, PrefillDone):
                prefill_s, num_first = event.prefill_s, len(event.emitted)
            elif isinstance(event, StepDone) and event.index == 1:
                first_s = event.draft_s + event.verify_s + event.other_s
                num_first += len(event.emitted)
        assert isinstance(event, RunFinished)
        if event.reason == "error":
            raise ConfigError(f"{name or config.method}: {event.message}")
        rest = event.num_tokens - num_first
        memory = sum(count for name, count in event.memory.items() if name != "peak_resident_bytes")
        return Result(event.token_ids, prefill_s + first_s, counters.decode_s - first_s, rest, counters, memory)

    return Contestant(name or config.method, run)


class _Watch:
    """A streamer that notes when tokens come: transformers calls `put` with the prompt, then with every block."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        pass


def peer(name: str, engine: SpeculativeGenerator, gamma: int) -> Contestant:
    """transformers doing the same job on the same target. Raises ConfigError for an unknown name."""
    if name not in PEERS:
        raise ConfigError(f"Unknown peer {name[:40]!r}. Known are {', '.join(PEERS)}.")
    loaded = engine.loaded
    extra = PEERS[name](engine, gamma)

    def run(ids: Sequence[int], limit: int) -> Result:
        watch = _Watch()
        prompt = torch.tensor([list(ids)], device=loaded.device)
        began = time.perf_counter()
        with torch.inference_mode():
            out = loaded.target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=limit,
                do_sample=False,
                eos_token_id=sorted(loaded.eos_ids) or None,
                pad_token_id=0,
                streamer=watch,
                **extra,
            )
        ended = time.perf_counter()
        token_ids = tuple(out[0, len(ids) :].tolist())
        blocks = watch.times[1:]  # the first is the prompt
        first_at, num_first = blocks[0] if blocks else (ended, 0)
        return Result(token_ids, first_at - began, ended - first_at, len(token_ids) - num_first)

    return Contestant(f"transformers {name}", run)


def _assistant(engine: SpeculativeGenerator, gamma: int) -> dict[str, Any]:
    """The pair's default draft as transformers' assistant, drafting as many tokens as ours does."""
    return {"assistant_model": assistant_of(engine.loaded, gamma)[0]}


def _early_exit(engine: SpeculativeGenerator, gamma: int) -> dict[str, Any]:
    return {"assistant_early_exit": max(1, engine.loaded.num_layers // 3)}


PEERS: dict[str, Callable[[SpeculativeGenerator, int], dict[str, Any]]] = {
    "plain": lambda engine, gamma: {},
    "prompt-lookup": lambda engine, gamma: {"prompt_lookup_num_tokens": gamma},
    "assistant": _assistant,
    "early-exit": _early_exit,
}
"""What each of transformers' ways is called with, besides the prompt."""
