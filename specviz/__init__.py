"""specviz: see speculative decoding accept and refuse.

    generator = SpeculativeGenerator(load_pair("smollm2-135m"))
    for event in generator.stream("Why is the sky blue?", RunConfig(method="prompt-lookup")):
        ...                                 # RunStarted, PrefillDone, StepDone (many), RunFinished

    with specviz.watch(model) as run:           # a transformers model of your own
        model.generate(**inputs, assistant_model=draft)
    run.save("run.jsonl")

A run is a stream of typed events, and everything else reads the stream: `fold(events)` gives every count and rate,
`specviz.trace` stores a run and turns it into pandas tables, `specviz.words` says what it came to, and
`show(events)` plays it in a notebook. Ways to draft are in
`specviz.drafters.registry`, closed forms in `specviz.theory`, named models in `specviz.models.catalog`, and what is
raised on purpose in `specviz.errors`.

These are the public names; those that need torch are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specviz.config import RunConfig, SamplingParams
from specviz.errors import SpecvizError
from specviz.events import Event, PrefillDone, RunFinished, RunStarted, StepDone
from specviz.metrics import Counters, fold

if TYPE_CHECKING:
    from specviz.generate.watch import watch
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import load_pair
    from specviz.ui.saved.notebook import compare, show

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
    "compare",
    "fold",
    "load_pair",
    "show",
    "watch",
]


def __dir__() -> list[str]:
    """For `help` and `pydoc`, which would not see what is imported on first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """torch and transformers take seconds to import; `import specviz` alone should not."""
    if name == "SpeculativeGenerator":
        from specviz.generator import SpeculativeGenerator

        return SpeculativeGenerator
    if name == "load_pair":
        from specviz.models.loader import load_pair

        return load_pair
    if name in ("compare", "show"):
        from specviz.ui.saved import notebook

        return getattr(notebook, name)
    if name == "watch":
        from specviz.generate.watch import watch

        return watch
    raise AttributeError(f"module 'specviz' has no attribute {name!r}")
