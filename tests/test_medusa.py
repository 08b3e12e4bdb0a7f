"""Medusa heads: shapes of trees, files of heads, the place in the text that each head guesses, the resulting text.

Numbers of cases are those of the list of public failures of other projects. Closing at every yield, threads, end tokens
and odd prompts are tested for every registered method in test_generator.py.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import KNOWN, ids_from, log_of, noisy, play, sequential, steps_of, wild_llama
from fakes import FakeModel, config, generator, tiny_gpt2
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import specviz.models.decoder
from specviz.config import SamplingParams
from specviz.drafters import registry
from specviz.drafters.base import DraftContext
from specviz.drafters.medusa import (
    MAX_SHARD_BYTES,
    UNTRAINED_HEADS,
    Heads,
    MedusaDrafter,
    load_heads,
    save_heads,
    untrained_heads,
)
from specviz.drafters.tree import MAX_TREE_NODES, Tree, parse_tree
from specviz.errors import ConfigError, ModelLoadError
from specviz.events import StepDone
from specviz.models import stored
from specviz.models.decoder import decoder_for
from specviz.models.session import Session
from specviz.sampling import uniform_generator

PROMPT = ids_from(11, 20)
GREEDY = SamplingParams()
SIZE = 32
"""Ids of the model whose heads can be planted, and its width."""

SHAPES = {
    "chain": "chain",
    "2x2": "2,2",
    "3x3x3": "3,3,3",
    "63 nodes": "3,4,4",
    "paths": "paths:0/1/2/00/01/10/000/0000",
}


@cache
def wild() -> Any:
    return wild_llama(1)


@cache
def walking() -> LlamaForCausalLM:
    """A target that always goes on as a fixed permutation says: layers add nothing, the hidden state is the last id.

    The state of id x is e_x times a constant, and the output layer sends it to follow[x]. So a head can be planted.
    """
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=SIZE,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(settings).double().eval().requires_grad_(False)
    layer = model.model.layers[0]
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(SIZE))
    model.lm_head.weight.copy_(step_matrix(1) * 2.0)
    return model


@cache
def follow() -> tuple[int, ...]:
    """follow()[x] comes behind x; one cycle through all ids."""
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(4)).tolist()
    after = dict(zip(order, [*order[1:], order[0]], strict=True))
    return tuple(after[token] for token in range(SIZE))


def step_matrix(steps: int) -> Tensor:
    """[SIZE, SIZE] that sends e_x to e_y, y being `steps` ids further on."""
    matrix = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for token in range(SIZE):
        goal = token
        for _ in range(steps % SIZE):
            goal = follow()[goal]
        matrix[goal, token] = 1.0
    return matrix


def planted(steps: Sequence[int]) -> Heads:
    """Head k outweighs the state e_x by that of the id `steps[k]` places behind x."""
    weights = torch.stack([10.0 * step_matrix(count) for count in steps])
    return Heads((weights,), (torch.zeros(len(steps), SIZE, dtype=torch.float64),), len(steps))


def text_behind(token: int, num_tokens: int) -> list[int]:
    out = []
    for _ in range(num_tokens):
        token = follow()[token]
        out.append(token)
    return out


@pytest.fixture
def ship(monkeypatch, tmp_path) -> Callable[..., Path]:
    """Give the tiny pair these heads, as if they came with specviz."""

    def put(heads: Heads, *, hidden_size: int = SIZE, vocab_size: int = SIZE) -> Path:
        folder = tmp_path / "tiny" / "medusa"
        save_heads(folder, heads, hidden_size=hidden_size, vocab_size=vocab_size, target="tiny")
        monkeypatch.setattr(stored, "ASSETS", tmp_path)
        return folder

    return put


def medusa(tree: str = "chain", **more: Any) -> Any:
    return config("medusa", options={"tree": tree}, **more)


# --- which place a head guesses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("gamma", [1, 2, 4, 7])
def test_planted_heads_are_always_right(gamma, exact, ship):
    """Head k is right about the token k places behind the last committed one: every draft is kept, as far as there are
    heads. From the first step on: the prompt's last token but one has been through the target, and its state says what
    comes behind the last one."""
    ship(planted([1, 2, 3, 4]))
    engine = generator(walking(), eos=())
    for prompt in ([7, follow()[7]], [1, 2, 3, 4, 5, follow()[5]]):
        plain = text_behind(prompt[-1], 24)
        events = play(engine, prompt, medusa(gamma=gamma, max_new_tokens=24, exact=exact), plain=plain)
        assert not events[0].notes
        for step in steps_of(events):
            assert step.num_accepted == step.num_drafted == min(4, step.gamma)
    assert "untrained" not in steps_of(events)[0].note.text


@pytest.mark.parametrize("shift", [-1, 1])
def test_heads_that_guess_one_place_beside_are_never_right(shift, ship):
    """The off-by-one, both ways: nothing is kept, and the text is right all the same."""
    ship(planted([1 + shift, 2 + shift, 3 + shift, 4 + shift]))
    prompt = [7, follow()[7]]
    plain = text_behind(prompt[-1], 12)
    events = play(generator(walking(), eos=()), prompt, medusa(gamma=4, max_new_tokens=12), plain=plain)
    assert all(step.num_accepted == 0 for step in steps_of(events))


def test_a_tree_finds_what_a_chain_misses(ship):
    """The right guess is every head's second: a chain keeps nothing, a tree of two guesses a level everything."""
    heads = planted([1, 2, 3, 4])
    wrong = torch.stack([20.0 * step_matrix(count) for count in (5, 7, 9, 11)])
    ship(dataclasses.replace(heads, weights=(heads.weights[0] + wrong,)))
    prompt = [7, follow()[7]]
    plain = text_behind(prompt[-1], 15)
    kept = {}
    for tree in ("chain", "2,2,2,2", "paths:0/1/11/111/1111", "paths:0/1/10/00"):
        events = play(generator(walking(), eos=()), prompt, medusa(tree, gamma=4, max_new_tokens=15), plain=plain)
        kept[tree] = {step.num_accepted for step in steps_of(events) if step.gamma == 4}
    assert kept == {"chain": {0}, "2,2,2,2": {4}, "paths:0/1/11/111/1111": {4}, "paths:0/1/10/00": {1}}


