"""Which draft length would pay on a server: acceptance by place, load and measured times in, a gamma out. Pure.

The sum, for drafts of one length: with a_k the share of drafts that kept their k-th token, E(g) = 1 + a_1 + ... + a_g
tokens a step that drafts. A drafted token costs c plain steps: drafting it, and its row in the check. A share kappa of
the steps drafts. Then S(g) = (kappa E(g) + 1 - kappa) / (kappa (1 + g c) + 1 - kappa): the speed-up of
`specviz.theory`, with acceptance as it was counted in place of a model of it. S > 1 for c < (E(g) - 1) / g, whatever
kappa is.

c needs a plain step and a drafting one at equal load. A server tells its own; the plain one is told by another server
of the same model that does not speculate. Beyond the places that it drafts today, nothing has been counted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specviz.remote.history import History, Stretch
from specviz.remote.server import Identity
from specviz.theory import expected_tokens

__all__ = ["MIN_DRAFTS", "Advice", "Choice", "Load", "advise", "batch_ranges", "loads_of", "places_of", "settings_line"]

MIN_GAPS = 100
"""Fewer times than this are no measurement."""

MIN_DRAFTS = 100


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured while `requests` (a power of two, or more up to the next) ran at once.

    step_s: mean seconds from one step of a request to its next. drafted_share: kappa, 0 of a server without drafts.
    """

    requests: int
    step_s: float
    num_steps: int
    drafted_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One gamma. tokens: E. break_even: the cost of a drafted token, in plain steps, below which it beats plain
    decoding. speed_up: by load in requests, where both times were measured."""

    gamma: int
    tokens: float
    break_even: float
    speed_up: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Advice:
    """gamma: of today. choices: 1 to gamma. costs: c by load. best: gamma by load, 0 for none.

    loads, plain: the times, by load, of this server and of the plain one. grows: whether the last place is kept so
    often that a longer draft is worth a try.
    """

    gamma: int
    choices: tuple[Choice, ...]
    costs: Mapping[int, float]
    best: Mapping[int, int]
    loads: Mapping[int, Load]
    plain: Mapping[int, Load]
    grows: bool


def advise(by_place: Sequence[float], loads: Mapping[int, Load], plain: Mapping[int, Load]) -> Advice:
    """What the counts and times come to.

    Args:
        by_place: [gamma] share of drafts that kept the token at each place, so it never rises.
        loads, plain: of this server and of one that does not draft, by requests at once.
    """
    gamma = len(by_place)
    tokens = [1.0 + sum(by_place[:g]) for g in range(gamma + 1)]
    costs: dict[int, float] = {}
    for requests in sorted(loads.keys() & plain.keys()):
        own, share = loads[requests], loads[requests].drafted_share
        if not share or not gamma:
            continue
        t0 = plain[requests].step_s
        drafting_s = (own.step_s - (1.0 - share) * t0) / share
        costs[requests] = max(0.0, (drafting_s / t0 - 1.0) / gamma)
    choices = tuple(
        Choice(
            g,
            tokens[g],
            (tokens[g] - 1.0) / g,
            {n: _speed_up(tokens[g], g, c, loads[n].drafted_share) for n, c in costs.items()},
        )
        for g in range(1, gamma + 1)
    )
    best = {n: max([0, *(o.gamma for o in choices)], key=lambda g: _gain(choices, g, n)) for n in costs}
    conditional = by_place[-1] / by_place[-2] if gamma > 1 and by_place[-2] else (by_place[-1] if gamma else 0.0)
    grows = bool(costs) and any(
        best[n] == gamma
        and _speed_up(tokens[-1] + by_place[-1] * conditional, gamma + 1, c, loads[n].drafted_share)
        > choices[-1].speed_up[n]
        for n, c in costs.items()
    )
    return Advice(gamma, choices, costs, best, loads, plain, grows)


def _speed_up(tokens: float, gamma: int, c: float, share: float) -> float:
    return (share * tokens + 1.0 - share) / (share * (1.0 + gamma * c) + 1.0 - share)


def _gain(choices: Sequence[Choice], gamma: int, requests: int) -> float:
    return choices[gamma - 1].speed_up[requests] if gamma else 1.0


def loads_of(history: History) -> dict[int, Load]:
    """Times by load, from stretches in which as many requests ran at both ends: rounded down to a power of two.

    Of several engines behind one address it is the load of each, as they batch apart.
    """
    sums: dict[int, list[float]] = {}
    engines = history.samples[-1].counters.num_engines if history.samples else 1
    for before, after in itertools.pairwise(sample.counters for sample in history.samples):
        running = [(counters.num_running or 0) / engines for counters in (before, after)]
        most, least = max(running), min(running)
        if least < 1 or before.num_gaps is None or after.num_gaps is None or after.num_gaps == before.num_gaps:
            continue
        load = 1 << (int(least).bit_length() - 1)
        if most >= 2 * load:
            continue
        found = sums.setdefault(load, [0.0] * 4)
        for place, name in enumerate(("gaps_s", "num_gaps", "num_drafts", "num_accepted")):
            found[place] += (getattr(after, name) or 0) - (getattr(before, name) or 0)
    is_by_token = bool(history.samples) and history.samples[-1].counters.source == "sglang"
    out = {}
    for load, (seconds, gaps, drafted, kept) in sorted(sums.items()):
        steps = gaps - kept if is_by_token else gaps
        if steps >= MIN_GAPS:
            out[load] = Load(load, seconds / steps, round(steps), min(1.0, drafted / steps))
    return out


def settings_line(identity: Identity, advice: Advice) -> str:
    """The engine's own words for the gammas that pay best, "" where nothing was found or the engine is not known.

    vLLM: `num_speculative_tokens_per_batch_size` takes ranges of requests, both ends in them. SGLang: one length, of
    which num_draft_tokens is one more, its root.
    """
    if not advice.best:
        return ""
    most = max(advice.best.values())
    if identity.engine == "vLLM":
        if not most:
            return f"vllm serve {identity.model}"
        config: dict[str, object] = {"method": "...", "num_speculative_tokens": most}
        if len(set(advice.best.values())) > 1:
            config["num_speculative_tokens_per_batch_size"] = batch_ranges(advice.best)
        return f"--speculative-config '{json.dumps(config)}'"
    if identity.engine == "SGLang":
        drafting = identity.drafting
        algorithm = drafting.algorithm if drafting else "..."
        if not most:
            return f"python -m sglang.launch_server --model-path {identity.model}"
        if algorithm == "NGRAM":
            return f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {most + 1}"
        return (
            f"--speculative-algorithm {algorithm} --speculative-num-steps {most} --speculative-eagle-topk 1 "
            f"--speculative-num-draft-tokens {most + 1}"
        )
    return ""


def batch_ranges(best: Mapping[int, int]) -> list[list[int]]:
    """[[first, last, gamma]] over the loads, neighbours of one gamma as one."""
    out: list[list[int]] = []
    loads = sorted(best)
    for load, following in zip(loads, [*loads[1:], 2 * loads[-1]], strict=True):
        if out and out[-1][2] == best[load]:
            out[-1][1] = following - 1
        else:
            out.append([load if out else 1, following - 1, best[load]])
    return out


def places_of(stretch: Stretch | None) -> list[float]:
    """Acceptance by place as `advise` takes it, empty where too little was drafted to say.

    An SGLang counts no places. There each is taken to be kept as often as every other whose predecessor was, which is
    the model of Leviathan et al. (2023): the alpha whose expected tokens are those counted.
    """
    if stretch is None or (stretch.counted.num_drafts or 0) < MIN_DRAFTS:
        return []
    if stretch.counted.accepted_at:
        return [share or 0.0 for share in stretch.by_position()]
    gamma, tokens = stretch.counted.draft_depth or 0, stretch.acceptance_length
    if not gamma or tokens is None or stretch.counted.num_drafted_each != gamma:
        return []
    low, high = 0.0, 1.0
    for _ in range(40):
        alpha = (low + high) / 2
        low, high = (alpha, high) if expected_tokens(alpha, gamma) < tokens else (low, alpha)
    return [low**place for place in range(1, gamma + 1)]
