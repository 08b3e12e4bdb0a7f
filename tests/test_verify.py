"""Losslessness of the verification rules: by exact enumeration, then by seeded draws.

Enumeration: the coin and the draws are replaced by every branch they can take, weighted with its probability. The
emitted distribution must equal the target's to 1e-12, whatever the draft is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import specviz.verify as verify_module
from specviz.config import SamplingParams
from specviz.proposal import Proposal, Verdict
from specviz.sampling import probabilities, uniform_generator
from specviz.verify import verify_greedy, verify_sampling

T1 = SamplingParams(temperature=1.0)
Outcomes = list[tuple[float, Verdict]]


class _Branches:
    """Runs a function once for every sequence of random choices it can make, with the probability of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script: list[int] = []
        self.taken: list[tuple[int, list[float]]] = []
        self.thresholds: list[float] = []
        monkeypatch.setattr(verify_module, "coin", lambda rng: _Coin(self))
        monkeypatch.setattr(verify_module, "draw", self._draw)

    def choose(self, weights: list[float]) -> int:
        place = len(self.taken)
        pick = self.script[place] if place < len(self.script) else 0
        self.taken.append((pick, weights))
        return pick

    def _draw(self, probs: Tensor, rng: torch.Generator) -> int:
        return self.choose(probs.tolist())

    def run(self, function: Callable[[], Verdict]) -> Outcomes:
        outcomes: Outcomes = []
        self.script = []
        while True:
            self.taken = []
            verdict = function()
            weight = 1.0
            for pick, weights in self.taken:
                weight *= weights[pick]
            if weight > 0:
                outcomes.append((weight, verdict))
            while self.taken and self.taken[-1][0] == len(self.taken[-1][1]) - 1:
                self.taken.pop()
            if not self.taken:
                return outcomes
            self.script = [pick for pick, _ in self.taken[:-1]] + [self.taken[-1][0] + 1]


class _Coin:
    """A uniform draw that takes both sides of the threshold it is compared with."""

    def __init__(self, branches: _Branches) -> None:
        self.branches = branches

    def __lt__(self, threshold: float) -> bool:
        return self.branches.choose([threshold, 1.0 - threshold]) == 0


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> _Branches:
    return _Branches(monkeypatch)


def outcomes(branches: _Branches, proposal: Proposal, logits: Tensor) -> Outcomes:
    """Every outcome of speculative sampling at temperature 1, with its probability."""
    return branches.run(lambda: verify_sampling(proposal, logits, T1, [], uniform_generator(0)))


def tokens_of(proposal: Proposal, verdict: Verdict) -> tuple[int, ...]:
    return (*(int(proposal.token_ids[node]) for node in verdict.path), verdict.next_token)


def dist(*weights: float) -> Tensor:
    d = torch.tensor(weights, dtype=torch.float64)
    return d / d.sum()