@pytest.mark.parametrize("tree", ["chain", "3,2,1"])
def test_the_state_handed_over_is_that_of_the_last_accepted_token(tree, monkeypatch):
    """In every step: the last hidden state of the context but its last token, by a plain call of the model."""
    shown: list[tuple[list[int], Tensor]] = []
    propose = MedusaDrafter.propose

    def spy(self: MedusaDrafter, context: DraftContext, *rest: Any) -> Any:
        shown.append((list(context.token_ids), context.hidden))
        return propose(self, context, *rest)

    monkeypatch.setattr(MedusaDrafter, "propose", spy)
    for exact in (False, True):
        play(generator(wild(), eos=()), PROMPT, medusa(tree, gamma=3, max_new_tokens=30, exact=exact))
    assert len(shown) > 20
    for ids, hidden in shown:
        with torch.inference_mode():
            states = wild()(input_ids=torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states[-1][0, -1]
        assert float((hidden - states).abs().max()) < 1e-6


def test_hidden_states_are_kept_only_for_methods_that_need_them(monkeypatch):
    kept = []
    session = Session.__init__

    def spy(self: Session, *args: Any, **more: Any) -> None:
        kept.append(more.get("keep_hidden", False))
        session(self, *args, **more)

    monkeypatch.setattr(Session, "__init__", spy)
    for method in ("plain", "prompt-lookup", "early-exit", "medusa"):
        play(generator(wild(), eos=()), PROMPT, config(method, max_new_tokens=4))
    assert kept == [False, False, False, True]


def test_a_prompt_of_one_token_starts_without_a_draft():
    """Nothing has been through the target yet, so there is no state to guess from; from the second step on there is."""
    events = play(generator(wild(), eos=()), [5], medusa(gamma=3, max_new_tokens=8), plain=sequential(wild(), [5], 8))
    first, second = steps_of(events)[:2]
    assert (first.num_drafted, second.num_drafted) == (0, 3)
    assert "no hidden state" in first.note.text


# --- the text -----------------------------------------------------------------------------------------------------


def some_heads(seed: int = 1, num_heads: int = 4, width: int = 32, num_blocks: int = 2) -> Heads:
    """Trained on nothing: random blocks whose guesses differ from head to head and step to step."""
    rng = torch.Generator().manual_seed(seed)
    draws = [torch.randn(num_heads, width, width, generator=rng, dtype=torch.float64) for _ in range(num_blocks)]
    biases = [torch.randn(num_heads, width, generator=rng, dtype=torch.float64) for _ in range(num_blocks)]
    return Heads(tuple(0.3 * draw for draw in draws), tuple(biases), num_heads)


@pytest.mark.parametrize("tree", SHAPES.values(), ids=SHAPES)
def test_case_15_the_tree_does_not_change_the_text(tree, ship):
    """Case 15: a chain, 2 x 2, 3 x 3 x 3 and 63 nodes in float64 give the ids of plain calls; every kept child is the
    target's first choice."""
    ship(some_heads(), hidden_size=32, vocab_size=264)
    for model in (wild(), wild_llama(5, layers=3)):
        plain = sequential(model, PROMPT, 24)
        for gamma, exact in ((1, False), (4, False), (7, True)):
            settings = medusa(tree, gamma=gamma, max_new_tokens=24, exact=exact, detail=True)
            events = play(generator(model, eos=()), PROMPT, settings, plain=plain)
            sizes = {step.num_drafted for step in steps_of(events) if step.gamma >= 4}
            assert not sizes or sizes == {sum(len(path) <= 4 for path in parse_tree(tree).paths)}
            for token in (token for step in steps_of(events) for token in step.drafted):
                if token.fate == "accepted":
                    assert token.token_id == token.target_top[0].token_id


@pytest.mark.parametrize("tree", SHAPES.values(), ids=SHAPES)
def test_case_15_logits_of_every_node_are_those_of_its_path(tree, monkeypatch):
    """Case 15: each node of the proposed tree against its root-to-node path alone, below 1e-9 (norms in float64)."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))

    monkeypatch.setattr(specviz.models.decoder._Norm, "__call__", norm)
    session = Session(wild(), capacity=60, keep_hidden=True)
    session.extend(PROMPT[:-1])
    drafter = MedusaDrafter(decoder_for(wild()), some_heads(), parse_tree(tree), vocab_size=KNOWN)
    proposal = drafter.propose(DraftContext(PROMPT, GREEDY, session.tail, session), 4, uniform_generator(0))
    tokens = proposal.token_ids.tolist()
    logits = session.score(PROMPT[-1], proposal.token_ids, proposal.parents)
    for node in range(len(proposal)):
        path, at = [], node
        while at >= 0:
            path.insert(0, tokens[at])
            at = proposal.parents[at]
        alone = Session(wild(), capacity=60)
        right = alone.extend([*PROMPT, *path])[0]
        assert float((logits[node + 1] - right).abs().max()) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_chain_in_exact_mode_is_equal_to_the_bit(dtype, ship):
    """Ids and the target's probabilities against plain decoding of the same width; heads in the model's format."""
    ship(some_heads(), hidden_size=32, vocab_size=264)
    engine = generator(noisy(copy.deepcopy(wild()).to(dtype), 0.0), eos=())
    engine.loaded.dtype = dtype
    prompt = ids_from(3, 45)
    told = []
    for settings in (config("plain", max_new_tokens=40, exact=True), medusa(gamma=5, max_new_tokens=40, exact=True)):
        events = play(engine, prompt, settings)
        assert events[0].exactness == "exact"
        told.append([(token.token_id, token.target_prob) for step in steps_of(events) for token in step.emitted])
    assert engine.exactness_report(8).passed
    assert told[0] == told[1]


def test_a_target_that_runs_through_transformers():
    """GPT-2: hidden states and output layer by the model's own classes."""
    model = tiny_gpt2(positions=128)
    for tree in ("chain", "2,2"):
        plain = sequential(model, PROMPT, 20)
        play(generator(model, eos=()), PROMPT, medusa(tree, gamma=4, max_new_tokens=20), plain=plain)


def chi_square(ids: Sequence[int], p: Tensor) -> float:
    counts = torch.zeros_like(p)
    for a, b in itertools.pairwise(ids):
        counts[a, b] += 1
    expected = counts.sum(-1, keepdim=True) * p
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("tree", ["chain", "2,2", "3,1"])
def test_sampled_text_follows_the_target(tree, ship):
    """The walking target with an output layer of 6 likely ids, 900 tokens at T = 1: counts of what follows what.

    Chi-square with 30 degrees of freedom is above 67 with odds of 1 in 9 000 for each tree; a walk that keeps what was
    guessed gives thousands.
    """
    model = copy.deepcopy(walking())
    table = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model.lm_head.weight.copy_(table / SIZE**0.5)
    model.lm_head.weight[6:] = -1000.0 * (torch.arange(SIZE) < 6)
    p = torch.softmax(table.T[:6, :6], -1)
    ship(planted([1, 2, 3]))
    events = play(generator(model, eos=()), [0, 1], medusa(tree, gamma=3, max_new_tokens=900, temperature=1.0, seed=5))
    assert chi_square((1, *events[-1].token_ids), p) < 67
    assert {step.num_accepted for step in steps_of(events)} >= {0, 1}


@pytest.mark.parametrize("tree", ["chain", "3,2"])
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_case_14_a_second_run_equals_the_first(tree, temperature, ship):
    """Case 14: another prompt and tree in between; whole logs compared."""
    ship(some_heads(), hidden_size=32, vocab_size=264)
    engine = generator(wild(), eos=())
    settings = medusa(tree, gamma=4, max_new_tokens=20, temperature=temperature, seed=3, detail=True)
    first = play(engine, PROMPT, settings)
    play(engine, ids_from(8, 30), medusa("2,2,2", gamma=7, max_new_tokens=9, temperature=temperature, seed=4))
    assert log_of(play(engine, PROMPT, settings)) == log_of(first)


@pytest.mark.parametrize("tree", ["chain", "3,2"])
def test_closing_at_every_yield_leaves_nothing(tree):
    """Cases 40 and 94, with a tree as well: after 0, 1, 2, ... events; the next run is like the first."""
    engine = generator(wild(), eos=())
    settings = medusa(tree, gamma=4, max_new_tokens=9, seed=1)
    first = log_of(play(engine, PROMPT, settings))
    for num_events in range(len(first) + 1):
        run = engine.stream(PROMPT, settings)
        assert len(list(itertools.islice(run, num_events))) == num_events
        run.close()
    assert log_of(play(engine, PROMPT, settings)) == first


def test_a_repetition_penalty_is_seen_by_the_heads():
    """Untrained heads say what the target says under the penalty, so seen ids lose there too."""
    session = Session(wild(), capacity=60, keep_hidden=True)
    session.extend(PROMPT[:-1])
    drafter = MedusaDrafter(decoder_for(wild()), untrained_heads(), parse_tree("chain"), vocab_size=KNOWN)
    seen = DraftContext(PROMPT, GREEDY, session.tail, session)
    token = int(drafter.propose(seen, 1, uniform_generator(0)).token_ids[0])
    ids = [*PROMPT[:-1], token]
    punished = DraftContext(ids, SamplingParams(repetition_penalty=10.0), session.tail, session)
    assert int(drafter.propose(punished, 1, uniform_generator(0)).token_ids[0]) != token


# --- words and notes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "word"),
    [("chain", "exact"), ("1,1,1", "exact"), ("2,1", "lossless"), ("paths:0/00", "exact"), ("paths:0/1", "lossless")],
)
def test_the_word_follows_the_tree(tree, word):
    """Chains fit the fixed width and earn exact; a tree runs at its own number of rows."""
    engine = generator(wild(), eos=())
    started = next(engine.stream(PROMPT, medusa(tree, exact=True)))
    assert started.exactness == word
    assert ("Only chains" in started.exactness_reason) == (word == "lossless")
    assert registry.get_method("medusa").word(medusa(tree), engine.loaded) == word
    assert next(engine.stream(PROMPT, medusa(tree, exact=False))).exactness == "lossless"
    assert next(engine.stream(PROMPT, medusa(tree, exact=True, temperature=1.0))).exactness == "lossless"
    if word == "lossless":
        assert next(engine.stream(PROMPT, medusa(tree, exact=None))).width == 0
    assert registry.get_method("medusa").exactness == "exact"


