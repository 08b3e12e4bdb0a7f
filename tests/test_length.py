"""Draft length from step to step, and the approximate rules."""

from __future__ import annotations

import math

import pytest
import torch
from fakes import config, generator, ids_of, tiny_llama
from hypothesis import given
from hypothesis import strategies as st

from specviz.config import SamplingParams
from specviz.drafters.length import BestLength, FixedLength, HeuristicLength
from specviz.errors import ConfigError
from specviz.events import StepDone
from specviz.models.int8 import Int8Linear, quantize_int8
from specviz.proposal import Proposal
from specviz.sampling import uniform_generator
from specviz.theory import speed_up
from specviz.verify import verify_likely

PROMPT = ids_of("hello world, hello moon")


def steps(events: list) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


@given(st.lists(st.sampled_from(["kept", "refused", "idle"]), max_size=40), st.integers(1, 15))
def test_heuristic_stays_in_range_and_moves_as_told(fates: list[str], gamma: int) -> None:
    length = HeuristicLength(gamma)
    for fate in fates:
        before = length.next()
        assert 1 <= before <= gamma
        length.observe(0 if fate == "idle" else before, before if fate == "kept" else 0, fate == "refused")
        expected = {"kept": min(gamma, before + 2), "refused": max(1, before - 1), "idle": before}[fate]
        assert length.next() == expected


def test_best_takes_the_highest_speed_up_and_tries_again_when_it_idles() -> None:
    v = [1.0, 1.05, 1.1, 1.15, 1.2]
    length = BestLength(4, 0.1, v)
    for _ in range(50):
        length.observe(4, 4, False)
    assert length.next() == max(range(1, 5), key=lambda g: speed_up(204.2 / 206, g, 0.1, v[g]))
    for _ in range(9000):
        length.observe(1, 0, True)
    asked = [length.next() for _ in range(64)]
    assert asked.count(1) == 4
    assert asked.count(0) == 60


def test_fixed_is_fixed() -> None:
    length = FixedLength(3)
    length.observe(3, 0, True)
    assert length.next() == 3


@pytest.mark.parametrize("policy", ["fixed", "heuristic", "confidence", "best"])
def test_every_policy_keeps_the_text_and_repeats_itself(policy: str) -> None:
    target, draft = tiny_llama(), tiny_llama(1)
    engine = generator(target, draft)
    plain = list(engine.stream(PROMPT, config("plain", max_new_tokens=40)))[-1].token_ids
    runs = [
        list(engine.stream(PROMPT, config("draft-model", gamma=5, max_new_tokens=40, draft_length=policy)))
        for _ in "ab"
    ]
    assert runs[0][-1].token_ids == plain
    asked = [[(s.gamma, s.num_drafted) for s in steps(run)] for run in runs]
    assert asked[0] == asked[1]
    assert all(drafted <= gamma <= 5 for gamma, drafted in asked[0])


