"""What a visitor may set, read from a browser, a link or a program, none of which is trusted."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from specviz.config import (
    DEFAULT_GAMMA,
    DEFAULT_METHOD,
    DRAFT_LENGTHS,
    VERIFY_RULES,
    RunConfig,
    SamplingParams,
    check_number,
)
from specviz.drafters.options import Option, read_options
from specviz.drafters.registry import METHODS, get_method
from specviz.errors import ConfigError
from specviz.models.catalog import DRAFT_QUANTS
from specviz.models.chat import clean_text

__all__ = ["DEFAULTS", "DTYPES", "MAX_PROMPT_CHARS", "MAX_TIME_S", "METHOD_OPTIONS", "WatchSettings", "read_link"]

MAX_PROMPT_CHARS = 20_000
MAX_TIME_S = 600.0
"""Longest run on the page and through its API, in seconds: the engine serves one visitor at a time."""

DTYPES = ("auto", "bfloat16", "float32")
EXACT = {"auto": None, "on": True, "off": False}

DEFAULTS: dict[str, Any] = {
    "prompt": "",
    "pair": "",
    "method": DEFAULT_METHOD,
    "gamma": DEFAULT_GAMMA,
    "temperature": 0.0,
    "max_new_tokens": 128,
    "measure_plain": True,
    "top_k": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "seed": "",
    "stop": "",
    "exact": "auto",
    "width": 8,
    "draft_quant": "auto",
    "dtype": "auto",
    "draft_length": "fixed",
    "confidence": 0.4,
    "verify": "auto",
    "epsilon": 0.09,
    "delta": 0.3,
    "threshold": 0.3,
    "raw": False,
    "detail": False,
    "time_limit_s": 120.0,
}
"""Every setting under its name in the link, with what the page begins with. pair "" stands for the host's own."""

METHOD_OPTIONS: dict[str, Option] = {}
"""The methods' own settings by name. Methods that share a name share the field; each reads it by its own range."""
for _method in METHODS.values():
    for _option in _method.options:
        METHOD_OPTIONS.setdefault(_option.name, _option)
DEFAULTS |= {name: option.default for name, option in METHOD_OPTIONS.items()}


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """One run as a visitor asked for it, checked."""

    prompt: str
    pair: str
    dtype: str
    measure_plain: bool
    config: RunConfig

    @classmethod
    def read(cls, values: Mapping[str, Any], pairs: Collection[str]) -> WatchSettings:
        """From raw values by the names of DEFAULTS; what is missing takes its default.

        Raises:
            ConfigError: a value of the wrong type, unknown or out of range, named with its limit.
        """
        raw = DEFAULTS | dict(values)
        sampling = SamplingParams(
            temperature=raw["temperature"],
            top_k=raw["top_k"],
            top_p=raw["top_p"],
            repetition_penalty=raw["repetition_penalty"],
            seed=_seed(raw["seed"]),
        )
        method = get_method(_text("method", raw["method"], 60))
        config = RunConfig(
            method=method.name,
            gamma=raw["gamma"],
            max_new_tokens=raw["max_new_tokens"],
            sampling=sampling,
            stop=_stops(raw["stop"]),
            exact=EXACT[_one_of("exact", raw["exact"], EXACT)],
            width=raw["width"],
            raw=_flag("raw", raw["raw"]),
            detail=_flag("detail", raw["detail"]),
            draft_quant=_one_of("draft precision", raw["draft_quant"], ("auto", *DRAFT_QUANTS)),
            draft_length=_one_of("draft-length", raw["draft_length"], DRAFT_LENGTHS),
            confidence=raw["confidence"],
            verify=_one_of("verify", raw["verify"], VERIFY_RULES),
            epsilon=raw["epsilon"],
            delta=raw["delta"],
            threshold=raw["threshold"],
            options=read_options(method.name, method.options, {o.name: raw[o.name] for o in method.options}),
            time_limit_s=check_number("time limit", raw["time_limit_s"], 1.0, MAX_TIME_S),
        )
        if config.exact:
            config.require_width()
        return cls(
            prompt=_text("prompt", raw["prompt"], MAX_PROMPT_CHARS),
            pair=_one_of("model pair", raw["pair"] or next(iter(pairs)), pairs),
            dtype=_one_of("number format", raw["dtype"], DTYPES),
            measure_plain=_flag("measure plain decoding", raw["measure_plain"]),
            config=config,
        )


def read_link(params: Mapping[str, str], pairs: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Settings from a link's query.

    Returns:
        What holds, by name and ready for the page's fields, and the names of those that were ignored.
    """
    good: dict[str, Any] = {}
    ignored: list[str] = []
    for name, default in DEFAULTS.items():
        if name not in params:
            continue
        try:
            value = _from_text(params[name], default)
            WatchSettings.read({name: value}, pairs)
        except ConfigError:
            ignored.append(name)
        else:
            good[name] = value
    return good, ignored


def _from_text(text: str, default: Any) -> Any:
    """A query value as the type of its default."""
    if isinstance(default, bool):
        if text not in ("0", "1"):
            raise ConfigError("A switch in a link is 0 or 1.")
        return text == "1"
    if isinstance(default, int | float):
        try:
            number = float(text[:40])
        except ValueError as error:
            raise ConfigError("Not a number.") from error
        if not math.isfinite(number):
            raise ConfigError("Not a number.")
        return int(number) if number == int(number) else number
    return text


def _text(name: str, value: Any, longest: int) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text; got {type(value).__name__}.")
    if len(value) > longest:
        raise ConfigError(f"{name} may have {longest:,} characters; got {len(value):,}. Shorten it.")
    return clean_text(value)[0]


def _one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {str(value)[:40]!r}.")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be on or off; got {str(value)[:40]!r}.")
    return value


def _seed(value: Any) -> Any:
    """None for a fresh seed. A text field gives digits; SamplingParams checks the number."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise ConfigError(f"seed must be a whole number, or empty for a fresh one; got {text[:40]!r}.")
        return int(text)
    return value


def _stops(value: Any) -> tuple[str, ...]:
    """The page's field has one stop text a line, where backslash and n stand for a line end; a program's list is taken
    as it is."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(clean_text(line)[0].replace("\\n", "\n") for line in value.split("\n") if line)
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise ConfigError("stop strings must be text, one per line.")
    return tuple(clean_text(text)[0] for text in value)
