"""A run whose text differs from plain decoding's: where, how close it was, and what it proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from specviz.config import RunConfig
from specviz.events import Event, RunStarted
from specviz.generator import SpeculativeGenerator
from specviz.metrics import Baseline

__all__ = ["WHOLE", "explain_difference"]

WHOLE = ("eos", "stop", "length", "context")
"""Endings after which plain decoding is measured without being asked again."""


def explain_difference(
    engine: SpeculativeGenerator,
    prompt: str | Sequence[int],
    config: RunConfig,
    run: Sequence[Event],
    baseline: Baseline,
    through: Callable[[Iterator[Event]], Iterator[Event]] = iter,
) -> Baseline:
    """The baseline with the gap of logits at the first difference, and whether plain decoding in the run's own passes
    agrees.

    A baseline whose text is the same, or was not compared, comes back as it is and costs nothing.

    Args:
        run: events of the finished run. through: what the proving run's events pass through, so that it can be stopped.
    """
    if baseline.same_text is not False:
        return baseline
    started = run[0]
    exact = isinstance(started, RunStarted) and started.width > 0
    again = list(through(engine.stream_equal_width(prompt, config))) if exact else []
    return baseline.explained(run, engine.logit_gap(baseline.ids_to_difference(run)), again)
