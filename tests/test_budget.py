"""What a draft costs and how large a draft pays; candidates of two drafters in one tree."""

from __future__ import annotations

import random

import pytest
import torch
from checks import wild_llama
from fakes import config, loaded_pair

from specviz.drafters import budget as budgets
from specviz.drafters import registry
from specviz.drafters.budget import ROWS, Budget, Costs, costs_of
from specviz.drafters.growth import SECOND_THOUGHT, UNLISTED, Growth
from specviz.events import DraftNote
from specviz.proposal import Proposal

STEEP = Costs((1.0, 1.0, 1.0, 1.05, 1.3, 1.4, 1.5, 1.8, 2.2, 2.6), draft=0.1, level=0.08)


def test_passes_between_those_timed_lie_on_a_line():
    assert STEEP.of_pass(1) == 1.0
    assert STEEP.of_pass(6) == 1.05
    assert STEEP.of_pass(7) == pytest.approx((1.05 + 1.3) / 2)
    assert STEEP.of_pass(20) == pytest.approx(2.0)
    assert STEEP.of_pass(40) == pytest.approx(2.6 + 0.4), "behind the last it grows as before"
    assert (STEEP.of_draft(0), STEEP.of_draft(1)) == (0.0, 0.1)
    assert STEEP.of_draft(3) == pytest.approx(0.26)


def test_the_best_size_is_that_of_all_sizes_tried():
    rng = random.Random(1)
    for _ in range(300):
        odds = sorted((rng.random() ** 2 for _ in range(rng.randrange(0, 20))), reverse=True)
        own = Budget(STEEP)
        for _ in range(5):
            own.spend(rng.randrange(1, 7), rng.randrange(1, 12), rng.randrange(0, 5))
        gain = [sum(odds[:n]) - own.rate * (STEEP.of_pass(n + 1) - 1.0) for n in range(len(odds) + 1)]
        assert gain[own.best_size(odds)] == pytest.approx(max(gain))


def test_the_rate_settles_at_tokens_over_time():
    own = Budget(STEEP)
    for _ in range(2_000):
        own.spend(3, 6, 2)
    assert own.rate == pytest.approx(3 / (1.05 + 0.18), rel=1e-2)
    assert own.pays_level(0.2)
    assert not own.pays_level(0.19)
    own.reset()
    assert own.rate == budgets.FIRST_RATE


def test_costs_are_measured_once_for_each_kind_and_number_of_threads():
    loaded = loaded_pair(wild_llama(1))
    drafter, _ = registry.get_method("feature").build(loaded, config("feature", options={"tree": "growing:8"}))
    found = costs_of(loaded, drafter, "int8")
    assert found is costs_of(loaded, drafter, "int8")
    assert found is not costs_of(loaded, drafter, "other")
    assert found.passes[0] == 1.0
    assert len(found.passes) == len(ROWS)
    assert min(found.passes) > 0
    assert found.draft > 0
    assert found.level >= 0


def tree(tokens: list[int], parents: list[int], shares: list[float]) -> Proposal:
    return Proposal(torch.tensor(tokens), tuple(parents), confidence=tuple(shares))


def test_candidates_of_two_drafters_meet_in_one_tree():
    growth = Growth()
    growth.add_others(tree([5, 6, 9], [-1, 0, -1], [0.8, 0.5, 0.3]))
    growth.weigh()
    assert growth.odds(0) == pytest.approx(0.8**SECOND_THOUGHT), "no model has read the place"
    growth.add(-1, [(5, 0.6), (7, 0.2)])
    growth.weigh()
    assert growth.tokens == [5, 6, 9, 7]
    assert growth.odds(0) == pytest.approx(0.7), "both name it: the mean"
    assert growth.odds(1) == pytest.approx(0.7 * 0.5**SECOND_THOUGHT), "its place has not been read"
    assert growth.odds(2) == pytest.approx(0.3**SECOND_THOUGHT * UNLISTED), "read, and not named"
    assert growth.odds(3) == pytest.approx(0.2)
    assert growth.likeliest() == [0, 1, 3, 2]
    assert growth.count_of([0, 1, 2, 3]) == (2, 3)
    made = growth.proposal([0, 3, 1], DraftNote("tree"))
    assert (made.token_ids.tolist(), made.parents) == ([5, 6, 7], (-1, 0, -1))
    assert made.confidence[0] == pytest.approx(0.7)
    assert growth.levels([0, 3, 1]) == [2, 1]


def test_a_parent_is_always_at_least_as_likely_as_its_child():
    rng = random.Random(3)
    for _ in range(100):
        growth = Growth()
        parents = [rng.randrange(-1, node) if node else -1 for node in range(12)]
        growth.add_others(tree(list(range(12)), parents, [rng.random() for _ in range(12)]))
        for parent in (-1, 0, 3):
            growth.add(parent, [(rng.randrange(20), rng.random()) for _ in range(3)])
        growth.weigh()
        order = growth.likeliest()
        for size in range(len(order) + 1):
            growth.proposal(order[:size], DraftNote("tree"))  # raises where a chosen candidate's parent is not chosen
