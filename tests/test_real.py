"""What only a real model shows: exactness in the machine's own number format, and figures that make sense.

Four prompts of 24 tokens a method; `tests/scripts/compare_ids.py` does the same on 30 prompts of 64.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from fixtures_real import load_real

from specviz import RunConfig, SamplingParams, SpeculativeGenerator, fold
from specviz.batch.scheduler import run_together
from specviz.drafters.registry import METHODS
from specviz.events import RunFinished, RunStarted

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

NUM_TOKENS = 24
PROMPTS = Path(__file__).resolve().parents[1] / "assets" / "bench" / "prompts.jsonl"


@cache
def engine() -> SpeculativeGenerator:
    return SpeculativeGenerator(load_real())


@cache
def prompts() -> dict[str, str]:
    entries = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    first = {entry["regime"]: entry["prompt"] for entry in reversed(entries)}
    return {regime: first[regime] for regime in ("copying", "code", "facts", "dialogue")}


@cache
def plain_ids(regime: str) -> tuple[int, ...]:
    config = RunConfig(method="plain", max_new_tokens=NUM_TOKENS, exact=True)
    return list(engine().stream(prompts()[regime], config))[-1].token_ids


CHAINS = [name for name, method in METHODS.items() if method.exactness == "exact" and name != "plain"]


@pytest.mark.parametrize("method", CHAINS)
def test_case_7_exact_methods_write_the_ids_of_plain_decoding(method: str) -> None:
    """Where the self-test passes, the word is exact and all ids are equal; where it does not, no run says exact."""
    passed = engine().exactness_report().passed
    for regime, prompt in prompts().items():
        events = list(engine().stream(prompt, RunConfig(method=method, max_new_tokens=NUM_TOKENS, exact=True)))
        started, finished = events[0], events[-1]
        assert isinstance(started, RunStarted)
        assert isinstance(finished, RunFinished)
        assert finished.reason in ("eos", "length"), finished.message
        assert started.exactness == ("exact" if passed else "lossless")
        assert "positions equal to the bit" in started.exactness_reason
        if passed:
            assert finished.token_ids == plain_ids(regime)


def test_prompt_lookup_copies_in_few_steps() -> None:
    """On a text to repeat, the draft is kept most of the time: at least two tokens a pass."""
    counters = fold(engine().stream(prompts()["copying"], RunConfig(method="prompt-lookup", max_new_tokens=64)))
    assert counters.block_efficiency is not None
    assert counters.block_efficiency > 2.0
    assert counters.alpha is not None
    assert counters.alpha > 0.6


def test_a_copy_in_four_bits_agrees_often_and_measures_its_cost() -> None:
    """Case 101: the draft's time a token is measured, whatever it comes to; sampled, the overlap is what it should be:
    acceptance and overlap within 0.25 of each other over some 40 tested tokens (three standard errors).
    """
    config = RunConfig(method="quantized-copy", max_new_tokens=64, sampling=SamplingParams(0.8, seed=3))
    counters = fold(engine().stream(prompts()["facts"], config))
    assert counters.overlap is not None
    assert counters.alpha is not None
    assert abs(counters.alpha - counters.overlap) < 0.25
    assert 0.4 < counters.overlap < 1.0
    assert counters.draft_s_per_token is not None
    assert counters.draft_s_per_token > 0


def test_sampling_with_a_seed_repeats_itself() -> None:
    """Case 28 on the real model."""
    config = RunConfig(method="prompt-lookup", max_new_tokens=24, sampling=SamplingParams(1.0, top_p=0.95, seed=7))
    first, second = (list(engine().stream("Tell me a joke.", config))[-1].token_ids for _ in "ab")
    assert first == second


def test_exact_runs_of_the_default_pair_keep_their_bits_in_company() -> None:
    """Issue 17: bfloat16, four prompts, chains of two methods in one batch against each alone."""
    texts = list(prompts().values())[:4]
    settings = [RunConfig(method, gamma=3, max_new_tokens=20, exact=True) for method in ("plain", "cascade")]
    jobs = [(text, settings[i % 2]) for i, text in enumerate(texts)]
    together = run_together(engine(), jobs)
    for job, events in zip(jobs, together, strict=True):
        *_, end = engine().stream(*job)
        assert isinstance(end, RunFinished) and isinstance(events[-1], RunFinished)
        assert events[-1].token_ids == end.token_ids
