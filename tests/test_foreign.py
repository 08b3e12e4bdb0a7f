"""Drafts of other projects: made-up checkpoints in the layouts of their authors, at 16 numbers a state and 64 ids.

The reference computes each head as the authors' model does: blocks one behind the other, then the head's output layer;
an EAGLE head's layers over all tokens at once, without a cache.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import config, generator
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear, silu
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from specviz.cli import main
from specviz.config import SamplingParams
from specviz.drafters.base import DraftContext
from specviz.drafters.context_head import ContextHead
from specviz.drafters.feature import FeatureDrafter, read_parts
from specviz.drafters.foreign import Kind, import_draft, recognise
from specviz.drafters.medusa import MAX_SHARD_BYTES, Heads, MedusaDrafter, find_heads, load_heads, save_heads
from specviz.drafters.tree import parse_tree
from specviz.errors import ConfigError, ModelLoadError
from specviz.events import StepDone
from specviz.models import stored
from specviz.models.catalog import ModelPair, WeightSource
from specviz.models.decoder import LeanDecoder, decoder_for
from specviz.models.session import Session
from specviz.models.trunk import MANIFEST, load_trunk

WIDTH, VOCAB = 16, 64
Named = dict[str, Tensor]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The pair `tiny`, whose target is a folder with a configuration and two empty files, and an empty cache folder."""
    folder = tmp_path / "target"
    LlamaConfig(hidden_size=WIDTH, vocab_size=VOCAB, num_hidden_layers=1, num_attention_heads=2).save_pretrained(folder)
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).touch()
    source = WeightSource("their/base-model", folder=str(folder))
    monkeypatch.setattr("specviz.drafters.foreign.get_pair", lambda name: ModelPair(name, "Tiny", source))
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    return "tiny"


def medusa(
    num_heads: int = 2, num_blocks: int = 1, *, width: int = WIDTH, vocab: int = VOCAB, own: bool = True
) -> Named:
    """Names and shapes as `medusa_head.state_dict()` of the authors' model gives them."""
    rng = torch.Generator().manual_seed(num_heads + 10 * num_blocks)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64) / 2  # noqa: E731
    made: Named = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            made |= {f"{head}.{block}.linear.weight": draw(width, width), f"{head}.{block}.linear.bias": draw(width)}
        if own:
            made[f"{head}.{num_blocks}.weight"] = draw(vocab, width)
    return made