def test_untrained_heads_say_so():
    """Without trained heads: what the target itself just said, told in the run's notes and in every step's."""
    events = play(generator(wild(), eos=()), PROMPT, medusa(gamma=7, max_new_tokens=12))
    assert "untrained heads" in events[0].notes[0]
    ids = [*PROMPT]
    for step in steps_of(events):
        if step.drafted:
            assert {token.token_id for token in step.drafted} == {sequential(wild(), ids[:-1], 1)[0]}
            assert step.note.kind == "tree"
            assert "untrained heads" in step.note.text
            assert step.note.data == {"levels": [1] * len(step.drafted), "num_heads": UNTRAINED_HEADS, "trained": False}
            assert len(step.drafted) <= UNTRAINED_HEADS
        ids += [token.token_id for token in step.emitted]
    assert "untrained" in registry.get_method("medusa").summary


def test_notes_tell_the_levels():
    events = play(generator(wild(), eos=()), PROMPT, medusa("3,2,1", gamma=3, max_new_tokens=9))
    step: StepDone = steps_of(events)[0]
    assert step.note.data["levels"] == [3, 6, 6]
    assert step.note.text.startswith("15 candidates on 3 levels")
    assert [token.parent for token in step.drafted] == [-1] * 3 + [0, 0, 1, 1, 2, 2] + list(range(3, 9))


