"""A Space on ZeroGPU: models wait in main memory here, and each run borrows a GPU in a process of its own.

`spaces.GPU` forks this process, runs a generator there, and hands back what it yields as pickles. What crosses is
plain: an `Errand` in, events as JSON data out. The line of visitors, the engine's lock and the coalescer stay on this
side: a lock that is held while the process forks would stay locked there.

Hugging Face advises to place models on the GPU before the page opens. Here they are loaded behind the open page, as
everywhere, and a worker takes its copy to the GPU once and keeps it for the runs after; the page is alive meanwhile,
and a visitor may choose another pair.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import gradio as gr

from specviz import errors
from specviz.config import RunConfig
from specviz.events import Event, event_from_json, event_to_json
from specviz.generator import SpeculativeGenerator
from specviz.models.catalog import ModelPair
from specviz.models.loader import LoadedPair, load_pair
from specviz.ui.access.host import EngineHost

__all__ = ["DEFAULT_PAIR", "BorrowedEngine", "Errand", "ZeroGpuHost", "seconds_asked"]

DEFAULT_PAIR = "smollm2-1.7b"
"""What a GPU is borrowed for: a target that is slow on two processor cores, with the small model of its family."""

DTYPE = "bfloat16"
START_S = 10
"""Seconds for a new worker: the fork, the models' way to the GPU, and the first passes."""

TOKEN_S = 0.06
LEAST_S = 10
"""Seconds asked for a token, and at least for a run: more than slow ones take, as only used seconds are charged."""

MOST_S = 75
"""Most seconds asked for. Half a card counts them 1.5 times, and a visitor without an account has 120 a day."""

Data = dict[str, Any]
Kind = Literal["stream", "stream_plain", "stream_equal_width", "logit_gap"]


@dataclass(frozen=True, slots=True)
class Errand:
    """What a worker is asked to do: a method of SpeculativeGenerator, and on what. Plain data, fit to be pickled."""

    kind: Kind
    pair: ModelPair
    dtype: str
    prompt: str | tuple[int, ...]
    config: RunConfig


def seconds_asked(errand: Errand) -> int:
    """GPU seconds that this errand may take, start of a worker included: a short run waits less for a GPU."""
    if errand.kind == "logit_gap":
        return START_S
    run_s = max(LEAST_S, errand.config.max_new_tokens * TOKEN_S)
    return min(MOST_S, START_S + math.ceil(min(run_s, errand.config.time_limit_s or run_s)))


class ZeroGpuHost(EngineHost):
    """An EngineHost whose models wait in main memory, and whose engine works on a borrowed GPU."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _borrow()  # the page cannot be served before a function is decorated

    def _build(self, pair: ModelPair, dtype: str) -> Any:
        """Load only: nothing may be computed here, where there is no GPU and where workers are forked from."""
        number_format = DTYPE if dtype == "auto" else dtype
        loaded = self._load_pair(
            pair, dtype=number_format, device="cpu", progress=lambda text, share=None: self._say(text, share, pair.name)
        )
        return BorrowedEngine(loaded)

    def _adopt(self, engine: Any, dtype: str) -> None:
        super()._adopt(engine, dtype)
        _Worker.inherited = engine.loaded

    def _settle(self, error: BaseException | None = None) -> None:
        super()._settle(error)
        if self.engine is not None:
            loaded = self.engine.loaded
            text = f"Ready · {loaded.pair.title}, {loaded.target_info.dtype}, a GPU for each run"
            self.status = replace(self.status, text=text)


class BorrowedEngine:
    """What the page needs of a SpeculativeGenerator, each call of it done on a borrowed GPU.

    loaded: the pair in main memory; nothing is computed with it on this side.
    """

    def __init__(self, loaded: LoadedPair) -> None:
        self.loaded = loaded

    def stream(self, prompt: str | Sequence[int], config: RunConfig) -> Iterator[Event]:
        """As SpeculativeGenerator.stream. Returns once a GPU is there and the settings have been accepted.

        Raises:
            BusyError: no GPU came free, or the visitor's time on it is used up.
        """
        return self._events("stream", prompt, config)

    def stream_plain(self, prompt: str | Sequence[int], config: RunConfig) -> Iterator[Event]:
        """As SpeculativeGenerator.stream_plain."""
        return self._events("stream_plain", prompt, config)

    def stream_equal_width(self, prompt: str | Sequence[int], config: RunConfig) -> Iterator[Event]:
        """As SpeculativeGenerator.stream_equal_width."""
        return self._events("stream_equal_width", prompt, config)

    def logit_gap(self, token_ids: Sequence[int]) -> float:
        """As SpeculativeGenerator.logit_gap."""
        with closing(_ask(self._errand("logit_gap", token_ids, RunConfig()))) as answers:
            return float(next(answers)["gap"])

    def _events(self, kind: Kind, prompt: str | Sequence[int], config: RunConfig) -> Iterator[Event]:
        answers = _ask(self._errand(kind, prompt, config))
        return _read(next(answers), answers)

    def _errand(self, kind: Kind, prompt: str | Sequence[int], config: RunConfig) -> Errand:
        """The self-test that decides about exact passes would be paid for by each visitor: off unless asked for. The
        run ends by itself before the GPU would be taken away."""
        errand = Errand(
            kind,
            self.loaded.pair,
            self.loaded.target_info.dtype,
            prompt if isinstance(prompt, str) else tuple(prompt),
            replace(config, exact=bool(config.exact)),
        )
        limit = seconds_asked(errand) - START_S
        return errand if limit <= 0 else replace(errand, config=replace(errand.config, time_limit_s=float(limit)))


def _ask(errand: Errand) -> Generator[Data, None, None]:
    """A worker's answers, its failures raised here."""
    answers = _borrow()(errand)
    try:
        for answer in answers:
            if answer["type"] == "Failure":
                raise getattr(errors, answer["error"], errors.SpecvizError)(answer["text"])
            yield answer
    except gr.Error as error:
        raise errors.BusyError(in_plain_words(error)) from error
    finally:
        answers.close()


