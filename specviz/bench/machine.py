"""What the machine can do with this pair: what a pass costs by its rows, and how far from memory's speed that is."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from specviz.generator import SpeculativeGenerator
from specviz.models.exactness import pass_seconds

__all__ = ["ROWS", "PassCosts", "measure_passes", "memory_bandwidth"]

ROWS = (1, 2, 4, 5, 8, 16)


@dataclass(frozen=True, slots=True)
class PassCosts:
    """seconds: of a pass, by rows. bandwidth: bytes a second that a large read reaches. floor_s: seconds in which the
    target's weights could be read once at that speed: no one-row pass can be faster (the roofline's memory side).
    """

    seconds: dict[int, float]
    bandwidth: float
    floor_s: float

    def to_json(self) -> dict[str, Any]:
        one = self.seconds[1]
        return {
            "pass_s": {str(rows): seconds for rows, seconds in self.seconds.items()},
            "v": {str(rows): seconds / one for rows, seconds in self.seconds.items()},
            "bandwidth_bytes_per_s": self.bandwidth,
            "floor_s": self.floor_s,
            "of_roofline": self.floor_s / one,
        }


def measure_passes(engine: SpeculativeGenerator) -> PassCosts:
    """Passes of the target on a context of 100 tokens, and the memory floor beneath them."""
    loaded = engine.loaded
    seconds = dict(zip(ROWS, pass_seconds(loaded.target, ROWS, loaded.vocab_size), strict=True))
    bandwidth = memory_bandwidth(device=loaded.device)
    return PassCosts(seconds, bandwidth, loaded.target_info.num_bytes / bandwidth)


def memory_bandwidth(megabytes: int = 256, repeat: int = 7, device: torch.device | str = "cpu") -> float:
    """Bytes a second of summing a tensor larger than the caches, with torch's threads."""
    data = torch.ones(megabytes * 250_000, dtype=torch.float32, device=device)
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        data.sum().item()
        times.append(time.perf_counter() - began)
    return data.nbytes / statistics.median(times)
