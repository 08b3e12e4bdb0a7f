"""The loop: propose, score, verify, roll back, observe. One loop for every method; each round is one event."""

from __future__ import annotations

import datetime
import operator
import secrets
import shlex
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from specviz.config import DEFAULT_WIDTH, RunConfig
from specviz.detokenize import split_text
from specviz.drafters.length import BestLength, DraftLength, FixedLength, HeuristicLength
from specviz.drafters.options import read_options
from specviz.drafters.registry import METHODS, Method, get_method
from specviz.errors import ConfigError
from specviz.events import (
    Event,
    Exactness,
    ModelInfo,
    RunStarted,
)
from specviz.models.carry import require_states
from specviz.models.chat import clean_text, encode_prompt
from specviz.models.exactness import ExactnessReport, check_exactness, pass_seconds
from specviz.models.kind import require_causal
from specviz.models.loader import LoadedPair
from specviz.models.machine import probe, versions
from specviz.models.session import NO_TREES, Session
from specviz.models.states import has_states, state_notes
from specviz.models.wishes import unheeded_wishes
from specviz.run import Run

__all__ = ["SpeculativeGenerator", "command_line", "plain_beside"]

_PLAIN: dict[str, Any] = {
    "method": "plain",
    "gamma": 0,
    "draft_length": "fixed",
    "verify": "auto",
    "detail": False,
    "options": {},
}
"""Settings that turn a run into its plain baseline."""


def plain_beside(config: RunConfig) -> RunConfig:
    """The settings of plain decoding beside a run with these.

    Its passes have one row, or as many as exactness asks for where that costs nothing and nobody has switched it off.
    """
    return replace(config, exact=False if config.exact is False else None, **_PLAIN)


