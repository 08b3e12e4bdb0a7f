"""Issue 18: what is no causal language model is refused in a sentence, and what a model's own generation settings ask
for is said. Tiny random models of the real classes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from fakes import TapeModel, config, generator, tiny_gpt2, tiny_llama
from tiny_models import make_model, make_tokenizer, save_model

from specviz.config import SamplingParams
from specviz.errors import ModelLoadError
from specviz.models.catalog import custom_pair
from specviz.models.kind import kind_refusal, looks_ahead, require_causal
from specviz.models.loader import load_pair
from specviz.models.wishes import unheeded_wishes

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert(**more: Any) -> Any:
    return transformers.BertConfig(vocab_size=300, **SMALL, **more)


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=300, **sizes))


def vision() -> Any:
    return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(image_size=8, patch_size=4, **SMALL))


OTHERS = {
    "masked": (lambda: transformers.BertForMaskedLM(bert()), r"is an encoder \(BertForMaskedLM\)"),
    "encoder-decoder": (t5, r"is an encoder-decoder \(T5ForConditionalGeneration\)"),
    "embedding": (
        lambda: transformers.BertModel(bert()),
        r"has no output layer \(BertModel\): it is an embedding model",
    ),
    "trunk": (lambda: transformers.LlamaModel(make_model().config), r"has no output layer \(LlamaModel\)"),
    "classifier": (lambda: transformers.LlamaForSequenceClassification(_classes()), "was not made to write text"),
    "vision": (vision, r"is a vision model \(CLIPVisionModel\)"),
}


def _classes() -> Any:
    settings = make_model().config
    settings.pad_token_id = 0
    return settings


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_are_refused_in_a_sentence_before_weights_are_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 18: a folder with BertForMaskedLM loaded and wrote nonsense under the word "exact"."""
    make, words = OTHERS[kind]
    make().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(ModelLoadError, match=words) as raised:
        load_pair(custom_pair(str(tmp_path), None, local=True), dtype="float32", device="cpu")
    assert "causal language models" in str(raised.value) and len(str(raised.value)) < 250


def test_a_drafting_encoder_is_refused_as_well(tmp_path: Path) -> None:
    transformers.BertForMaskedLM(bert()).save_pretrained(tmp_path / "d")
    make_tokenizer().save_pretrained(tmp_path / "d")
    pair = custom_pair(str(save_model(tmp_path / "t")), str(tmp_path / "d"), local=True)
    with pytest.raises(ModelLoadError, match="is an encoder"):
        load_pair(pair, dtype="float32", draft_quant="float32", device="cpu")


def test_an_encoder_that_says_nothing_of_itself_is_found_by_its_pass(tmp_path: Path) -> None:
    """Without `architectures` nothing but the logits can tell: a later token changes those of earlier ones."""
    torch.manual_seed(0)
    transformers.BertForMaskedLM(bert(initializer_range=0.3)).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match="a later token changes the logits of earlier ones"):
        load_pair(custom_pair(str(tmp_path), None, local=True), dtype="float32", device="cpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_causal_models_do_not_look_ahead(dtype: torch.dtype) -> None:
    """And the same class made to see both ways does, so the test above is no accident of small weights."""
    torch.manual_seed(0)
    for model in (tiny_llama(), tiny_gpt2(), transformers.BertLMHeadModel(bert(is_decoder=True)).eval()):
        assert not looks_ahead(model.to(dtype), 200)
    assert looks_ahead(transformers.BertLMHeadModel(bert(initializer_range=0.3)).eval().to(dtype), 200)
    with pytest.raises(ModelLoadError, match="In both-ways a later token"):
        require_causal("both-ways", transformers.BertLMHeadModel(bert(initializer_range=0.3)).eval().to(dtype), 200)


@pytest.mark.parametrize(
    "classes",
    [["LlamaForCausalLM"], ["GPT2LMHeadModel"], ["Gemma3ForConditionalGeneration"], ["NobodyKnowsThis"], None, []],
)
def test_what_may_be_causal_is_not_refused_by_its_name(classes: list[str] | None) -> None:
    assert kind_refusal("m", SimpleNamespace(architectures=classes, is_encoder_decoder=False)) is None


# --- generation_config.json ------------------------------------------------------------------------------------------


def wishes(sampling: SamplingParams | None = None, **asked: Any) -> list[str]:
    return unheeded_wishes(transformers.GenerationConfig(**asked), sampling or SamplingParams())


def test_what_is_not_done_is_named() -> None:
    assert wishes() == [] == unheeded_wishes(None, SamplingParams())
    assert wishes(eos_token_id=[1, 2], max_new_tokens=9, temperature=0.7, top_k=50) == []  # it does not sample
    [note] = wishes(suppress_tokens=[1], forced_eos_token_id=3, no_repeat_ngram_size=2)
    assert note == (
        "The model's generation_config.json asks for suppressed tokens, a forced last token and no repeated n-grams, "
        "which specviz does not do."
    )
    assert "min-p 0.05" in wishes(do_sample=True, min_p=0.05)[0]
    assert wishes(num_beams=1, typical_p=1.0, repetition_penalty=1.0, min_length=0) == []


def test_sampling_defaults_are_named_where_the_run_has_others() -> None:
    asked = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    [note] = wishes(**asked)
    assert "asks for temperature 0.7, top-k 20, top-p 0.8 and repetition penalty 1.05. This run is greedy" in note
    assert wishes(SamplingParams(0.7, 20, 0.8, 1.05), **asked) == []
    [note] = wishes(SamplingParams(0.7, 0, 0.8, 1.05), **asked)
    assert "asks for top-k 20. This run samples" in note


def test_the_run_says_so() -> None:
    model = tiny_llama()
    model.generation_config.suppress_tokens = [4]
    started = next(generator(model).stream([5, 6], config("plain", max_new_tokens=2)))
    assert any("suppressed tokens" in note for note in started.notes)
    assert not any("generation_config" in n for n in next(generator(TapeModel([1, 2], 1)).stream([1], config())).notes)
