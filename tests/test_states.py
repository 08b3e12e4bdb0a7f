"""Recurrent and hybrid state (issue 18, case 35): tiny random models of the families, held against transformers' own
greedy `generate`. Sizes are such that a wrong state shows: weights spread widely, so the text depends on all of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from checks import ids_from, log_of, noisy, play, steps_of
from fakes import VOCAB, config, generator, tiny_llama
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.errors import CacheNotCroppableError, ConfigError
from specviz.metrics import fold
from specviz.models.carry import require_states
from specviz.models.exactness import pass_seconds
from specviz.models.session import Session
from specviz.models.windows import check_croppable

CLOSE = 1e-4
"""Of logits around 1 to 10: the library keeps states in float32 and sums them in another order for another number of
tokens. A state that has read a refused token moves them by a hundred times that, see the test of it."""

ATTENTION = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
DELTA = {
    "head_dim": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_d_head": 8, "mamba_chunk_size": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
    "qwen3_next": ATTENTION | DELTA | EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3_5_text": ATTENTION | DELTA,
    "lfm2": ATTENTION | {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8},
    "granitemoehybrid": ATTENTION
    | MAMBA2
    | {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"shared_intermediate_size": 16, "mamba_n_groups": 1},
    "falcon_h1": ATTENTION | MAMBA2 | {"head_dim": 8, "mamba_d_ssm": 64},
    "jamba": ATTENTION
    | {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    | {"num_experts": 4, "mamba_d_state": 4, "mamba_dt_rank": 4},
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}


@cache
def tiny(kind: str) -> Any:
    torch.manual_seed(3)
    sizes = {"vocab_size": 264, "hidden_size": 32, "num_hidden_layers": 3, "initializer_range": 0.3}
    made = AutoConfig.for_model(kind, **sizes | SPECIAL | FAMILIES[kind])
    model = AutoModelForCausalLM.from_config(made, experts_implementation="eager")
    return model.double().eval().requires_grad_(False)


def engine_of(kind: str, draft: Any = None) -> Any:
    return generator(tiny(kind), draft, eos=(), max_context=256)


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """transformers' own plain greedy decoding, with its own cache."""
    ids = torch.tensor([prompt])
    settings = {"do_sample": False, "max_new_tokens": num_tokens, "suppress_tokens": list(range(VOCAB, 264))}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return out[0, len(prompt) :].tolist()


def repetitive(seed: int, length: int) -> list[int]:
    """Ids in which the same few come again and again, so that prompt lookup drafts, mostly in vain."""
    return [token % 7 + 40 for token in ids_from(seed, length)]


@pytest.mark.parametrize(
    ("method", "length"), [("plain", 5), ("prompt-lookup", 1), ("prompt-lookup", 40), ("draft-model", 9)]
)
@pytest.mark.parametrize("kind", FAMILIES)
def test_greedy_text_is_that_of_generate(kind, method, length):
    """Issue 18: prompts of different length; chains copied, and drafted by a model of the same family."""
    prompt, num_tokens = repetitive(length, length), 12
    plain = greedy(tiny(kind), prompt, num_tokens)
    engine = engine_of(kind, noisy(tiny(kind), 0.02))
    counters = fold(play(engine, prompt, config(method, max_new_tokens=num_tokens, gamma=3), plain=plain))
    if method == "plain":
        assert counters.target_work == counters.num_steps == num_tokens
    elif method == "draft-model":
        assert counters.num_accepted > 0
    elif length > 1:
        assert counters.num_rejections > 0


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_sampled_run_comes_again_by_its_seed(kind):
    engine = engine_of(kind, noisy(tiny(kind), 0.02))
    settings = config("draft-model", max_new_tokens=8, gamma=3, temperature=0.7, seed=4)
    one, two = (log_of(play(engine, repetitive(2, 12), settings)) for _ in range(2))
    assert one == two


