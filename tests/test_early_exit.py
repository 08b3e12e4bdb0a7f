"""Early exit: the target's first layers draft inside the run's own cache, and checking goes on from there.

Numbers of cases are those of the list of public failures of other projects. Closing at every yield, second runs and
threads are tested for every registered method in test_generator.py.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from checks import KNOWN, check_invariants, ids_from, log_of, noisy, play, sequential, steps_of, wild_llama
from fakes import config, found_exact, generator, loaded_pair, tiny_gpt2
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

import specviz.models.decoder
import specviz.run
from specviz.config import SamplingParams
from specviz.drafters import registry
from specviz.drafters.base import DraftContext
from specviz.drafters.early_exit import EarlyExitDrafter, read_exit_layer
from specviz.errors import ConfigError
from specviz.models.attention import Attention
from specviz.models.cache import InPlaceCache
from specviz.models.decoder import LeanDecoder
from specviz.models.session import Session
from specviz.sampling import uniform_generator

LAYERS = 4
PROMPT = ids_from(11, 20)


@cache
def llama() -> Any:
    return wild_llama(3, layers=LAYERS)


@cache
def qwen(version: int) -> Any:
    """A random Qwen2 (biases) or Qwen3 (norms of queries and keys) in float64, made as `wild_llama` is."""
    torch.manual_seed(version)
    family, made = {2: (Qwen2ForCausalLM, Qwen2Config), 3: (Qwen3ForCausalLM, Qwen3Config)}[version]
    settings = made(
        vocab_size=264,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        bos_token_id=256,
        eos_token_id=None,
    )
    model = family(settings).double().eval().requires_grad_(False)
    for param in model.parameters():
        if param.dim() == 2:
            param.mul_(20.0)
    model.model.embed_tokens.weight.mul_(2.5)
    return model


def first_layers(model: Any, exit_layer: int) -> Any:
    """A copy of the model that ends behind its first layers: an early exit made with transformers alone."""
    twin = copy.deepcopy(model)
    twin.model.layers = twin.model.layers[:exit_layer]
    twin.config.num_hidden_layers = exit_layer
    return twin


TARGETS = pytest.mark.parametrize("make", [llama, lambda: qwen(2), lambda: qwen(3)], ids=["llama", "qwen2", "qwen3"])
EXITS = pytest.mark.parametrize("exit_layer", range(1, LAYERS))


def early(exit_layer: int = 0, **more: Any) -> Any:
    return config("early-exit", options={"exit_layer": exit_layer}, **more)


@pytest.fixture
def sessions(monkeypatch) -> list[Session]:
    """The sessions of all runs of a test."""
    made: list[Session] = []

    class Watched(Session):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr(specviz.run, "Session", Watched)
    return made


@pytest.fixture
def full_precision(monkeypatch) -> None:
    """Norms in float64. As in transformers they round to float32, which turns a last bit into 1e-8 now and then."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))

    monkeypatch.setattr(specviz.models.decoder._Norm, "__call__", norm)


def entries(session: Session) -> list[tuple[Tensor, Tensor]]:
    """Keys and values that count, layer by layer."""
    layers = session._cache._layers
    return [(one.keys[:, :, : session.length].clone(), one.values[:, :, : session.length].clone()) for one in layers]


# --- the text -----------------------------------------------------------------------------------------------------


@TARGETS
@EXITS
def test_greedy_text_is_that_of_plain_calls(make, exit_layer):
    """Every exit layer of three families in float64, with passes of their own size and of fixed width."""
    plain = sequential(make(), PROMPT, 28)
    accepted = 0
    for gamma, exact in ((1, False), (4, False), (7, True), (12, False)):
        events = play(generator(make(), eos=()), PROMPT, early(exit_layer, gamma=gamma, max_new_tokens=28, exact=exact))
        assert list(events[-1].token_ids) == plain
        accepted += sum(step.num_accepted for step in steps_of(events))
    assert accepted or exit_layer < LAYERS - 1, "a draft that is never right would hide faults"


