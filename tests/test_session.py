"""One sequence in one model: passes, trees, rolling back, and models that cannot roll back.

Numbers of cases are those of the list of public failures of other projects.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from checks import ids_from, noisy, play, random_tree, sequential, steps_of, wild_llama
from fakes import config, generator, tiny_gpt2
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from specviz.errors import CacheNotCroppableError
from specviz.models.cache import InPlaceCache
from specviz.models.session import MAX_NODES, Session
from specviz.models.windows import check_croppable

CLOSE = 1e-6
"""Of logits. RMSNorm of transformers rounds to float32 on its way, which turns a last bit of float64 into 1e-8 now and
then. A wrong cache entry moves logits by 0.1 and more. GPT-2 has no such rounding and is held to 1e-9."""


@cache
def wild() -> Any:
    return wild_llama(1)


@cache
def gpt2() -> Any:
    return tiny_gpt2(positions=512)


@cache
def mistral(window: int | None) -> Any:
    """A two-layer Mistral; the window alone differs."""
    torch.manual_seed(3)
    made = MistralConfig(
        vocab_size=264,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        sliding_window=window,
    )
    model = MistralForCausalLM(made).double().eval().requires_grad_(False)
    for param in model.parameters():
        if param.dim() == 2:
            param.mul_(20.0)
    return model


def fresh(model: Any, ids: Sequence[int]) -> Tensor:
    """[vocab] logits behind `ids` by a plain call of the model, no cache."""
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1]
    return logits


def far(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def chain(n: int) -> tuple[int, ...]:
    return tuple(range(-1, n - 1))


def bound(model: Any) -> float:
    return 1e-9 if model.config.model_type == "gpt2" else CLOSE


def score(session: Session, ids: Sequence[int]) -> Tensor:
    """Root and chain."""
    return session.score(ids[0], torch.tensor(ids[1:], dtype=torch.int64), chain(len(ids) - 1))


MODELS = pytest.mark.parametrize("make", [wild, gpt2, lambda: mistral(None)], ids=["llama", "gpt2", "mistral"])
WIDTHS = pytest.mark.parametrize("width", [0, 8, 16])


# --- rolling back -------------------------------------------------------------------------------------------------


@MODELS
@pytest.mark.parametrize(("take_back", "left"), [(0, 10), (1, 9), (9, 1), (10, 0)])
def test_case_33_rolling_back(make, take_back, left):
    """Case 33: 10 entries, take back 0, 1, 9, 10: lengths 10, 9, 1, 0, and the next logits are those of a fresh run."""
    session = Session(make(), capacity=40)
    ids, more = ids_from(1, 10), ids_from(2, 5)
    session.extend(ids)
    session.roll_back(10 - take_back)
    assert session.length == left
    assert far(session.extend(more)[0], fresh(make(), [*ids[:left], *more])) < bound(make())
    assert far(score(session, ids_from(3, 4))[3], fresh(make(), [*ids[:left], *more, *ids_from(3, 4)])) < bound(make())


@pytest.mark.parametrize("length", [12, 11, -1, -10])
def test_case_33_rolling_back_too_far_is_an_error(length):
    """Case 33: 12 of 10, and negative lengths, are refused with both numbers and change nothing."""
    session = Session(wild(), capacity=40)
    session.extend(ids_from(1, 10))
    with pytest.raises(ValueError, match=rf"10 entries back to {length}"):
        session.roll_back(length)
    assert session.length == 10


def test_a_cache_refuses_to_count_what_was_not_written():
    made = InPlaceCache(2, 16)
    made.open(3, 8)
    made.commit(3)
    with pytest.raises(AssertionError):
        made.commit(6)
    with pytest.raises(AssertionError, match="too small"):
        made.open(3, 17)


@WIDTHS
def test_what_was_refused_leaves_no_trace(width):
    """Score garbage, keep a part, many times over: the logits stay those of a fresh run over what was kept."""
    session = Session(wild(), capacity=120, min_rows=width)
    ids = ids_from(1, 6)
    session.extend(ids[:-1])
    for turn in range(12):
        drafts = ids_from(50 + turn, 1 + turn % 7)
        logits = score(session, [ids[-1], *drafts])
        keep = turn % (len(drafts) + 1)
        for row in range(keep + 1):
            assert far(logits[row], fresh(wild(), [*ids, *drafts[:row]])) < CLOSE
        session.keep_path(tuple(range(keep)))
        ids += [*drafts[:keep], 7 + turn]
        assert session.length == len(ids) - 1
        assert session.rows == max(width, len(drafts) + 1)


def test_a_score_that_is_not_kept_counts_for_nothing():
    """A run that is closed between score and keep_path, or scores twice, finds the cache as it was."""
    session = Session(wild(), capacity=60, min_rows=8)
    session.extend(ids_from(1, 9))
    first = score(session, [3, 4, 5])
    score(session, ids_from(2, 8))
    assert session.length == 9
    assert torch.equal(score(session, [3, 4, 5]), first)


# --- passes -------------------------------------------------------------------------------------------------------


@MODELS
@pytest.mark.parametrize("length", [1, 255, 256, 257, 300])
def test_prefill_in_pieces_equals_one_pass(make, length):
    """Prompts over 256 tokens are read in several passes; keys, values and logits are those of one."""
    session = Session(make(), capacity=400)
    ids = ids_from(length, length)
    last = session.extend(ids, num_logits=min(length, 3))
    for row in range(len(last)):
        end = length - len(last) + 1 + row
        if length != 257:  # there the last pass has one row, and only that row's logits
            assert far(last[row], fresh(make(), ids[:end])) < bound(make())
    assert far(last[-1], fresh(make(), ids)) < bound(make())
    assert session.length == length
    assert far(score(session, [1, 2, 3])[2], fresh(make(), [*ids, 1, 2, 3])) < bound(make())


@WIDTHS
@pytest.mark.parametrize("length", [5, 56, 60, 63, 64, 65, 130])
def test_width_and_rounded_key_length_change_no_logit(width, length):
    """Around multiples of 64, where the key length jumps; padding rows never reach the rows that count."""
    session = Session(wild(), capacity=200, min_rows=width)
    ids = ids_from(length, length)
    session.extend(ids)
    drafts = ids_from(9, 8)
    for rows in (1, 3, 8):
        logits = score(session, drafts[:rows])
        assert logits.shape[0] == rows
        for row in range(rows):
            assert far(logits[row], fresh(wild(), [*ids, *drafts[: row + 1]])) < CLOSE


def test_padding_rows_behind_the_last_position_take_the_last_one():
    """GPT-2 has a table of 64 positions; a pass of 16 rows at the end asks for none beyond it."""
    model = tiny_gpt2(positions=64)
    session = Session(model, capacity=64, min_rows=16)
    ids = ids_from(1, 62)
    session.extend(ids)
    logits = score(session, [5, 6])
    assert far(logits[0], fresh(model, [*ids, 5])) < CLOSE
    assert far(logits[1], fresh(model, [*ids, 5, 6])) < CLOSE


def test_eager_attention_gives_the_same_logits():
    """A model with eager attention adds its mask instead of selecting by it; chains, padding and trees."""
    eager = wild_llama(1, attn_implementation="eager")
    assert eager.config._attn_implementation == "eager"
    ids = ids_from(4, 30)
    tree, _ = random_tree(3, [1, 2, 3], 13, 4)
    results = []
    for model in (wild(), eager):
        session = Session(model, capacity=80, min_rows=8)
        session.extend(ids)
        results.append((score(session, [9, 8, 7]), session.score(9, tree.token_ids, tree.parents)))
    assert far(results[0][0], results[1][0]) < CLOSE
    assert far(results[0][1], results[1][1]) < CLOSE
    play(generator(eager, eos=()), ids, config("prompt-lookup", max_new_tokens=12), plain=sequential(wild(), ids, 12))


def test_hidden_states_on_request():
    """[rows, d_model] of the last pass, final norm applied, as transformers gives them."""
    session = Session(wild(), capacity=40, keep_hidden=True)
    ids = ids_from(4, 12)
    session.extend(ids)
    score(session, [1, 2, 3])
    with torch.inference_mode():
        states = wild()(input_ids=torch.tensor([[*ids, 1, 2, 3]]), output_hidden_states=True).hidden_states[-1][0, -3:]
    assert session.hidden is not None
    assert far(session.hidden[:3], states) < CLOSE
    session.close()
    assert session.hidden is None
    assert session.num_bytes == 0


# --- trees --------------------------------------------------------------------------------------------------------


@MODELS
@WIDTHS
def test_case_15_every_node_sees_its_own_path_and_nothing_else(make, width):
    """Cases 15 and 42: logits of each of 13 nodes equal those of its root-to-node path run alone (GPT-2: 1e-9)."""
    session = Session(make(), capacity=80, min_rows=width)
    ids = ids_from(1, 20)
    session.extend(ids)
    for seed in range(3):
        tree, _ = random_tree(seed, [1, 2, 3], 13, 5)
        logits = session.score(77, tree.token_ids, tree.parents)
        assert logits.shape[0] == 14
        for node in range(-1, 13):
            path, at = [], node
            while at >= 0:
                path.append(int(tree.token_ids[at]))
                at = tree.parents[at]
            assert far(logits[node + 1], fresh(make(), [*ids, 77, *reversed(path)])) < bound(make()), node


@MODELS
def test_case_42_a_kept_path_that_is_not_contiguous(make):
    """Case 42: nodes 2, 5, 9 of a 13-node tree, several rounds: later logits equal a fresh run (GPT-2: 1e-9)."""
    parents = (-1, -1, -1, 0, 1, 2, 2, 3, 5, 5, 6, 9, 9)
    session = Session(make(), capacity=120)
    ids = ids_from(1, 20)
    session.extend(ids[:-1])
    for turn in range(5):
        tokens = ids_from(60 + turn, 13)
        session.score(ids[-1], torch.tensor(tokens), parents)
        path = [(2, 5, 9), (2, 5, 9, 12), (1, 4), (), (0, 3, 7)][turn]
        session.keep_path(path)
        ids += [*(tokens[node] for node in path), 30 + turn]
        assert session.length == len(ids) - 1
        assert far(score(session, [ids[-1], 4])[1], fresh(make(), [*ids, 4])) < bound(make())


def test_the_cache_has_room_for_the_largest_tree_at_the_very_end():
    """MAX_NODES siblings behind the last token the sequence may hold."""
    session = Session(wild(), capacity=70)
    session.extend(ids_from(1, 69))
    tokens = torch.tensor(ids_from(2, MAX_NODES))
    assert session.score(5, tokens, (-1,) * MAX_NODES).shape[0] == MAX_NODES + 1


# --- nothing is shared --------------------------------------------------------------------------------------------


def test_case_44_sessions_on_one_model_never_meet():
    """Case 44: three sessions in turns, one of them stored and untouched: its length and tensors stay, its logits too;
    the model itself is unchanged to the bit."""
    model = wild()
    weights = [param.clone() for param in model.parameters()]
    stored = Session(model, capacity=60)
    stored.extend(ids_from(1, 25))
    layers = [(layer.keys.clone(), layer.values.clone()) for layer in stored._cache._layers]
    first = score(stored, [5, 6, 7])
    others = [Session(model, capacity=60, min_rows=width) for width in (0, 8)]
    for other in others:
        other.extend(ids_from(2, 30))
    for turn in range(3):
        for other in others:
            score(other, ids_from(turn, 4))
            other.keep_path((0, 1))
    others[0].close()
    assert stored.length == 25
    for layer, (keys, values) in zip(stored._cache._layers, layers, strict=True):
        assert torch.equal(layer.keys[:, :, :25], keys[:, :, :25])
        assert torch.equal(layer.values[:, :, :25], values[:, :, :25])
    assert far(score(stored, [5, 6, 7]), first) == 0
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_case_44_methods_in_turn_on_one_engine():
    """Case 44: A, B, C, A: the second A equals the first."""
    engine = generator(wild(), noisy(wild(), 0.03), eos=())
    prompt = ids_from(6, 40)
    plain = sequential(wild(), prompt, 16)
    for method in ("draft-model", "prompt-lookup", "plain", "draft-model"):
        play(engine, prompt, config(method, max_new_tokens=16), plain=plain)


# --- models that cannot be rolled back ----------------------------------------------------------------------------

SMALL = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


OWN_STATE: dict[str, dict[str, Any]] = {
    "recurrent_gemma": SMALL | {"num_key_value_heads": 1, "lru_width": 32, "attention_window_size": 16},
    "rwkv": {"vocab_size": 264, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2},
    "xlstm": {"vocab_size": 264, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2},
    "minimax": SMALL | {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "block_size": 8},
}


@cache
def recurrent(kind: str) -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **OWN_STATE[kind]), experts_implementation="eager"
    )
    return made.double().eval().requires_grad_(False)


@pytest.mark.parametrize("kind", OWN_STATE)
def test_case_35_a_state_outside_the_cache_is_refused_before_the_first_token(kind):
    """Case 35: refused by name when the run is asked for, as target and as draft; a pair loaded before still runs."""
    before = generator(wild(), eos=())
    first = play(before, [1, 2, 3], config("plain", max_new_tokens=4))
    engine = generator(recurrent(kind), max_context=512)
    for method in ("plain", "prompt-lookup"):
        for exact in (False, True, None):
            with pytest.raises(CacheNotCroppableError, match=rf"“{kind}”.*Choose"):
                engine.stream([1, 2, 3], config(method, exact=exact))
    assert play(before, [1, 2, 3], config("plain", max_new_tokens=4))[-1].token_ids == first[-1].token_ids
    engine = generator(wild(), recurrent(kind), eos=())
    with pytest.raises(CacheNotCroppableError, match=rf"“{kind}”.*Choose"):
        engine.stream([1, 2, 3], config("draft-model"))
    play(engine, [1, 2, 3], config("prompt-lookup", max_new_tokens=8), plain=sequential(wild(), [1, 2, 3], 8))


@pytest.mark.parametrize(
    "kind", ["llama", "gpt2", "qwen2", "qwen3", "mistral", "gemma", "phi3", "opt", "gpt_neox", "olmo2"]
)
def test_full_attention_is_accepted(kind):
    family = AutoConfig.for_model(kind)
    model = types.SimpleNamespace(config=family, _is_stateful=False, modules=lambda: ())
    check_croppable(model, 64)


@pytest.mark.parametrize("method", ["plain", "prompt-lookup"])
def test_case_35_sliding_windows(method):
    """A window hides what lies outside it, whether the run reaches it or not; more in test_windows."""
    prompt = ids_from(1, 20)
    for window in (8, 32, 512):
        engine = generator(mistral(window), eos=())
        play(engine, prompt, config(method, max_new_tokens=24), plain=sequential(mistral(window), prompt, 24))


def test_case_35_a_caller_that_masks_no_window_must_not_reach_it():
    check_croppable(mistral(32), 32)
    with pytest.raises(CacheNotCroppableError, match=r"“mistral”.*32 tokens back.*33"):
        check_croppable(mistral(32), 33)


def test_case_35_a_draft_with_a_short_window_drafts_past_it():
    """Every proposed token is what the draft itself says behind the text, far outside its window."""
    prompt = ids_from(1, 40)
    engine = generator(mistral(32), mistral(32), eos=())
    right = sequential(mistral(32), prompt, 24)
    events = play(engine, prompt, config("draft-model", max_new_tokens=24), plain=right)
    assert all(step.num_accepted == step.gamma for step in steps_of(events))


@pytest.mark.parametrize("make", [wild, gpt2])
@pytest.mark.parametrize("width", [0, 8])
def test_states_of_every_token_that_counts_are_handed_out_once(make, width):
    """Through prefill in pieces, a kept branch of a tree, a refused chain and a roll-back: the states behind the tapped
    layer and behind the last norm are those of one pass over the text, each token's once, from a told index on."""
    model = make()
    session = Session(model, capacity=400, min_rows=width, taps=(1,))
    text = ids_from(4, 300)

    def check(length: int) -> None:
        states = model(input_ids=torch.tensor([text[:length]]), output_hidden_states=True).hidden_states
        wanted = torch.stack((states[1][0], states[-1][0]), 1)
        first, got = session.take_states()
        assert first + len(got) == length == session.length
        assert torch.allclose(got, wanted[first:], atol=CLOSE)

    session.extend(text[:280])
    check(280)
    session.score(text[280], torch.tensor([7, text[281], text[282], 9]), (-1, -1, 1, 1))
    session.keep_path([1, 2])
    check(283)
    session.score(text[283], torch.tensor([5, 6]), (-1, 0))
    session.keep_path([])
    session.score(text[284], torch.tensor([text[285]]), (-1,))
    session.keep_path([0])
    session.roll_back(285)
    check(285)
    session.roll_back(280)
    text[280] = 11
    session.extend(text[280:283])
    assert session.take_states()[0] == 280
    session.close()


def test_states_are_only_collected_where_asked_for():
    session = Session(wild(), capacity=20)
    session.extend([1, 2, 3])
    with pytest.raises(AssertionError, match="not asked"):
        session.take_states()
