"""Memory as a trade-off: weights and caches of target and draft, growing with the context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from specviz.drafters.base import DraftContext
from specviz.drafters.options import read_options
from specviz.drafters.registry import get_method
from specviz.errors import ConfigError
from specviz.lab.experiment import Ask, Check, Finding, Report, about
from specviz.lab.length import contexts_for
from specviz.run import open_session
from specviz.sampling import uniform_generator

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["measure_memory"]

NAME = "memory"
PROBES = (32, 64)
"""Contexts at which the caches are weighed; between them each token adds the same, and so it goes on."""


def measure_memory(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """Bytes of the loaded objects themselves; a token's share of a cache is weighed, then multiplied by the context."""
    loaded, config = engine.loaded, ask.config
    method = get_method(config.method)
    refusal = method.refusal(loaded)
    if refusal:
        raise ConfigError(refusal)
    if loaded.max_context <= PROBES[-1] + config.gamma + 1:
        raise ConfigError(f"This target reads {loaded.max_context} tokens: too few to weigh its cache.")
    config = replace(config, options=read_options(method.name, method.options, config.options))
    drafter, info = method.build(loaded, config)
    yield Report("Weighing the caches", 0.2)
    ids = torch.randint(loaded.vocab_size, (PROBES[-1],), generator=torch.Generator().manual_seed(2)).tolist()
    weighed: list[tuple[int, int]] = []
    try:
        for count in PROBES:
            check()
            session = open_session(loaded, drafter, count + 1)
            try:
                session.extend(ids[: count - 1])
                drafter.reset(ids[:count], session)
                if config.gamma:
                    shown = DraftContext(ids[:count], config.sampling, session.tail, session)
                    drafter.propose(shown, config.gamma, uniform_generator(0))
                weighed.append((session.num_bytes, drafter.num_bytes))
            finally:
                session.close()
    finally:
        drafter.close()
    step = PROBES[1] - PROBES[0]
    target_each, draft_each = ((weighed[1][i] - weighed[0][i]) // step for i in (0, 1))
    shared = loaded.draft is loaded.target and info is not None
    draft_bytes = 0 if info is None or shared else info.num_bytes
    rows = tuple(
        {
            "context": context,
            "target_bytes": loaded.target_info.num_bytes,
            "draft_bytes": draft_bytes,
            "target_cache_bytes": context * target_each,
            "draft_cache_bytes": context * draft_each,
        }
        for context in (0, *contexts_for(loaded.max_context))
    )
    facts = {
        "draft": info.name if info else "",
        "is_shared": shared,
        "target_bytes_per_token": target_each,
        "draft_bytes_per_token": draft_each,
        "max_context": loaded.max_context,
    }
    yield Report("Weighed", 1.0, Finding(NAME, about(engine, ask), rows, facts, True))
