"""EAGLE-3 heads of other people: the layouts of SafeAILab and of vLLM's speculators, taken over and drafted with.

The reference is written anew here, from the authors' forward: no cache, one path at a time, all in float64.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import config, generator
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, silu
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.cli import main
from specviz.config import SamplingParams
from specviz.drafters.base import DraftContext
from specviz.drafters.context_head import ContextHead
from specviz.drafters.feature import FeatureDrafter, read_parts
from specviz.drafters.foreign import Kind, import_draft, recognise
from specviz.drafters.tree import parse_growing, parse_tree
from specviz.errors import ConfigError, ModelLoadError
from specviz.models import stored
from specviz.models.catalog import ModelPair, WeightSource
from specviz.models.decoder import LeanDecoder
from specviz.models.session import Session
from specviz.models.trunk import MANIFEST, load_trunk

WIDTH, VOCAB, DRAFT_VOCAB, LAYERS = 16, 64, 24, 8
EPS, THETA = 1e-5, 500.0
IDS = [5, 9, 33, 8, 21, 4, 60, 2, 17, 3, 40, 12, 7, 7, 19, 51, 22, 30, 1, 11]
Named = dict[str, Tensor]

LAYER_CONFIG: dict[str, Any] = {  # another form than the target's: 4 heads of 4 numbers, 2 of keys and values
    "model_type": "llama",
    "hidden_size": WIDTH,
    "vocab_size": VOCAB,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 16,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
}
AUTHORS = {**LAYER_CONFIG, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCAB}
SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": DRAFT_VOCAB,
    "transformer_layer_config": LAYER_CONFIG,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "their/base-model"}},
}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The pair `tiny`, whose target is a folder with a configuration and two empty files, and an empty cache folder."""
    folder = tmp_path / "target"
    settings = {"hidden_size": WIDTH, "vocab_size": VOCAB, "num_attention_heads": 2, "num_hidden_layers": LAYERS}
    LlamaConfig(**settings).save_pretrained(folder)
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).touch()
    source = WeightSource("their/base-model", folder=str(folder))
    monkeypatch.setattr("specviz.drafters.foreign.get_pair", lambda name: ModelPair(name, "Tiny", source))
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    return "tiny"


def target() -> LlamaForCausalLM:
    torch.manual_seed(1)
    settings = LlamaConfig(
        hidden_size=WIDTH, vocab_size=VOCAB, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=2,
        max_position_embeddings=128, bos_token_id=0, eos_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(settings).double().eval().requires_grad_(False)
    model.lm_head.weight.mul_(8.0)
    return model


def head(  # the parts of a head, by the names of speculators
    num_layers: int = 1,
    *,
    whole: bool = False,
    embedding: bool = False,
    bias: bool = False,
    norm: str = "",
    taps: int = 3,
) -> Named:
    rng = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64) / 2  # noqa: E731
    made = {"fc.weight": draw(WIDTH, taps * WIDTH), "norm.weight": 1 + draw(WIDTH)}
    for index in range(num_layers):
        rows = {"q": WIDTH, "k": WIDTH // 2, "v": WIDTH // 2}
        read = WIDTH if index else 2 * WIDTH
        layer = {f"self_attn.{part}_proj.weight": draw(size, read) for part, size in rows.items()}
        layer |= {f"self_attn.{part}_proj.bias": draw(size) for part, size in rows.items()} if bias else {}
        layer |= {"self_attn.o_proj.weight": draw(WIDTH, WIDTH), "mlp.down_proj.weight": draw(WIDTH, 24)}
        layer |= {f"mlp.{part}_proj.weight": draw(24, WIDTH) for part in ("gate", "up")}
        norms = ("input_layernorm", "post_attention_layernorm", *(() if index else ("hidden_norm",)))
        layer |= {f"{name}.weight": 1 + draw(WIDTH) for name in norms}
        made |= {f"layers.{index}.{name}": tensor for name, tensor in layer.items()}
    if whole:
        made |= {"lm_head.weight": draw(VOCAB, WIDTH)}
    else:
        ids = torch.randperm(VOCAB, generator=rng)[:DRAFT_VOCAB].sort().values
        marked = torch.zeros(VOCAB, dtype=torch.bool)
        marked[ids] = True
        made |= {"d2t": ids - torch.arange(DRAFT_VOCAB), "t2d": marked, "lm_head.weight": draw(DRAFT_VOCAB, WIDTH)}
    made |= {"embed_tokens.weight": draw(VOCAB, WIDTH)} if embedding else {}
    if norm == "one":
        made["input_norm.weight"] = 1 + draw(taps * WIDTH)
    if norm == "each":
        made |= {f"fc_norm.{index}.weight": 1 + draw(WIDTH) for index in range(taps)}
    return made


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


def rotated(x: Tensor) -> Tensor:
    size = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), THETA ** (-torch.arange(0, size, 2) / size))
    angles = angles.repeat(1, 2)
    turned = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), -1)
    return x * angles.cos() + turned * angles.sin()


