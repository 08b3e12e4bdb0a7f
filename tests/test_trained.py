"""Trained drafts on tiny models: a lesson and its drafter compute the same, training learns, goes on after a break to
the same weights, and cards hold what the files give."""

from __future__ import annotations

import json
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import EOS, byte_tokenizer, ids_of
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.config import RunConfig, SamplingParams
from specviz.drafters.base import DraftContext
from specviz.drafters.context_head import ContextHead
from specviz.drafters.feature import FeatureDrafter
from specviz.drafters.feature_head import fresh_parts
from specviz.drafters.registry import get_method
from specviz.drafters.tree import parse_growing, parse_tree
from specviz.errors import ConfigError, ModelLoadError
from specviz.events import ModelInfo
from specviz.generator import SpeculativeGenerator
from specviz.models.catalog import ModelPair, WeightSource
from specviz.models.decoder import LeanDecoder
from specviz.models.loader import LoadedPair
from specviz.models.session import Session
from specviz.models.trunk import load_trunk, save_trunk
from specviz.train import drafts, loop
from specviz.train.batches import Batch
from specviz.train.drafts import KINDS, Plan, default_plan, gather, judge_draft, train_on
from specviz.train.feature import FeatureLesson
from specviz.train.loop import Said, imitation_loss
from specviz.train.student import fresh_trunk

TAPS = (1, 2)


def tiny_target(dtype: torch.dtype, vocab: int = 60, layers: int = 4) -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=layers,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)


def tiny_pair(dtype: torch.dtype = torch.float32) -> LoadedPair:
    source = WeightSource("test/tiny-train")
    return LoadedPair(
        pair=ModelPair("tiny-train", "Tiny", source),
        tokenizer=byte_tokenizer(),
        target=tiny_target(dtype, vocab=264, layers=3),
        target_info=ModelInfo("tiny-train", dtype=str(dtype).removeprefix("torch."), sha256="a" * 64),
        dtype=dtype,
        device=torch.device("cpu"),
        max_context=256,
        eos_ids=frozenset([EOS]),
        vocab_size=260,
    )


def write_corpus(path: Path, loaded: LoadedPair, num_answers: int = 48) -> Path:
    """Answers that the tiny target gives to one-letter prompts, greedily; a topic for each."""
    sequences = []
    engine = SpeculativeGenerator(loaded)
    for number in range(num_answers):
        prompt = ids_of(chr(97 + number % 26) + chr(65 + number % 7))
        config = RunConfig(method="plain", max_new_tokens=24, exact=False)
        *_, finished = engine.stream(prompt, config)
        sequences.append(prompt + list(finished.token_ids))
    np.savez(
        path,
        tokens=np.concatenate(sequences).astype(np.uint16),
        offsets=np.cumsum([0, *map(len, sequences)]),
        prompt_len=np.full(num_answers, 2, np.int32),
        topic=np.arange(num_answers, dtype=np.int16),
    )
    return path


# --- the feature head ---------------------------------------------------------------------------------------------


def feature_drafter(
    target: Any, tree: str, output_layer: torch.Tensor | None = None
) -> tuple[FeatureDrafter, Any, Any]:
    trunk = fresh_trunk(target, (4,), torch.arange(3, 60, 2)).double().eval().requires_grad_(False)
    parts = fresh_parts(24, 2, torch.Generator().manual_seed(1)).double().requires_grad_(False)
    decoder = LeanDecoder.of(trunk)
    sizes = {"vocab_size": 60, "max_new_tokens": 60}
    shape = parse_growing(tree) or parse_tree(tree)
    head = ContextHead(decoder, trunk.output_ids, output_layer, vocab_size=60)
    return FeatureDrafter(decoder, parts, head, TAPS, shape, **sizes), trunk, parts


