"""Length as an axis: what one plain token, one check and one drafted token cost behind a longer and longer context."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specviz.drafters.base import Need
from specviz.drafters.registry import get_method
from specviz.errors import ConfigError
from specviz.lab.experiment import Ask, Check, Finding, Report, about
from specviz.models.exactness import time_passes

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["contexts_for", "measure_length"]

NAME = "length"
CONTEXTS = (256, 512, 1024, 2048, 4096)
REPEAT = 5


def contexts_for(limit: int) -> list[int]:
    """Context lengths up to the model's limit, the limit itself included where it is no larger than the longest."""
    below = [context for context in CONTEXTS if context < limit]
    return [*below, limit] if limit <= CONTEXTS[-1] else below


def measure_length(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """Passes of 1 and of γ + 1 rows of the target, and of 1 row of a drafting model, in turns at each context.

    The words of a context do not matter to what a pass costs, so random tokens fill it.
    """
    loaded, rows = engine.loaded, ask.config.gamma + 1
    models: list[tuple[str, Any, tuple[int, ...]]] = [
        ("target", loaded.target, (1, rows) if rows > 1 else (1,)),
    ]
    method = get_method(ask.config.method)
    if Need.SAME_TOKENIZER in method.needs and method.refusal(loaded) is None:
        yield Report("Loading the draft model", 0.0)
        draft, _ = loaded.draft_model(ask.config.draft_quant, copy=method.name == "quantized-copy")
        loaded.refuse_other_tokens("Measuring along the context")
        models.append(("draft", draft, (1,)))
    room = loaded.max_context - rows
    contexts = [context for context in contexts_for(room) if context > 0]
    if not contexts:
        raise ConfigError(f"This target reads {loaded.max_context} tokens: too few to measure along.")
    base, table = about(engine, ask), []
    total = sum(contexts)
    for number, context in enumerate(contexts):
        done = sum(contexts[:number]) / total
        row: dict[str, Any] = {"context": context}
        for name, model, kinds in models:
            reads = int(getattr(model.config, "max_position_embeddings", 0) or context + rows)
            if context + max(kinds) > reads:
                continue
            yield Report(f"Context of {context:,} tokens, {name}", done)
            times: list[list[float]] = []
            for newest in time_passes(model, kinds, loaded.vocab_size, context=context, repeat=REPEAT):
                check()
                times = newest
            for count, seconds in zip(kinds, times, strict=True):
                what = name if count == 1 else "check"
                row |= {
                    f"{what}_s": statistics.median(seconds),
                    f"{what}_s_low": min(seconds),
                    f"{what}_s_high": max(seconds),
                }
        table.append(row)
        fraction = sum(contexts[: number + 1]) / total
        facts = {"rows": rows, "max_context": loaded.max_context, "has_draft": len(models) > 1}
        finding = Finding(NAME, base, tuple(table), facts, fraction == 1.0)
        yield Report(f"Context of {context:,} tokens done", fraction, finding)