@EXITS
def test_drafts_are_those_of_a_model_cut_behind_the_layer(exit_layer):
    """Ids and probabilities of the draft equal those of a model of E layers, in every step of a run."""
    twin = first_layers(llama(), exit_layer)
    events = play(generator(llama(), eos=()), PROMPT, early(exit_layer, gamma=3, max_new_tokens=24))
    ids = list(PROMPT)
    for step in steps_of(events):
        tokens = [token.token_id for token in step.drafted]
        assert tokens == sequential(twin, ids, len(tokens))
        with torch.inference_mode():
            logits = twin(input_ids=torch.tensor([ids + tokens]), use_cache=False).logits[0, len(ids) - 1 :, :KNOWN]
        probs = torch.softmax(logits.float(), -1)
        for row, token in enumerate(step.drafted):
            assert token.draft_prob == pytest.approx(float(probs[row, token.token_id]), abs=1e-6)
        ids += [token.token_id for token in step.emitted]


def test_the_exit_layer_changes_the_drafts():
    """Guards the test above: each layer drafts something of its own."""
    drafts = set()
    for exit_layer in range(1, LAYERS):
        events = play(generator(llama(), eos=()), PROMPT, early(exit_layer, gamma=4, max_new_tokens=6))
        drafts.add(tuple(token.token_id for token in steps_of(events)[0].drafted))
    assert len(drafts) == LAYERS - 1


def test_layers_that_add_nothing_make_every_draft_right():
    """Layers behind the exit that add nothing: the draft is the target, so every token is kept, greedy and sampled."""
    model = copy.deepcopy(llama())
    for layer in model.model.layers[2:]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    for temperature, gamma in itertools.product((0.0, 1.0), (1, 3, 7)):
        settings = early(2, gamma=gamma, max_new_tokens=30, temperature=temperature, seed=gamma)
        for step in steps_of(play(generator(model, eos=()), PROMPT, settings)):
            assert step.num_accepted == step.num_drafted == step.gamma
            for token in step.drafted:
                assert token.draft_prob == pytest.approx(token.target_prob, abs=1e-6)
                assert temperature == 0 or token.overlap == pytest.approx(1.0, abs=1e-6)


# --- one cache for both -------------------------------------------------------------------------------------------


@TARGETS
@EXITS
@pytest.mark.parametrize("exact", [False, True])
def test_the_cache_after_each_step_is_that_of_a_fresh_run(make, exit_layer, exact, sessions, full_precision):
    """Keys and values of every layer, after every step, against one pass over the same text: below 1e-9."""
    ids = list(PROMPT)
    kept = 0
    for event in generator(make(), eos=()).stream(PROMPT, early(exit_layer, gamma=5, max_new_tokens=20, exact=exact)):
        if event not in steps_of([event]):
            continue
        ids += [token.token_id for token in event.emitted]
        kept += event.num_accepted
        fresh = Session(make(), capacity=80)
        fresh.extend(ids[:-1])
        assert sessions[0].length == fresh.length == event.cache_len == len(ids) - 1
        for found, right in zip(entries(sessions[0]), entries(fresh), strict=True):
            assert float((found[0] - right[0]).abs().max()) < 1e-9
            assert float((found[1] - right[1]).abs().max()) < 1e-9
    assert len(ids) == len(PROMPT) + 20


def test_the_first_layers_are_run_once_for_every_token(monkeypatch):
    """Drafting n tokens runs E layers n times on one row; checking runs E layers on the last one, the others on all."""
    passes: list[tuple[int, int, int]] = []
    run = LeanDecoder.run

    def spy(self: LeanDecoder, x: Tensor, positions: Tensor, attention: Attention, *span: int) -> Tensor:
        passes.append((len(positions), *span))
        return run(self, x, positions, attention, *span)

    monkeypatch.setattr(LeanDecoder, "run", spy)
    events = play(generator(llama(), eos=()), PROMPT, early(2, gamma=3, max_new_tokens=9))
    assert passes[0] == (len(PROMPT) - 1, 0, LAYERS)
    place = 1
    for step in steps_of(events):
        n = step.num_drafted
        expected = [(1, 0, 2)] * n + [(1, 0, 2), (n + 1, 2, LAYERS)] if n else [(1, 0, LAYERS)]
        assert passes[place : place + len(expected)] == expected
        place += len(expected)
    assert place == len(passes)


