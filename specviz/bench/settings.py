"""What a sweep can vary for a method: names and values read from text, and the combinations of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specviz.config import DRAFT_LENGTHS, DRAFT_QUANTS, VERIFY_RULES, RunConfig, SamplingParams
from specviz.drafters.base import Need
from specviz.drafters.options import Option, read_options
from specviz.drafters.registry import Method
from specviz.errors import ConfigError

__all__ = ["MAX_SETTINGS", "Setting", "can_vary", "combine", "default_vary", "read_vary", "setting_columns"]

MAX_SETTINGS = 200

Value = int | float | str
Readers = dict[str, Callable[[str], Value]]

_EXACT: dict[str, bool | None] = {"auto": None, "on": True, "off": False}

_CHOICES: dict[str, tuple[str, ...]] = {
    "draft_length": DRAFT_LENGTHS,
    "draft_quant": ("auto", *DRAFT_QUANTS),
    "verify": VERIFY_RULES,
    "exact": tuple(_EXACT),
}

_ACTS_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "confidence": ("draft_length", ("confidence",)),
    "epsilon": ("verify", ("typical",)),
    "delta": ("verify", ("typical",)),
    "threshold": ("verify", ("threshold",)),
    "width": ("exact", ("on", "auto")),
}
"""A name that does something only while another has one of these values; the first is what varying it implies."""

_HOLD_A_MODEL = ("feature", "cascade")
"""Methods whose draft can be held in fewer bits, besides those that need one with the target's tokenizer."""

_DEFAULTS: dict[str, tuple[str, ...]] = {
    "plain": ("exact=on", "width=1,2,4,8,16"),
    "lookahead": ("window=2,3,5", "ngram=3,4", "guesses=1,2"),
    "medusa": ("tree=chain;2,1,1;3,1,1;4,2,1",),
    "feature": ("tree=chain;growing:4;growing:7;growing:12;2,1,1;4,2,1",),
}
_EXIT_LAYERS = (2, 4, 8, 10, 15, 20)


@dataclass(frozen=True, slots=True)
class Setting:
    """One combination. varied: what tells it from the others of its sweep, by name."""

    varied: dict[str, Value]
    config: RunConfig

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.varied.items())


def can_vary(method: Method) -> Readers:
    """What does something for this method: name -> reader of a value, which raises ConfigError.

    Names are fields of RunConfig and of SamplingParams, then the method's own options.
    """
    readers: Readers = {}
    if method.name != "plain":
        readers["gamma"] = _field(method, "gamma", int)
        lengths = [word for word in DRAFT_LENGTHS if method.doubts or word != "confidence"]
        readers["draft_length"] = _choice("draft_length", lengths)
        if method.doubts:
            readers["confidence"] = _field(method, "confidence", float)
        if Need.SAME_TOKENIZER in method.needs or method.name in _HOLD_A_MODEL:
            readers["draft_quant"] = _choice("draft_quant", _CHOICES["draft_quant"])
        readers["verify"] = _choice("verify", VERIFY_RULES)
        readers |= {name: _field(method, name, float) for name in ("epsilon", "delta", "threshold")}
    readers["temperature"] = lambda text: SamplingParams(_number("temperature", float, text)).temperature
    readers["exact"] = _choice("exact", _CHOICES["exact"])
    readers["width"] = _field(method, "width", int)
    return readers | {option.name: _option(option) for option in method.options}


def read_vary(method: Method, texts: Sequence[str]) -> dict[str, list[Value]]:
    """What `--vary` asks for: name -> values, each once.

    Args:
        texts: NAME=V,V,... each; where there is a semicolon it separates the values, and commas are part of them.
    Raises:
        ConfigError: another form, a name given twice or one that does nothing for this method, a value out of range.
    """
    readers = can_vary(method)
    known = f"For {method.name} there are: {', '.join(readers)}"
    vary: dict[str, list[Value]] = {}
    for text in texts:
        written, _, rest = text.partition("=")
        name = written.strip().replace("-", "_")
        words = [word.strip() for word in rest.split(";" if ";" in rest else ",")]
        words = [word for word in words if word]
        if name not in readers:
            raise ConfigError(f"{written.strip()[:40]!r} cannot be varied. {known}.")
        if not words:
            raise ConfigError(f"--vary takes NAME=VALUE,VALUE,...; got {text[:40]!r}. {known}.")
        if name in vary:
            raise ConfigError(f"{name} is varied twice. Give all its values at once, as in --vary {name}=A,B.")
        try:
            vary[name] = list(dict.fromkeys(readers[name](word) for word in words))
        except ConfigError as error:
            raise ConfigError(f"--vary {name}: {error} {known}.") from error
    return vary


def default_vary(method: Method, num_layers: int) -> list[str]:
    """What is varied where nothing was asked for, as for `read_vary`. num_layers: of the target."""
    if any(option.name == "exit_layer" for option in method.options):
        layers = [layer for layer in _EXIT_LAYERS if layer < num_layers] or [1]
        return [f"exit_layer={','.join(map(str, layers))}"]
    return list(_DEFAULTS.get(method.name, ("gamma=1,2,3,4,5,6,7,8",)))