def test_heads_of_other_weights_are_told_in_a_note(ship):
    """The file names the weights it was made on; others are a warning, since the text stays right."""
    ship(dataclasses.replace(planted([1, 2]), target_sha256="a" * 64))
    engine = generator(walking(), eos=())
    engine.loaded.target_info = dataclasses.replace(engine.loaded.target_info, sha256="b" * 64)
    started = next(engine.stream([3, 9], medusa()))
    assert "other weights (aaaaaaaa" in started.notes[0]
    for sha256 in ("a" * 64, ""):
        engine.loaded.target_info = dataclasses.replace(engine.loaded.target_info, sha256=sha256)
        assert not next(engine.stream([3, 9], medusa())).notes


# --- trees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ("2,1", ((0,), (1,), (0, 0), (1, 0))),
        ("2", ((0,), (1,))),
        (" 1 , 2 ", ((0,), (0, 0), (0, 1))),
        ("paths:01/1/0", ((0,), (1,), (0, 1))),
        ("paths: 9 0 ", ((0,), (9,))),
    ],
)
def test_tree_specifications(spec, paths):
    assert parse_tree(spec).paths == paths


def test_shapes_of_trees():
    """Depth, levels, parents, and what is left below a cut."""
    tree = parse_tree("3,2,1")
    assert (tree.depth, tree.levels(), tree.is_chain) == (3, [3, 6, 6], False)
    assert tree.parents() == (-1, -1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8)
    assert tree.cut(2) == parse_tree("3,2")
    assert tree.cut(3, rank=2) == parse_tree("2,2,1")
    assert len(parse_tree("3,4,4").paths) == 63
    chain = parse_tree("chain")
    assert chain.is_chain
    assert chain.cut(2) == Tree(((0,), (0, 0)))


