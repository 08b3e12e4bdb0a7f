"""Speed-up against draft length: measured points, the curve that theory draws through them, and the surface around."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specviz.bench.contest import specviz_method
from specviz.bench.runner import Entry, Score, take_turns
from specviz.bench.settings import Setting
from specviz.bench.sweep import ALL, Measured, check_settings, sweep_rows, theory
from specviz.config import RunConfig
from specviz.errors import ConfigError
from specviz.generator import plain_beside
from specviz.lab.experiment import Ask, Check, Finding, Report, about, breaking_off, needs_draft
from specviz.metrics import Baseline, Counters
from specviz.models.chat import encode_prompt
from specviz.theory import expected_tokens, gain_condition, loose_bound, speed_up, supremum
from specviz.words import verdict

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["ALPHAS", "as_good", "best_of", "formulas", "lengths_for", "measure_gamma", "surface", "theory_at"]

NAME = "gamma"
ALPHAS = tuple(i / 100 for i in range(101))
_LONG = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15)


def lengths_for(config: RunConfig) -> tuple[int, ...]:
    """Draft lengths to measure: what passes of the config's width can check, 1 to 7 for 8 rows."""
    return tuple(gamma for gamma in (range(1, 8) if config.width <= 8 else _LONG) if gamma < config.width)


