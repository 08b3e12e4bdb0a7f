"""Issue 18: block verification by exact enumeration, by seeded draws, and against the token rule on the same drafts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from checks import noisy
from checks import wild_llama as wild
from fakes import config, generator
from test_verify import Outcomes, _Branches, dist, tokens_of
from torch import Tensor

import specviz.verify as verify_module
from specviz.config import SamplingParams
from specviz.errors import ConfigError
from specviz.events import DraftedToken, StepDone, event_from_json, event_to_json
from specviz.lab.experiment import Ask
from specviz.lab.rules import kept_by_block, kept_by_token, measure_rules
from specviz.lab.words import answer
from specviz.proposal import Proposal, Verdict
from specviz.sampling import probabilities, uniform_generator
from specviz.verify import verify_block, verify_sampling

T1 = SamplingParams(temperature=1.0)
VOCAB = 3
Law = dict[tuple[int, ...], float]
Table = Callable[[Sequence[int]], Tensor]
"""A model: the tokens so far -> [VOCAB] probabilities of the next."""


def random_table(seed: int, sharpness: float = 1.5, holes: bool = False) -> Table:
    """Another distribution behind every context; with `holes` some tokens have probability 0."""
    made: dict[tuple[int, ...], Tensor] = {}
    source = torch.Generator().manual_seed(seed)

    def table(context: Sequence[int]) -> Tensor:
        key = tuple(context)
        if key not in made:
            weights = (sharpness * torch.randn(VOCAB, generator=source, dtype=torch.float64)).exp()
            if holes:
                weights[int(torch.randint(VOCAB, (), generator=source))] = 0.0
            made[key] = weights / weights.sum()
        return made[key]

    return table


def drafts(p: Table, q: Table, gamma: int) -> Iterator[tuple[float, Proposal, Tensor]]:
    """Every chain that q can draw: its probability, the proposal, and the target's logits behind each token."""
    for tokens in itertools.product(range(VOCAB), repeat=gamma):
        probs = torch.stack([q(tokens[:i]) for i in range(gamma)])
        weight = float(torch.stack([probs[i, token] for i, token in enumerate(tokens)]).prod())
        if weight > 0:
            yield weight, Proposal.chain(tokens, probs), torch.stack([p(tokens[:i]).log() for i in range(gamma + 1)])


def every_outcome(branches: _Branches, proposal: Proposal, logits: Tensor) -> Outcomes:
    return branches.run(lambda: verify_block(proposal, logits, T1, [], uniform_generator(0)))


def add(law: Law, tokens: tuple[int, ...], weight: float, p: Table, length: int) -> None:
    """Adds an emitted beginning to the law of `length` tokens: what is missing the target goes on with alone."""
    if len(tokens) >= length:
        law[tokens[:length]] = law.get(tokens[:length], 0.0) + weight
        return
    for token, prob in enumerate(p(tokens).tolist()):
        if prob > 0:
            add(law, (*tokens, token), weight * prob, p, length)


def target_law(p: Table, length: int) -> Law:
    law: Law = {}
    add(law, (), 1.0, p, length)
    return law


def distance(law: Law, other: Law) -> float:
    return max(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in law.keys() | other.keys())


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> _Branches:
    return _Branches(monkeypatch)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (random_table(1), random_table(2)),
        (random_table(3), random_table(3)),
        (random_table(4, holes=True), random_table(5)),
        (random_table(6), random_table(7, holes=True)),
        (random_table(8, holes=True), random_table(9, holes=True)),
        (lambda _: dist(1, 1, 1), lambda _: dist(1, 0, 0)),
    ],
    ids=["apart", "equal", "target-holes", "draft-holes", "both", "point"],
)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_a_block_is_lossless_jointly(branches: _Branches, p: Table, q: Table, gamma: int) -> None:
    """All drafts, coins and draws enumerated: gamma + 1 tokens follow the target's own law to 1e-12."""
    law: Law = {}
    for chance, proposal, logits in drafts(p, q, gamma):
        for weight, verdict in every_outcome(branches, proposal, logits):
            add(law, tokens_of(proposal, verdict), chance * weight, p, gamma + 1)
    assert distance(law, target_law(p, gamma + 1)) < 1e-12


def law_by_h(p: Table, q: Table, gamma: int, stops: Callable[[list[float]], list[float]]) -> Law:
    """The law where `stops` turns h_1..h_n into the probabilities of keeping 0..n tokens. Of the rule under test it
    uses p_i and h_i alone."""
    law: Law = {}
    for chance, proposal, logits in drafts(p, q, gamma):
        trials = verify_block(proposal, logits, T1, [], uniform_generator(0)).trials
        tokens = tuple(proposal.token_ids.tolist())
        prefixes = [1.0, *(trial.prefix_prob or 0.0 for trial in trials)]
        for kept, share in enumerate(stops([trial.block_prob or 0.0 for trial in trials])):
            rest = p(tokens)
            if kept < gamma:
                rest = torch.clamp(prefixes[kept] * p(tokens[:kept]) - q(tokens[:kept]), min=0.0)
                rest = rest / rest.sum() if rest.sum() > 0 else p(tokens[:kept])
            for token, prob in enumerate(rest.tolist()):
                if share * prob > 0:
                    add(law, (*tokens[:kept], token), chance * share * prob, p, gamma + 1)
    return law