def propose(drafter: FeatureDrafter, target: Any, ids: list[int], num_tokens: int, blocks: tuple[int, ...] = ()) -> Any:
    """What the head drafts behind `ids`, having read them in one go or in blocks."""
    session = Session(target, capacity=64, taps=TAPS)
    first = blocks[0] if blocks else len(ids) - 1
    session.extend(ids[:first])
    drafter.reset(ids[: first + 1], session)
    rng = torch.Generator().manual_seed(0)
    for end in blocks[1:]:
        drafter.propose(DraftContext(ids[: session.length + 1], SamplingParams(), None, session), 3, rng)
        session.extend(ids[session.length : end])
    if session.length < len(ids) - 1:
        session.extend(ids[session.length : -1])
    return drafter.propose(DraftContext(ids, SamplingParams(), None, session), num_tokens, rng)


IDS = [3, 17, 5, 9, 33, 8, 21, 4]


def test_a_feature_head_drafts_as_it_was_trained() -> None:
    """The unrolled training pass and the drafter's passes with a cache say the same at every depth."""
    target = tiny_target(torch.float64)
    drafter, trunk, parts = feature_drafter(target, "chain")
    proposal = propose(drafter, target, IDS, 4)
    drafted = proposal.token_ids.tolist()
    text = IDS + drafted
    found = target.model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
    taps = torch.stack([found[tap] for tap in TAPS], 2)
    chosen = torch.zeros(1, len(text), dtype=torch.bool)
    root = len(IDS) - 2  # the last token with a state of the target
    lesson = FeatureLesson(trunk, parts, depth=4)
    for depth, token in enumerate(drafted):
        chosen.zero_()
        chosen[0, root + 1 + depth] = True
        said = [place.states for place in lesson.places(Batch(torch.tensor([text]), chosen, found[-1], taps))][depth]
        logits = trunk.lm_head(said)[0]
        assert int(trunk.output_ids[int(logits.argmax())]) == token
        assert abs(float(torch.softmax(logits, -1).max()) - proposal.confidence[depth]) < 1e-6


def test_a_feature_head_reads_in_any_blocks() -> None:
    target = tiny_target(torch.float64)
    whole = propose(feature_drafter(target, "chain")[0], target, IDS, 5)
    for blocks in ((1, 2, 3), (3, 7), (2, 6)):
        apart = propose(feature_drafter(target, "chain")[0], target, IDS, 5, blocks)
        assert apart.token_ids.tolist() == whole.token_ids.tolist()
        assert apart.confidence == pytest.approx(whole.confidence, abs=1e-9)


def test_a_head_proposes_what_the_text_holds_besides_its_own_ids() -> None:
    """Logits of joined ids are products with the target's own rows; another run begins without them."""
    target = tiny_target(torch.float64)
    layer = target.get_output_embeddings().weight.detach()
    drafter, trunk, _ = feature_drafter(target, "growing:30", layer)
    proposal = propose(drafter, target, IDS, 2)
    head = drafter._head
    strangers = [8, 4]  # the even ids of the text, in order; this trunk's own are odd
    assert head.ids.tolist() == [*trunk.output_ids.tolist(), *strangers]
    state = torch.randn(3, 24, dtype=torch.float64)
    wanted = trunk.model.norm(state) @ layer[head.ids].mT
    assert torch.allclose(head(state), wanted, atol=1e-12)
    assert set(proposal.token_ids.tolist()) <= set(head.ids.tolist())
    q = torch.softmax(head(drafter._behind[None])[0], -1)
    first = [n for n, parent in enumerate(proposal.parents) if parent == -1]
    for node in first:
        at = head.ids.tolist().index(int(proposal.token_ids[node]))
        assert abs(float(q[at]) - proposal.confidence[node]) < 1e-9
    drafter.reset([3, 5, 7])
    assert torch.equal(head.ids, trunk.output_ids)


