"""Quantization as an axis: one draft, held in four number formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specviz.bench.contest import specviz_method
from specviz.bench.runner import Entry, Score, Turn, take_turns
from specviz.bench.settings import Setting
from specviz.bench.sweep import Measured, check_settings, sweep_rows
from specviz.config import RunConfig
from specviz.drafters.registry import get_method
from specviz.errors import ConfigError, ModelLoadError
from specviz.events import Event, RunFinished
from specviz.generator import plain_beside
from specviz.lab.experiment import Ask, Check, Finding, Report, about, breaking_off
from specviz.models.chat import encode_prompt
from specviz.models.exactness import pass_seconds
from specviz.models.machine import probe
from specviz.models.session import PREFILL_ROWS, Session
from specviz.sampling import spread

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator
    from specviz.models.loader import LoadedPair

__all__ = ["FORMATS", "count_agreeing", "measure_precision"]

NAME = "precision"
FORMATS = ("float32", "bfloat16", "int8", "nf4")
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.1, "nf4": 0.6}
"""Of a weight, scales included, rounded up: only to refuse beforehand what would not fit."""

_FIGURES = ("c", "v", "alpha", "acceptance_length", "speed_up", "speed_up_low", "speed_up_high", "theory_speed_up")


def measure_precision(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """Format by format: bytes, time of a pass, first choices that are the target's, then runs in turns with plain
    decoding. One draft is in memory at a time. A format that cannot be held says why in its row.

    The draft is that of the chosen method if a model drafts there, else the pair's own, else a copy of the target.

    Raises:
        ConfigError: the pair cannot draft with a model.
    """
    loaded = engine.loaded
    method = _drafting_method(loaded, ask.config.method)
    config = replace(
        ask.config, method=method, options={}, gamma=max(1, ask.config.gamma), draft_length="fixed", time_limit_s=0.0
    )
    is_copy = method == "quantized-copy"
    ids, _ = encode_prompt(loaded.tokenizer, ask.prompt, config.raw)
    base = about(engine, replace(ask, config=config))
    through = breaking_off(check)
    yield Report("Loading the draft", 0.0)
    _, in_use = loaded.draft_model(config.draft_quant, copy=is_copy)
    loaded.refuse_other_tokens("Comparing a draft's formats")
    yield Report("The target answers, for drafts to be compared with", 0.0)
    greedy = RunConfig("plain", gamma=0, max_new_tokens=config.max_new_tokens)
    answer = _last(through(engine.stream(ids, greedy))).token_ids
    facts = {"gamma": config.gamma, "draft": in_use.name, "num_compared": len(answer)}
    table: list[dict[str, Any]] = []
    for number, held in enumerate(FORMATS):
        row: dict[str, Any] = {"format": held, "is_used": held == in_use.quantization}
        yield Report(f"Loading the draft as {held}", number / len(FORMATS))
        check()
        try:
            _refuse_what_does_not_fit(in_use.num_params, held)
            model, info = loaded.draft_model(held, copy=is_copy)
        except ModelLoadError as error:
            row["note"] = str(error)
        else:
            row |= {
                "num_bytes": info.num_bytes,
                "pass_s": pass_seconds(model, (1,), loaded.vocab_size)[0],
                "num_agreeing": count_agreeing(model, loaded.vocab_size, ids, answer),
                "note": _note(loaded, model, held),
            }
            row["agreement"] = row["num_agreeing"] / len(answer)
            race = _Race(engine, replace(config, draft_quant=held), Entry("prompt", "prompt", tuple(ids)), ask.repeat)
            for turn in race.turns(through):
                done = (number + turn.fraction) / len(FORMATS)
                yield Report(f"{held}: {turn.contestant}, round {turn.number} of {ask.repeat}", done)
            row |= race.figures()
        table.append(row)
        finding = Finding(NAME, base, tuple(table), facts, number + 1 == len(FORMATS))
        yield Report(f"{held} done", (number + 1) / len(FORMATS), finding)


def count_agreeing(model: Any, vocab_size: int, prompt_ids: Sequence[int], answer: Sequence[int]) -> int:
    """At how many places of a greedy answer the model's first choice behind the same text is the answer's token."""
    output_ids = getattr(model, "output_ids", None)  # of a trained draft, see models.trunk
    num_known = int(model.config.get_text_config(decoder=True).vocab_size)
    text = [token if token < num_known else 0 for token in (*prompt_ids, *answer[:-1])]
    first = len(prompt_ids) - 1
    session = Session(model, capacity=len(text))
    agreeing = 0
    try:
        if first:
            session.extend(text[:first])
        for start in range(first, len(text), PREFILL_ROWS):
            block = text[start : start + PREFILL_ROWS]
            logits = session.extend(block, num_logits=len(block))
            for place, row in enumerate(logits, start - first):
                agreeing += int(spread(row, output_ids, vocab_size).argmax()) == answer[place]
    finally:
        session.close()
    return agreeing


class _Race:
    """One format's runs, in turns with plain decoding."""

    def __init__(self, engine: SpeculativeGenerator, config: RunConfig, entry: Entry, repeat: int) -> None:
        self._engine, self._entry, self._repeat = engine, entry, repeat
        self._setting = Setting({"draft_quant": config.draft_quant}, config)
        self._scores = [Score("plain decoding"), Score("speculative")]

    def turns(self, through: Any) -> Iterator[Turn]:
        config = self._setting.config
        runs = [
            specviz_method(self._engine, one, score.name, through)
            for one, score in zip((plain_beside(config), config), self._scores, strict=True)
        ]
        limit = config.max_new_tokens
        yield from take_turns(runs, [self._entry], self._scores, limit=limit, repeat=self._repeat)

    def figures(self) -> dict[str, Any]:
        started = check_settings(self._engine, [self._setting], [self._entry])[0]
        plain, mine = self._scores
        row = sweep_rows([Measured(self._setting, started, mine, plain)], [self._entry], repeat=self._repeat)[-1]
        return {name: row[name] for name in _FIGURES}


def _note(loaded: LoadedPair, model: Any, held: str) -> str:
    """What a reader of its size has to know."""
    if model is loaded.target:
        return "The target itself: no weights of its own."
    if loaded.draft_extra is not None and held in ("float32", "bfloat16") and held != loaded.target_info.dtype:
        return "With an embedding of its own, as the target’s has another format."
    return ""


def _drafting_method(loaded: LoadedPair, chosen: str) -> str:
    wanted = ("draft-model", "quantized-copy")
    names = [chosen] if chosen in wanted else list(wanted)
    refusals = [get_method(name).refusal(loaded) for name in names]
    able = next((name for name, refusal in zip(names, refusals, strict=True) if refusal is None), None)
    if able is None:
        raise ConfigError(refusals[0] or "")
    return able


def _refuse_what_does_not_fit(num_params: int, held: str) -> None:
    needed, free = num_params * _BYTES[held], probe().memory_available
    if free and needed > 0.9 * free:
        raise ModelLoadError(f"It would need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free here.")


def _last(events: Iterator[Event]) -> RunFinished:
    *_, end = events
    assert isinstance(end, RunFinished)
    if end.reason == "error":
        raise ConfigError(end.message)
    return end
