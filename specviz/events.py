"""A run as a stream of typed events: plain numbers and strings, JSON both ways.

Order of a run: RunStarted, PrefillDone, StepDone..., RunFinished. A run that fails early still ends in RunFinished.
Everything that shows, counts or stores a run reads these events and nothing else.

Seconds end in `_s`, probabilities in `_prob`, counts start with `num_`.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from specviz.errors import TraceError

__all__ = [
    "SCHEMA_VERSION",
    "DraftNote",
    "DraftedToken",
    "EmittedToken",
    "EngineCounts",
    "Event",
    "Exactness",
    "Fate",
    "FinishReason",
    "ModelInfo",
    "Origin",
    "PrefillDone",
    "RowFate",
    "RunFinished",
    "RunStarted",
    "StepDone",
    "TopToken",
    "event_from_json",
    "event_to_json",
]

SCHEMA_VERSION = 1

MAX_INT = 2**63 - 1
"""Whole numbers in a file beyond this are refused: no seed or count is larger, and dividing them could overflow."""

MAX_DEPTH = 32
"""Levels of lists and objects in free-form data of a file."""

Fate = Literal["accepted", "rejected", "discarded"]
"""Of a drafted token: kept; tried and refused; neither. Discarded tokens were never tried, or, under a rule that keeps
whatever is likely enough, passed on a branch of the tree that a longer or likelier one won over."""

RowFate = Literal["read", "target", "accepted", "rejected", "discarded", "scored", "padding"]
"""Of one row of a pass. read: of a prompt, or read again. target: the last committed token, whose logits are the
target's own word. accepted, rejected, discarded: a drafted token, as in `Fate`. scored: a row for the
drafter's own use. padding: fills the pass up, nobody reads it."""

Origin = Literal["accepted", "corrected", "bonus", "target"]
"""Of an emitted token: drafted and kept; the target's word at a refusal; the target's word after a fully kept draft;
the target's word where nothing was drafted, or where a serving engine does not tell whether anything was."""

Exactness = Literal["exact", "lossless", "approximate", "unchecked"]
"""exact: the text of plain decoding to the bit. lossless: the target's own distribution. approximate: neither.
unchecked: a serving engine verified, and nothing here has tested what it promises."""

