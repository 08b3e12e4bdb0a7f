"""The lean loop and transformers give the same numbers, and the lean one is used where it is known to."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from fakes import TapeModel, tiny_gpt2, tiny_llama
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specviz.models import decoder as decoders
from specviz.models.decoder import LeanDecoder, TransformersDecoder, decoder_for
from specviz.models.session import Session

SIZES = dict(
    vocab_size=264, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=0,
)  # fmt: skip


def _model(kind: str, dtype: torch.dtype = torch.float64):
    torch.manual_seed(0)
    model = {
        "llama": tiny_llama,
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
    }[kind]()
    return model.to(dtype).eval().requires_grad_(False)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("width", [0, 8])
def test_lean_and_transformers_agree(kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chain, tree and hidden states, to 1e-12 in float64."""
    model = _model(kind)
    ids = torch.randint(264, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    found = []
    for lean in ("1", "0"):
        monkeypatch.setenv("SPECVIZ_LEAN", lean)
        monkeypatch.setattr(decoders, "_decoders", weakref.WeakKeyDictionary())
        assert isinstance(decoder_for(model), LeanDecoder if lean == "1" else TransformersDecoder)
        session = Session(model, capacity=100, min_rows=width, keep_hidden=True)
        rows = [session.extend(ids[:30])]
        rows.append(session.score(ids[30], torch.tensor(ids[31:35]), (-1, 0, 1, 2)))
        rows.append(session.hidden[:5])
        rows.append(session.score(ids[30], torch.tensor([3, ids[31], 5, ids[32]]), (-1, -1, 0, 1)))
        session.keep_path((1, 3))
        rows.append(session.score(ids[33], torch.tensor(ids[34:36]), (-1, 0)))
        found.append(torch.cat([row.flatten() for row in rows]))
    assert (found[0] - found[1]).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_rows_of_zeros_for_a_faster_product_change_nothing_that_counts(kind: str) -> None:
    """Passes of 1 to 6 tokens, a tree, the head alone and early layers, filled up to 5 rows or not: equal."""
    ids = torch.randint(264, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    found = []
    for least in (1, 5):
        model = _model(kind)
        decoder = decoder_for(model)
        assert isinstance(decoder, LeanDecoder)
        decoder._least_rows = least
        session = Session(model, capacity=100, taps=(1,))
        rows = [session.extend(ids[:1]), session.extend(ids[1:30])]
        place = 30
        for count in range(1, 7):
            chain = torch.tensor(ids[place + 1 : place + count], dtype=torch.int64)
            logits = session.score(ids[place], chain, tuple(range(-1, count - 2)))
            assert logits.shape == (count, 264)
            session.keep_path(tuple(range(count - 1)))
            assert session.hidden.shape[0] == count
            rows += [logits, session.hidden, session.tail]
            place += count
        rows.append(session.score(ids[place], torch.tensor([3, 4, 5]), (-1, -1, 0)))
        rows.append(session.draft_pass([ids[place], 9], 1))
        rows += [decoder.head(session.hidden[:1]), session.take_states()[1]]
        found.append(torch.cat([row.flatten() for row in rows]))
    assert (found[0] - found[1]).abs().max() < 1e-12


@pytest.mark.parametrize("fastest", [1, 5])
def test_products_are_filled_up_where_that_is_faster(fastest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock of this machine; quantized and unpacked products never are."""
    clock, now = [], 0.0
    for rows in (1, 5) * 7:
        clock += [now, now := now + (0.001 if rows == fastest else 0.002)]
    monkeypatch.setattr(decoders.time, "perf_counter", iter(clock).__next__)
    packed = LeanDecoder(_model("llama", torch.float32))
    assert packed._least_rows == fastest
    assert LeanDecoder(_model("llama"))._least_rows == 1


def test_lean_in_bfloat16_is_as_close_to_float64_as_transformers_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights and fused projections cost no accuracy: mean errors within a third of each other."""
    exact = _model("llama")
    coarse = _model("llama", torch.bfloat16)
    ids = list(range(40, 90))
    reference = Session(exact, capacity=60).extend(ids, num_logits=20)
    errors = []
    for lean in ("1", "0"):
        monkeypatch.setenv("SPECVIZ_LEAN", lean)
        monkeypatch.setattr(decoders, "_decoders", weakref.WeakKeyDictionary())
        logits = Session(coarse, capacity=60).extend(ids, num_logits=20)
        errors.append(float((logits.double() - reference).abs().mean()))
    assert errors[0] < 1.34 * errors[1]


def test_what_the_loop_leaves_out_goes_through_transformers() -> None:
    for name, value in {"hidden_act": "gelu", "use_sliding_window": True}.items():
        model = _model("llama")
        setattr(model.config, name, value)
        assert not LeanDecoder.knows(model)
    assert not LeanDecoder.knows(tiny_gpt2())
    assert isinstance(decoder_for(TapeModel([1], 1)), TransformersDecoder | LeanDecoder)


def test_a_decoder_is_made_once_and_freed_with_its_model() -> None:
    model = _model("llama")
    first = weakref.ref(decoder_for(model))
    assert decoder_for(model) is first()
    del model
    gc.collect()
    assert first() is None