class SpeculativeGenerator:
    """Runs any method on one loaded pair. Holds models and what was measured about them, never a run.

    Not for two runs at a time: they would share the machine's cores, and neither would be measured.
    """

    def __init__(self, loaded: LoadedPair) -> None:
        self.loaded = loaded
        self._reports: dict[int, ExactnessReport] = {}
        self._cost_tables: dict[tuple[str, str, int, int], tuple[float, list[float]]] = {}
        self._pass_costs: dict[tuple[int, ...], list[float]] = {}
        self._machine = probe().to_json() | {"threads": torch.get_num_threads()}
        self._versions = versions()  # here, not before the first token

    def exactness_report(
        self, width: int = DEFAULT_WIDTH, progress: Callable[[float], None] | None = None
    ) -> ExactnessReport:
        """The self-test of the target at this width, made on first demand and then kept."""
        if width not in self._reports:
            loaded = self.loaded
            context = loaded.max_context
            if loaded.device.type != "cpu":  # on a processor loading has asked
                require_causal(loaded.target_info.name, loaded.target, loaded.vocab_size)
            self._reports[width] = check_exactness(loaded.target, width, loaded.vocab_size, context, progress)
        return self._reports[width]

    def stream(self, prompt: str | Sequence[int], config: RunConfig) -> Iterator[Event]:
        """The events of one run, made as they are asked for.

        Closing the iterator at any point frees the run's memory. Failures inside the run end in RunFinished with reason
        "error"; what is wrong with the settings is raised here, before anything has run. Arguments and errors as of
        `prepare`.
        """
        return self.prepare(prompt, config).events()

    def prepare(self, prompt: str | Sequence[int], config: RunConfig) -> Run:
        """A run that has not begun.

        Args:
            prompt: text, put into the chat template unless `config.raw`; or ids, taken as they are.
        Raises:
            ConfigError: a setting that cannot work, an empty prompt, a prompt that fills the context.
            CacheNotCroppableError, ModelLoadError, TokenizerMismatchError: the pair cannot run this method.
        """
        method = get_method(config.method)
        require_states(self.loaded.target)
        refusal = method.refusal(self.loaded)
        if refusal:
            raise ConfigError(refusal)
        if isinstance(prompt, str):
            ids, notes = encode_prompt(self.loaded.tokenizer, prompt, config.raw)
            prompt = clean_text(prompt)[0]  # events must be fit for UTF-8, which halves of characters are not
        else:
            ids, notes = _checked_ids(prompt, self.loaded.vocab_size), []
        room = self.loaded.max_context - len(ids)
        if room < 1:
            raise ConfigError(
                f"The prompt has {len(ids)} tokens and this model reads {self.loaded.max_context}, answer included. "
                "Shorten the prompt."
            )
        stop = tuple(clean_text(text)[0] for text in config.stop)
        config = replace(config, stop=stop, options=read_options(method.name, method.options, config.options))
        if config.draft_length == "confidence" and not method.doubts:
            able = ", ".join(other.name for other in METHODS.values() if other.doubts)
            raise ConfigError(
                f"{method.name} has no probabilities of its own to doubt by: draft-length confidence would do nothing. "
                f"Choose another draft length, or one of {able}."
            )
        if has_states(self.loaded.target):
            if not method.drafts_chains(config, self.loaded):
                raise ConfigError(NO_TREES)
            notes = [*notes, *state_notes(self.loaded.target)]
        width, min_rows, word, reason = self._promise(method, config)
        seed = config.sampling.seed if config.sampling.seed is not None else secrets.randbelow(1 << 31)
        config = replace(config, sampling=replace(config.sampling, seed=seed))
        by_block = config.is_by_block and method.draws_chains(config, self.loaded)
        if config.verify == "block" and not config.sampling.is_greedy and not by_block and method.name != "plain":
            notes = [*notes, f"{method.name} draws no chain under these settings: it is verified token by token."]
        wishes = unheeded_wishes(getattr(self.loaded.target, "generation_config", None), config.sampling)
        drafter, draft_info = method.build(self.loaded, config)
        length = self._length(config, draft_info, min_rows, getattr(drafter, "relative_cost", 0.0))
        started = RunStarted(
            run_id=uuid.uuid4().hex[:12],
            method=method.name,
            prompt=prompt if isinstance(prompt, str) else "",
            prompt_ids=tuple(ids),
            prompt_texts=tuple(piece.text for piece in split_text(self.loaded.tokenizer, ids)),
            target=self.loaded.target_info,
            draft=draft_info,
            dtype=self.loaded.target_info.dtype,
            width=width,
            min_rows=min_rows,
            exactness=word,
            exactness_reason=reason,
            verify=_rule(config, by_block),
            gamma=0 if method.name == "plain" else config.gamma,
            settings=_settings(config),
            machine=self._machine,
            versions=self._versions,
            started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            pair=self.loaded.pair.name,
            device=str(self.loaded.device),
            num_layers=int(self.loaded.target.config.get_text_config(decoder=True).num_hidden_layers),
            command=command_line(
                prompt if isinstance(prompt, str) else "",
                self.loaded.pair.words(),
                replace(config, exact=width > 0 or (None if min_rows else False)),
                self.loaded.target_info.dtype,
            ),
            notes=(*notes, *wishes, *getattr(drafter, "notes", ())),
        )
        return Run(self.loaded, drafter, config, started, min(config.max_new_tokens, room), length)

    def stream_plain(self, prompt: str | Sequence[int], config: RunConfig) -> Iterator[Event]:
        """Plain decoding beside a run with these settings, one token a pass: the baseline of every speed-up."""
        return self.stream(prompt, plain_beside(config))

    def stream_equal_width(self, prompt: str | Sequence[int], config: RunConfig) -> Iterator[Event]:
        """Plain decoding in an exact run's own passes: what it equals to the bit. It proves the text, not speed."""
        return self.stream(prompt, replace(config, exact=True, **_PLAIN))

    def logit_gap(self, token_ids: Sequence[int]) -> float:
        """Distance of the target's two best logits for the token behind these."""
        session = Session(self.loaded.target, capacity=len(token_ids))
        try:
            best = session.extend(list(token_ids))[0, : self.loaded.vocab_size].float().topk(2).values
            return float(best[0] - best[1])
        finally:
            session.close()

    def pass_costs(self, rows: Sequence[int]) -> list[float]:
        """Seconds of a pass of the target at each number of rows, measured on first demand and then kept."""
        key = tuple(rows)
        if key not in self._pass_costs:
            self._pass_costs[key] = pass_seconds(self.loaded.target, key, self.loaded.vocab_size, repeat=3)
        return self._pass_costs[key]

    def _length(self, config: RunConfig, draft: ModelInfo | None, min_rows: int, relative_cost: float) -> DraftLength:
        """relative_cost: of a drafted token over a plain step, where a drafter knows it without a clock."""
        if config.draft_length == "heuristic":
            return HeuristicLength(config.gamma)
        if config.draft_length == "best":
            c, v = self._costs(config.gamma, draft, min_rows)
            return BestLength(config.gamma, c or relative_cost, v)
        return FixedLength(config.gamma)

    def _costs(self, gamma: int, draft: ModelInfo | None, min_rows: int) -> tuple[float, list[float]]:
        """c and v of theory: seconds of a drafted token and of a pass by drafted tokens, over those of a plain step.

        Measured on first demand and kept, so that two equal runs draft alike.
        """
        key = (draft.quantization if draft else "", draft.name if draft else "", min_rows, gamma)
        if key not in self._cost_tables:
            rows = [max(min_rows, n + 1) for n in range(gamma + 1)]
            kinds = sorted({1, *rows})
            loaded = self.loaded
            passes = dict(zip(kinds, pass_seconds(loaded.target, kinds, loaded.vocab_size), strict=True))
            c = 0.0
            if draft is not None and loaded.draft is not None:
                known = int(loaded.draft.config.get_text_config(decoder=True).vocab_size)
                c = pass_seconds(loaded.draft, (1,), min(known, loaded.vocab_size))[0] / passes[1]
            self._cost_tables[key] = (c, [passes[count] / passes[1] for count in rows])
        return self._cost_tables[key]

    def _promise(self, method: Method, config: RunConfig) -> tuple[int, int, Exactness, str]:
        """Width up to which passes are exact, rows that they are padded to, the run's word, and why it is that word."""
        exact, word = config.exact, method.word(config, self.loaded)
        is_plain = method.name == "plain"
        stateful = has_states(self.loaded.target)
        if exact:
            config.require_width()
            if stateful:
                raise ConfigError(
                    "A recurrent state rounds differently with the number of tokens it reads at once, so passes cannot "
                    "be exact to the bit here. Choose --no-exact."
                )
        report = None if stateful or exact is False else self.exactness_report(config.width)
        if exact is None and report is not None:
            # Only a greedy text can be compared bit by bit; nothing else pays for what exactness may cost.
            comparable = config.sampling.is_greedy and not config.is_approximate and config.gamma < config.width
            exact = word == "exact" and comparable and (report.is_free if is_plain else report.is_default)
        width = config.width if exact else 0
        min_rows = report.min_rows if report is not None and (exact or report.is_free) else 0
        if config.is_approximate and not is_plain:
            reason = f"The {config.verify} rule keeps what the target finds likely enough."
            return width, min_rows, "approximate", reason
        if not config.sampling.is_greedy:
            reason = f"Sampled at T = {config.sampling.temperature:g}: the target's own distribution."
            return width, min_rows, "lossless", reason
        if is_plain:
            return width, min_rows, "exact", "Plain decoding itself."
        if not width:
            why = "Passes have as many rows as there are tokens to check"
            if word != "exact":
                why = "Passes that hold more than one chain round differently from plain decoding's"
            elif stateful:
                why = "A recurrent state rounds differently with the number of tokens it reads at once"
            elif min_rows:
                why = f"The self-test covers drafts of up to {config.width - 1} tokens"
            why += ", so near-ties may resolve differently."
            return width, min_rows, "lossless", why if report is None else f"{why} {report.sentence}"
        assert report is not None
        if word != "exact":
            return width, min_rows, word, "Only chains can be exact to the bit; in a tree near-ties may differ."
        return width, min_rows, word if report.passed else "lossless", report.sentence


