"""One method over its settings: each beside plain decoding in the same turns, then rows that pandas reads."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from specviz.bench.contest import specviz_method
from specviz.bench.runner import Entry, Score, contest, geometric_mean
from specviz.bench.settings import Setting, setting_columns
from specviz.config import RunConfig
from specviz.drafters.registry import get_method
from specviz.errors import SpecvizError
from specviz.events import Event, RunStarted
from specviz.generator import SpeculativeGenerator
from specviz.metrics import Counters
from specviz.theory import speed_up

__all__ = ["ALL", "Measured", "check_settings", "measure", "over", "sweep_rows", "theory"]

ALL = "all"
"""Stands in the column `regime` of the rows over all prompts."""

_COUNTS = (
    "num_steps", "num_tokens", "num_drafted", "num_accepted", "num_rejections", "num_drafting_steps", "target_work",
    "draft_s", "verify_s", "other_s", "decode_s",
)  # fmt: skip
_RATES = ("alpha", "acceptance_rate", "acceptance_length", "block_efficiency", "coverage", "mean_drafted")


@dataclass(frozen=True, slots=True)
class Measured:
    """A setting with what came of it. started: the beginning of a run, which says the machine and the run's word.

    plain: plain decoding with the same sampling, one token a pass, in the same turns.
    """

    setting: Setting
    started: RunStarted
    score: Score
    plain: Score


def check_settings(
    engine: SpeculativeGenerator,
    settings: Sequence[Setting],
    entries: Sequence[Entry],
    progress: Callable[[str, float], None] = lambda text, fraction: None,
) -> list[RunStarted]:
    """The beginning of a run of each setting; no token is decoded.

    Raises:
        SpecvizError: of the kind it was, by the name of the setting or the prompt that cannot run.
    """
    longest = max(entries, key=lambda entry: len(entry.token_ids))
    _begin(engine, longest, _plain(settings[0]), longest.name)
    started = []
    for number, setting in enumerate(settings):
        progress("Checking the settings", number / len(settings))
        started.append(_begin(engine, longest, setting.config, setting.label))
    return started


def _begin(engine: SpeculativeGenerator, entry: Entry, config: RunConfig, name: str) -> RunStarted:
    try:
        events = cast("Generator[Event]", engine.stream(entry.token_ids, config))
        started = next(events)
        events.close()
    except SpecvizError as error:
        raise type(error)(f"{name}: {error}") from error
    assert isinstance(started, RunStarted)
    return started


def measure(
    engine: SpeculativeGenerator,
    settings: Sequence[Setting],
    entries: Sequence[Entry],
    *,
    limit: int,
    repeat: int,
    progress: Callable[[str, float], None] = lambda text, fraction: None,
) -> list[Measured]:
    """Every setting on every prompt, `repeat` times, in turns with plain decoding whose order alternates.

    Settings with another sampling or another draft in memory take their turns apart, beside a plain decoding of their
    own: what they are compared with has to be sampled alike, and one draft at a time is held.

    Args:
        limit: tokens of an answer at most.
    Raises:
        SpecvizError: as `check_settings`, before anything has run; ConfigError where a run fails.
    """
    started = check_settings(engine, settings, entries, progress)
    groups: dict[object, list[int]] = {}
    for index, setting in enumerate(settings):
        config = setting.config
        groups.setdefault((config.sampling, config.draft_quant, config.options.get("fallback")), []).append(index)
    measured: dict[int, Measured] = {}
    num_runs = len(settings) + len(groups)
    before = 0
    for group in groups.values():

        def in_all(text: str, fraction: float, before: int = before, size: int = len(group) + 1) -> None:
            progress(text, (before + fraction * size) / num_runs)

        runs = [specviz_method(engine, _plain(settings[group[0]]), "plain")]
        runs += [specviz_method(engine, settings[index].config, settings[index].label) for index in group]
        plain, *scores = contest(runs, entries, limit=limit, repeat=repeat, progress=in_all)
        for index, score in zip(group, scores, strict=True):
            measured[index] = Measured(settings[index], started[index], score, plain)
        before += len(group) + 1
    return [measured[index] for index in range(len(settings))]


def _plain(setting: Setting) -> RunConfig:
    config = setting.config
    return RunConfig("plain", gamma=0, max_new_tokens=config.max_new_tokens, sampling=config.sampling)


def sweep_rows(measured: Sequence[Measured], entries: Sequence[Entry], *, repeat: int) -> list[dict[str, Any]]:
    """One row a setting and regime, and one a setting over all prompts; plain data, None where there is no figure.

    Rates are as everywhere in specviz: sums over runs, divided. Speeds leave out the first step, and prompts whose
    answer was over with it in one of the settings. tokens_per_s: median over prompts of medians over repeats.
    speed_up: geometric mean over prompts of the ratio of median speeds; speed_up_low and speed_up_high: of the lowest
    and the highest ratio of one turn, None without a repeat. is_best: the highest speed_up of a regime.
    c, v, v_undrafted: of specviz.theory, measured; theory_speed_up: S from them and the run's own alpha, for chains.
    min_rows: that passes of chains are padded to, 0 for as many as there are tokens to check. num_equal: prompts whose
    ids are those of plain decoding, None for sampled ones.
    """
    scores = [score for item in measured for score in (item.score, item.plain)]
    timed = {entry.name for entry in entries if all(entry.name in score.rates for score in scores)}
    regimes = [regime for regime in dict.fromkeys(entry.regime for entry in entries) if regime != ALL]
    date = measured[0].started.started_at  # one for all: it is what the rows of a sweep are known by
    rows = []
    for item in measured:
        for regime in (*regimes, ALL):
            names = [entry.name for entry in entries if regime in (ALL, entry.regime)]
            figures = _figures(item, names, [name for name in names if name in timed])
            rows.append(_constants(item, repeat, date) | _setting(item) | {"regime": regime} | figures)
    for regime in (*regimes, ALL):
        same = [row for row in rows if row["regime"] == regime]
        best = max((row["speed_up"] for row in same if row["speed_up"] is not None), default=None)
        for row in same:
            row["is_best"] = best is not None and row["speed_up"] == best
    return rows


def _constants(item: Measured, repeat: int, date: str) -> dict[str, Any]:
    started = item.started
    return {
        "date": date,
        "pair": started.pair,
        "dtype": started.dtype,
        "device": started.device,
        "machine": started.machine.get("processor"),
        "threads": started.machine.get("threads"),
        "method": started.method,
        "max_new_tokens": item.setting.config.max_new_tokens,
        "repeat": repeat,
        "seed": item.setting.config.sampling.seed,
    }


def _setting(item: Measured) -> dict[str, Any]:
    config = item.setting.config
    return setting_columns(get_method(config.method), config)


def _figures(item: Measured, names: Sequence[str], timed: Sequence[str]) -> dict[str, Any]:
    """names: of the row's prompts; timed: of those that have a speed."""
    score, plain = item.score, item.plain
    mine, theirs = _merged(score, names), _merged(plain, names)
    total = mine.decode_s or 1.0
    low, high = _range(score, plain, timed)
    costs = theory(mine, theirs, is_chain=score.totals.is_chain)
    equal = None
    if item.setting.config.sampling.is_greedy:
        equal = sum(score.answers.get(name) == plain.answers.get(name) for name in names)
    return {
        "num_prompts": len(names),
        "num_timed": len(timed),
        "exactness": item.started.exactness,
        "min_rows": item.started.min_rows,
        "tokens_per_s": _median_rate(score, timed),
        "plain_tokens_per_s": _median_rate(plain, timed),
        "speed_up": score.speed_up(plain, timed),
        "speed_up_low": low,
        "speed_up_high": high,
        "is_best": False,
        **{name: getattr(mine, name) for name in _RATES},
        "draft_share": mine.draft_s / total,
        "verify_share": mine.verify_s / total,
        "other_share": mine.other_s / total,
        **costs,
        "num_equal": equal,
        **{name: getattr(mine, name) for name in _COUNTS},
    }