def test_the_branches_of_a_feature_head() -> None:
    """Every node of a tree is what a chain through the same tokens would have said there."""
    target = tiny_target(torch.float64)
    chain = propose(feature_drafter(target, "chain")[0], target, IDS, 3)
    drafter, trunk, parts = feature_drafter(target, "3,2,2")
    tree = propose(drafter, target, IDS, 3)
    assert len(tree) == 3 + 6 + 12
    node, path = -1, []
    for _ in range(3):
        node = tree.children_of()[node][0]
        path.append(int(tree.token_ids[node]))
    assert path == chain.token_ids.tolist()
    lesson = FeatureLesson(trunk, parts, depth=3)
    leaves = [n for n in range(len(tree)) if n not in set(tree.parents)]
    for leaf in leaves[::3]:
        nodes: list[int] = []
        at = leaf
        while at != -1:
            nodes.insert(0, at)
            at = tree.parents[at]
        text = IDS + [int(tree.token_ids[n]) for n in nodes]
        found = target.model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
        taps = torch.stack([found[tap] for tap in TAPS], 2)
        chosen = torch.zeros(1, len(text), dtype=torch.bool)
        chosen[0, len(IDS) + 1] = True
        said = [place.states for place in lesson.places(Batch(torch.tensor([text]), chosen, found[-1], taps))][2]
        probs = torch.softmax(trunk.lm_head(said)[0], -1)
        place = int((trunk.output_ids == text[-1]).nonzero())
        assert abs(float(probs[place]) - tree.confidence[leaf]) < 1e-6


def test_a_growing_tree_holds_the_likeliest_paths() -> None:
    """Of all 20 nodes of a 4,4 tree, those with the largest products of q along their paths; parents come first."""
    target = tiny_target(torch.float64)
    full = propose(feature_drafter(target, "4,4")[0], target, IDS, 2)
    products: dict[tuple[int, ...], float] = {}
    for node in range(len(full)):
        path, product, at = (), 1.0, node
        while at != -1:
            path, product, at = (int(full.token_ids[at]), *path), product * full.confidence[at], full.parents[at]
        products[path] = product
    for count in (1, 3, 6, 11):
        grown = propose(feature_drafter(target, f"growing:{count}")[0], target, IDS, 2)
        paths = []
        for node, parent in enumerate(grown.parents):
            assert parent < node
            paths.append((*(paths[parent] if parent >= 0 else ()), int(grown.token_ids[node])))
        best = sorted(products, key=lambda path: -products[path])[:count]
        assert set(paths) == set(best)
    with pytest.raises(ConfigError, match="1 to 64"):
        parse_growing("growing:99")


# --- training -----------------------------------------------------------------------------------------------------


def test_the_loss_is_a_cross_entropy_and_its_gradient_is_right() -> None:
    """Two places over 300 states of the target, the second one saying something at only some of them."""
    rng = torch.Generator().manual_seed(2)
    head = torch.randn(9, 5, generator=rng, dtype=torch.float64)
    target = torch.randn(300, 5, generator=rng, dtype=torch.float64)
    ats = [torch.arange(300), torch.randperm(300, generator=rng)[:170].sort().values]
    drafts = [torch.randn(len(at), 5, generator=rng, dtype=torch.float64, requires_grad=True) for at in ats]
    wanted = 0.7 * torch.softmax(target @ head.mT, -1)
    wanted[torch.arange(300), (target @ head.mT).argmax(-1)] += 0.3
    plain = [
        -(wanted[at] * torch.log_softmax(draft @ head.mT, -1)).sum(-1).mean()
        for at, draft in zip(ats, drafts, strict=True)
    ]
    mean = (plain[0] + 0.8 * plain[1]) / 1.8
    expected = torch.autograd.grad(mean, drafts)
    places = [Said(draft, at) for draft, at in zip(drafts, ats, strict=True)]
    loss = imitation_loss(places, target, head, 0.3, (1.0, 0.8))
    assert abs(float(loss) - float(mean)) < 1e-5
    for got, right in zip(torch.autograd.grad(loss, drafts), expected, strict=True):
        assert torch.allclose(got, right, atol=1e-7)


def plan_for(kind: str, loaded: LoadedPair, **more: Any) -> Plan:
    small = {"steps": 60, "batch": 6, "lr": 5e-3, "output_size": 128}
    return Plan(kind, "tiny-train", **{**default_plan(kind, loaded.num_layers), **small, **more})