def test_the_model_is_not_touched():
    """Weights and configuration are equal to the bit afterwards."""
    model = copy.deepcopy(llama())
    before = {name: param.clone() for name, param in model.named_parameters()}
    settings = model.config.to_dict()
    play(generator(model, eos=()), PROMPT, early(1, max_new_tokens=12))
    assert model.config.to_dict() == settings
    assert all(torch.equal(before[name], param) for name, param in model.named_parameters())


def test_case_39_the_cache_never_falls_below_the_prompt(monkeypatch):
    """Case 39: prompt of 50, a drafter wrong at every other slot; spied at every mutation. Prefill feeds 49 of them."""
    prompt = ids_from(5, 50)
    plain = sequential(llama(), prompt, 30)
    lengths: list[int] = []
    for name in ("commit", "roll_back", "open"):
        inner = getattr(InPlaceCache, name)

        def spy(self: InPlaceCache, *args: Any, _inner: Any = inner) -> None:
            _inner(self, *args)
            lengths.append(self.length)

        monkeypatch.setattr(InPlaceCache, name, spy)
    draft_pass = Session.draft_pass

    def half_wrong(self: Session, tokens: Sequence[int], exit_layer: int) -> Tensor:
        logits = torch.zeros_like(draft_pass(self, tokens, exit_layer))
        right = [*plain, 0, 0, 0, 0, 0, 0, 0][self.length + len(tokens) - len(prompt)]
        logits[right if len(tokens) % 2 else (right + 1) % 250] = 1.0
        return logits

    monkeypatch.setattr(Session, "draft_pass", half_wrong)
    events = play(generator(llama(), eos=()), prompt, early(2, gamma=4, max_new_tokens=30), plain=plain)
    assert {step.num_accepted for step in steps_of(events) if step.gamma > 1} == {1}
    filled = lengths.index(49)
    assert min(lengths[filled:]) == 49
    assert lengths[-1] == 49 + 30


