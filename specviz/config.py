"""Settings of a run: frozen, and validated when made, so that nothing behind them has to ask again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.errors import ConfigError

__all__ = [
    "APPROXIMATE_RULES",
    "DEFAULT_GAMMA",
    "DEFAULT_METHOD",
    "DEFAULT_WIDTH",
    "DRAFT_LENGTHS",
    "DRAFT_QUANTS",
    "GREEDY_BELOW",
    "MAX_GAMMA",
    "MAX_NEW_TOKENS",
    "VERIFY_RULES",
    "RunConfig",
    "SamplingParams",
    "check_int",
    "check_number",
]

GREEDY_BELOW = 1e-3
"""A temperature under this is greedy everywhere: a division by it could only overflow or repeat the argmax."""

MAX_GAMMA = 15
MAX_NEW_TOKENS = 4096
DEFAULT_WIDTH = 8
DEFAULT_GAMMA = 5
DEFAULT_METHOD = "cascade"
"""What runs where none is named: measured to be the fastest lossless method with the drafts that come along."""

MAX_SEED = 2**63 - 1
DRAFT_QUANTS = ("nf4", "int8", "bfloat16", "float32")
"""How a draft's weights may be held: 4 bits by bitsandbytes, 8 bits, or in full."""

VERIFY_RULES = ("auto", "token", "block", "typical", "threshold")
"""token: greedy at temperature 0, else speculative sampling token by token. block: drawn chains are judged as a whole,
the rest as before. auto: block. These are lossless; the last two are approximate."""

APPROXIMATE_RULES = ("typical", "threshold")

DRAFT_LENGTHS = ("fixed", "heuristic", "confidence", "best")
"""fixed: gamma every step. heuristic: longer after a kept draft, shorter after a refusal. confidence: stop behind a
token the draft itself doubts. best: the gamma with the highest theoretical speed-up for the acceptance so far."""