def measure_gamma(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """Each draft length in turns with plain decoding at one token a pass, `ask.repeat` times on the one prompt.

    Raises:
        ConfigError: nothing drafts, a run fails, or the answer is over in its first step.
    """
    needs_draft(ask)
    config = ask.config
    ids, _ = encode_prompt(engine.loaded.tokenizer, ask.prompt, config.raw)
    entry = Entry("prompt", "prompt", tuple(ids))
    lengths = lengths_for(config)
    settings = [
        Setting({"gamma": gamma}, replace(config, gamma=gamma, draft_length="fixed", time_limit_s=0.0))
        for gamma in lengths
    ]
    started = check_settings(engine, settings, [entry])
    through = breaking_off(check)
    plain = plain_beside(replace(config, time_limit_s=0.0))
    runs = [specviz_method(engine, plain, "plain decoding", through)]
    runs += [specviz_method(engine, s.config, f"γ {s.config.gamma}", through) for s in settings]
    scores = [Score(run.name) for run in runs]
    base, finding = about(engine, ask), None
    for turn in take_turns(runs, [entry], scores, limit=config.max_new_tokens, repeat=ask.repeat):
        if not turn.entry:
            yield Report(f"Warming up: {turn.contestant}", 0.0)
            continue
        done = [
            Measured(setting, begun, score, scores[0])
            for setting, begun, score in zip(settings, started, scores[1:], strict=True)
            if entry.name in score.rates
        ]
        if entry.name in scores[0].rates and done:
            finding = _finding(base, config, done, entry, ask.repeat, turn.fraction == 1.0)
        yield Report(f"Round {turn.number} of {ask.repeat}: {turn.contestant} done", turn.fraction, finding)
    if finding is None:
        raise ConfigError("The answer is over in its first step, so it has no speed. Ask for a longer answer.")


def _finding(
    base: dict[str, Any], config: RunConfig, done: Sequence[Measured], entry: Entry, repeat: int, whole: bool
) -> Finding:
    rows = [row for row in sweep_rows(done, [entry], repeat=repeat) if row["regime"] == ALL]
    run, plain = Counters(), done[0].plain.totals
    for item in done:
        run.merge(item.score.totals)
    pooled = theory(run, plain, is_chain=False)  # only the costs: S is drawn length by length
    plain_s = Baseline(plain.num_tokens, plain.decode_s).s_per_token
    facts: dict[str, Any] = {
        "is_chain": run.is_chain,
        "top": done[-1].setting.config.width - 1,
        "gamma": config.gamma,
        "alpha": run.alpha,
        "acceptance_rate": run.acceptance_rate,
        "kappa": run.coverage,
        "c": pooled["c"],
        "v": pooled["v"],
        "plain_s_per_token": plain_s,
        "repeat": repeat,
    }
    best = best_of(rows)
    if best is not None:
        of_best = next(item for item, row in zip(done, rows, strict=True) if row is best)
        baseline = Baseline(plain.num_tokens, plain.decode_s)
        facts["reason"] = verdict(of_best.started, of_best.score.totals, baseline)["reason"]
    for row in rows:
        row["theory_speed_up"] = theory_at(row, facts)
    return Finding(NAME, base, tuple(rows), facts, whole)


def theory_at(row: dict[str, Any], facts: dict[str, Any]) -> float | None:
    """S at a row's length from the α and c of the whole sweep, and that length's own γ̄, κ and v; None for trees.

    α and c are what theory takes for constant over γ, so the curve is a forecast and no fit: each point may miss it.
    """
    alpha, c = facts["alpha"], facts["c"]
    gamma, kappa, v = row["mean_drafted"], row["coverage"], row["v"]
    if not facts["is_chain"] or alpha is None or c is None or gamma is None or kappa is None or not v:
        return None
    return speed_up(alpha, gamma, c, v, kappa=kappa, v_undrafted=row["v_undrafted"])


def best_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The row with the highest measured speed-up."""
    timed = [row for row in rows if row["speed_up"] is not None]
    return max(timed, key=lambda row: row["speed_up"]) if timed else None


def as_good(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Lengths whose range of single rounds reaches into the best one's, the best among them."""
    best = best_of(rows)
    if best is None:
        return []
    low = best["speed_up"] if best["speed_up_low"] is None else best["speed_up_low"]
    return [row["gamma"] for row in rows if row is best or (row["speed_up_high"] or 0.0) >= low]


def surface(finding: Finding) -> list[list[float]] | None:
    """S at [gamma from 0 to top][alpha in ALPHAS], for the κ, c and v that were measured; None where S does not hold.

    v between measured lengths lies on the line between them. γ 0 is plain decoding itself, 1.
    """
    facts, rows = finding.facts, [row for row in finding.rows if row["v"]]
    if not facts["is_chain"] or facts["alpha"] is None or facts["c"] is None or not rows:
        return None
    known = [(float(row["gamma"]), float(row["v"])) for row in rows]
    undrafted = next((row["v_undrafted"] for row in rows if row["v_undrafted"]), None)
    grid = [[1.0] * len(ALPHAS)]
    for gamma in range(1, int(facts["top"]) + 1):
        v = _between(known, gamma)
        kappa, c = facts["kappa"], facts["c"]
        grid.append([speed_up(alpha, gamma, c, v, kappa=kappa, v_undrafted=undrafted) for alpha in ALPHAS])
    return grid


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """The polyline through points of ascending x; its ends go on level."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def formulas(finding: Finding) -> list[dict[str, str]]:
    """Three formulas in circulation, each judged on the best measured point: formula, value, judgement.

    Source: design notes of this project; the bounds are in `specviz.theory`.
    """
    row = best_of(finding.rows)
    if row is None or row["alpha"] is None:
        return []
    alpha, gamma, s = row["alpha"], row["gamma"], row["speed_up"]
    loose, limit = loose_bound(alpha, gamma), supremum(alpha)
    step = expected_tokens(alpha, gamma)
    tau = row["acceptance_length"]
    out = [
        {
            "formula": "γ / (1 − α) as a limit",
            "value": _times(loose),
            "judgement": f"True, and γ times too loose: a step at γ {gamma} writes {gamma + 1} tokens at most, "
            f"{step:.2f} on average for this α. Measured: {s:.2f}×.",
        },
        {
            "formula": "1 / (1 − α) as a limit",
            "value": _times(limit),
            "judgement": f"True for drafts that are free and endless (c = 0, v = 1). Measured: {s:.2f}×.",
        },
    ]
    rate = row["acceptance_rate"]
    wrong = supremum(rate) if rate is not None else None
    if wrong is not None and tau is not None:
        holds = "No limit at all" if tau > wrong else "No limit, though it happens to hold here"
        out.append(
            {
                "formula": "the same with accepted / drafted for α",
                "value": _times(wrong),
                "judgement": f"{holds}: a drafting step wrote {tau:.2f} tokens.",
            }
        )
    steps = row["num_drafting_steps"]
    plain_s = finding.facts["plain_s_per_token"]
    if steps and tau is not None and plain_s:
        draft_s, verify_s = row["draft_s"] / steps, row["verify_s"] / row["num_steps"]
        claims = plain_s / tau > (draft_s + plain_s) / gamma
        right = gain_condition(tau, plain_s, draft_s, verify_s)
        out.append(
            {
                "formula": "t_target / τ > (t_draft + t_target) / γ as a condition for gain",
                "value": "“gain”" if claims else "“no gain”",
                "judgement": "The wrong way round: it asks for few kept tokens. The right one, τ · t_plain > t_draft + "
                f"t_verify, says {'gain' if right else 'no gain'} ({1000 * tau * plain_s:.0f} against "
                f"{1000 * (draft_s + verify_s):.0f} ms); measured: {s:.2f}×.",
            }
        )
    return out


def _times(value: float | None) -> str:
    return "no end" if value is None else f"{value:.2f}×"
