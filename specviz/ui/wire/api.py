"""The endpoint for programs: the same engine, the same line, the same checks as the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gradio as gr
import gradio.utils

from specviz.config import DEFAULT_GAMMA, DEFAULT_METHOD
from specviz.drafters.options import read_options
from specviz.drafters.registry import get_method
from specviz.errors import ConfigError
from specviz.events import Event, RunFinished, RunStarted, event_to_json
from specviz.metrics import Counters, summary
from specviz.ui.access.host import EngineHost, Notice
from specviz.ui.controls import CONCURRENCY
from specviz.ui.problems import sentence_for
from specviz.ui.settings import WatchSettings

__all__ = ["add_api"]


def add_api(host: EngineHost) -> None:
    """Register `spec_events` within the current Blocks."""

    def spec_events(  # type: ignore[misc]  # Gradio wants the type of one message
        prompt: str,
        method: str = DEFAULT_METHOD,
        gamma: int = DEFAULT_GAMMA,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: list[str] | None = None,
        pair: str = "",
        dtype: str = "auto",
        exact: str = "auto",
        width: int = 8,
        draft_quant: str = "auto",
        draft_length: str = "fixed",
        confidence: float = 0.4,
        verify: str = "auto",
        epsilon: float = 0.09,
        delta: float = 0.3,
        threshold: float = 0.3,
        options: dict[str, Any] | None = None,
        raw: bool = False,
        detail: bool = False,
        time_limit_s: float = 120.0,
    ) -> dict:
        """Run speculative decoding and stream what happens: one JSON event a step, and a summary last.

        Every message is an object with a "type": RunStarted, PrefillDone, StepDone (many), RunFinished, Summary.
        A step lists the drafted tokens with their fate (accepted, rejected, discarded) and the emitted ones with their
        origin (accepted, corrected, bonus, target).

        Args:
            prompt: what to answer, at most 20,000 characters.
            method: how to draft, a name that `python -m specviz methods` lists; plain drafts nothing.
            gamma: most tokens drafted per step, 0 to 15.
            max_new_tokens: length limit, 1 to 4096.
            temperature: 0 is greedy, at most 5.
            top_k: 0 is off.
            top_p: 1 is off.
            repetition_penalty: 1 is off.
            seed: of the random draws; none for a fresh one.
            stop: at most 8 texts that end the answer.
            pair: model pair of the catalog, or host:port of an attached server; empty for what this page starts with.
            dtype: auto, bfloat16 or float32.
            exact: auto, on or off: passes padded so that greedy text equals plain decoding's to the bit.
            width: most rows of a pass in exact mode.
            draft_quant: how a drafting model's weights are held: auto, nf4, int8, bfloat16 or float32.
            draft_length: fixed, heuristic, confidence or best: how many to draft from step to step, at most gamma.
            confidence: with draft_length confidence, drafting stops behind a token whose q is under this.
            verify: auto, block and token keep the target's distribution; typical and threshold are approximate.
            epsilon: of typical acceptance.
            delta: of typical acceptance.
            threshold: of threshold acceptance.
            options: the method's own settings by name, such as window for lookahead.
            raw: no chat template: the model continues the text.
            detail: add the five likeliest tokens of draft and target.
            time_limit_s: wall-clock limit of the run, 1 to 600 seconds.
        """
        values = {
            "prompt": prompt, "method": method, "gamma": gamma, "max_new_tokens": max_new_tokens,
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty,
            "seed": seed, "stop": stop, "pair": pair or host.first_choice, "dtype": dtype, "exact": exact,
            "width": width, "draft_quant": draft_quant, "draft_length": draft_length, "confidence": confidence,
            "verify": verify, "epsilon": epsilon, "delta": delta, "threshold": threshold, "raw": raw,
            "detail": detail, "time_limit_s": time_limit_s,
        }  # fmt: skip
        try:
            own = _own_options(method, options)
            yield from _events(host, WatchSettings.read(values | own, [*host.servers, *host.pairs]))
        except Exception as error:
            raise gr.Error(sentence_for(error), print_exception=False) from None

    _send_objects_whole()
    gr.api(spec_events, api_name="spec_events", **CONCURRENCY)


def _send_objects_whole() -> None:
    """Let Gradio send every message of a stream whole where it is an object.

    It sends edits against the message before, and those of nested lists that shrink count wrong (gradio.utils.diff,
    6.31): a client would put together another message than the one sent, or lose the end of the run. Texts, as the
    page's deltas are, go on as before.
    """
    edits = gradio.utils.diff
    if getattr(edits, "sends_objects_whole", False):
        return

    def diff(old: Any, new: Any) -> Any:
        return [["replace", [], new]] if isinstance(new, dict) else edits(old, new)

    diff.sends_objects_whole = True  # type: ignore[attr-defined]
    gradio.utils.diff = diff


def _own_options(method: Any, options: Any) -> dict[str, Any]:
    """A program's options for one method, checked; those of another method are refused rather than dropped."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ConfigError(f"options must be an object of names and values; got {type(options).__name__}.")
    found = get_method(str(method))
    return read_options(found.name, found.options, options)


def _events(host: EngineHost, settings: WatchSettings) -> Iterator[dict[str, Any]]:
    with closing(host.turn(settings.pair, settings.dtype)) as turn:
        engine = None
        for item in turn:
            if not isinstance(item, Notice):
                engine = item
                break
            yield {"type": "Waiting", "text": item.text, "fraction": item.fraction}
        assert engine is not None  # without a stop there is no other way out of the line
        counters = Counters()
        seen: dict[str, Event] = {}
        events = engine.stream(settings.prompt, settings.config)
        try:
            for event in events:
                counters.update(event)
                seen[type(event).__name__] = event
                yield event_to_json(event)
        finally:
            events.close()  # type: ignore[attr-defined]
        started, finished = seen["RunStarted"], seen["RunFinished"]
        assert isinstance(started, RunStarted)
        assert isinstance(finished, RunFinished)
        yield {"type": "Summary"} | summary(started, counters, finished)
