"""Memory-bound or compute-bound: what a pass of 1 to 64 rows costs, and how near to memory's speed one is."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specviz.bench.machine import memory_bandwidth
from specviz.errors import ConfigError
from specviz.lab.experiment import Ask, Check, Finding, Report, about
from specviz.models.exactness import time_passes

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["measure_passes_by_rows"]

NAME = "passes"
ROWS = (1, 2, 4, 5, 8, 16, 32, 64)
CONTEXT = 100
REPEAT = 9
_WARM_UP = 2


def measure_passes_by_rows(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """Passes of the target behind 100 tokens, in turns; v is the median over that of one row."""
    loaded = engine.loaded
    rows = [count for count in ROWS if CONTEXT + count <= loaded.max_context]
    if not rows:
        raise ConfigError(f"This target reads {loaded.max_context} tokens; passes are measured behind {CONTEXT}.")
    yield Report("Reading memory", 0.0)
    bandwidth = memory_bandwidth(device=loaded.device)
    floor_s = loaded.target_info.num_bytes / bandwidth
    base = about(engine, ask)
    turns = time_passes(loaded.target, rows, loaded.vocab_size, context=CONTEXT, repeat=REPEAT)
    for turn, times in enumerate(turns, 1):
        check()
        fraction = turn / (REPEAT + _WARM_UP)
        if not times[-1]:
            yield Report("Warming up", fraction)
            continue
        one = statistics.median(times[0])
        table = tuple(
            {
                "rows": count,
                "pass_s": statistics.median(seconds),
                "pass_s_low": min(seconds),
                "pass_s_high": max(seconds),
                "v": statistics.median(seconds) / one,
            }
            for count, seconds in zip(rows, times, strict=True)
        )
        facts = {
            "bandwidth_bytes_per_s": bandwidth,
            "weights_bytes": loaded.target_info.num_bytes,
            "floor_s": floor_s,
            "of_roofline": floor_s / one,
            "context": CONTEXT,
        }
        finding = Finding(NAME, base, table, facts, fraction == 1.0)
        yield Report(f"Turn {turn} of {REPEAT + _WARM_UP}", fraction, finding)