@pytest.mark.parametrize("width", [0, 8])
def test_draft_passes_that_are_not_used_leave_no_trace(width, full_precision):
    """Drafts dropped, cut short, in part changed, or made twice before the check: the logits of a plain session."""
    made = [Session(llama(), capacity=120, min_rows=width) for _ in range(2)]
    for session in made:
        session.extend(PROMPT[:-1])
    one, plain = made
    root = PROMPT[-1]
    for turn, (drafted, checked) in enumerate(
        [
            ([1, 2, 3], [1, 2, 3, 4]),  # as in a run
            ([1, 2, 3], [1, 2]),  # cut short, as behind an end token
            ([1, 2, 3], []),  # dropped
            ([1, 2, 3], [1, 9, 3]),  # another token in the middle
            ([1, 2, 3], [5, 6, 7]),
            ([], [5, 6]),
        ]
    ):
        tokens = [root]
        for token in [*drafted, None]:
            exit_layer = 1 + turn % 3
            first = one.draft_pass(tokens, exit_layer)
            assert float((one.draft_pass(tokens, exit_layer) - first).abs().max()) < 1e-9
            if token is not None:
                tokens.append(token)
        parents = tuple(range(-1, len(checked) - 1))
        for _ in range(2):  # a score that is not kept counts for nothing
            logits = [session.score(root, torch.tensor(checked, dtype=torch.int64), parents) for session in made]
            assert float((logits[0] - logits[1]).abs().max()) < 1e-9
        keep = tuple(range(len(checked) // 2))
        for session in made:
            session.keep_path(keep)
        for found, right in zip(entries(one), entries(plain), strict=True):
            assert float((found[0] - right[0]).abs().max()) < 1e-9
        root = 20 + turn
    tree = torch.tensor([4, 5, 6])
    one.draft_pass([root, 4], 2)
    logits = [session.score(root, tree, (-1, -1, 0)) for session in made]
    assert float((logits[0] - logits[1]).abs().max()) < 1e-9


# --- exact mode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@EXITS
@pytest.mark.parametrize("min_rows", [0, 8], ids=["as-found", "one-width"])
def test_exact_mode_is_equal_to_the_bit(dtype, exit_layer, min_rows, sessions):
    """Ids, the target's probabilities, and keys and values of all layers against plain decoding in the same passes:
    those that the self-test asks for here, and those of one width."""
    model = copy.deepcopy(llama()).to(dtype)
    model = noisy(model, 0.0)  # weights of its own, without a decoder made for another dtype
    engine = generator(model, eos=())
    if min_rows:
        found_exact(engine, min_rows)
    prompt = ids_from(3, 45)  # the run crosses a key length of 64
    plain = play(engine, prompt, config("plain", max_new_tokens=40, exact=True))
    found = play(engine, prompt, early(exit_layer, gamma=5, max_new_tokens=40, exact=True))
    assert engine.exactness_report(8).passed
    assert found[0].exactness == "exact"
    assert found[0].width == 8
    for step in steps_of(found):
        assert step.rows == max(found[0].min_rows, step.num_drafted + 1)
    assert found[0].min_rows == min_rows or not min_rows
    told = [
        [(token.token_id, token.target_prob) for step in steps_of(events) for token in step.emitted]
        for events in (plain, found)
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_exact_mode_leaves_equal_keys_and_values(dtype, sessions):
    """After every step, bit by bit, in the layers that drafted and in the others."""
    model = noisy(copy.deepcopy(llama()).to(dtype), 0.0)
    engine = generator(model, eos=())
    prompt = ids_from(4, 50)
    list(engine.stream(prompt, config("plain", max_new_tokens=1, exact=True)))  # the self-test makes its own sessions
    sessions.clear()
    plain = engine.stream(prompt, config("plain", max_new_tokens=30, exact=True))
    by_length = {event.cache_len: entries(sessions[0]) for event in plain if event in steps_of([event])}
    for event in engine.stream(prompt, early(2, gamma=6, max_new_tokens=30, exact=True)):
        if event in steps_of([event]):
            for found, right in zip(entries(sessions[1]), by_length[event.cache_len], strict=True):
                assert torch.equal(found[0], right[0])
                assert torch.equal(found[1], right[1])


def test_words_of_early_exit():
    """Exact where its passes have the fixed width, lossless where they have not, and when sampling."""
    engine = generator(llama(), eos=())
    for exact, temperature, word in ((True, 0.0, "exact"), (False, 0.0, "lossless"), (True, 0.7, "lossless")):
        assert next(engine.stream(PROMPT, early(1, exact=exact, temperature=temperature))).exactness == word
    assert registry.get_method("early-exit").exactness == "exact"


# --- counting -----------------------------------------------------------------------------------------------------


@EXITS
def test_target_work_counts_the_layers_that_were_run(exit_layer):
    """In full passes: E/L for each of the n draft passes and for the last drafted token, which none of them has read,
    and (L - E)/L for checking: n E/L + 1. A step without a draft is a plain pass."""
    events = play(generator(llama(), eos=()), PROMPT, early(exit_layer, gamma=4, max_new_tokens=21))
    for step in steps_of(events):
        assert step.target_work == pytest.approx(step.num_drafted * exit_layer / LAYERS + 1.0)
        assert step.num_drafted == step.gamma
        if step.drafted:
            assert step.note.kind == "layers"
            assert step.note.data == {"exit_layer": exit_layer, "num_layers": LAYERS}
    assert "drafted" in steps_of(events)[0].note.text


def test_every_other_method_works_one_pass_a_step():
    for method in ("plain", "prompt-lookup", "draft-model", "medusa"):
        events = play(generator(llama(), noisy(llama(), 0.03), eos=()), PROMPT, config(method, max_new_tokens=9))
        assert {step.target_work for step in steps_of(events)} == {1.0}


def test_drafting_ends_behind_an_end_token():
    """Nothing may follow it, so no pass is spent on what would."""
    twin = first_layers(llama(), 3)
    drafts = sequential(twin, PROMPT, 4)
    engine = generator(llama(), eos=(drafts[1],))
    step = steps_of(list(engine.stream(PROMPT, early(3, gamma=4, max_new_tokens=9))))[0]
    assert [token.token_id for token in step.drafted] == drafts[:2]
    assert step.target_work == pytest.approx(2 * 3 / LAYERS + 1.0)


def test_draft_length_by_confidence():
    """With `--draft-length confidence` the token under the threshold is the last one, and still proposed."""
    settings = early(3, gamma=7, max_new_tokens=30, draft_length="confidence", confidence=0.9)
    lengths = set()
    for step in steps_of(play(generator(llama(), eos=()), PROMPT, settings)):
        sure = [token.draft_prob for token in step.drafted]
        assert all(prob >= 0.9 for prob in sure[:-1])
        assert len(sure) == step.gamma or sure[-1] < 0.9
        lengths.add(len(sure))
    assert len(lengths) > 1


def test_best_length_knows_what_a_draft_pass_costs():
    """A drafted token costs E of L layers: with a draft that is mostly wrong the length falls to nothing."""
    engine = generator(llama(), eos=())
    engine._cost_tables[("", "", 0, 4)] = (0.0, [1.0] * 5)  # c as measured for a method without a model: 0
    events = list(engine.stream(PROMPT, early(3, gamma=4, max_new_tokens=30, draft_length="best")))
    assert sum(not step.drafted for step in steps_of(events)) > 5


# --- sampling -----------------------------------------------------------------------------------------------------


def test_q_is_what_the_token_was_drawn_from():
    """Case 19: q is the transformed distribution of the first layers, penalty and drafted tokens included."""
    params = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, repetition_penalty=1.3)
    drafter = EarlyExitDrafter(2, LAYERS, vocab_size=KNOWN)
    session = Session(llama(), capacity=60)
    session.extend(PROMPT[:-1])
    rng = uniform_generator(0)
    seen = set()
    for _ in range(20):
        proposal = drafter.propose(DraftContext(PROMPT, params, None, session), 3, rng)
        picked = proposal.probs.gather(1, proposal.token_ids[:, None])[:, 0]
        assert bool((picked > 0).all())
        assert bool(((proposal.probs > 0).sum(-1) <= 5).all())
        assert proposal.confidence == pytest.approx(picked.tolist())
        seen.add(tuple(proposal.token_ids.tolist()))
    assert len(seen) > 3
    assert session.length == len(PROMPT) - 1


def test_sampled_text_follows_the_target():
    """Three ids, three tokens a run, 800 seeds at T = 1: how often each of 27 texts comes up, against the target's own
    probabilities by enumeration.

    Chi-square with at most 26 degrees of freedom is above 63 with odds of 1 in 15 000; drawing from the first layers
    instead gives more than 130 (checked below).
    """
    model = wild_llama(1, layers=3, vocab=3)
    model.lm_head.weight.mul_(0.4)
    prompt, texts = [0, 1, 2, 1], list(itertools.product(range(3), repeat=3))

    def odds(of: Any) -> list[float]:
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *text] for text in texts])
            probs = torch.softmax(of(input_ids=ids, use_cache=False).logits[:, len(prompt) - 1 : -1].double(), -1)
        return probs.gather(2, ids[:, len(prompt) :, None]).prod(1)[:, 0].tolist()

    engine = generator(model, eos=())
    counts: Counter[tuple[int, ...]] = Counter()
    accepted: Counter[int] = Counter()
    total = 800
    for seed in range(total):
        settings = early(1, gamma=2, max_new_tokens=3, temperature=1.0, seed=seed)
        events = list(engine.stream(prompt, settings))
        if seed < 10:
            check_invariants(events, engine.loaded, settings)
        counts[events[-1].token_ids] += 1
        accepted[steps_of(events)[0].num_accepted] += 1
    chi = lambda probs: sum((counts[t] - total * p) ** 2 / (total * p) for t, p in zip(texts, probs, strict=True))  # noqa: E731
    assert min(accepted[n] for n in range(3)) > 50
    assert chi(odds(model)) < 63
    assert chi(odds(first_layers(model, 1))) > 130


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_case_14_a_second_run_equals_the_first(temperature):
    """Case 14: exit layers in turn on one engine, then the first again; whole logs compared."""
    engine = generator(llama(), eos=())
    settings = early(2, gamma=4, max_new_tokens=24, temperature=temperature, seed=3, detail=True)
    first = play(engine, PROMPT, settings)
    for exit_layer in (1, 3):
        play(engine, ids_from(8, 30), early(exit_layer, gamma=7, max_new_tokens=9, temperature=temperature, seed=4))
    assert log_of(play(engine, PROMPT, settings)) == log_of(first)