FinishReason = Literal["eos", "stop", "length", "context", "time", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class TopToken:
    """One entry of a top-5 list: a token and its probability."""

    token_id: int
    text: str
    prob: float


@dataclass(frozen=True, slots=True)
class DraftNote:
    """What a drafter wants to show about one proposal: a kind that the page can draw, words, and plain data.

    `kind` is the drafter's own, for example "copied" with data source_start, source_end, match_len.
    """

    kind: str = ""
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """A token that was proposed, and what became of it.

    parent: index within the step's `drafted`, -1 for the last committed token. A chain reads -1, 0, 1, ...
    text: what the token adds to the text if the walk reaches it; "" while it is part of an unfinished character.
    label: how to draw a token that has no text of its own (its bytes in hexadecimal, a control token's name), else "".
    draft_prob, target_prob: q and p of this token where known. In a greedy run the models' own probabilities at
        temperature 1, for information only.
    accept_prob: min(1, p/q), None in a greedy run and for untested tokens. coin: the uniform draw, likewise.
    prefix_prob, block_prob: p_i and h_i of block verification, see `specviz.verify.verify_block`; None under any other
        rule. Where they are given, the coin is compared with h_i, and tokens behind the kept ones have coins as well.
    overlap: sum of min(p, q) over the vocabulary at this position, None where q or p is unknown.
    draft_top, target_top, residual_top: five likeliest tokens under q, p and norm(max(p - q, 0)), of a block
        norm(max(p_i p - q, 0)); only with detail on.
    """

    token_id: int
    text: str
    parent: int
    fate: Fate
    label: str = ""
    draft_prob: float | None = None
    target_prob: float | None = None
    accept_prob: float | None = None
    coin: float | None = None
    overlap: float | None = None
    draft_top: tuple[TopToken, ...] = ()
    target_top: tuple[TopToken, ...] = ()
    residual_top: tuple[TopToken, ...] = ()
    prefix_prob: float | None = None
    block_prob: float | None = None


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """A token of the answer. The `text` of all emitted tokens, joined, is the decoded text, control tokens included.

    special: a control token of the tokenizer, which the visible text leaves out.
    """

    token_id: int
    text: str
    origin: Origin
    label: str = ""
    special: bool = False
    target_prob: float | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which weights ran: enough to fetch the same ones again."""

    name: str
    source: str = ""
    revision: str = ""
    sha256: str = ""
    licence: str = ""
    dtype: str = ""
    quantization: str = ""
    num_params: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Everything that is known before the first pass.

    prompt: what the user wrote. prompt_ids, prompt_texts: what the model reads, chat template included.
    width: most rows of a pass whose bits the self-test vouches for, 0 where the run does not promise them.
    min_rows: rows that a chain's passes are padded to, 0 where they have one for each token. Equal to `width` where
        only passes of one size agree to the bit (as in runs before there was this field, which had 0 here).
    exactness: the word for this run, and exactness_reason why it is that word.
    num_layers: depth of the target, for methods that run a part of it.
    """

    run_id: str
    method: str
    prompt: str
    prompt_ids: tuple[int, ...]
    prompt_texts: tuple[str, ...]
    target: ModelInfo
    draft: ModelInfo | None
    dtype: str
    width: int
    exactness: Exactness
    exactness_reason: str
    verify: str
    gamma: int
    settings: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    started_at: str
    pair: str = ""
    device: str = "cpu"
    num_layers: int = 0
    command: str = ""
    notes: tuple[str, ...] = ()
    min_rows: int = 0

    @property
    def fixed_rows(self) -> int:
        """Rows of every pass where they all have the same number for the sake of exactness, else 0."""
        return self.width if self.min_rows in (0, self.width) else 0


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prompt is in the caches: all but its last token here, all of it in a serving engine.

    prefill_s: with the first step in it where that read the prompt too (`StepDone.with_prompt`).
    emitted: empty here. A serving engine reads the whole prompt and so writes its first token before the first step.
    """

    prompt_len: int
    prefill_s: float
    emitted: tuple[EmittedToken, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDone:
    """One draft-verify round.

    num_drafted: tokens drafted, None where a serving engine does not tell; len(drafted) where `drafted` is known.
    rows: rows of the target's pass, num_padding that only fill it up among them.
    target_work: the target's work in full passes, as its layers were run. A chain 1; early exit n*E/L + (L - E)/L with
        n passes of the first E of L layers, one more than tokens were drafted: the last one is read when checking; 2
        where tokens were fed again.
    num_again: tokens that were fed again, as the target keeps a recurrent state, and that had read a refused token.
    draft_s: time inside the drafter. verify_s: the target's passes. other_s: all the rest, sampling included.
    cache_len: target cache entries that count after the step.
    gamma: how many tokens the drafter was asked for.
    with_prompt: the step's pass read the prompt as well, so its seconds are in `prefill_s` and it has none of its own.
    company: runs whose passes were made together with this one's, itself included. Beside others verify_s is the
        time until all of them were done, drafts of the others included: a pace, and no measure of the method.
    """

    index: int
    drafted: tuple[DraftedToken, ...]
    num_drafted: int | None
    emitted: tuple[EmittedToken, ...]
    num_accepted: int
    rows: int
    target_work: float
    draft_s: float
    verify_s: float
    other_s: float
    cache_len: int
    gamma: int
    note: DraftNote | None = None
    num_padding: int = 0
    num_again: int = 0
    with_prompt: bool = False
    company: int = 1


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What a serving engine's own counters say of a whole run, where its steps do not tell what was refused.

    num_drafts: steps that drafted. accepted_at: [positions] accepted tokens by place in the draft, first place first.
    is_bound: other requests ran beside this one, so each number is at most that for this run.
    drafted_by_step, accepted_by_step: [steps that drafted] tokens, in order and for this run alone, where the engine
        lists them.
    """

    num_drafts: int
    num_drafted: int
    num_accepted: int
    accepted_at: tuple[int, ...] = ()
    is_bound: bool = False
    drafted_by_step: tuple[int, ...] = ()
    accepted_by_step: tuple[int, ...] = ()

    @property
    def num_rejections(self) -> int | None:
        """Drafts that ended in a refusal; None where drafts of several lengths leave it open."""
        if self.drafted_by_step:
            pairs = zip(self.drafted_by_step, self.accepted_by_step, strict=True)
            return sum(accepted < drafted for drafted, accepted in pairs)
        if not self.num_accepted:
            return self.num_drafts
        if self.num_accepted == self.num_drafted:
            return 0
        if self.accepted_at and self.num_drafted == len(self.accepted_at) * self.num_drafts:
            return self.num_drafts - self.accepted_at[-1]
        return None


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The end of a run and its totals.

    text: the visible answer: control tokens left out, cut before a stop text. token_ids: every emitted token.
    message: in words what happened, for reasons "error", "time" and "context", and for what a serving engine left open.
    first_token_s: prefill plus first step, None if no step was done. A serving engine's is that of its prefill alone.
    counts: a serving engine's counters over this run, None where there are none.
    """

    reason: FinishReason
    text: str
    token_ids: tuple[int, ...]
    num_tokens: int
    num_steps: int
    prefill_s: float
    first_token_s: float | None
    decode_s: float
    message: str = ""
    memory: dict[str, int] = field(default_factory=dict)
    counts: EngineCounts | None = None


Event = RunStarted | PrefillDone | StepDone | RunFinished

_TYPES: dict[str, type] = {cls.__name__: cls for cls in (RunStarted, PrefillDone, StepDone, RunFinished)}


def event_to_json(event: Any) -> dict[str, Any]:
    """Plain dictionary with the class name under "type" and fields at their default left out."""
    return {"type": type(event).__name__, **_plain(event)}


def event_from_json(data: Any, kinds: Mapping[str, type] = _TYPES) -> Any:
    """The event that `event_to_json` wrote, checked field by field.

    kinds: the classes that are allowed, by name; those of a run if nothing is said.
    Raises:
        TraceError: not an object, an unknown type, a missing or unknown field, a wrong type; a number that is not
            finite, larger than MAX_INT, or outside what its name allows; text that is not valid Unicode.
    """
    if not isinstance(data, Mapping):
        raise TraceError(f"An event must be a JSON object, not {type(data).__name__}.")
    cls = kinds.get(str(data.get("type")))
    if cls is None:
        raise TraceError(f"Unknown event type {str(data.get('type'))[:40]!r}; known are {', '.join(kinds)}.")
    return _build(cls, {key: value for key, value in data.items() if key != "type"}, cls.__name__)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _plain(item)
            for f in dataclasses.fields(value)
            if not _is_default(f, item := getattr(value, f.name))
        }
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _is_default(f: dataclasses.Field[Any], value: Any) -> bool:
    if f.default is not dataclasses.MISSING:
        return bool(type(value) is type(f.default) and value == f.default)
    return f.default_factory is not dataclasses.MISSING and value == f.default_factory()


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _build(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise TraceError(f"{where} must be an object, not {type(data).__name__}.")
    hints = _hints(cls)
    unknown = [key for key in data if key not in hints]
    if unknown:
        raise TraceError(f"{where} has an unknown field {str(unknown[0])[:40]!r}.")
    values = {name: _check(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    for name, value in values.items():
        _check_range(name, value, f"{where}.{name}")
    for f in dataclasses.fields(cls):
        needed = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if needed and f.name not in values:
            raise TraceError(f"{where} lacks the field {f.name!r}.")
    return cls(**values)


def _check(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type, tuples rebuilt from lists; TraceError if it is not of that type."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        return _check(next(arg for arg in get_args(hint) if arg is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise TraceError(f"{where} must be a list.")
        return tuple(_check(get_args(hint)[0], item, where) for item in value)
    if origin is Literal:
        if not isinstance(value, str) or value not in get_args(hint):
            raise TraceError(f"{where} is {str(value)[:40]!r}; allowed are {', '.join(get_args(hint))}.")
        return value
    if origin is dict:
        if not isinstance(value, Mapping):
            raise TraceError(f"{where} must be an object.")
        return {_text(str(key), where): _check(get_args(hint)[1], item, where) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)  # type: ignore[arg-type]
    if hint is Any:
        return _plain_data(value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(_number(value, where))
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise TraceError(f"{where} must be {hint.__name__}, not {type(value).__name__}.")
    return _plain_data(value, where)


def _plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """Free-form data with plain numbers and whole characters only, and not too deep."""
    if depth > MAX_DEPTH:
        raise TraceError(f"{where} has more than {MAX_DEPTH} levels.")
    if isinstance(value, list | tuple):
        return [_plain_data(item, where, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {_text(str(key), where): _plain_data(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, int | float):
        return _number(value, where)
    return value


def _number(value: Any, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise TraceError(f"{where} is not a finite number.")
    if abs(value) > MAX_INT and isinstance(value, int):
        raise TraceError(f"{where} is a whole number beyond {MAX_INT}.")
    return value


def _text(value: str, where: str) -> str:
    """Half a surrogate pair can be written in JSON, but not in UTF-8."""
    if not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value):
        raise TraceError(f"{where} holds half a character.")
    return value


def _check_range(name: str, value: Any, where: str) -> None:
    """Names say what a number is, see the head of this file. Probabilities may be off by rounding."""
    if not isinstance(value, int | float) or isinstance(value, bool) or name == "token_id":  # a drafter may say any id
        return
    is_share = name.endswith("prob") or name in ("coin", "overlap")
    low, high = -1 if name == "parent" else 0, 1.001 if is_share else math.inf
    if not low <= value <= high:
        raise TraceError(f"{where} is {value:.6g}; it cannot be {'below ' + str(low) if value < low else 'above 1'}.")