def check_int(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int in [low, high]; 3.0 is taken as 3. Raises ConfigError with the option's name and range."""
    number = check_number(name, value, low, high)
    if number != int(number):
        raise ConfigError(f"{name} must be a whole number from {low} to {high}; got {value!r}.")
    return int(value) if isinstance(value, int) else int(number)


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """`value` as a finite float in [low, high]. Raises ConfigError with the option's name and range."""
    if isinstance(value, int) and value.bit_length() > 1023:  # more than a float holds, or than Python will write out
        raise ConfigError(f"{name} must lie between {low} and {high}; got a number of more than 300 digits.")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a number from {low} to {high}; got {str(value)[:40]!r}.")
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie between {low} and {high}; got {value}.")
    return float(value)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from logits. One transform makes both p and q from these.

    temperature: 0 (anything under GREEDY_BELOW) is greedy. top_k: 0 is off. top_p: 1 is off.
    repetition_penalty: 1 is off; divides positive and multiplies negative logits of tokens seen before (CTRL, Keskar
        et al. 2019), once per token. seed: None draws a fresh one, which the run then reports.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _set(self, "temperature", check_number("temperature", self.temperature, 0.0, 5.0))
        _set(self, "top_k", check_int("top-k", self.top_k, 0, 1_000_000))
        _set(self, "top_p", check_number("top-p", self.top_p, 0.0, 1.0))
        if self.top_p == 0.0:
            raise ConfigError("top-p must be above 0 and at most 1; got 0. Use temperature 0 for the likeliest token.")
        _set(self, "repetition_penalty", check_number("repetition penalty", self.repetition_penalty, 0.1, 10.0))
        if self.seed is not None:
            _set(self, "seed", check_int("seed", self.seed, 0, MAX_SEED))

    @property
    def is_greedy(self) -> bool:
        """The one place that decides whether tokens are chosen or drawn."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run of one method on one prompt.

    gamma: most tokens drafted per step along one path. width: most rows of a pass in exact mode.
    exact: None lets the machine decide (on where it makes a pass for one token cost at most 1.25 of one row).
    stop: texts that end the answer. raw: no chat template. detail: record top-5 lists and residuals.
    time_limit_s: wall-clock limit of the decoding; 0 is off.
    draft_quant: how the draft's weights are held; auto is the pair's own default.
    draft_length: how gamma is chosen from step to step, one of DRAFT_LENGTHS; `gamma` stays the most.
    confidence: with "confidence", drafting stops behind the first token whose q is under this.
    epsilon, delta: of typical acceptance. threshold: of threshold acceptance. Probabilities.
    options: a drafter's own settings (`ngram`, `window`, ...), checked by the drafter's factory.
    """

    method: str = "plain"
    gamma: int = DEFAULT_GAMMA
    max_new_tokens: int = 128
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    verify: str = "auto"
    exact: bool | None = None
    width: int = DEFAULT_WIDTH
    raw: bool = False
    detail: bool = False
    draft_quant: str = "auto"
    draft_length: str = "fixed"
    confidence: float = 0.4
    epsilon: float = 0.09
    delta: float = 0.3
    threshold: float = 0.3
    time_limit_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not self.method:
            raise ConfigError("method must be a name; run `python -m specviz methods` to see them.")
        _set(self, "gamma", check_int("gamma", self.gamma, 0, MAX_GAMMA))
        _set(self, "max_new_tokens", check_int("max-new-tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS))
        _set(self, "width", check_int("width", self.width, 1, 64))
        _set(self, "time_limit_s", check_number("time limit", self.time_limit_s, 0.0, 86_400.0))
        for name in ("confidence", "epsilon", "delta", "threshold"):
            _set(self, name, check_number(name, getattr(self, name), 0.0, 1.0))
        if self.draft_length not in DRAFT_LENGTHS:
            known = ", ".join(DRAFT_LENGTHS)
            raise ConfigError(f"draft-length must be one of {known}; got {str(self.draft_length)[:40]!r}.")
        if self.verify not in VERIFY_RULES:
            raise ConfigError(f"verify must be one of {', '.join(VERIFY_RULES)}; got {str(self.verify)[:40]!r}.")
        if self.draft_quant != "auto" and self.draft_quant not in DRAFT_QUANTS:
            quants = ", ".join(DRAFT_QUANTS)
            raise ConfigError(f"draft precision must be auto or one of {quants}; got {str(self.draft_quant)[:40]!r}.")
        _set(self, "stop", _stop_texts(self.stop))

    @property
    def is_approximate(self) -> bool:
        """Whether the verification rule gives up the target's distribution."""
        return self.verify in APPROXIMATE_RULES

    @property
    def is_by_block(self) -> bool:
        """Whether drawn chains are verified as a whole."""
        return not self.sampling.is_greedy and self.verify in ("auto", "block")

    @property
    def stop_below(self) -> float:
        """The q under which a drafter stops; 0 where the draft length does not follow the draft's own doubt."""
        return self.confidence if self.draft_length == "confidence" else 0.0

    def require_width(self) -> None:
        """Exact mode checks 1 + gamma rows in `width` rows. Raises ConfigError where they do not fit."""
        if self.gamma + 1 > self.width:
            raise ConfigError(
                f"Exact mode checks gamma + 1 = {self.gamma + 1} tokens in a pass of at most {self.width} rows. "
                f"Choose gamma {self.width - 1} or less, or --width {16 if self.gamma < 16 else 64}, or --no-exact."
            )


def _stop_texts(stop: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stop, str):
        stop = (stop,)
    texts = tuple(stop)
    if len(texts) > 8 or any(not isinstance(text, str) or not text or len(text) > 200 for text in texts):
        raise ConfigError("stop takes at most 8 texts of 1 to 200 characters each.")
    return texts


def _set(target: Any, name: str, value: Any) -> None:
    object.__setattr__(target, name, value)  # frozen dataclasses normalise their own fields once, when made