P3, Q3 = dist(0.1, 0.6, 0.3), dist(0.6, 0.2, 0.2)
PAIRS = [
    (dist(0.4, 0.3, 0.1, 0.1, 0.05, 0.05), dist(0.1, 0.1, 0.3, 0.3, 0.1, 0.1)),
    (P3, Q3),
    (dist(1, 0, 0), dist(1, 1, 1)),
    (dist(1, 1, 1), dist(0, 0, 1)),
    (P3, P3),
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_one_drawn_token_is_lossless(branches: _Branches, p: Tensor, q: Tensor) -> None:
    """Case 19 without randomness: q is what was really drawn from, and the emitted law is p."""
    law = torch.zeros_like(p)
    logits = torch.stack([p, p]).log()
    for x in range(len(q)):
        if q[x] > 0:
            proposal = Proposal.chain([x], q[None])
            for weight, verdict in outcomes(branches, proposal, logits):
                law[tokens_of(proposal, verdict)[0]] += q[x] * weight
    assert torch.allclose(law, p, atol=1e-12)


def test_case_19_filtered_draft_against_filtered_target(branches: _Branches) -> None:
    """Both sides go through one transform; here the draft has top-k 2. The law is p all the same."""
    p = dist(0.4, 0.3, 0.1, 0.1, 0.05, 0.05)
    q = probabilities(dist(0.1, 0.1, 0.3, 0.3, 0.1, 0.1).log(), SamplingParams(1.0, top_k=2))
    assert (q > 0).sum() == 2
    law = torch.zeros_like(p)
    for x in (2, 3):
        proposal = Proposal.chain([x], q[None])
        for weight, verdict in outcomes(branches, proposal, torch.stack([p, p]).log()):
            law[tokens_of(proposal, verdict)[0]] += q[x] * weight
    assert torch.allclose(law, p, atol=1e-12)


def joint_law(p1: Tensor, p2: list[Tensor]) -> dict[tuple[int, int], float]:
    return {(a, b): float(p1[a] * p2[a][b]) for a in range(len(p1)) for b in range(len(p2[a]))}


def chain_logits(p1: Tensor, p2: list[Tensor], a: int, b: int) -> Tensor:
    """Rows for root, node a, node b; the third position is uniform."""
    return torch.stack([p1.log(), p2[a].log(), torch.zeros_like(p1)])


def test_a_drawn_chain_of_two_is_lossless_jointly(branches: _Branches) -> None:
    """The law of the first two tokens equals the target's, with bonus and residual drawn in all branches."""
    p1, p2 = P3, [dist(0.2, 0.5, 0.3), dist(0.7, 0.1, 0.2), dist(0.3, 0.3, 0.4)]
    q1, q2 = Q3, [dist(0.5, 0.4, 0.1), dist(0.2, 0.2, 0.6), dist(0.1, 0.8, 0.1)]
    law: dict[tuple[int, int], float] = {}
    for a, b in itertools.product(range(3), repeat=2):
        proposal = Proposal.chain([a, b], torch.stack([q1, q2[a]]))
        logits = chain_logits(p1, p2, a, b)
        for weight, verdict in outcomes(branches, proposal, logits):
            weight *= float(q1[a] * q2[a][b])
            tokens = tokens_of(proposal, verdict)
            if len(tokens) >= 2:
                law[tokens[:2]] = law.get(tokens[:2], 0.0) + weight
            else:  # one token emitted: the next step draws the second from p
                for second in range(3):
                    key = (tokens[0], second)
                    law[key] = law.get(key, 0.0) + weight * float(p2[tokens[0]][second])
    for key, expected in joint_law(p1, p2).items():
        assert law.get(key, 0.0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("siblings", [(0,), (0, 1), (2, 0, 1), (1, 2)])
def test_chosen_siblings_are_lossless(branches: _Branches, siblings: tuple[int, ...]) -> None:
    """Point masses: accept with p(x), else take x out of p and renormalise."""
    proposal = Proposal(torch.tensor(siblings), (-1,) * len(siblings))
    logits = torch.stack([P3.log()] * (len(siblings) + 1))
    law = torch.zeros_like(P3)
    for weight, verdict in outcomes(branches, proposal, logits):
        law[tokens_of(proposal, verdict)[0]] += weight
    assert torch.allclose(law, P3, atol=1e-12)


def drawn_siblings_law(branches: _Branches, p: Tensor, q: Tensor, probs_given: bool) -> Tensor:
    """Two siblings drawn from q without replacement, all draws enumerated."""
    law = torch.zeros_like(p)
    for a, b in itertools.permutations(range(len(q)), 2):
        rest = q.clone()
        rest[a] = 0.0
        rest = rest / rest.sum()
        proposal = Proposal(torch.tensor([a, b]), (-1, -1), torch.stack([q, rest]) if probs_given else None)
        logits = torch.stack([p.log()] * 3)
        for weight, verdict in outcomes(branches, proposal, logits):
            law[tokens_of(proposal, verdict)[0]] += float(q[a] * rest[b]) * weight
    return law


@pytest.mark.parametrize(("p", "q"), [(P3, Q3), (dist(0.25, 0.25, 0.25, 0.25), dist(0.7, 0.1, 0.1, 0.1))])
def test_drawn_siblings_are_lossless(branches: _Branches, p: Tensor, q: Tensor) -> None:
    assert torch.allclose(drawn_siblings_law(branches, p, q, probs_given=True), p, atol=1e-12)


def test_drawn_siblings_verified_with_a_plain_residual_rule_would_not_be() -> None:
    """design: mixing the rules is not lossless. p = (.1, .6, .3), q = (.6, .2, .2), two draws with replacement that are
    verified as if each refusal only took its token out: the law comes to (.1, .5, .4), so the test above can fail.
    """
    p, q = P3, Q3
    law = torch.zeros_like(p)
    for a in range(3):
        kept = min(1.0, float(p[a] / q[a]))
        law[a] += q[a] * kept
        after = p.clone()
        after[a] = 0.0
        law += q[a] * (1 - kept) * after / after.sum()
    assert not torch.allclose(law, p, atol=0.01)


def test_the_bonus_and_the_rest_of_a_tree_are_lossless_jointly(branches: _Branches) -> None:
    """Chosen siblings 0 and 1 at the root, each with a chosen child 2: the law of two tokens is the target's."""
    p1, p2 = P3, [dist(0.2, 0.5, 0.3), dist(0.7, 0.1, 0.2), dist(0.3, 0.3, 0.4)]
    proposal = Proposal(torch.tensor([0, 1, 2, 2]), (-1, -1, 0, 1))
    logits = torch.stack(
        [p1.log(), p2[0].log(), p2[1].log(), torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]
    )
    law: dict[tuple[int, int], float] = {}
    for weight, verdict in outcomes(branches, proposal, logits):
        tokens = tokens_of(proposal, verdict)
        if len(tokens) >= 2:
            law[tokens[:2]] = law.get(tokens[:2], 0.0) + weight
        else:
            for second in range(3):
                key = (tokens[0], second)
                law[key] = law.get(key, 0.0) + weight * float(p2[tokens[0]][second])
    for key, expected in joint_law(p1, p2).items():
        assert law.get(key, 0.0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("top_k", [0, 3])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_case_21_draws_follow_the_warped_target(temperature: float, top_k: int, top_p: float) -> None:
    """6,000 draws of 6 tokens. A share's standard error is at most 0.0065, so the total variation stays under 0.05
    with p < 1e-6; ids outside the allowed set never appear.
    """
    params = SamplingParams(temperature, top_k, top_p)
    rng = uniform_generator(7)
    target, draft = torch.tensor([2.0, 1.0, 0.5, -1.0, 1.5, -0.5]), torch.tensor([0.0, 2.0, 0.0, 1.0, 0.5, 0.0])
    p, q = probabilities(target, params), probabilities(draft, params)
    counts = torch.zeros(6)
    logits = torch.stack([target, target])
    for _ in range(6_000):
        x = int(torch.multinomial(q, 1, generator=rng))
        proposal = Proposal.chain([x], q[None])
        counts[tokens_of(proposal, verify_sampling(proposal, logits, params, [], rng))[0]] += 1
    assert counts[p == 0].sum() == 0
    assert float((counts / 6_000 - p).abs().sum() / 2) < 0.05


def test_case_23_a_coin_of_zero_does_not_accept_the_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "coin", lambda rng: 0.0)
    p = torch.tensor([[5.0, 4.0, 1.0, 0.0]] * 2)
    params = SamplingParams(1.0, top_k=2)
    q = torch.tensor([[0.1, 0.1, 0.4, 0.4]])
    for x, kept in ((2, False), (3, False), (0, True), (1, True)):
        for probs in (q, None):
            verdict = verify_sampling(Proposal.chain([x], probs), p, params, [], uniform_generator(0))
            assert (len(verdict.path) == 1) is kept
            assert verdict.next_token in (0, 1)


def test_case_25_tiny_probabilities_keep_their_ratio() -> None:
    """p(x) = 1e-9, q(x) = 3e-9: accepted one time in three. 8,000 trials: 0.03 is 5.7 standard errors."""
    p = torch.tensor([1e-9, 1.0 - 1e-9], dtype=torch.float64).log().float()
    q = torch.tensor([[3e-9, 1.0]])
    rng = uniform_generator(11)
    proposal = Proposal.chain([0], q)
    kept = sum(bool(verify_sampling(proposal, torch.stack([p, p]), T1, [], rng).path) for _ in range(8_000))
    assert kept / 8_000 == pytest.approx(1 / 3, abs=0.03)


def test_case_25_a_draft_that_claims_zero_gives_no_nan() -> None:
    verdict = verify_sampling(
        Proposal.chain([0], torch.tensor([[0.0, 1.0]])), torch.zeros(2, 2), T1, [], uniform_generator(0)
    )
    assert verdict.path == ()
    assert verdict.trials[0].accept_prob == 0.0


@pytest.mark.parametrize("bad", [6, 9, -1])
@pytest.mark.parametrize("drawn", [True, False])
def test_case_112_ids_outside_the_vocabulary_are_refused(bad: int, drawn: bool) -> None:
    probs = torch.full((1, 6), 1 / 6) if drawn else None
    logits = torch.zeros(2, 6)
    verdict = verify_sampling(Proposal.chain([bad], probs), logits, T1, [], uniform_generator(0))
    assert verdict.path == ()
    assert 0 <= verdict.next_token < 6
    assert verify_greedy(Proposal.chain([bad]), logits, SamplingParams(), []).path == ()


# --- greedy --------------------------------------------------------------------------------------------------------


def rows(*firsts: int, vocab: int = 8) -> Tensor:
    logits = torch.zeros(len(firsts), vocab)
    for row, first in enumerate(firsts):
        logits[row, first] = 5.0
    return logits


@pytest.mark.parametrize(
    ("drafted", "firsts", "path", "token", "origin"),
    [
        ([1, 2, 3], (1, 2, 3, 4), (0, 1, 2), 4, "bonus"),
        ([1, 2, 3], (1, 5, 3, 4), (0,), 5, "corrected"),
        ([1, 2, 3], (7, 2, 3, 4), (), 7, "corrected"),
        ([], (6,), (), 6, "target"),
    ],
)
def test_greedy_chain(
    drafted: list[int], firsts: tuple[int, ...], path: tuple[int, ...], token: int, origin: str
) -> None:
    verdict = verify_greedy(Proposal.chain(drafted), rows(*firsts), SamplingParams(), [])
    assert (verdict.path, verdict.next_token, verdict.origin) == (path, token, origin)
    assert [trial.accepted for trial in verdict.trials] == [True] * len(path) + [False] * (origin == "corrected")


def test_greedy_tree_takes_the_branch_of_the_argmax() -> None:
    """Nodes: 1, 2 at the root; 3 under 1; 4, 5 under 2; the target wants 2 then 5 then 6."""
    proposal = Proposal(torch.tensor([1, 2, 3, 4, 5]), (-1, -1, 0, 1, 1))
    verdict = verify_greedy(proposal, rows(2, 0, 5, 0, 0, 6), SamplingParams(), [])
    assert (verdict.path, verdict.next_token, verdict.origin) == ((1, 4), 6, "bonus")
    assert [(trial.node, trial.accepted) for trial in verdict.trials] == [(0, False), (1, True), (3, False), (4, True)]


def test_rows_that_are_only_scored_are_never_tried() -> None:
    proposal = Proposal(torch.tensor([1, 2]), (-1, 0), scored_only=(True, True))
    verdict = verify_greedy(proposal, rows(1, 2, 3), SamplingParams(), [])
    assert (verdict.path, verdict.next_token, verdict.origin, verdict.trials) == ((), 1, "target", ())


def test_case_10_greedy_penalty_sees_the_block() -> None:
    """Logits prefer 1 every time; with a penalty the second position must not repeat it."""
    logits = torch.tensor([[0.0, 2.0, 1.5, 0.0]] * 3)
    params = SamplingParams(repetition_penalty=2.0)
    verdict = verify_greedy(Proposal.chain([1, 1]), logits, params, [])
    assert (verdict.path, verdict.next_token) == ((0,), 2)


@given(st.integers(0, 2**31), st.integers(1, 12))
def test_greedy_walk_equals_a_walk_by_hand(seed: int, n: int) -> None:
    """Random trees over four tokens: the path is what following the argmax from node to node gives."""
    generator = torch.Generator().manual_seed(seed)
    parents = tuple(int(torch.randint(-1, i, (1,), generator=generator)) if i else -1 for i in range(n))
    ids = torch.randint(4, (n,), generator=generator)
    logits = torch.rand(n + 1, 4, generator=generator)
    path, node = [], -1
    while True:
        first = int(logits[node + 1].argmax())
        follow = [i for i in range(n) if parents[i] == node and int(ids[i]) == first]
        if not follow:
            break
        node = follow[0]
        path.append(node)
    verdict = verify_greedy(Proposal(ids, parents), logits, SamplingParams(), [])
    assert verdict.path == tuple(path)
    assert verdict.next_token == int(logits[node + 1].argmax())