@pytest.mark.parametrize("exact", [False, True])
def test_closing_at_every_yield_leaves_nothing(exact, sessions):
    """Cases 40 and 94: after 0, 1, 2, ... events; the session is closed and the next run is like the first."""
    engine = generator(llama(), eos=())
    settings = early(2, gamma=4, max_new_tokens=11, seed=1, exact=exact)
    first = log_of(play(engine, PROMPT, settings))
    for num_events in range(len(first) + 1):
        run: Iterator[Any] = engine.stream(PROMPT, settings)
        assert len(list(itertools.islice(run, num_events))) == num_events
        run.close()
        assert all(not session.num_bytes and not session._early for session in sessions[-1:] if num_events)
    assert log_of(play(engine, PROMPT, settings)) == first


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_target_that_does_not_run_layer_by_layer_is_refused_by_name(monkeypatch):
    """GPT-2 by its name, a model of one layer, and any model with the lean loop switched off; other methods run on."""
    engine = generator(tiny_gpt2(), eos=())
    with pytest.raises(ConfigError, match=r"“gpt2”.*prompt-lookup"):
        engine.stream(PROMPT, early())
    play(engine, PROMPT, config("prompt-lookup", max_new_tokens=5))
    with pytest.raises(ConfigError, match="at least two layers"):
        generator(wild_llama(1, layers=1), eos=()).stream(PROMPT, early())
    monkeypatch.setenv("SPECVIZ_LEAN", "0")
    with pytest.raises(ConfigError, match="early-exit runs the target layer by layer"):
        generator(copy.deepcopy(llama()), eos=()).stream(PROMPT, early())


