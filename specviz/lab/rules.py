"""Token rule against block on the same drafts: from one run's coins and chances, what each rule keeps on average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specviz.drafters.registry import get_method
from specviz.errors import ConfigError
from specviz.events import DraftedToken, RunFinished, StepDone
from specviz.lab.experiment import Ask, Check, Finding, Report, about, breaking_off, needs_draft

if TYPE_CHECKING:
    from specviz.generator import SpeculativeGenerator

__all__ = ["kept_by_block", "kept_by_token", "measure_rules"]

NAME = "rules"
WHEN_GREEDY = 1.0
"""Temperature where the settings are greedy: both rules are the same there."""


def kept_by_token(drafted: Sequence[DraftedToken]) -> list[float]:
    """[n] for each place, how likely the token rule keeps it: the product of min(1, p/q) up to there."""
    out, reached = [], 1.0
    for token in drafted:
        reached *= token.accept_prob or 0.0
        out.append(reached)
    return out


def kept_by_block(drafted: Sequence[DraftedToken]) -> list[float]:
    """[n] for each place, how likely the block rule keeps it, whatever the draft goes on with: p_i, by the choice of h
    (Sun et al. 2024, arXiv 2403.10444). It is never under the product above."""
    return [token.prefix_prob or 0.0 for token in drafted]


def measure_rules(engine: SpeculativeGenerator, ask: Ask, check: Check) -> Iterator[Report]:
    """`ask.repeat` runs whose drafts are verified as blocks. Each draft is then weighed under both rules, so neither
    the coins nor the texts that follow from them make a difference between the two.

    Raises:
        ConfigError: nothing is drafted, or no chain is drawn.
    """
    needs_draft(ask)
    sampling = ask.config.sampling
    if sampling.is_greedy:
        sampling = replace(sampling, temperature=WHEN_GREEDY)
    config = replace(
        ask.config, sampling=sampling, verify="block", detail=False, stop=(), gamma=max(1, ask.config.gamma)
    )
    if not get_method(config.method).draws_chains(config, engine.loaded):
        raise ConfigError(
            f"{config.method} draws no chain under these settings, so both rules are one. Choose draft-model, "
            "quantized-copy, early-exit, or feature as a chain."
        )
    base = about(engine, replace(ask, config=config))
    through = breaking_off(check)
    drafts: list[Sequence[DraftedToken]] = []
    other_s = all_s = 0.0
    for number in range(1, ask.repeat + 1):
        seed = None if sampling.seed is None else sampling.seed + number - 1
        one = replace(config, sampling=replace(sampling, seed=seed))
        for event in through(engine.stream(ask.prompt, one)):
            if isinstance(event, RunFinished) and event.reason == "error":
                raise ConfigError(event.message)
            if isinstance(event, StepDone):
                other_s, all_s = other_s + event.other_s, all_s + event.draft_s + event.verify_s + event.other_s
                tested = [token for token in event.drafted if token.block_prob is not None]
                if tested:
                    drafts.append(tested)
        finding = None
        if drafts:
            finding = Finding(NAME, base, _rows(drafts), _facts(drafts, other_s / all_s), number == ask.repeat)
        yield Report(f"Run {number} of {ask.repeat}", number / ask.repeat, finding)
    if not drafts:
        raise ConfigError("No chain was drawn in these runs. Choose another method or a longer answer.")


def _rows(drafts: Sequence[Sequence[DraftedToken]]) -> tuple[dict[str, Any], ...]:
    by_token, by_block = [kept_by_token(d) for d in drafts], [kept_by_block(d) for d in drafts]
    rows = []
    for place in range(max(map(len, drafts))):
        token, block = (sum(k[place] for k in kept if place < len(k)) / len(drafts) for kept in (by_token, by_block))
        gain = block / token - 1.0 if token > 0 else None
        rows.append({"place": place + 1, "token": token, "block": block, "gain": gain})
    return tuple(rows)


def _facts(drafts: Sequence[Sequence[DraftedToken]], other_share: float) -> dict[str, Any]:
    n = len(drafts)
    return {
        "num_drafts": n,
        "token": sum(sum(kept_by_token(d)) for d in drafts) / n,
        "block": sum(sum(kept_by_block(d)) for d in drafts) / n,
        "num_better": sum(sum(kept_by_block(d)) > sum(kept_by_token(d)) + 1e-9 for d in drafts),
        "other_share": other_share,
    }
