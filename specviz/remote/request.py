"""What a serving engine is asked, and how such a run begins. Pure but for the clock."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from specviz.config import RunConfig
from specviz.events import ModelInfo, RunStarted
from specviz.remote.server import Identity

__all__ = ["METHOD", "counts_on", "request_of", "start_of"]

METHOD = "attached"
"""What stands for the method of a run whose drafting happens elsewhere."""

_BEFORE_TEMPERATURE = "Probabilities are the target's before temperature."


def request_of(identity: Identity, prompt: str, config: RunConfig) -> tuple[str, dict[str, Any]]:
    """Path and body. Settings that are off are left out, so that a server's own defaults do not become an error."""
    sampling = config.sampling
    body: dict[str, Any] = {
        "model": identity.model,
        "max_tokens": config.max_new_tokens,
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    given: dict[str, tuple[Any, Any]] = {
        "top_p": (sampling.top_p, 1.0),
        "top_k": (sampling.top_k, 0),
        "repetition_penalty": (sampling.repetition_penalty, 1.0),
        "seed": (sampling.seed, None),
        "stop": (list(config.stop), []),
    }
    body |= {name: value for name, (value, off) in given.items() if value != off}
    if identity.engine == "llama.cpp":
        body["timings_per_token"] = True
    else:
        body["return_token_ids"] = True
        body |= {"logprobs": 0} if config.raw else {"logprobs": True, "top_logprobs": 0}
    if counts_on(identity):
        body["return_spec_tokens_details"] = True
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if config.raw:
        return "/v1/completions", body | {"prompt": prompt}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}


def counts_on(identity: Identity) -> bool:
    """Whether each of its messages is asked for the number of tokens so far: an SGLang's name none with some drafts."""
    return identity.engine == "SGLang"


def start_of(
    name: str, identity: Identity, prompt: str, config: RunConfig, gamma: int
) -> Callable[[tuple[int, ...]], RunStarted]:
    """What makes the run's first event from the prompt's ids, which come with the first message.

    name: of the server. gamma: the most tokens it drafts a step, 0 where that is not known.
    """
    sampling = config.sampling
    run_id, started_at = uuid.uuid4().hex[:12], datetime.now(UTC).isoformat(timespec="seconds")

    def make(prompt_ids: tuple[int, ...]) -> RunStarted:
        return RunStarted(
            run_id=run_id,
            method=METHOD,
            prompt=prompt,
            prompt_ids=prompt_ids,
            prompt_texts=(),
            target=ModelInfo(identity.model, source=name),
            draft=None,
            dtype="",
            width=0,
            exactness="unchecked",
            exactness_reason="The server verified; nothing here has checked it.",
            verify="greedy" if sampling.is_greedy else "sampling",
            gamma=gamma,
            settings={
                "gamma": gamma,
                "max_new_tokens": config.max_new_tokens,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "repetition_penalty": sampling.repetition_penalty,
                "seed": sampling.seed,
                "stop": list(config.stop),
                "raw": config.raw,
            },
            machine={"server": name, "engine": identity.title},
            versions={identity.engine or "server": identity.version} if identity.version else {},
            started_at=started_at,
            pair=name,
            device="remote",
            notes=(_BEFORE_TEMPERATURE,),
        )

    return make