def reference(tensors: Mapping[str, Tensor], hidden: Tensor, num_heads: int, num_blocks: int) -> Tensor:
    """[heads, vocab] logits: torch's own modules, loaded by name and without anything left over."""

    class ResBlock(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.nn.functional.silu(self.linear(x))

    output = lambda: torch.nn.Linear(WIDTH, VOCAB, bias=False, dtype=torch.float64)  # noqa: E731
    heads = torch.nn.ModuleList(
        torch.nn.Sequential(*(ResBlock() for _ in range(num_blocks)), output()) for _ in range(num_heads)
    )
    heads.load_state_dict(dict(tensors))
    with torch.no_grad():
        return torch.stack([head(hidden) for head in heads])


def put(folder: Path, tensors: Any, name: str = "medusa_lm_head.pt", **settings: Any) -> Path:
    """A folder as it is downloaded."""
    folder.mkdir(exist_ok=True)
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    if settings:
        (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def taken_over(folder: Path) -> Heads:
    return load_heads(folder, hidden_size=WIDTH, vocab_size=VOCAB, dtype=torch.float64)


class NoDecoder:
    """Heads with output layers of their own never ask for the target's."""

    def project(self, states: Tensor) -> Tensor:
        raise AssertionError


def logits_of(heads: Heads, hidden: Tensor, decoder: Any = None) -> Tensor:
    return heads.project(heads(hidden), decoder or NoDecoder())


HIDDEN = torch.randn(WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


# --- Medusa heads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "pytorch_model.bin"])
def test_heads_of_the_authors_say_what_they_said_there(num_blocks, name, pair, tmp_path):
    """The tensors to the bit, the logits below 1e-12; the count in config.json is too small, as in the real one."""
    tensors = medusa(2, num_blocks)
    settings = {"medusa_num_heads": 1, "medusa_num_layers": num_blocks, "base_model_name_or_path": "their/base-model"}
    folder = put(tmp_path / "got", tensors, name, **settings)
    assert recognise(folder) == Kind("Medusa heads", "medusa", "")
    out, notes = import_draft(folder, pair)
    assert (out, notes) == (stored.own_folder(pair, "medusa"), ())
    heads = taken_over(out)
    right = reference(tensors, HIDDEN, 2, num_blocks)
    assert float((logits_of(heads, HIDDEN) - right).abs().max()) < 1e-12
    for head in range(2):
        assert torch.equal(heads.outputs[head], tensors[f"{head}.{num_blocks}.weight"])
        for block in range(num_blocks):
            assert torch.equal(heads.weights[block][head], tensors[f"{head}.{block}.linear.weight"])
            assert torch.equal(heads.biases[block][head], tensors[f"{head}.{block}.linear.bias"])
    manifest = json.loads((out / "heads.json").read_text(encoding="utf-8"))
    assert (manifest["target"], manifest["target_sha256"]) == ("their/base-model", "")
    assert [path.name for path in out.parent.iterdir()] == ["medusa"]


def test_heads_without_an_output_layer_share_the_targets(pair, tmp_path):
    """Version 2 of the authors' heads: the blocks alone."""
    out, _ = import_draft(put(tmp_path / "got", medusa(own=False), version="2"), pair)
    heads = taken_over(out)
    assert heads.outputs == ()
    model = target()
    right = model.lm_head(heads(HIDDEN))
    assert torch.equal(logits_of(heads, HIDDEN, decoder_for(model)), right)


def vllm(tensors: Named, *, bias: bool) -> Named:
    """The same heads under the names that vLLM reads."""
    made: Named = {}
    for key, tensor in tensors.items():
        head, place, *rest = key.split(".")
        if rest[0] != "linear":
            made[f"lm_heads.{head}.weight"] = tensor
        elif bias or rest[1] == "weight":
            made[f"blocks.{head}.layers.{place}.{rest[1]}"] = tensor
    return made


@pytest.mark.parametrize("bias", [True, False])
def test_heads_of_vllm(bias, pair, tmp_path):
    """Blocks without a bias unless `medusa_fc_bias`; one shared output layer with `original_lm_head`."""
    tensors = medusa(3, 2)
    out, _ = import_draft(put(tmp_path / "got", vllm(tensors, bias=bias), "model.safetensors", num_heads=3), pair)
    plain = {key: tensor if bias else torch.zeros_like(tensor) for key, tensor in tensors.items() if "bias" in key}
    right = reference(tensors | plain, HIDDEN, 3, 2)
    assert float((logits_of(taken_over(out), HIDDEN) - right).abs().max()) < 1e-12


def test_heads_of_vllm_that_share_the_targets_output_layer(pair, tmp_path):
    tensors = {key: value for key, value in vllm(medusa(2), bias=True).items() if key != "lm_heads.1.weight"}
    out, _ = import_draft(put(tmp_path / "got", tensors, "model.safetensors", original_lm_head=True), pair)
    assert taken_over(out).outputs == ()


def test_heads_inside_a_whole_model_are_taken_out_with_a_note(pair, tmp_path):
    """Medusa-2, in two files: only the heads are read, and the user is told that the model was trained as well."""
    tensors = {f"medusa_head.{key}": tensor for key, tensor in medusa().items()}
    body = {"model.layers.0.mlp.up_proj.weight": torch.zeros(3, 5), "lm_head.weight": torch.zeros(VOCAB, WIDTH)}
    folder = put(tmp_path / "got", tensors, "model-00001-of-00002.safetensors")
    put(folder, body, "model-00002-of-00002.safetensors", medusa_num_heads=2)
    out, notes = import_draft(folder, pair)
    assert len(notes) == 1
    assert "Medusa-2" in notes[0]
    assert torch.allclose(logits_of(taken_over(out), HIDDEN), reference(medusa(), HIDDEN, 2, 1))


def test_heads_beside_a_whole_model_come_first(pair, tmp_path):
    folder = put(tmp_path / "got", medusa())
    put(folder, {"model.embed_tokens.weight": torch.zeros(9, 9)}, "model.safetensors")
    assert recognise(folder).name == "Medusa heads"
    assert import_draft(folder, pair)[1] == ()


def test_heads_larger_than_what_we_ship_are_one_file_each(pair, tmp_path):
    """Files for the user's own disk; `save_heads` as training calls it refuses them."""
    target = tmp_path / "target"
    LlamaConfig(hidden_size=256, vocab_size=10_000, num_hidden_layers=1, num_attention_heads=2).save_pretrained(target)
    tensors = {key: tensor.float() for key, tensor in medusa(2, width=256, vocab=10_000).items()}
    out, _ = import_draft(put(tmp_path / "got", tensors), pair)
    sizes = {path.name: path.stat().st_size for path in out.glob("*.safetensors")}
    assert sizes.keys() == {"heads-01.safetensors", "heads-02.safetensors"}
    assert min(sizes.values()) > MAX_SHARD_BYTES
    assert load_file(out / "heads-02.safetensors").keys() >= {"heads.2.output", "heads.2.blocks.1.bias"}
    heads = load_heads(out, hidden_size=256, vocab_size=10_000)
    assert heads.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    with pytest.raises(ConfigError, match="larger than a file"):
        save_heads(tmp_path / "ours", heads, hidden_size=256, vocab_size=10_000)


# --- runs ------------------------------------------------------------------------------------------------------------


def target() -> LlamaForCausalLM:
    torch.manual_seed(1)
    settings = LlamaConfig(
        hidden_size=WIDTH, vocab_size=VOCAB, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=128, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(settings).double().eval().requires_grad_(False)
    model.lm_head.weight.mul_(40.0)
    return model


@pytest.mark.parametrize("tree", ["chain", "3,2"])
def test_a_run_drafts_by_the_heads_own_output_layers(tree, pair, tmp_path):
    """The pair's run finds them: guesses are the reference's best ids, and the text is the target's own."""
    tensors = medusa()
    import_draft(put(tmp_path / "got", tensors), pair)
    engine = generator(target(), eos=())
    shown: list[Tensor] = []
    propose = MedusaDrafter.propose

    def spy(self: MedusaDrafter, context: Any, *rest: Any) -> Any:
        shown.append(context.hidden)
        return propose(self, context, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MedusaDrafter, "propose", spy)
        events = list(engine.stream([1, 2, 3], config("medusa", options={"tree": tree}, gamma=2, max_new_tokens=12)))
    plain = list(engine.stream([1, 2, 3], config("plain", max_new_tokens=12)))
    assert events[-1].token_ids == plain[-1].token_ids
    assert events[0].notes == ()
    steps = [event for event in events if isinstance(event, StepDone) and event.drafted]
    assert len(steps) > 3
    for hidden, step in zip(shown, steps, strict=True):
        best = reference(tensors, hidden, 2, 1).topk(3 if tree == "3,2" else 1).indices.tolist()
        for token in step.drafted:
            assert token.token_id in best[0 if token.parent == -1 else 1]
    first, again = find_heads(engine.loaded)[0], find_heads(engine.loaded)[0]
    assert first is again


# --- EAGLE-1 and EAGLE-2 heads ---------------------------------------------------------------------------------------

EAGLE_CONFIG: dict[str, Any] = {  # another form than the target's: 4 heads of 4 numbers, 2 of keys and values
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "vocab_size": VOCAB,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 16,  # shorter than the texts below, as the authors' 2048 are for their targets
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "rope_scaling": None,
}


def eagle(num_layers: int = 1, *, bias: bool = True, qkv_bias: bool = False, width: int = WIDTH) -> Named:
    """Names and shapes as `ea_layer.state_dict()` of the authors' model gives them."""
    rng = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64) / 4  # noqa: E731
    made = {"embed_tokens.weight": draw(VOCAB, width), "fc.weight": draw(width, 2 * width)}
    made |= {"fc.bias": draw(width)} if bias else {}
    for index in range(num_layers):
        rows = {"q": width, "k": width // 2, "v": width // 2, "o": width}
        layer = {f"self_attn.{part}_proj.weight": draw(size, width) for part, size in rows.items()}
        if qkv_bias:
            layer |= {f"self_attn.{part}_proj.bias": draw(rows[part]) for part in "qkv"}
        layer |= {f"mlp.{part}_proj.weight": draw(24, width) for part in ("gate", "up")}
        layer |= {"mlp.down_proj.weight": draw(width, 24), "post_attention_layernorm.weight": 1 + draw(width)}
        layer |= {"input_layernorm.weight": 1 + draw(width)} if index else {}
        made |= {f"layers.{index}.{name}": tensor for name, tensor in layer.items()}
    return made


def eagle_forward(tensors: Named, embedded: Tensor, states: Tensor) -> Tensor:
    """[rows, d_model] embedding of token t + 1 and state t, to what stands in for state t + 1: `Model.forward`."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EAGLE_CONFIG["rms_norm_eps"]))

    def rotated(x: Tensor) -> Tensor:
        size = x.shape[-1]
        places = torch.arange(x.shape[1], dtype=torch.float64)
        angles = torch.outer(places, EAGLE_CONFIG["rope_theta"] ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        turned = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), -1)
        return x * angles.cos() + turned * angles.sin()

    x = linear(torch.cat((embedded, states), -1), tensors["fc.weight"], tensors.get("fc.bias"))
    index, rows = 0, len(x)
    while (prefix := f"layers.{index}.") + "mlp.up_proj.weight" in tensors:
        own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        y = norm(x, own["input_layernorm.weight"]) if index else x
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
        y = norm(x, own["post_attention_layernorm.weight"])
        y = silu(linear(y, own["mlp.gate_proj.weight"])) * linear(y, own["mlp.up_proj.weight"])
        x = x + linear(y, own["mlp.down_proj.weight"])
        index += 1
    return x


def eagle_chain(tensors: Named, model: LlamaForCausalLM, ids: list[int], count: int) -> tuple[list[int], list[float]]:
    """What the head drafts greedily behind `ids`, and each token's probability: `Model.generate` without a cache."""
    ids = list(ids)
    sure = []
    with torch.no_grad():
        states = model.model(input_ids=torch.tensor([ids[:-1]])).last_hidden_state[0]
        for _ in range(count):
            out = eagle_forward(tensors, model.model.embed_tokens(torch.tensor(ids[1:])), states)
            probs = torch.softmax(model.lm_head(out[-1]), -1)
            ids.append(int(probs.argmax()))
            sure.append(float(probs.max()))
            states = torch.cat((states, out[-1:]))
    return ids[-count:], sure


EAGLES: dict[str, tuple[Named, str, dict[str, Any]]] = {
    "with a bias": (eagle(), "pytorch_model.bin", EAGLE_CONFIG),
    "without": (eagle(bias=False), "model.safetensors", {**EAGLE_CONFIG, "bias": False}),
    "two layers": (eagle(2), "pytorch_model.bin", {**EAGLE_CONFIG, "num_hidden_layers": 2}),
    "biases of Qwen2": (eagle(qkv_bias=True), "model.safetensors", {**EAGLE_CONFIG, "qkv_bias": True}),
    "no embedding": (
        {key: tensor for key, tensor in eagle().items() if key != "embed_tokens.weight"},
        "model.safetensors",
        EAGLE_CONFIG,
    ),
    "of vLLM": ({f"model.{key}": tensor for key, tensor in eagle().items()}, "model.safetensors", EAGLE_CONFIG),
    "of speculators": (
        {
            key.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): tensor
            for key, tensor in eagle().items()
        },
        "model.safetensors",
        {
            "transformer_layer_config": EAGLE_CONFIG,
            "speculators_config": {"verifier": {"name_or_path": "their/base-model"}},
        },
    ),
}


@pytest.mark.parametrize("name", EAGLES)
def test_an_eagle_head_drafts_as_its_authors_forward_says(name, pair, tmp_path):
    """Tokens equal, probabilities to 1e-5 (the tables of RoPE are float32 here), read in one go or in blocks; past the
    head's own longest text as well."""
    tensors, file, settings = EAGLES[name]
    folder = put(tmp_path / "got", tensors, file, **settings)
    assert recognise(folder) == Kind("an EAGLE-1 or EAGLE-2 head", "feature", "")
    out, notes = import_draft(folder, pair)
    assert (out, notes) == (stored.own_folder(pair, "feature"), ())
    assert [path.name for path in out.parent.iterdir()] == ["feature"]
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in out.iterdir())

    model = target()
    engine = generator(model, eos=())
    del engine.loaded.draft_folders["feature"]
    trained = engine.loaded.trained_draft("feature")
    assert trained.model.lm_head.weight.data_ptr() == model.lm_head.weight.data_ptr(), "the head is shared"
    parts, taps = read_parts(trained)
    sizes = {"vocab_size": VOCAB, "max_new_tokens": 8}
    decoder = LeanDecoder.of(trained.model)
    head = ContextHead(decoder, trained.model.output_ids, None, vocab_size=VOCAB)
    drafter = FeatureDrafter(decoder, parts, head, taps, parse_tree("chain"), **sizes)
    ids = [5, 9, 33, 8, 21, 4, 60, 2, 17, 3, 40, 12, 7, 7, 19, 51, 22, 30, 1, 11]
    wanted, sure = eagle_chain(
        eagle(settings.get("num_hidden_layers", 1), bias="bias" not in settings, qkv_bias="qkv_bias" in settings),
        model, ids, 5,
    )  # fmt: skip
    assert len(set(wanted)) > 1
    for first in (len(ids) - 1, 4):
        session = Session(model, capacity=64, taps=taps)
        session.extend(ids[:first])
        drafter.reset(ids[: first + 1], session)
        if first < len(ids) - 1:
            session.extend(ids[first:-1])
        context = DraftContext(ids, SamplingParams(), None, session)
        proposal = drafter.propose(context, 5, torch.Generator())
        assert proposal.token_ids.tolist() == wanted
        assert proposal.confidence == pytest.approx(sure, abs=1e-5)


@pytest.mark.parametrize("tree", ["chain", "growing:6", "3,2"])
def test_a_run_with_an_eagle_head_gives_the_targets_text(tree, pair, tmp_path):
    import_draft(put(tmp_path / "got", eagle(), "pytorch_model.bin", **EAGLE_CONFIG), pair)
    engine = generator(target(), eos=())
    del engine.loaded.draft_folders["feature"]
    *_, mine = engine.stream([1, 2, 3], config("feature", options={"tree": tree}, max_new_tokens=30))
    *_, plain = engine.stream([1, 2, 3], config("plain", max_new_tokens=30))
    assert mine.token_ids == plain.token_ids


EAGLE_MISFITS: dict[str, tuple[Named, dict[str, Any], str]] = {
    "hidden size": (eagle(width=32), {"hidden_size": 32}, "with hidden size 32, and this one has 16"),
    "only its config": (eagle(), {"hidden_size": 32}, "with hidden size 32, and this one has 16"),
    "only its weights": (eagle(width=32), {}, r"fc\.weight of shape|q_proj\.weight of shape \(32, 32\); needed is"),
    "vocabulary": (eagle(), {"vocab_size": 65}, "with vocabulary 65, and this one has 64"),
    "an embedding": (eagle() | {"embed_tokens.weight": torch.zeros(65, WIDTH)}, {}, r"embed_tokens\.weight of shape"),
    "heads": (eagle(), {"num_attention_heads": 2}, r"k_proj\.weight of shape \(8, 16\); needed is \(16, 16\)"),
    "no number": (eagle(), {"num_attention_heads": "four"}, "makes no sense"),
    "no heads": (eagle(), {"num_attention_heads": 0}, "makes no sense"),
    "uneven heads": (eagle(), {"num_key_value_heads": 3}, "4 heads of 4 numbers over 3"),
    "an activation": (eagle(), {"hidden_act": "gelu"}, "an activation other than SiLU"),
    "a kind of RoPE": (eagle(), {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "a kind of RoPE"),
    "one missing": ({k: v for k, v in eagle().items() if "up_proj" not in k}, {}, r"lacks layers\.0\.mlp\.up_proj"),
    "one layer missing": ({k.replace("layers.0", "layers.1"): v for k, v in eagle().items()}, {}, r"lacks layers\.0\."),
    "a norm too many": (
        eagle() | {"lm_head_layernorm.weight": torch.ones(WIDTH)},
        {},
        "does not have: 'lm_head_layern",
    ),
    "a norm before": (
        eagle() | {"layers.0.input_layernorm.weight": torch.ones(WIDTH)},
        {},
        "'layers.0.input_layernorm",
    ),
    "whole numbers": (eagle() | {"fc.weight": torch.zeros(WIDTH, 2 * WIDTH, dtype=torch.int8)}, {}, "weight as int8"),
}


@pytest.mark.parametrize("name", EAGLE_MISFITS)
def test_eagle_heads_that_do_not_fit_are_refused_by_name(name, pair, tmp_path):
    tensors, change, message = EAGLE_MISFITS[name]
    with pytest.raises(ModelLoadError, match=message):
        import_draft(put(tmp_path / "got", tensors, "pytorch_model.bin", **{**EAGLE_CONFIG, **change}), pair)
    assert not stored.own_folder(pair, "feature").exists()
    assert not list((tmp_path / "cache").rglob("*partial*"))


def test_an_eagle_head_needs_its_config_and_a_target_that_runs_layer_by_layer(pair, tmp_path):
    folder = put(tmp_path / "got", eagle(), "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        import_draft(folder, pair)
    put(folder, eagle(), "pytorch_model.bin", **EAGLE_CONFIG)
    GPT2Config(n_embd=WIDTH, vocab_size=VOCAB).save_pretrained(tmp_path / "target")
    with pytest.raises(ModelLoadError, match="of the kind “gpt2”"):
        import_draft(folder, pair)


def test_damaged_eagle_drafts_are_refused_by_name(pair, tmp_path):
    """The manifest, which says how the layers are built, is read like any file that was downloaded."""
    out, _ = import_draft(put(tmp_path / "got", eagle(), "pytorch_model.bin", **EAGLE_CONFIG), pair)
    good = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    for change, words in (
        ({"form": {**good["form"], "hidden_size": 32}}, "hidden size other than this target's 16"),
        ({"form": "llama"}, "hidden size other than"),
        ({"form": {**good["form"], "dtype": "int8"}}, "holds something else than attention_bias"),
        ({"lacks": ["norm"]}, r"lacks layers\.1\.input_layernorm"),
        ({"lacks": ["layers.1.mlp"]}, "is no norm of theirs"),
        ({"lacks": [["norm"]]}, "says wrongly which norms"),
        ({"form": None}, "says wrongly which norms"),
    ):
        (out / MANIFEST).write_text(json.dumps(good | change), encoding="utf-8")
        with pytest.raises(ModelLoadError, match=words):
            load_trunk(out, target(), VOCAB)
    for change, words in (({"parts": "other"}, "of the kind 'other'"), ({"parts": ""}, "does not say which")):
        (out / MANIFEST).write_text(json.dumps(good | change), encoding="utf-8")
        engine = generator(target(), eos=())
        engine.loaded.draft_folders["feature"] = out
        with pytest.raises(ModelLoadError, match=words):
            read_parts(engine.loaded.trained_draft("feature"))


# --- refused ---------------------------------------------------------------------------------------------------------


EMBEDDING = {"embed_tokens.weight": torch.zeros(VOCAB, WIDTH)}
KINDS: dict[str, tuple[Named, str, str]] = {
    "P-EAGLE": ({"fc.weight": torch.zeros(2, 6), "mask_hidden": torch.zeros(1, 6)}, "a P-EAGLE head", "in one pass"),
    "Hydra": ({"hydra_mlp.0.0.linear.weight": torch.zeros(2, 2)}, "Hydra heads", "Hydra heads: each also reads"),
    "a cut vocabulary": (
        vllm(medusa(), bias=True) | {"token_map": torch.arange(9)},
        "Medusa heads",
        "cut down by `token_map`",
    ),
    "a whole model": (
        {f"model.{key}": value for key, value in EMBEDDING.items()},
        "a whole model",
        "whole model without heads",
    ),
    "unknown": (
        {"net.0": torch.zeros(2), "b": torch.zeros(1)},
        "an unknown layout",
        "names its tensors so: 'b', 'net.0'",
    ),
    "empty": ({}, "an unknown layout", "so: none"),
}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_run_is_refused_by_its_name(kind, name, pair, tmp_path, capsys):
    """Named and explained before anything is fetched or written; exit status 2."""
    tensors, known_as, message = KINDS[kind]
    folder = put(tmp_path / "got", tensors, name, architectures=["LlamaForCausalLM"])
    assert recognise(folder).name == known_as
    with pytest.raises(ModelLoadError, match=message):
        import_draft(folder, pair)
    assert main(["train", "import", str(folder), "--pair", pair]) == 2
    assert capsys.readouterr().err.rstrip().endswith(recognise(folder).refusal)
    assert not (tmp_path / "cache").exists()


def without(key: str) -> Named:
    return {name: tensor for name, tensor in medusa(3, 2).items() if name != key}


MISFITS: dict[str, tuple[Named, str]] = {
    "hidden size": (medusa(width=24), r"hidden size 24, and this one has 16"),
    "vocabulary": (medusa(vocab=65), r"vocabulary 65, and this one has 64"),
    "one block": (medusa() | {"1.0.linear.weight": torch.zeros(15, 16)}, r"of shape \(15, 16\); needed is \(16, 16\)"),
    "one bias": (medusa() | {"1.0.linear.bias": torch.zeros(17)}, r"of shape \(17,\); needed is \(16,\)"),
    "no shape": (medusa() | {"1.0.linear.weight": torch.zeros(())}, r"of shape \(\)"),
    "no block": (without("1.1.linear.weight"), r"lack heads\.2\.blocks\.2\.weight"),
    "no bias": (without("0.0.linear.bias"), r"lack heads\.1\.blocks\.1\.bias"),
    "no output layer": (without("2.2.weight"), r"lack heads\.3\.output"),
    "no first output layer": (without("0.2.weight"), r"nothing reads: 'heads\.2\.output'"),
    "a bias behind": (medusa() | {"0.1.bias": torch.zeros(VOCAB)}, r"layout does not have: '0\.1\.bias'"),
    "something between": (
        {key.replace(".1.weight", ".2.weight"): value for key, value in medusa().items()},
        "have 1 blocks and an output layer at place 2",
    ),
    "too many heads": (medusa(16), "1 to 15 heads"),
    "whole numbers": (medusa() | {"0.1.weight": torch.zeros(VOCAB, WIDTH, dtype=torch.int8)}, "0.1.weight as int8"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_heads_that_do_not_fit_are_refused_by_name(name, pair, tmp_path):
    """Sizes, tensors missing or too many, quantized ones: nothing is left behind where a run would look."""
    tensors, message = MISFITS[name]
    with pytest.raises(ModelLoadError, match=rf"Medusa heads.*{message}"):
        import_draft(put(tmp_path / "got", tensors), pair)
    assert stored.draft_folder(pair, "medusa") is None
    assert not list((tmp_path / "cache").rglob("*partial*"))


class Trap:
    """Unpickled without care, this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_never_runs(name, zipped, pair, tmp_path):
    """Case 90: in torch's own format, old and new, and as a bare pickle."""
    touched = tmp_path / "ran"
    folder = put(tmp_path / "got", {})
    (folder / "medusa_lm_head.pt").unlink()
    holds: dict[str, Any] = {**medusa(), "9.0.linear.weight": Trap(touched)}
    torch.save(holds, folder / name, _use_new_zipfile_serialization=zipped)
    for call in (recognise, lambda where: import_draft(where, pair)):
        with pytest.raises(ModelLoadError, match="a pickle that holds more than tensors, which could run code"):
            call(folder)
    (folder / name).write_bytes(pickle.dumps(Trap(touched)))
    with pytest.raises(ModelLoadError, match="pickle"):
        recognise(folder)
    assert not touched.exists()
    torch.load(put(tmp_path / "careless", holds) / "medusa_lm_head.pt", weights_only=False)
    assert touched.exists()  # the trap works


def spoiled(content: bytes, name: str = "medusa_lm_head.pt") -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1\n"
DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no weights": (lambda folder: (folder / "medusa_lm_head.pt").unlink(), "is no folder with weights"),
    "an empty file": (spoiled(b""), "damaged"),
    "half a file": (lambda f: spoiled((f / "medusa_lm_head.pt").read_bytes()[:999])(f), "damaged"),
    "a pointer": (spoiled(POINTER), "damaged"),
    "a pointer to safetensors": (spoiled(POINTER, "medusa_lm_head.safetensors"), "damaged"),
    "a list": (lambda folder: put(folder, [torch.zeros(1)]), "something else than named tensors"),
    "a tensor within": (lambda folder: put(folder, {"model": medusa()}), "something else than named tensors"),
    "config.json": (lambda folder: (folder / "config.json").write_text("{"), "config.json .* is not JSON"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_folders_are_refused(name, pair, tmp_path):
    spoil, message = DAMAGED[name]
    folder = put(tmp_path / "got", medusa())
    spoil(folder)
    with pytest.raises(ModelLoadError, match=message):
        import_draft(folder, pair)
    with pytest.raises(ModelLoadError, match="is no folder"):
        recognise(tmp_path / "nowhere")


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_tells_where_it_wrote_and_what_differs(pair, tmp_path, capsys):
    """Another base model is a note: heads of one whose weights were renamed or moved still fit."""
    folder = put(tmp_path / "got", medusa(), base_model_name_or_path="lmsys/vicuna-7b-v1.3")
    assert main(["train", "import", str(folder), "--pair", pair, "--method", "medusa"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{stored.own_folder(pair, 'medusa')}\n"
    assert "trained on lmsys/vicuna-7b-v1.3, and the target of tiny is their/base-model" in told.err


def test_a_draft_that_is_there_is_not_overwritten(pair, tmp_path, capsys):
    folder = put(tmp_path / "got", medusa())
    out, _ = import_draft(folder, pair)
    before = (out / "heads.json").read_bytes()
    assert main(["train", "import", str(folder), "--pair", pair]) == 2
    assert "has a draft for medusa already" in capsys.readouterr().err
    assert (out / "heads.json").read_bytes() == before
    with pytest.raises(ModelLoadError, match="own layout already"):
        import_draft(out, pair)


def test_training_does_not_go_on_from_an_imported_head(pair, tmp_path):
    """Its layers read other inputs than those trained here: refused by name, before anything is loaded."""
    from specviz.train.drafts import train_draft

    out, _ = import_draft(put(tmp_path / "got", eagle(), "pytorch_model.bin", **EAGLE_CONFIG), pair)
    with pytest.raises(ConfigError, match="--from names an imported EAGLE head"):
        train_draft([tmp_path / "none.npz"], "feature", pair, {"start": str(out)})
    with pytest.raises(ConfigError, match="imported EAGLE head"):
        train_draft([tmp_path / "none.npz"], "student", pair, {"start": str(out)})
    with pytest.raises(ModelLoadError, match=r"its draft\.json is missing"):
        train_draft([tmp_path / "none.npz"], "student", pair, {"start": str(tmp_path)})


def test_the_method_asked_for_has_to_be_the_one_it_is_for(pair, tmp_path):
    with pytest.raises(ConfigError, match="Medusa heads, for the method medusa, not feature"):
        import_draft(put(tmp_path / "got", medusa()), pair, "feature")


def test_an_unknown_pair_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no model pair 'nobody'"):
        import_draft(tmp_path, "nobody")