def longest(hs: list[float]) -> list[float]:
    """The longest prefix whose own coin falls: the right rule."""
    out = []
    for kept in range(len(hs) + 1):
        share = hs[kept - 1] if kept else 1.0
        for h in hs[kept:]:
            share *= 1.0 - h
        out.append(share)
    return out


def up_to_the_first_failure(hs: list[float]) -> list[float]:
    """The easy mistake: a failed coin ends the block."""
    out, reached = [], 1.0
    for h in hs:
        out.append(reached * (1.0 - h))
        reached *= h
    return [*out, reached]


def test_ending_at_the_first_failed_coin_would_not_be_lossless() -> None:
    """The easy mistake is seen by this test: the same h, but a failed coin ends the block."""
    p, q = random_table(1), random_table(2)
    law = target_law(p, 4)
    assert distance(law_by_h(p, q, 3, longest), law) < 1e-12
    assert distance(law_by_h(p, q, 3, up_to_the_first_failure), law) > 0.01


def test_a_later_coin_makes_up_for_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """p_1 = 1/2, p_2 = 1: coins .9, .9 keep both, by a rule that ended at the first failed coin none."""
    probs = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.4, 0.4]], dtype=torch.float64)
    p = torch.tensor([[0.4, 0.3, 0.3], [0.6, 0.2, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
    monkeypatch.setattr(verify_module, "coin", lambda rng: 0.9)
    verdict = verify_block(Proposal.chain([0, 0], probs), p.log(), T1, [], uniform_generator(0))
    first, second = verdict.trials
    assert first.prefix_prob == pytest.approx(0.5) and second.prefix_prob == 1.0
    assert first.block_prob == pytest.approx(0.1 / (0.1 + 0.5))  # r_1 = max(.5 * .6 - .2, 0), and nothing else
    assert second.block_prob == 1.0
    assert verdict.path == (0, 1) and verdict.origin == "bonus"
    assert verify_sampling(Proposal.chain([0, 0], probs), p.log(), T1, [], uniform_generator(0)).path == ()


def expected_kept(verdict: Verdict, n: int) -> tuple[float, float]:
    """Mean number of kept tokens of this draft, by block and token by token."""
    hs = [trial.block_prob or 0.0 for trial in verdict.trials]
    by_block = sum(kept * share for kept, share in enumerate(longest(hs)))
    by_token, reached = 0.0, 1.0
    for trial in verdict.trials[:n]:
        reached *= trial.accept_prob or 0.0
        by_token += reached
    return by_block, by_token


def test_a_block_keeps_at_least_what_the_token_rule_keeps() -> None:
    """1,000 random pairs of p and q, chains of two: over all drafts the mean is never lower, and mostly higher."""
    higher = 0
    for seed in range(1_000):
        p, q = random_table(2 * seed), random_table(2 * seed + 1)
        block = token = worth = 0.0
        for chance, proposal, logits in drafts(p, q, 2):
            verdict = verify_block(proposal, logits, T1, [], uniform_generator(0))
            mine, theirs = expected_kept(verdict, 2)
            block, token = block + chance * mine, token + chance * theirs
            worth += chance * sum(trial.prefix_prob or 0.0 for trial in verdict.trials)
        assert worth == pytest.approx(block, abs=1e-12)  # the sum of p_i is the mean that the Lab tells
        assert block >= token - 1e-12
        higher += block > token + 1e-6
    assert higher > 500


@pytest.mark.parametrize("params", [T1, SamplingParams(0.7, top_k=3), SamplingParams(1.2, top_p=0.9)])
def test_seeded_draws_follow_the_warped_target(params: SamplingParams) -> None:
    """6,000 chains of two over 6 tokens in float32: the law of the first token within 0.05, as in case 21; nothing that
    the settings rule out comes up."""
    rng = uniform_generator(5)
    target = torch.tensor([[2.0, 1.0, 0.5, -1.0, 1.5, -0.5]] * 3)
    p, q = probabilities(target[0], params), probabilities(torch.tensor([0.0, 2.0, 0.0, 1.0, 0.5, 0.0]), params)
    counts = torch.zeros(6)
    for _ in range(6_000):
        chain = torch.multinomial(q, 2, replacement=True, generator=rng).tolist()
        proposal = Proposal.chain(chain, torch.stack([q, q]))
        counts[tokens_of(proposal, verify_block(proposal, target, params, [], rng))[0]] += 1
    assert counts[p == 0].sum() == 0
    assert float((counts / 6_000 - p).abs().sum() / 2) < 0.05


def test_ids_that_the_target_lacks_end_a_block() -> None:
    """Case 112 in a block, and a draft that claims 0 for what it drew (case 25)."""
    for chain, probs in (([9], torch.full((1, 6), 1 / 6)), ([0], torch.tensor([[0.0, 1.0, 0, 0, 0, 0]]))):
        verdict = verify_block(Proposal.chain(chain, probs), torch.zeros(2, 6), T1, [], uniform_generator(0))
        assert verdict.path == () and 0 <= verdict.next_token < 6
        assert (verdict.trials[0].prefix_prob, verdict.trials[0].block_prob) == (0.0, 0.0)


# --- in a run --------------------------------------------------------------------------------------------------------


def drafted_in(rule: str, **changes: object) -> list[StepDone]:
    settings = config("draft-model", gamma=4, max_new_tokens=48, temperature=1.0, seed=3, verify=rule, **changes)
    return [
        event
        for event in generator(wild(), noisy(wild(), 0.03), eos=()).stream("ab", settings)
        if isinstance(event, StepDone)
    ]


def test_a_run_tells_of_its_blocks() -> None:
    """Every coin with its h and p_i, tokens behind the kept ones as well; the fates follow from the coins alone."""
    steps = drafted_in("block")
    assert any(token.fate == "discarded" and token.coin is not None for step in steps for token in step.drafted)
    for step in steps[:-1]:
        tested = [token for token in step.drafted if token.coin is not None]
        below = [i for i, token in enumerate(tested, 1) if token.coin < token.block_prob]
        assert step.num_accepted == max(below, default=0)
        fates = [token.fate for token in step.drafted]
        assert fates == (["accepted"] * step.num_accepted + ["rejected"] + ["discarded"] * 9)[: len(fates)]
        assert all((token.overlap is None) == (token.fate == "discarded") for token in step.drafted)
        assert event_from_json(event_to_json(step)) == step


def test_what_is_not_drawn_is_verified_token_by_token() -> None:
    """auto is block where a chain was drawn; --verify token leaves no h; a method that never draws one says so."""

    def hs(steps: list[StepDone]) -> set[bool]:
        return {token.block_prob is not None for step in steps for token in step.drafted if token.coin is not None}

    assert drafted_in("auto") and hs(drafted_in("auto")) == {True}
    assert hs(drafted_in("token")) == {False}
    engine = generator(wild(), noisy(wild(), 0.03), eos=())
    run = [*engine.stream("abab abab", config("prompt-lookup", max_new_tokens=8, temperature=1.0, verify="block"))]
    assert run[0].verify == "speculative sampling" and "token by token" in " ".join(run[0].notes)
    chain = config("draft-model", max_new_tokens=8, temperature=1.0, seed=1)
    assert next(engine.stream("ab", chain)).verify == "block verification"


def test_a_greedy_run_is_the_same_under_every_lossless_rule() -> None:
    """At temperature 0 there is nothing to draw: same text, same word."""
    engine = generator(wild(), noisy(wild(), 0.03), eos=())
    for rule in ("auto", "token", "block"):
        events = [*engine.stream("ab", config("draft-model", max_new_tokens=12, verify=rule))]
        assert events[0].verify == "greedy" and events[0].exactness == "lossless"
        assert all(isinstance(t, DraftedToken) and t.block_prob is None for s in events[2:-1] for t in s.drafted)


# --- in the Lab ------------------------------------------------------------------------------------------------------


def test_the_lab_weighs_the_same_drafts_under_both_rules() -> None:
    """Issue 18: no place is kept less often as a block, the mean is higher, and what draws no chain is refused."""
    engine = generator(wild(), noisy(wild(), 0.03), eos=())
    ask = Ask("ab", config("draft-model", gamma=4, max_new_tokens=60, temperature=1.0, seed=1))
    finding = [report.finding for report in measure_rules(engine, ask, lambda: None)][-1]
    assert finding is not None and finding.is_whole
    for rule in ("token", "block"):
        assert sum(row[rule] for row in finding.rows) == pytest.approx(finding.facts[rule])
    assert all(row["block"] >= row["token"] for row in finding.rows)
    assert finding.facts["block"] > finding.facts["token"] > 0
    assert answer(finding)[0].startswith("As a block ")
    with pytest.raises(ConfigError, match="draws no chain"):
        list(measure_rules(engine, Ask("ab", config("prompt-lookup", temperature=1.0)), lambda: None))


def test_shares_by_place_are_those_of_the_rules() -> None:
    """As a block p_i; token by token 0.8 and 0.8 * 0.5."""
    pair = [
        DraftedToken(1, "a", i - 1, "accepted", accept_prob=a, coin=0.1, prefix_prob=worth)
        for i, (a, worth) in enumerate(((0.8, 0.8), (0.5, 0.6)))
    ]
    assert kept_by_block(pair) == [0.8, 0.6]
    assert kept_by_token(pair) == [0.8, 0.4]