@pytest.mark.parametrize(
    "spec",
    [
        "", " ", "x", "0", "2,0", "11", "-1", "2,,2", "1.5", "4,4,4", "10,10", "1," * 70 + "1", "chains", "2;2", "²",
        "paths:", "paths:a", "paths:00", "paths:0/01/011/1/110", "paths:0/0",
        "paths:" + "/".join(str(i) for i in range(100)), 3, None, 2.0,
    ],
    ids=lambda spec: repr(spec)[:20],
)  # fmt: skip
def test_bad_trees_are_refused_by_name_before_the_run(spec):
    with pytest.raises(ConfigError, match=r"^tree"):
        generator(wild(), eos=()).stream(PROMPT, medusa(spec))


def test_the_largest_tree():
    """MAX_TREE_NODES are allowed, one more is not; ten guesses of a vocabulary that has them."""
    paths = [f"{i}{j}" for i in range(6) for j in range(9)]
    spec = "paths:" + "/".join([*map(str, range(10)), *paths])
    assert len(parse_tree(spec).paths) == MAX_TREE_NODES
    with pytest.raises(ConfigError, match="1 to 64 nodes; got 65"):
        parse_tree(spec + "/60")
    model = wild_llama(2, vocab=8)
    play(generator(model, eos=()), [1, 2], medusa("10", max_new_tokens=6), plain=sequential(model, [1, 2], 6))