@pytest.mark.parametrize("value", [LAYERS, LAYERS + 1, 999])
def test_exit_layers_beyond_the_model_are_refused_with_its_range(value):
    with pytest.raises(ConfigError, match=rf"exit-layer must lie between 1 and {LAYERS - 1} .* got {value}"):
        generator(llama(), eos=()).stream(PROMPT, early(value))


@pytest.mark.parametrize("value", [-1, 1001, 1.5, "2", None, True])
def test_exit_layers_that_are_no_numbers_are_refused_by_name(value):
    with pytest.raises(ConfigError, match=r"exit-layer must"):
        generator(llama(), eos=()).stream(PROMPT, early(value))


def test_default_exit_layer_and_settings():
    """About a third of the layers, at least one, never all; options of other methods are refused."""
    found = [read_exit_layer(0, num_layers) for num_layers in (2, 3, 4, 12, 30, 32)]
    assert found == [1, 1, 1, 4, 10, 11]
    events = play(generator(llama(), eos=()), PROMPT, config("early-exit", max_new_tokens=4))
    assert steps_of(events)[0].note.data["exit_layer"] == 1
    with pytest.raises(ConfigError, match=r"early-exit has no option 'tree'; its own are: exit_layer"):
        generator(llama(), eos=()).stream(PROMPT, config("early-exit", options={"tree": "chain"}))
    assert registry.get_method("early-exit").refusal(loaded_pair(llama())) is None