def forward(tensors: Named, embedded: Tensor, states: Tensor, *, residual_normed: bool) -> Tensor:
    """[rows, d_model] embedding of token t + 1 and state t, to [rows, d_model] before the last norm."""
    index, rows, x = 0, len(states), states
    while (prefix := f"layers.{index}.") + "mlp.up_proj.weight" in tensors:
        own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        if index:
            y = normed(x, own["input_layernorm.weight"])
        else:
            beside = normed(x, own["hidden_norm.weight"])
            y = torch.cat((normed(embedded, own["input_layernorm.weight"]), beside), -1)
            x = beside if residual_normed else x
        q, k, v = (
            linear(y, own[f"self_attn.{part}_proj.weight"], own.get(f"self_attn.{part}_proj.bias"))
            .view(rows, -1, WIDTH // 4)
            .transpose(0, 1)
            for part in "qkv"
        )
        k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        scores = rotated(q) @ rotated(k).mT / (WIDTH // 4) ** 0.5
        scores = scores.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -torch.inf)
        mixed = (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(rows, -1)
        x = x + linear(mixed, own["self_attn.o_proj.weight"])
        y = normed(x, own["post_attention_layernorm.weight"])
        y = silu(linear(y, own["mlp.gate_proj.weight"])) * linear(y, own["mlp.up_proj.weight"])
        x = x + linear(y, own["mlp.down_proj.weight"])
        index += 1
    return x


def reference(
    tensors: Named, settings: dict[str, Any], model: LlamaForCausalLM, path: tuple[int, ...], taps: tuple[int, ...]
) -> Tensor:
    """[VOCAB] logits of the head behind IDS and the drafted `path`, minus infinity where it proposes nothing."""
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([IDS[:-1]]), output_hidden_states=True).hidden_states
        parts = [hidden[tap][0] for tap in taps]
        if "fc_norm.0.weight" in tensors:
            parts = [normed(part, tensors[f"fc_norm.{index}.weight"]) for index, part in enumerate(parts)]
        fused = torch.cat(parts, -1)
        if "input_norm.weight" in tensors:
            fused = normed(fused, tensors["input_norm.weight"])
        states = linear(fused, tensors["fc.weight"])
        table = tensors.get("embed_tokens.weight", model.model.embed_tokens.weight)
        for count in range(len(path) + 1):
            ids = torch.tensor([*IDS[1:], *path[:count]])
            residual_normed = settings.get("norm_before_residual", False)
            out = forward(tensors, table[ids], states, residual_normed=residual_normed)[-1:]
            behind = normed(out, tensors["norm.weight"])
            states = torch.cat((states, behind if settings.get("norm_output") else out))
        found = linear(behind[0], tensors["lm_head.weight"])
        full = torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
        full[torch.arange(len(found)) + tensors.get("d2t", 0)] = found
    return full


def put(folder: Path, tensors: Named, name: str = "model.safetensors", **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def authors(tensors: Named) -> Named:
    return {key.replace("layers.0.", "midlayer."): tensor for key, tensor in tensors.items()}


HEADS: dict[str, tuple[Named, Named, str, dict[str, Any], tuple[int, ...]]] = {
    "of the authors": (head(), authors(head()), "pytorch_model.bin", AUTHORS, (2, 4, 5)),
    "of the authors, whole vocabulary": (
        head(whole=True),
        authors(head(whole=True))
        | {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.zeros(VOCAB, dtype=torch.bool)},
        "pytorch_model.bin",
        {**AUTHORS, "draft_vocab_size": VOCAB},
        (2, 4, 5),
    ),
    "of vLLM": (
        head(embedding=True),
        {("" if "lm_head" in key or "2" in key else "model.") + key: t for key, t in head(embedding=True).items()},
        "model.safetensors",
        {**AUTHORS, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5], "use_aux_hidden_state": True}},
        (1, 3, 6),
    ),
    "of speculators": (
        head(embedding=True),
        head(embedding=True) | {"verifier_norm.weight": torch.ones(WIDTH)},
        "model.safetensors",
        SPECULATORS | {"norm_before_residual": True, "target_hidden_size": None},
        (2, 4, 5),
    ),
    "of speculators, 3.1": (
        head(2, bias=True, norm="one"),
        head(2, bias=True, norm="one"),
        "model.safetensors",
        SPECULATORS | {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
        (2, 4, 5),
    ),
    "of speculators, its own layers": (
        head(norm="each", taps=4),
        head(norm="each", taps=4),
        "model.safetensors",
        SPECULATORS | {"fc_norm": True, "eagle_aux_hidden_state_layer_ids": [7, 1, 3, 6]},
        (1, 3, 6, 7),
    ),
}


def drafter_of(model: LlamaForCausalLM, tree: str) -> FeatureDrafter:
    engine = generator(model, eos=())
    engine.loaded.draft_folders.pop("feature", None)
    trained = engine.loaded.trained_draft("feature")
    parts, taps = read_parts(trained)
    sizes = {"vocab_size": VOCAB, "max_new_tokens": 8}
    decoder = LeanDecoder.of(trained.model)
    head = ContextHead(decoder, trained.model.output_ids, None, vocab_size=VOCAB)
    return FeatureDrafter(decoder, parts, head, taps, parse_growing(tree) or parse_tree(tree), **sizes)


@pytest.mark.parametrize("tree", ["chain", "growing:9", "3,2,1"])
@pytest.mark.parametrize("name", HEADS)
def test_an_eagle_3_head_drafts_as_its_authors_forward_says(name, tree, pair, tmp_path):
    """Every node's probability to 1e-5 (norms and tables of RoPE are float32 here), siblings are the likeliest; read in
    one go or in blocks, and past the head's own longest text."""
    tensors, stored_as, file, settings, taps = HEADS[name]
    folder = put(tmp_path / "got", stored_as, file, **settings)
    assert recognise(folder) == Kind("an EAGLE-3 head", "feature", "")
    out, notes = import_draft(folder, pair)
    assert (out, notes) == (stored.own_folder(pair, "feature"), () if "base-model" in str(settings) else notes)
    model = target()
    drafter = drafter_of(model, tree)
    assert drafter.taps == taps
    for first in (len(IDS) - 1, 4):
        session = Session(model, capacity=64, taps=taps)
        session.extend(IDS[:first])
        drafter.reset(IDS[: first + 1], session)
        if first < len(IDS) - 1:
            session.extend(IDS[first:-1])
        proposal = drafter.propose(DraftContext(IDS, SamplingParams(), None, session), 4, torch.Generator())
        tokens, parents = proposal.token_ids.tolist(), list(proposal.parents)
        assert len(tokens) == {"chain": 4, "growing:9": 9, "3,2,1": 15}[tree]
        assert len({round(sure, 4) for sure in proposal.confidence}) > 2, (
            "a head that always says the same shows little"
        )
        paths: dict[int, tuple[int, ...]] = {-1: ()}
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            paths[node] = (*paths[parent], token)
        for parent in set(parents):
            probs = torch.softmax(reference(tensors, settings, model, paths[parent], taps), -1)
            nodes = [node for node in range(len(tokens)) if parents[node] == parent]
            assert {tokens[node] for node in nodes} == set(probs.topk(len(nodes)).indices.tolist())
            for node in nodes:
                assert proposal.confidence[node] == pytest.approx(float(probs[tokens[node]]), abs=1e-5)


def test_a_sampled_chain_has_the_heads_own_distribution_as_q(pair, tmp_path):
    """q is over the target's vocabulary, and zero for ids that the head cannot propose."""
    tensors, stored_as, file, settings, taps = HEADS["of speculators"]
    import_draft(put(tmp_path / "got", stored_as, file, **settings), pair)
    model = target()
    drafter = drafter_of(model, "chain")
    session = Session(model, capacity=64, taps=taps)
    session.extend(IDS[:-1])
    drafter.reset(IDS, session)
    context = DraftContext(IDS, SamplingParams(temperature=0.7), None, session)
    proposal = drafter.propose(context, 3, torch.Generator().manual_seed(3))
    assert proposal.probs is not None
    tokens = proposal.token_ids.tolist()
    for depth, q in enumerate(proposal.probs):
        wanted = torch.softmax(reference(tensors, settings, model, tuple(tokens[:depth]), taps) / 0.7, -1)
        assert torch.allclose(q.double(), wanted, rtol=0, atol=1e-5)
        assert int((q > 0).sum()) <= DRAFT_VOCAB


@pytest.mark.parametrize("tree", ["chain", "growing:6", "3,2"])
def test_a_run_with_an_eagle_3_head_gives_the_targets_text(tree, pair, tmp_path):
    _, stored_as, file, settings, _ = HEADS["of speculators"]
    import_draft(put(tmp_path / "got", stored_as, file, **settings), pair)
    engine = generator(target(), eos=())
    engine.loaded.draft_folders.pop("feature", None)
    *_, mine = engine.stream([1, 2, 3], config("feature", options={"tree": tree}, max_new_tokens=30))
    *_, plain = engine.stream([1, 2, 3], config("plain", max_new_tokens=30))
    assert mine.token_ids == plain.token_ids


@pytest.mark.parametrize("quant", ["int8", "nf4"])
def test_an_eagle_3_head_is_held_in_few_bits(quant, pair, tmp_path):
    """Its layers cannot be run by transformers, which other quantized models are tried out with."""
    if quant == "nf4":
        pytest.importorskip("bitsandbytes")
    import_draft(put(tmp_path / "got", head(embedding=True), **SPECULATORS), pair)
    engine = generator(target().float(), eos=())
    engine.loaded.dtype = torch.float32
    engine.loaded.draft_folders.pop("feature", None)
    *_, mine = engine.stream([1, 2, 3], config("feature", draft_quant=quant, max_new_tokens=20))
    *_, plain = engine.stream([1, 2, 3], config("plain", max_new_tokens=20))
    trained = engine.loaded.trained["feature"]
    assert trained.info.quantization == quant
    assert type(trained.model.model.layers[0].self_attn.q_proj) is not torch.nn.Linear
    assert mine.token_ids == plain.token_ids


@pytest.mark.parametrize("lean", ["0", "1"])
def test_the_cost_of_an_eagle_3_heads_pass_is_measured(lean, pair, tmp_path, monkeypatch):
    """The best draft length asks for it; the head's own loop answers, whichever one the target is run by."""
    monkeypatch.setenv("SPECVIZ_LEAN", lean)
    import_draft(put(tmp_path / "got", head(), **SPECULATORS), pair)
    engine = generator(target(), eos=())
    engine.loaded.draft_folders.pop("feature", None)
    *_, mine = engine.stream([1, 2, 3], config("feature", draft_length="best", max_new_tokens=12))
    *_, plain = engine.stream([1, 2, 3], config("plain", max_new_tokens=12))
    assert mine.token_ids == plain.token_ids
    assert [cost for cost, _ in engine._cost_tables.values()][-1] > 0


def test_an_embedding_that_is_a_copy_of_the_targets_is_shared_in_memory(pair, tmp_path):
    model = target()
    same = head() | {"embed_tokens.weight": model.model.embed_tokens.weight.clone()}
    found = []
    for tensors in (same, head(embedding=True)):
        out, _ = import_draft(put(tmp_path / "got", tensors, **SPECULATORS), pair)
        engine = generator(model, eos=())
        engine.loaded.draft_folders["feature"] = out
        trained = engine.loaded.trained_draft("feature")
        assert trained.model.has_own_head
        assert trained.model.lm_head.weight.shape == (DRAFT_VOCAB, WIDTH)
        shared = trained.model.model.embed_tokens.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
        found.append((shared, trained.info.num_params))
        out.rename(tmp_path / f"moved-{len(found)}")
    (shared, few), (apart, many) = found
    assert shared
    assert not apart
    assert many - few == VOCAB * WIDTH
    size = sum(tensor.numel() for key, tensor in head().items() if key not in ("d2t", "t2d", "fc.weight"))
    assert few == size


def changed(**tensors: Tensor | None) -> Named:
    made = {**head(), **{key.replace("__", "."): tensor for key, tensor in tensors.items()}}
    return {key: tensor for key, tensor in made.items() if tensor is not None}


def twice() -> Tensor:
    d2t = head()["d2t"].clone()
    d2t[1] = d2t[0] - 1
    return d2t


WIDE = torch.zeros(WIDTH, 2 * WIDTH)
MISFITS: dict[str, tuple[Named, dict[str, Any], str]] = {
    "hidden size": (head(), {"hidden_size": 32}, "with hidden size 32, and this one has 16"),
    "a target's hidden size": (head(), {"target_hidden_size": 32}, "with hidden size 32, and this one has 16"),
    "narrower": (head(), {"target_hidden_size": 16, "hidden_size": 8}, "is 8 wide and its target 16"),
    "vocabulary": (head(), {"vocab_size": 65}, "with vocabulary 65, and this one has 64"),
    "layers": (head(), {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}, "layers 2, 4, 8, and this target has 8"),
    "one layer twice": (head(), {"eagle_aux_hidden_state_layer_ids": [2, 2, 5]}, "have to differ"),
    "the embedding": (head(), {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}, "layers 0, 2, 5"),
    "no numbers": (head(), {"eagle_aux_hidden_state_layer_ids": ["2"]}, "by whole numbers"),
    "other layers": (head(), {"eagle_aux_hidden_state_layer_ids": [2, 5]}, r"fc\.weight of shape \(16, 48\)"),
    "last state": (head(), {"eagle_config": {"use_aux_hidden_state": False}}, "last state alone"),
    "a window": (head(), {"layer_types": ["sliding_attention"]}, "sliding window"),
    "a scale": (head(), {"logit_scale": 0.5}, "scales its logits"),
    "a part": (head(), {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "rotates a part"),
    "no fuse": (changed(fc__weight=None), {}, r"lacks fc\.weight"),
    "no head": (changed(lm_head__weight=None), {}, r"lacks lm_head\.weight"),
    "no hidden norm": (changed(layers__0__hidden_norm__weight=None), {}, r"lacks layers\.0\.hidden_norm"),
    "no last norm": (changed(norm__weight=None), {}, r"lacks norm\.weight"),
    "no fuse norm": (head(), {"norm_before_fc": True}, r"lacks input_norm\.weight"),
    "EAGLE-1's attention": (changed(layers__0__self_attn__q_proj__weight=WIDE[:, :WIDTH]), {}, r"needed is \(16, 32\)"),
    "no d2t": (changed(d2t=None), {}, "lacks d2t"),
    "a d2t of fractions": (changed(d2t=torch.zeros(DRAFT_VOCAB)), {}, "no list of whole numbers"),
    "outside": (changed(d2t=head()["d2t"] + 40), {}, "outside the target's 64"),
    "an id twice": (changed(d2t=twice()), {}, "to one id twice"),
    "another t2d": (changed(t2d=head()["t2d"].roll(1)), {}, "t2d and d2t speak of different ids"),
    "a short head": (changed(lm_head__weight=torch.zeros(9, WIDTH)), {}, r"lm_head\.weight of shape \(9, 16\)"),
    "unknown": (
        changed(layers__0__self_attn__q_norm__weight=torch.ones(4)),
        {},
        "does not have: .layers.0.self_attn.q_n",
    ),
    "quantized": (changed(fc__weight=torch.zeros(WIDTH, 3 * WIDTH, dtype=torch.int8)), {}, "weight as int8"),
    "P-EAGLE": (changed(mask_hidden=torch.zeros(1, 3 * WIDTH)), {}, "all its tokens in one pass"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_eagle_3_heads_that_do_not_fit_are_refused_by_name(name, pair, tmp_path):
    tensors, change, message = MISFITS[name]
    with pytest.raises(ModelLoadError, match=message):
        import_draft(put(tmp_path / "got", tensors, "pytorch_model.bin", **{**AUTHORS, **change}), pair)
    assert not stored.own_folder(pair, "feature").exists()


def test_damaged_eagle_3_drafts_are_refused_by_name(pair, tmp_path):
    """The manifest and the files beside it are read like any that were downloaded."""
    out, _ = import_draft(put(tmp_path / "got", head(), **SPECULATORS), pair)
    good = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    for change, words in (
        ({"form": {**good["form"], "reads_pair": 1}}, "should be true or false"),
        ({"form": {**good["form"], "reads_pair": False}}, "needs"),
        ({"form": {**good["form"], "rope": 1}}, "holds something else than"),
    ):
        (out / MANIFEST).write_text(json.dumps(good | change), encoding="utf-8")
        with pytest.raises(ModelLoadError, match=words):
            load_trunk(out, target(), VOCAB)
    for change, words in (({"taps": [2, 4]}, r"lacks fc\.weight"), ({"taps": [2, 4, 8]}, "does not have")):
        (out / MANIFEST).write_text(json.dumps(good | change), encoding="utf-8")
        engine = generator(target(), eos=())
        engine.loaded.draft_folders["feature"] = out
        with pytest.raises(ModelLoadError, match=words):
            read_parts(engine.loaded.trained_draft("feature"))


def test_the_command_takes_an_eagle_3_head_and_training_does_not_go_on_from_it(pair, tmp_path, capsys):
    from specviz.train.drafts import train_draft

    folder = put(tmp_path / "got", authors(head()), "pytorch_model.bin", **AUTHORS)
    assert main(["train", "import", str(folder), "--pair", pair]) == 0
    out = stored.own_folder(pair, "feature")
    assert capsys.readouterr().out == f"{out}\n"
    with pytest.raises(ConfigError, match="--from names an imported EAGLE head"):
        train_draft([tmp_path / "none.npz"], "feature", pair, {"start": str(out)})