# --- files of heads -----------------------------------------------------------------------------------------------


def test_heads_come_back_as_they_were_saved(tmp_path):
    """Several shards, each under the limit; numbers, format and provenance as before."""
    heads = dataclasses.replace(some_heads(num_heads=5, width=700), target_sha256="c" * 64)
    files = save_heads(tmp_path, heads, hidden_size=700, vocab_size=99, target="some/target")
    shards = [file for file in files if file.suffix == ".safetensors"]
    assert len(shards) > 1
    assert all(file.stat().st_size <= MAX_SHARD_BYTES for file in files)
    found = load_heads(tmp_path, hidden_size=700, vocab_size=99, dtype=torch.float64)
    assert (found.num_heads, found.trained, found.target_sha256) == (5, True, "c" * 64)
    for left, right in zip((*found.weights, *found.biases), (*heads.weights, *heads.biases), strict=True):
        assert torch.equal(left, right)
    assert load_heads(tmp_path, hidden_size=700, vocab_size=99, dtype=torch.bfloat16).weights[0].dtype == torch.bfloat16
    assert found.num_bytes == sum(tensor.nbytes for tensor in (*heads.weights, *heads.biases))


def test_a_block_that_fits_into_no_file_is_refused(tmp_path):
    big = Heads((torch.zeros(1, 1600, 1600),), (torch.zeros(1, 1600),), 1)
    with pytest.raises(ConfigError, match="larger than a file"):
        save_heads(tmp_path, big, hidden_size=1600, vocab_size=9)


def test_heads_compute_what_the_paper_says():
    """h + SiLU(W h + b), block behind block, for each head; untrained heads hand h on."""
    heads, hidden = some_heads(), torch.randn(32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = heads(hidden)
    for head in range(4):
        state = hidden
        for weight, bias in zip(heads.weights, heads.biases, strict=True):
            state = state + torch.nn.functional.silu(weight[head] @ state + bias[head])
        assert float((found[head] - state).abs().max()) < 1e-12
    assert torch.equal(untrained_heads(3)(hidden), hidden.expand(3, -1))


@pytest.mark.parametrize(("tree", "depth"), [("2,2,1,1,1", 3), ("chain", 3), ("paths:0/00/000/0000/1", 3)])
def test_case_120_a_tree_deeper_than_there_are_heads_is_cut_with_a_note(tree, depth, ship):
    """Case 120: 3 heads, a tree of depth 5 (and 4): cut to depth 3, which the run's notes tell; a chain just ends."""
    ship(some_heads(num_heads=3), hidden_size=32, vocab_size=264)
    settings = medusa(tree, gamma=7, max_new_tokens=16)
    events = play(generator(wild(), eos=()), PROMPT, settings, plain=sequential(wild(), PROMPT, 16))
    assert len(steps_of(events)[0].note.data["levels"]) == depth
    told = [note for note in events[0].notes if "cut to 3 levels" in note]
    assert bool(told) == (tree != "chain")


@pytest.mark.parametrize(
    ("hidden_size", "vocab_size", "message"),
    [(48, 264, r"hidden size 48.* has 32"), (32, 300, r"vocabulary 300.* has 264"), (32, 260, r"vocabulary 260")],
)
def test_case_120_heads_of_another_size_are_refused_by_name(hidden_size, vocab_size, message, ship):
    """Case 120: heads made for another hidden size or vocabulary, before the run; other methods run on."""
    ship(some_heads(width=hidden_size), hidden_size=hidden_size, vocab_size=vocab_size)
    engine = generator(wild(), eos=())
    with pytest.raises(ModelLoadError, match=rf"Medusa heads.*{message}"):
        engine.stream(PROMPT, medusa())
    play(engine, PROMPT, config("prompt-lookup", max_new_tokens=4))


def edit_manifest(folder: Path, **changes: Any) -> None:
    file = folder / "heads.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    file = folder / "heads-01.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def added(key: str, *shape: int) -> Callable[[Path], None]:
    """Put a tensor of zeros under this name into the file."""
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({key: torch.zeros(*shape)}))


SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "authors' layout": (added("0.0.linear.weight", 2), r"authors' layout.*train import"),
    "authors' output layers": (added("2.1.weight", 2), r"authors' layout.*train import"),
    "medusa_head": (added("medusa_head.0.1.weight", 2), r"authors' layout.*train import"),
    "one output layer": (added("heads.1.output", 264, 32), r"lack heads\.2\.output"),
    "output layers of another size": (added("heads.1.output", 263, 32), r"\(263, 32\); needed is \(264, 32\)"),
    "unknown name": (added("extra", 2), "unknown name: 'extra'"),
    "a head too many": (added("heads.9.blocks.1.bias", 32), r"nothing reads: 'heads\.9"),
    "another shape": (added("heads.2.blocks.1.bias", 33), r"shape \(33,\); needed is \(32,\)"),
    "a tensor too few": (lambda f: edit_tensors(f, lambda t: t.pop("heads.2.blocks.1.bias")), r"lack heads\.2\.blocks"),
    "no manifest": (lambda f: (f / "heads.json").unlink(), r"heads.json is missing.*train import"),
    "not JSON": (lambda f: (f / "heads.json").write_text("{"), "damaged"),
    "another layout": (lambda f: edit_manifest(f, layout="medusa-2"), "'medusa-2'"),
    "a list": (lambda f: (f / "heads.json").write_text("[]"), "layout 'None'"),
    "no files": (lambda f: edit_manifest(f, files=None), "does not list its files"),
    "a file elsewhere": (lambda f: edit_manifest(f, files=["../heads.safetensors"]), "does not list its files"),
    "a missing file": (
        lambda f: edit_manifest(f, files=["gone.safetensors"]),
        "^gone.safetensors .* missing or damaged",
    ),
    "not safetensors": (lambda f: (f / "heads-01.safetensors").write_bytes(b"x" * 99), "missing or damaged"),
    "too many heads": (lambda f: edit_manifest(f, num_heads=10**9), "1 to 15 heads"),
    "no heads": (lambda f: edit_manifest(f, num_heads=0), "1 to 15 heads"),
    "heads by name": (lambda f: edit_manifest(f, num_heads="4"), "1 to 15 heads"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_case_120_files_that_do_not_fit_are_refused_by_name(name, ship):
    """Case 120: old and foreign layouts, tensors missing, too many or of another shape, damaged files."""
    spoil, message = SPOILED[name]
    folder = ship(some_heads(), hidden_size=32, vocab_size=264)
    engine = generator(wild(), eos=())
    assert list(engine.stream(PROMPT, medusa(max_new_tokens=3)))[-1].reason == "length"
    spoil(folder)
    with pytest.raises(ModelLoadError, match=message) as refused:
        engine.stream(PROMPT, medusa())
    assert "Medusa heads" in str(refused.value)


def test_a_target_without_an_output_layer_is_refused():
    with pytest.raises(ConfigError, match=r"medusa reads the target's hidden states"):
        generator(FakeModel(32), eos=()).stream([1, 2], medusa())


def test_options_of_other_methods_are_refused():
    with pytest.raises(ConfigError, match=r"medusa has no option 'exit_layer'; its own are: tree"):
        generator(wild(), eos=()).stream(PROMPT, config("medusa", options={"exit_layer": 1}))
