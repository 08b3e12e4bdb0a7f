"""specviz: see speculative decoding accept and refuse. The public names; the heavy ones are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specviz.config import RunConfig, SamplingParams
from specviz.errors import SpecvizError
from specviz.events import Event, PrefillDone, RunFinished, RunStarted, StepDone
from specviz.metrics import Counters, fold

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import load_pair

__version__ = "0.1.0"

__all__ = [
    "Counters",
    "Event",
    "PrefillDone",
    "RunConfig",
    "RunFinished",
    "RunStarted",
    "SamplingParams",
    "SpeculativeGenerator",
    "SpecvizError",
    "StepDone",
    "fold",
    "load_pair",
]


def __getattr__(name: str) -> Any:
    """torch and transformers take seconds to import; `import specviz` alone should not."""
    if name == "SpeculativeGenerator":
        from specviz.generator import SpeculativeGenerator

        return SpeculativeGenerator
    if name == "load_pair":
        from specviz.models.loader import load_pair

        return load_pair
    raise AttributeError(f"module 'specviz' has no attribute {name!r}")