def combine(method: Method, vary: Mapping[str, Sequence[Value]], *, max_new_tokens: int, seed: int) -> list[Setting]:
    """Every combination, the last name's values changing fastest.

    Varying a name that acts only with another, as `confidence` with draft_length confidence, implies that other value.
    Where the other is varied too, combinations in which the name does nothing are one setting, and shown without it.

    Raises:
        ConfigError: more than MAX_SETTINGS; two names that imply different things; a name that does nothing in any
        combination; a combination that cannot run, by its label.
    """
    count = math.prod(len(values) for values in vary.values())
    if count > MAX_SETTINGS:
        factors = " × ".join(f"{len(values)} {name}" for name, values in vary.items())
        raise ConfigError(f"A sweep has at most {MAX_SETTINGS} settings; {factors} are {count}.")
    implied = _implied(vary)
    found: dict[tuple[tuple[str, Value], ...], dict[str, Value]] = {}
    for values in itertools.product(*vary.values()):
        everything = implied | dict(zip(vary, values, strict=True))
        acting = {name: value for name, value in everything.items() if _acts(name, everything)}
        found.setdefault(tuple((name, value) for name, value in acting.items() if name in vary), acting)
    for name in vary:
        if not any(name in acting for acting in found.values()):
            other, needed = _ACTS_WITH[name]
            raise ConfigError(f"{name} does nothing unless {other} is {' or '.join(needed)}; no setting has that.")
    settings = []
    for varied, acting in found.items():
        setting = Setting(dict(varied), _config(method, acting, max_new_tokens, seed))
        try:
            if method.check is not None:
                method.check(setting.config)
            if setting.config.exact:
                setting.config.require_width()
        except ConfigError as error:
            raise ConfigError(f"{setting.label}: {error}") from error
        settings.append(setting)
    return settings


def setting_columns(method: Method, config: RunConfig) -> dict[str, Value | None]:
    """Every name of `can_vary` with its value in this run; None where it does nothing there."""
    own = read_options(method.name, method.options, config.options)
    exact = next(word for word, value in _EXACT.items() if value is config.exact)
    values: dict[str, Value] = {}
    for name in can_vary(method):
        values[name] = own[name] if name in own else exact if name == "exact" else _value(config, name)
    return {name: value if _acts(name, values) else None for name, value in values.items()}


def _value(config: RunConfig, name: str) -> Value:
    value: Value = config.sampling.temperature if name == "temperature" else getattr(config, name)
    return value


def _implied(vary: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """What the varied names imply for names that are not varied."""
    implied: dict[str, Value] = {}
    cause: dict[str, str] = {}
    for name in vary:
        other, values = _ACTS_WITH.get(name, ("", ()))
        if not other or other in vary:
            continue
        if implied.setdefault(other, values[0]) != values[0]:
            raise ConfigError(
                f"{cause[other]} acts with {other} {implied[other]} and {name} with {other} {values[0]}. "
                f"Vary {other} as well, as in --vary {other}={implied[other]},{values[0]}."
            )
        cause.setdefault(other, name)
    return implied


def _acts(name: str, values: Mapping[str, Value]) -> bool:
    """Whether a name does something beside these values. Names that are not there have their defaults."""
    other, needed = _ACTS_WITH.get(name, ("", ()))
    return not other or values.get(other, "auto") in needed


def _config(method: Method, values: Mapping[str, Value], max_new_tokens: int, seed: int) -> RunConfig:
    own = {option.name for option in method.options}
    fields: dict[str, Any] = {n: v for n, v in values.items() if n not in own and n not in ("temperature", "exact")}
    if method.name == "plain":  # it drafts nothing, so nothing but its own token has to fit a fixed width
        fields["gamma"] = 0
    return RunConfig(
        method=method.name,
        max_new_tokens=max_new_tokens,
        sampling=SamplingParams(temperature=float(values.get("temperature", 0.0)), seed=seed),
        exact=_EXACT[str(values.get("exact", "auto"))],
        options={name: value for name, value in values.items() if name in own},
        **fields,
    )


# --- readers of values -----------------------------------------------------------------------------------------------


def _number(name: str, kind: type[int] | type[float], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{name.replace('_', '-')} takes {what}; got {text[:40]!r}.") from None


def _field(method: Method, name: str, kind: type[int] | type[float]) -> Callable[[str], Value]:
    """A number that RunConfig itself checks."""

    def read(text: str) -> Value:
        settings: dict[str, Any] = {name: _number(name, kind, text)}
        return _value(RunConfig(method=method.name, **settings), name)

    return read


def _choice(name: str, choices: Sequence[str]) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        if text not in choices:
            raise ConfigError(f"{name.replace('_', '-')} takes {', '.join(choices)}; got {text[:40]!r}.")
        return text

    return read


def _option(option: Option) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        if isinstance(option.default, str):
            return option.check(text)
        return option.check(_number(option.name, int if isinstance(option.default, int) else float, text))

    return read