def theory(run: Counters, plain: Counters, *, is_chain: bool = True) -> dict[str, float | None]:
    """What a drafted token and a pass of this run cost, in steps and passes of plain decoding beside it, and S.

    Returns:
        c, v, v_undrafted as in `specviz.theory.speed_up`; theory_speed_up: S, None for a draft with branches.
    """
    c = over(run.draft_s_per_token, over(plain.decode_s, plain.num_steps))
    v = over(over(run.drafting_verify_s, run.num_drafting_steps), plain.verify_s_per_step)
    undrafted_s = over(run.verify_s - run.drafting_verify_s, run.num_steps - run.num_drafting_steps)
    v_undrafted = over(undrafted_s, plain.verify_s_per_step)
    alpha, gamma, kappa = run.alpha, run.mean_drafted, run.coverage
    s = None
    if is_chain and alpha is not None and gamma is not None and kappa is not None and c is not None and v:
        s = speed_up(alpha, gamma, c, v, kappa=kappa, v_undrafted=v_undrafted)
    return {"c": c, "v": v, "v_undrafted": v_undrafted, "theory_speed_up": s}


def over(numerator: float | None, denominator: float | None) -> float | None:
    """Their ratio; None where one is missing or the denominator is 0."""
    return numerator / denominator if numerator is not None and denominator else None


def _merged(score: Score, names: Sequence[str]) -> Counters:
    total = Counters()
    for name in names:
        total.merge(score.counters[name])
    return total


def _median_rate(score: Score, names: Sequence[str]) -> float | None:
    return statistics.median(statistics.median(score.rates[name]) for name in names) if names else None


def _range(score: Score, plain: Score, names: Sequence[str]) -> tuple[float | None, float | None]:
    """Geometric means over prompts of the lowest and of the highest ratio of one turn.

    A ratio of medians lies between the lowest and the highest ratio, so the speed-up lies between these two.
    """
    pairs = [list(zip(score.rates[name], plain.rates[name], strict=False)) for name in names]
    if not pairs or min(map(len, pairs)) < 2:
        return None, None
    ratios = [[mine / theirs for mine, theirs in pair] for pair in pairs]
    return geometric_mean(list(map(min, ratios))), geometric_mean(list(map(max, ratios)))