@pytest.fixture
def trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, so that checkpoints do not meet."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(drafts, "RUN_TOKENS", 16)  # a card's runs take longer than the training of a tiny draft
    return tmp_path


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    return {key: value for file in sorted(folder.glob("*.safetensors")) for key, value in load_file(file).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns_goes_on_after_a_break_and_tells_the_truth(kind, trained_here, monkeypatch) -> None:
    loaded = tiny_pair()
    corpus = write_corpus(trained_here / "corpus.npz", loaded)
    plan = plan_for(kind, loaded)
    losses: list[float] = []

    def report(message: str, fraction: float | None) -> None:
        if message.startswith("Step"):
            losses.append(float(message.split("loss ")[1].split(",")[0]))

    material = gather(loaded, [corpus], plan)
    folder = train_on(material, plan, trained_here / "whole", report)
    assert losses[-1] < 0.9 * losses[0], "it learns"

    class StopError(Exception):
        pass

    def break_off(message: str, fraction: float | None) -> None:
        if message.startswith("Step 23 "):
            raise StopError

    monkeypatch.setenv("SPECVIZ_CACHE", str(trained_here / "again"))
    monkeypatch.setattr(drafts, "Schedule", partial(loop.Schedule, save_every=10))
    again = gather(loaded, [corpus], plan)
    with pytest.raises(StopError):
        train_on(again, plan, trained_here / "parts", break_off)
    train_on(again, plan, trained_here / "parts")
    first, second = weights_in(folder), weights_in(trained_here / "parts")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first), "a break changes nothing"

    card = json.loads((folder / "card.json").read_text())
    assert card["settings"]["steps"] == 60 and card["num_held_answers"] == len(material.held)
    places, runs = judge_draft(material, plan, folder)
    assert [place.top[0] for place in places] == [place["top"][0] for place in card["places"]]
    assert [place.overlap for place in places] == [place["overlap"] for place in card["places"]]
    assert [run.acceptance_rate for run in runs] == [run["acceptance_rate"] for run in card["runs"]]
    assert "Kept back" in (folder / "card.md").read_text()
    assert all(file.stat().st_size < 9_000_000 for file in folder.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_from_a_draft(kind, trained_here) -> None:
    """`--from`: it begins where that draft is, not where a fresh one would."""
    loaded = tiny_pair()
    corpus = write_corpus(trained_here / "corpus.npz", loaded, 24)
    plan = plan_for(kind, loaded, steps=24)
    first: list[float] = []
    last: list[float] = []

    def into(losses: list[float]) -> Any:
        return lambda message, _: (
            losses.append(float(message.split("loss ")[1].split(",")[0])) if "loss" in message else 0
        )

    folder = train_on(gather(loaded, [corpus], plan), plan, trained_here / "one", into(first))
    more = plan_for(kind, loaded, steps=3, lr=1e-6, start=str(folder))
    (trained_here / "cache" / "tiny-train" / "train" / kind / loop.CHECKPOINT).unlink()
    train_on(gather(loaded, [corpus], more), more, trained_here / "two", into(last))
    assert last[0] < 0.5 * (first[0] + first[-1])
    assert json.loads((trained_here / "two" / "card.json").read_text())["settings"]["start"] == folder.name


def test_a_checkpoint_of_another_plan_is_refused(trained_here) -> None:
    loaded = tiny_pair()
    corpus = write_corpus(trained_here / "corpus.npz", loaded, 12)
    plan = plan_for("student", loaded, steps=2)
    train_on(gather(loaded, [corpus], plan), plan, trained_here / "out")
    other = plan_for("student", loaded, steps=3)
    with pytest.raises(ConfigError, match="other settings"):
        train_on(gather(loaded, [corpus], other), other, trained_here / "out")


# --- trained drafts in runs ---------------------------------------------------------------------------------------


def test_a_trained_draft_model_runs_and_the_text_is_plain(trained_here) -> None:
    """With a trimmed vocabulary and int8, in float32: the same ids as plain decoding, whatever it guesses."""
    loaded = tiny_pair()
    corpus = write_corpus(trained_here / "corpus.npz", loaded)
    plan = plan_for("student", loaded, steps=12)
    loaded.draft_folders["draft-model"] = train_on(gather(loaded, [corpus], plan), plan, trained_here / "out")
    engine = SpeculativeGenerator(loaded)
    for quant in ("auto", "float32"):
        settings = {"max_new_tokens": 40, "exact": True}
        *_, mine = engine.stream("hello", RunConfig(method="draft-model", draft_quant=quant, **settings))
        *_, plain = engine.stream("hello", RunConfig(method="plain", **settings))
        assert mine.token_ids == plain.token_ids
    assert loaded.draft_info is not None and "2 of 3 layers" in loaded.draft_info.name
    sampled = RunConfig(method="draft-model", max_new_tokens=30, sampling=SamplingParams(temperature=1.0, seed=3))
    *events, finished = engine.stream("hello", sampled)
    assert finished.reason in ("length", "eos")
    drafted = [token for event in events for token in getattr(event, "drafted", ())]
    assert drafted and all(token.draft_prob is None or token.draft_prob > 0 for token in drafted)


def test_a_trained_draft_says_when_it_is_another_target_s(trained_here) -> None:
    loaded = tiny_pair()
    trunk = fresh_trunk(loaded.target, (1,), torch.arange(100))
    save_trunk(trained_here / "d", trunk, {}, {"target_sha256": "b" * 64, "target_layers": 3})
    loaded.draft_folders["draft-model"] = trained_here / "d"
    trained = loaded.trained_draft("draft-model")
    assert "other weights (bbbbbbbb…)" in trained.notes[0]
    started = next(iter(SpeculativeGenerator(loaded).stream("a", RunConfig(method="draft-model", max_new_tokens=2))))
    assert any("other weights" in note for note in started.notes)


def test_trained_drafts_stay_side_by_side_until_all_are_dropped(trained_here) -> None:
    """Visitors who take turns with two methods do not load their drafts again; another number format replaces one."""
    loaded = tiny_pair()
    for method, layer in (("draft-model", 1), ("feature", 2)):
        save_trunk(trained_here / method, fresh_trunk(loaded.target, (layer,), torch.arange(100)), {}, {})
        loaded.draft_folders[method] = trained_here / method
    student, head = loaded.trained_draft("draft-model", "int8"), loaded.trained_draft("feature", "int8")
    assert loaded.draft is head.model
    assert loaded.trained_draft("draft-model", "int8") is student and loaded.draft is student.model
    assert loaded.trained_draft("feature", "int8") is head and loaded.draft_extra is head
    kept, gone = weakref.ref(head.model), weakref.ref(student.model)
    other = "float32" if student.info.quantization == "int8" else "int8"  # which one is faster here is measured
    student = loaded.trained_draft("draft-model", other)
    assert gone() is None and loaded.draft is student.model
    assert loaded.trained_draft("feature", "int8") is head
    del student, head
    loaded.drop_drafts()
    assert kept() is None and loaded.draft is None


def test_damaged_trunks_are_refused_by_name(trained_here) -> None:
    loaded = tiny_pair()
    folder = trained_here / "d"
    save_trunk(folder, fresh_trunk(loaded.target, (1,), torch.arange(100)), {}, {"target_layers": 3})
    good = (folder / "draft.json").read_text()
    for change, words in (
        (lambda about: about | {"layout": "other"}, "layout 'other'"),
        (lambda about: about | {"num_layers": 2}, "lacks layers.2"),
        (lambda about: about | {"num_layers": 0}, "1 to 64 layers"),
        (lambda about: about | {"files": ["../x.safetensors"]}, "does not list its files"),
        (lambda about: about | {"files": ["gone.safetensors"]}, "gone.safetensors of the trained draft is missing"),
    ):
        (folder / "draft.json").write_text(json.dumps(change(json.loads(good))))
        with pytest.raises(ModelLoadError, match=words):
            load_trunk(folder, loaded.target, 260)
    (folder / "draft.json").write_text(good)
    with pytest.raises(ModelLoadError, match="this target needs"):
        load_trunk(folder, tiny_model_of_another_size(), 260)


def tiny_model_of_another_size() -> Any:
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def test_the_method_without_a_draft_says_what_to_do() -> None:
    loaded = tiny_pair()
    assert "train --help" in str(get_method("feature").refusal(loaded))
    assert "train student" in str(get_method("draft-model").refusal(loaded))
