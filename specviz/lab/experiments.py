"""The experiments of the Lab by name, in the order of the page."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.lab.experiment import Measure
from specviz.lab.gamma import measure_gamma
from specviz.lab.greedy import measure_greedy
from specviz.lab.length import measure_length
from specviz.lab.memory import measure_memory
from specviz.lab.passes import measure_passes_by_rows
from specviz.lab.precision import measure_precision
from specviz.lab.rules import measure_rules
from specviz.lab.sampling import measure_sampling

__all__ = ["EXPERIMENTS", "Experiment"]


@dataclass(frozen=True, slots=True)
class Experiment:
    """title: over its figure. summary: what is measured, in a line."""

    name: str
    title: str
    summary: str
    measure: Measure


EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        Experiment(
            "gamma",
            "Speed-up against draft length",
            "Every draft length in turns with plain decoding at one token a pass, on the prompt and settings chosen.",
            measure_gamma,
        ),
        Experiment(
            "passes",
            "Memory-bound or compute-bound",
            "One pass of the target with 1 to 64 rows: a check is cheap while reading the weights takes longest.",
            measure_passes_by_rows,
        ),
        Experiment(
            "memory",
            "What speed costs in memory",
            "Weights and caches of target and draft, along the context.",
            measure_memory,
        ),
        Experiment(
            "precision",
            "One draft, four precisions",
            "The same draft with its weights held in 32, 16, 8 and 4 bits.",
            measure_precision,
        ),
        Experiment(
            "length",
            "What a token costs along the context",
            "One pass of the target, of a check and of the draft, behind more and more tokens.",
            measure_length,
        ),
        Experiment(
            "greedy",
            "Greedy: token by token",
            "A run at temperature 0 beside plain decoding of the same prompt.",
            measure_greedy,
        ),
        Experiment(
            "sampling",
            "Sampled: the same distribution?",
            "Many answers of two tokens, against the target’s own probabilities for them.",
            measure_sampling,
        ),
        Experiment(
            "rules",
            "Token by token, or as a block",
            "Three sampled runs; each draft is weighed under both lossless rules, so that only the rule differs.",
            measure_rules,
        ),
    )
}
