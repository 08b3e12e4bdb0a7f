"""One message of a serving engine's stream as plain data. Pure: text in, a frozen object out.

The protocol is OpenAI's, with what vLLM adds to it (`token_ids`, `prompt_token_ids`, `metrics`), llama.cpp (`timings`)
and SGLang (`sglext`, `matched_stop`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["DraftTimings", "RequestCounts", "StreamChunk", "StreamToken", "read_chunk", "whole_text"]

UNTOLD_ID = -1
"""The id of a token whose server tells none."""

_MAX_ID = 2**32 - 1
_MAX_DRAFTED = 4096
_MAX_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class StreamToken:
    """A token of a message. name: its text as the server writes it in `logprobs`, "" where it is no whole character.

    prob: the target's, before temperature and every other setting; None where the server does not tell.
    """

    token_id: int
    name: str = ""
    prob: float | None = None


@dataclass(frozen=True, slots=True)
class DraftTimings:
    """llama.cpp's counts over the request so far: drafted and accepted tokens."""

    num_drafted: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What an engine counted for one request alone. histogram[k]: drafting steps that kept k tokens.

    drafted, accepted: [steps that drafted] tokens in order, empty where it does not list them.
    """

    num_drafts: int
    num_drafted: int
    num_accepted: int
    histogram: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One message. at_s: seconds since the request was sent.

    text: what it adds to the answer, reasoning included. tokens: what it carries; empty where the server tells none.
    counts: with the last one, from an SGLang, or a vLLM that was told to keep them for each request.
    finish: OpenAI's word ("stop", "length", ...), "" while the run goes on. stop: the stop text that was met, if any.
    prompt_ids: with the first message. num_prompt, num_completion: the server's own count, with the last one.
    """

    at_s: float
    text: str = ""
    tokens: tuple[StreamToken, ...] = ()
    finish: str = ""
    stop: str = ""
    prompt_ids: tuple[int, ...] = ()
    num_prompt: int | None = None
    num_completion: int | None = None
    timings: DraftTimings | None = None
    counts: RequestCounts | None = None
    error: str = ""


def read_chunk(data: str, at_s: float) -> StreamChunk | None:
    """The message behind `data:`; None for the one that ends the stream.

    Raises:
        ValueError: it is not what the protocol promises.
    """
    if data.strip() == "[DONE]":
        return None
    message = _object(json.loads(data))
    if "error" in message:
        return StreamChunk(at_s, error=_error(message["error"]))
    usage, timings = _object(message.get("usage")), _object(message.get("timings"))
    choices = _list(message.get("choices"))
    choice = _object(choices[0]) if choices else {}
    delta = _object(choice.get("delta"))
    texts = [delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content"), choice.get("text")]
    return StreamChunk(
        at_s,
        text="".join(whole_text(text) for text in texts),
        tokens=_tokens(choice),
        finish=whole_text(choice.get("finish_reason")),
        stop=whole_text(choice.get("stop_reason") or choice.get("matched_stop")),
        prompt_ids=_ids(message.get("prompt_token_ids") or choice.get("prompt_token_ids")),
        num_prompt=_count(usage.get("prompt_tokens")),
        num_completion=_count(usage.get("completion_tokens")),
        timings=DraftTimings(_count(timings.get("draft_n")) or 0, _count(timings.get("draft_n_accepted")) or 0)
        if timings
        else None,
        counts=_counts_of_vllm(_object(message.get("metrics")).get("speculative_decoding"))
        or _counts_of_sglang(_object(message.get("sglext")).get("spec_tokens_details")),
    )


def whole_text(value: Any) -> str:
    """A text that can be stored and sent: half characters (lone surrogates) become U+FFFD, anything else no text."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if isinstance(value, str) else ""


def _counts_of_vllm(value: Any) -> RequestCounts | None:
    """Its `metrics.speculative_decoding`; None where its numbers do not add up, as it may change."""
    told = _object(value)
    found = _totals(told, ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram"))
    if found is None:
        return None
    by_step = _counts(told.get("per_step_drafted")), _counts(told.get("per_step_accepted"))
    is_whole = [len(told) for told in by_step] == [found.num_drafts] * 2 and [sum(told) for told in by_step] == [
        found.num_drafted,
        found.num_accepted,
    ]
    if not is_whole or any(not 0 <= a <= d <= _MAX_DRAFTED for d, a in zip(*by_step, strict=True)):
        return found
    return replace(found, drafted=by_step[0], accepted=by_step[1])


def _counts_of_sglang(value: Any) -> RequestCounts | None:
    """Its `sglext.spec_tokens_details`: without a list of its steps, but each of them has a draft."""
    names = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_correct_drafts_histogram")
    found = _totals(_object(value), names)
    return found if found is None or found.num_drafts else None


def _totals(told: Mapping[str, Any], names: Sequence[str]) -> RequestCounts | None:
    """names: of the steps that drafted, drafted and accepted tokens, and the histogram of what was accepted a step."""
    drafts, drafted, accepted = (_count(told.get(name)) for name in names[:3])
    histogram = _counts(told.get(names[3]))
    if drafts is None or drafted is None or accepted is None or not accepted <= drafted:
        return None
    if histogram and (sum(histogram), sum(kept * steps for kept, steps in enumerate(histogram))) != (drafts, accepted):
        return None
    return RequestCounts(drafts, drafted, accepted, histogram)


def _counts(value: Any) -> tuple[int, ...]:
    """A list of counts, empty where it is none."""
    if not isinstance(value, list) or len(value) > _MAX_STEPS:
        return ()
    found = [_count(item) for item in value]
    return () if any(item is None for item in found) else tuple(item for item in found if item is not None)


def _tokens(choice: Mapping[str, Any]) -> tuple[StreamToken, ...]:
    """From the ids and from the logprobs, either of which may be missing."""
    ids = _ids(choice.get("token_ids"))
    named = _named(_object(choice.get("logprobs")))
    if not ids:
        return named
    if len(named) != len(ids):
        return tuple(StreamToken(token_id) for token_id in ids)
    return tuple(StreamToken(i, token.name, token.prob) for i, token in zip(ids, named, strict=True))


def _named(logprobs: Mapping[str, Any]) -> tuple[StreamToken, ...]:
    """From a chat's logprobs, or from those of a completion, which come as columns."""
    if "content" in logprobs:
        return tuple(_named_token(_object(row)) for row in _list(logprobs["content"]))
    names, logs = _list(logprobs.get("tokens")), _list(logprobs.get("token_logprobs"))
    if len(names) != len(logs):
        return ()
    return tuple(StreamToken(UNTOLD_ID, whole_text(name), _prob(log)) for name, log in zip(names, logs, strict=True))


def _named_token(row: Mapping[str, Any]) -> StreamToken:
    return StreamToken(_id(row.get("id")), whole_text(row.get("token")), _prob(row.get("logprob")))


def _prob(logprob: Any) -> float | None:
    """exp, for a number that is one: servers write -9999 for minus infinity, and null."""
    if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not math.isfinite(logprob):
        return None
    return min(1.0, math.exp(logprob))


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(_id(item) for item in _list(value))


def _id(value: Any) -> int:
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_ID
    return value if is_id else UNTOLD_ID


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _error(value: Any) -> str:
    found = value.get("message") if isinstance(value, Mapping) else value
    return whole_text(found)[:300] or "no reason given"


def _object(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"an object was expected, not {type(value).__name__}")
    return value


def _list(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"a list was expected, not {type(value).__name__}")
    return value