def fresh(model: Any, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits


def far(row: Tensor, model: Any, ids: list[int]) -> float:
    return float((row - fresh(model, ids)).abs().max())


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_session_is_always_where_its_tokens_are(kind):
    """Kept, refused, never answered, rolled back to anywhere, with and without a mark; and the bound would notice."""
    model, ids = tiny(kind), ids_from(1, 30)
    session = Session(model, capacity=64)
    assert far(session.extend(ids[:6])[0], model, ids[:6]) < CLOSE
    wrong = torch.tensor([9, 8, 7])
    for kept in (0, 1, 3):
        session.score(ids[6], wrong, (-1, 0, 1))
        text = [*ids[:7], *wrong.tolist()[:kept]]
        session.keep_path(tuple(range(kept)))
        assert session.num_again == (1 + kept if kept < 3 else 0)
        assert session.length == len(text)
        assert far(session.score(5, torch.tensor([6]), (-1,))[0], model, [*text, 5]) < CLOSE
        assert far(session.score(5, torch.tensor([6]), (-1,))[1], model, [*text, 5, 6]) < CLOSE  # the last was dropped
        session.roll_back(6)
    session.extend(ids[6:12])
    session.mark()
    session.extend(ids[12:20])
    for length in (17, 12, 3, 0):  # behind the mark, at it, before it
        session.roll_back(length)
        assert len(session.token_ids) == length
        assert far(session.extend([77])[0], model, [*ids[:length], 77]) < CLOSE
    with pytest.raises(ValueError, match="Cannot roll"):
        session.roll_back(2)
    assert min(far(fresh(model, [*ids[:7], *more, 5]), model, [*ids[:7], 5]) for more in ([9], [9, 8])) > 100 * CLOSE
    session.close()


def test_the_last_step_feeds_nothing_again_and_the_others_say_that_they_did():
    engine = engine_of("mamba2")
    events = play(engine, repetitive(1, 40), config("prompt-lookup", max_new_tokens=24, gamma=3))
    *steps, last = steps_of(events)
    again = [step for step in steps if step.num_again]
    assert again
    assert all(step.target_work == 2 and step.num_accepted < step.num_drafted for step in again)
    assert all(step.target_work == 1 for step in (*steps, last) if not step.num_again)
    assert last.num_again == 0
    assert fold(events).target_work == len(steps) + 1 + len(again)
    assert any("two passes" in note for note in events[0].notes)


def test_no_trees_and_no_bits_are_promised():
    """Case 35, issue 18: refused in a sentence that says what to choose, before the first token."""
    engine = engine_of("lfm2")
    with pytest.raises(ConfigError, match=r"recurrent state.*cannot check a tree.*Choose a chain"):
        engine.stream([1, 2, 3], config("lookahead"))
    with pytest.raises(ConfigError, match=r"cannot check a tree"):
        engine.stream([1, 2, 3], config("medusa", options={"tree": "2,1"}))
    for method in ("medusa", "jacobi"):
        play(engine, [1, 2, 3], config(method, max_new_tokens=6, gamma=2), plain=greedy(tiny("lfm2"), [1, 2, 3], 6))
    with pytest.raises(ConfigError, match=r"exact to the bit.*--no-exact"):
        engine.stream([1, 2, 3], config("prompt-lookup", exact=True))
    started = next(engine.stream([1, 2, 3], config("prompt-lookup", exact=None)))
    assert (started.exactness, started.width, started.min_rows) == ("lossless", 0, 0)
    assert "recurrent state rounds differently" in started.exactness_reason
    report = engine.exactness_report()  # the command line and the page ask before any run
    assert not report.passed
    assert not report.is_free
    assert "recurrent state" in report.sentence
    session = Session(tiny("lfm2"), capacity=16)
    session.extend([1])
    with pytest.raises(CacheNotCroppableError, match="cannot check a tree"):
        session.score(2, torch.tensor([3, 4]), (-1, -1))
    with pytest.raises(CacheNotCroppableError, match="recurrent state"):
        check_croppable(tiny("lfm2"), 64)  # the caller that answers many prompts at once keeps none


def test_a_state_that_does_not_carry_over_is_refused(monkeypatch):
    """Without the remedy, Mamba 1's scan starts anew in every check: the test at loading must see it."""
    monkeypatch.setattr("specviz.models.decoder.step_through_scans", lambda model: None)
    torch.manual_seed(0)
    sizes = {"vocab_size": 264, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes, **SPECIAL)).double().eval()
    with pytest.raises(CacheNotCroppableError, match=r"“mamba”.*does not come back.*Choose another"):
        require_states(model)


def test_passes_are_timed_from_one_place():
    """A pass that is only timed must not move the state on, or the next would be timed behind a longer text."""
    assert min(pass_seconds(tiny("mamba2"), (1, 3), 264, context=8, repeat=1)) > 0


def test_a_recurrent_draft_beside_a_target_of_keys():
    target = tiny_llama()
    plain = greedy(target, [5, 6, 7], 16)
    engine = generator(target, tiny("mamba2"), eos=())
    play(engine, [5, 6, 7], config("draft-model", max_new_tokens=16, gamma=3), plain=plain)