def _read(first: Data, answers: Generator[Data, None, None]) -> Iterator[Event]:
    try:
        yield event_from_json(first)
        for answer in answers:
            yield event_from_json(answer)
    finally:
        answers.close()


def in_plain_words(error: gr.Error) -> str:
    """What the package `spaces` says in toasts, as a sentence for the page."""
    title, message = str(getattr(error, "title", "")), str(error.message)
    fewer = "Choose fewer new tokens"
    if "illegal duration" in title:
        return f"This run asks for more GPU time than a visitor may use at once. {fewer}."
    if "queue timeout" in title or "No GPU was available" in message:
        return "No GPU was free within a minute. Try again in a moment; the page is unchanged."
    if "quota exceeded" in title:
        numbers = re.search(r"\((\d+)s requested vs\. (\d+)s left\)", message)
        asked = f" (this run asks for {numbers[1]} s, {numbers[2]} s are left)" if numbers else ""
        again = re.search(r"Try again in ([\d:]+|\d+ days?, [\d:]+)", message)
        when = f" Try again in {again[1]}" if again else " Try again later"
        return f"Your GPU time of today is used up{asked}.{when}, log in to Hugging Face for more, or {fewer.lower()}."
    if "aborted" in message:
        return f"The GPU was taken back before the run was over. Everything so far is kept. {fewer}."
    if "worker error" in title:
        return f"Something failed on the GPU ({message[:60]}). The log of the Space has the details."
    return f"No GPU could be borrowed: {message[:200]}"


@cache
def _borrow() -> Callable[[Errand], Any]:
    """`work`, to be done on a borrowed GPU. The package is on Spaces only."""
    import spaces

    return spaces.GPU(duration=seconds_asked)(work)


# --- in the worker ---------------------------------------------------------------------------------------------------


class _Worker:
    """What a worker finds when it is forked, and what it keeps between errands."""

    inherited: LoadedPair | None = None
    engine: SpeculativeGenerator | None = None


def work(errand: Errand) -> Iterator[Data]:
    """Events as JSON data; a failure that is fit to be shown as the last item."""
    try:
        engine = _engine(errand)
        if errand.kind == "logit_gap":
            yield {"type": "LogitGap", "gap": engine.logit_gap(tuple(errand.prompt))}  # type: ignore[arg-type]
            return
        with closing(getattr(engine, errand.kind)(errand.prompt, errand.config)) as events:
            for event in events:
                yield event_to_json(event)
    except errors.SpecvizError as error:
        yield {"type": "Failure", "error": type(error).__name__, "text": str(error)}


def _engine(errand: Errand) -> SpeculativeGenerator:
    """The worker's engine for this pair. Made from the models that were here at the fork, else from their files."""
    kept = _Worker.engine
    if kept is not None and _is_for(kept.loaded, errand):
        return kept
    if kept is not None:
        kept.loaded.close()
    found = _Worker.inherited
    if found is not None and _is_for(found, errand):
        loaded = _on_the_gpu(found)
    else:
        loaded = load_pair(errand.pair, dtype=errand.dtype)
    _Worker.inherited = None
    _Worker.engine = SpeculativeGenerator(loaded)
    return _Worker.engine


def _is_for(loaded: LoadedPair, errand: Errand) -> bool:
    return loaded.pair == errand.pair and loaded.target_info.dtype == errand.dtype


def _on_the_gpu(loaded: LoadedPair) -> LoadedPair:
    """The pair with its target on the GPU; its draft is loaded there when a method asks for it."""
    import torch

    if not torch.cuda.is_available():
        return loaded
    device = torch.device("cuda:0")
    return replace(loaded, target=loaded.target.to(device), device=device, lock=threading.Lock())
