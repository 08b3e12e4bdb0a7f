"""`specviz.watch(model)`: what transformers' own `generate` drafts, keeps and refuses, as events like any run's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, GenerationMixin, PreTrainedTokenizerFast

from specviz.errors import ConfigError
from specviz.events import Event, RunFinished, RunStarted
from specviz.generate.adapter import Adapter, Call, Round
from specviz.generate.recording import Recording
from specviz.metrics import Baseline, Counters, fold
from specviz.models.machine import probe, versions
from specviz.trace import Trace, dump_trace

__all__ = ["WatchedRun", "watch"]

_log = logging.getLogger(__name__)


def watch(
    model: Any,
    tokenizer: Any = None,
    *,
    detail: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> WatchedRun:
    """Watch `model.generate`, with an assistant or without one.

        with specviz.watch(model) as run:
            model.generate(**inputs)                            # plain decoding, to compare with
            model.generate(**inputs, assistant_model=draft)
        run.save("run.jsonl")

    The text, the random numbers and the model stay what they are without it. Recording takes time of its own, which is
    in no time of the run.

    Args:
        model: a transformers model, the target. It is watched on this thread, and as it was again behind the block.
        tokenizer: the target's, to show tokens as text. None: the one given to `generate`, else the one stored beside
            the model on this machine, else tokens are shown by their ids.
        detail: record the five likeliest tokens at every place as well.
        on_event: called with each event as it is made. What it raises ends `generate`.
    Raises:
        ConfigError: not such a model or tokenizer.
    """
    if not isinstance(model, GenerationMixin):
        hint = " Its generator's `stream` gives events itself." if hasattr(model, "loaded") else ""
        raise ConfigError(
            f"specviz.watch takes a transformers model with `generate`, such as AutoModelForCausalLM gives; this is a "
            f"{type(model).__name__}. Of a wrapped model, watch the one inside.{hint}"
        )
    if tokenizer is not None:
        _check_tokenizer(tokenizer)
    return WatchedRun(model, tokenizer, detail=detail, on_event=on_event)


class WatchedRun:
    """The runs seen in one `with` block. Iterating gives the events of `events`."""

    def __init__(self, model: Any, tokenizer: Any, *, detail: bool, on_event: Callable[[Event], None] | None) -> None:
        self.runs: list[tuple[Event, ...]] = []
        """Events of every call of `generate`, in order; of one that goes on, so far as it has come."""
        self._model, self._tokenizer, self._detail, self._on_event = model, tokenizer, detail, on_event
        self._adapter: Adapter | None = None
        self._recording: Recording | None = None
        self._about: dict[str, Any] = {}
        self._stored: Any = None

    def __enter__(self) -> WatchedRun:
        if self._adapter is not None or self.runs:
            raise ConfigError("A watch is used once. Call specviz.watch again for another `with` block.")
        self._about = {
            "machine": probe().to_json() | {"threads": torch.get_num_threads()},
            "versions": versions(),
        }
        adapter = Adapter(self._model, self)
        adapter.attach()
        self._adapter = adapter
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if self._adapter is not None:
            self._adapter.detach()

    # --- the runs ---------------------------------------------------------------------------------------------------

    @property
    def events(self) -> tuple[Event, ...]:
        """The last run that drafted, else the last one. Empty before `generate` has written."""
        return next((run for run in reversed(self.runs) if _drafts(run)), self.runs[-1] if self.runs else ())

    @property
    def plain(self) -> tuple[Event, ...]:
        """The plain run of the same prompt that goes with `events`: the last one in this block, else empty."""
        chosen = self.events
        return next((run for run in reversed(self.runs) if run is not chosen and _is_plain_beside(run, chosen)), ())

    @property
    def trace(self) -> Trace:
        """`events` with `plain` beside them, as a trace file holds them. Raises ConfigError: nothing was recorded."""
        if not self.events:
            raise ConfigError("Nothing was recorded. Call model.generate inside the `with specviz.watch(model)` block.")
        return Trace(self.events, self.plain)

    @property
    def counters(self) -> Counters:
        """Counts and rates of `events`."""
        return fold(self.events)

    @property
    def baseline(self) -> Baseline | None:
        """Plain decoding's figures, compared with `events`; None where it was not watched too."""
        return Baseline.of(self.plain, self.events) if self.plain else None

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def save(self, path: str | Path) -> None:
        """Write `trace` as a file (.jsonl), to be opened on the page or by `load_trace`. Raises what `trace` does."""
        trace = self.trace
        Path(path).write_text(dump_trace(trace.events, trace.plain), encoding="utf-8")

    # --- what the adapter tells -------------------------------------------------------------------------------------

    def begins(self, call: Call) -> None:
        tell = self._on_event or _nothing
        tokenizer = self._tokenizer_of(call)
        self._recording = Recording(self._model, tokenizer, self._about, detail=self._detail, tell=tell)

    def wrote(self, call: Call, round_: Round) -> None:
        assert self._recording is not None
        is_first = not self._recording.events
        try:
            self._recording.wrote(call, round_)
        finally:
            self._keep(is_first)

    def ended(self, call: Call, sequences: Tensor | None, error: BaseException | None) -> None:
        assert self._recording is not None
        if not self._recording.events:
            if error is None:
                _log.warning("specviz.watch saw nothing of this generate, which took a way of its own.")
            return
        try:
            self._recording.ended(sequences, error)
        finally:
            self._keep(is_new=False)

    def _keep(self, is_new: bool) -> None:
        assert self._recording is not None
        events = tuple(self._recording.events)
        if is_new and events:
            self.runs.append(events)
        elif events:
            self.runs[-1] = events

    def _tokenizer_of(self, call: Call) -> Any:
        given = self._tokenizer or call.arguments.get("tokenizer")
        if given is None:
            if self._stored is None:
                self._stored = _stored_tokenizer(self._model)
            given = self._stored
        return given if _is_fast(given) else None


def _nothing(event: Event) -> None:
    pass


def _drafts(run: tuple[Event, ...]) -> bool:
    started = run[0]
    return isinstance(started, RunStarted) and started.method != "transformers"


def _is_plain_beside(run: tuple[Event, ...], other: tuple[Event, ...]) -> bool:
    one, two = run[0], other[0]
    assert isinstance(one, RunStarted)
    assert isinstance(two, RunStarted)
    same = one.prompt_ids == two.prompt_ids and one.settings["temperature"] == two.settings["temperature"]
    return same and not _drafts(run) and isinstance(run[-1], RunFinished)


def _is_fast(tokenizer: Any) -> bool:
    return isinstance(tokenizer, PreTrainedTokenizerFast)


def _check_tokenizer(tokenizer: Any) -> None:
    if not _is_fast(tokenizer):
        raise ConfigError(
            f"specviz.watch needs a fast tokenizer (tokenizers library) to show text; this is a "
            f"{type(tokenizer).__name__}. Leave it out to see tokens by their ids."
        )


def _stored_tokenizer(model: Any) -> Any:
    """The tokenizer stored with the model's weights, if it is on this machine; False where there is none."""
    name = str(getattr(model, "name_or_path", "") or "")
    if not name:
        return False
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception:  # no tokenizer there, or one of a kind that cannot be read: ids are shown
        return False