def test_confidence_stops_behind_the_doubtful_token_not_before_it() -> None:
    """At temperature 1 the doubtful token is still proposed, with its q; all earlier ones are above the limit."""
    engine = generator(tiny_llama(), tiny_llama(1, scale=0.1))
    run = list(
        engine.stream(
            PROMPT,
            config(
                "draft-model",
                gamma=6,
                max_new_tokens=60,
                temperature=1.0,
                seed=1,
                draft_length="confidence",
                confidence=0.3,
            ),
        )
    )
    drafts = [[token.draft_prob for token in step.drafted] for step in steps(run) if step.num_drafted]
    assert any(len(draft) < 6 for draft in drafts)
    for draft in drafts:
        assert all(q >= 0.3 for q in draft[:-1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["typical", "threshold"])
def test_approximate_rules_say_so_at_any_temperature(rule: str, temperature: float) -> None:
    engine = generator(tiny_llama(), tiny_llama(1))
    run = list(
        engine.stream(PROMPT, config("draft-model", max_new_tokens=20, temperature=temperature, seed=1, verify=rule))
    )
    assert run[0].exactness == "approximate"
    assert run[0].verify.startswith(rule)
    assert run[-1].num_tokens == 20


def test_typical_acceptance_by_hand() -> None:
    """p = (.5, .3, .2): H = 1.0297; at delta 0.3 delta exp(-H) = 0.107 is below epsilon 0.25, at delta 3 above."""
    logits = torch.tensor([[0.5, 0.3, 0.2]] * 2).log()
    rng = uniform_generator(0)
    entropy = -sum(p * math.log(p) for p in (0.5, 0.3, 0.2))
    assert 0.3 * math.exp(-entropy) == pytest.approx(0.107, abs=1e-3)
    for token, delta, kept in ((2, 0.3, True), (2, 3.0, False), (1, 3.0, True)):
        verdict = verify_likely(
            Proposal.chain([token]), logits, SamplingParams(1.0), [], rng, epsilon=0.25, delta=delta
        )
        assert bool(verdict.path) is kept


def test_the_longest_kept_path_wins_and_equals_go_to_the_likelier() -> None:
    p = torch.tensor([0.5, 0.3, 0.2]).log()
    logits = torch.stack([p] * 6)
    tree = Proposal(torch.tensor([0, 1, 2, 0, 1]), (-1, -1, 0, 1, 1))
    verdict = verify_likely(tree, logits, SamplingParams(), [], uniform_generator(0), threshold=0.25)
    assert verdict.path == (1, 3)
    assert verdict.next_token == 0
    verdict = verify_likely(tree, logits, SamplingParams(), [], uniform_generator(0), threshold=0.15)
    assert verdict.path == (1, 3)
    verdict = verify_likely(tree, logits, SamplingParams(), [], uniform_generator(0), threshold=0.6)
    assert (verdict.path, verdict.origin) == ((), "corrected")


@pytest.mark.parametrize(
    "bad", [{"draft_length": "psychic"}, {"confidence": 2}, {"epsilon": -1}, {"threshold": float("nan")}]
)
def test_bad_settings_are_refused_by_name(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad)).replace("_", "-")):
        config("plain", **bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_int8_equals_its_dequantized_form(dtype: torch.dtype, rows: int) -> None:
    """The product with 8-bit weights is the product with the numbers they stand for; those are within half a step."""
    generator_ = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 64, generator=generator_).to(dtype)
    layer = Int8Linear(weight, torch.ones(24, dtype=dtype))
    x = torch.randn(rows, 64, generator=generator_).to(dtype)
    reference = x.bfloat16().double() @ layer.dequantized().double().T + 1.0  # inputs go in as bfloat16
    assert (layer(x).double() - reference).abs().max() < 0.2
    step = weight.float().abs().amax(-1, keepdim=True) / 127
    slack = 1.1  # the scale itself is rounded to bfloat16
    assert ((layer.weight.float() * layer.scale.float()[:, None] - weight.float()).abs() <= slack * step).all()
    assert torch.equal(Int8Linear.fused([layer, layer])(x)[:, :24], layer(x))


def test_layers_that_the_8_bit_product_would_crash_on_are_left_alone() -> None:
    """Inputs that are no multiple of 16: torch reads past their end, and the process with it."""
    model = torch.nn.Sequential(torch.nn.Linear(24, 8), torch.nn.Linear(48, 8))
    quantize_int8(model)
    assert type(model[0]) is torch.nn.Linear and type(model[1]) is Int8Linear
    with pytest.raises(ValueError, match="by 16"):
        Int8Linear(torch.randn(4, 24), None)


def test_an_int8_copy_drafts_and_the_text_stays() -> None:
    target = tiny_llama().float()
    copy = tiny_llama().float()
    engine = generator(target, quantize_int8(copy))
    plain = list(engine.stream(PROMPT, config("plain", max_new_tokens=40)))[-1]
    run = list(engine.stream(PROMPT, config("quantized-copy", max_new_tokens=40)))
    assert run[-1].message == plain.message == ""
    assert run[-1].token_ids == plain.token_ids
    assert sum(step.num_accepted for step in steps(run)) > 20


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "lookahead", "medusa"])
def test_case_116_doubt_is_refused_where_a_method_has_none(method: str) -> None:
    """A setting that would do nothing is refused by name rather than dropped."""
    with pytest.raises(ConfigError, match=rf"{method} has no probabilities.*ngram-table"):
        generator(tiny_llama()).stream(PROMPT, config(method, draft_length="confidence"))