def command_line(prompt: str, pair: Sequence[str], config: RunConfig, dtype: str = "auto") -> str:
    """The command that makes the same run again, for traces and the gallery.

    pair: the words that name the models, see `ModelPair.words`.
    dtype: of the target; one that `--dtype` does not offer is left out.
    """
    sampling = config.sampling
    words = ["python", "-m", "specviz", "run"]
    words += [] if prompt.startswith("-") else [prompt]  # such a prompt comes last, or it would be read as an option
    words += [*pair, "--method", config.method]
    words += ["--gamma", str(config.gamma), "--max-new-tokens", str(config.max_new_tokens)]
    words += ["--temperature", _digits(sampling.temperature), "--seed", str(sampling.seed)]
    for flag, value, default in (
        ("--dtype", dtype if dtype in ("bfloat16", "float32") else "auto", "auto"),
        ("--top-k", sampling.top_k, 0),
        ("--top-p", sampling.top_p, 1.0),
        ("--repetition-penalty", sampling.repetition_penalty, 1.0),
        ("--draft-quant", config.draft_quant, "auto"),
        ("--verify", config.verify, "auto"),
        ("--width", config.width, DEFAULT_WIDTH),
        ("--draft-length", config.draft_length, "fixed"),
        ("--time-limit", config.time_limit_s, 0.0),
    ):
        if value != default:
            words += [flag, str(value)]
    words += ["--confidence", _digits(config.confidence)] if config.draft_length == "confidence" else []
    if config.verify == "typical":
        words += ["--epsilon", _digits(config.epsilon), "--delta", _digits(config.delta)]
    words += ["--threshold", _digits(config.threshold)] if config.verify == "threshold" else []
    for name, value in config.options.items():
        words += ["--" + name.replace("_", "-"), _digits(value) if isinstance(value, float) else str(value)]
    for stop in config.stop:
        words += [f"--stop={stop}"] if stop.startswith("-") else ["--stop", stop]
    words += ["--raw"] if config.raw else []
    words += ["--detail"] if config.detail else []
    words += {True: ["--exact"], False: ["--no-exact"], None: []}[config.exact]
    return shlex.join([*words, "--", prompt] if prompt.startswith("-") else words)


def _digits(value: float) -> str:
    """As short as can be read back to the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _checked_ids(prompt: Any, vocab_size: int) -> list[int]:
    """A prompt of ids as a list of ints. Raises ConfigError for anything but one sequence of known ids (case 122)."""
    values = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    try:
        ids = [operator.index(value) for value in values]
    except TypeError:
        ids = []
    if not ids or not all(0 <= i < vocab_size for i in ids):
        raise ConfigError(
            f"A prompt of ids is one sequence of at least one whole number, each from 0 to {vocab_size - 1}. "
            "Run several prompts one after the other."
        )
    return ids


def _rule(config: RunConfig, by_block: bool) -> str:
    """The verification rule by name; `by_block`: drawn chains are among the drafts, and judged as a whole."""
    if config.is_approximate:
        return f"{config.verify} acceptance"
    if by_block:
        return "block verification"
    return "greedy" if config.sampling.is_greedy else "speculative sampling"


def _settings(config: RunConfig) -> dict[str, Any]:
    """The run's settings as flat plain data."""
    flat = asdict(config)
    return flat.pop("sampling") | flat.pop("options") | flat | {"stop": list(config.stop)}
