"""Sliding windows: tiny random models of the families, held against their own plain calls, which are given no cache."""

from __future__ import annotations

import types
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from checks import ids_from, play, random_tree, sequential
from fakes import ScriptDrafter, config, generator
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.drafters import registry
from specviz.errors import CacheNotCroppableError
from specviz.models import decoder
from specviz.models.session import Session
from specviz.models.windows import narrowed, windows_of
from specviz.proposal import Proposal

WINDOW = 8
CLOSE = 1e-5
"""Of logits of float64 models whose library rounds norms and softmax to float32 on the way; a wrong window moves them
by more than a hundred times that, see `test_the_bound_would_notice_a_wrong_window`."""

MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "sliding_window": WINDOW,
    "pad_token_id": 0,
    "initializer_range": 0.4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"layer_types": MIXED, "query_pre_attn_scalar": 8},
    "gemma3_text": {"layer_types": MIXED, "query_pre_attn_scalar": 8},
    "gpt_oss": {"layer_types": MIXED, "num_local_experts": 2, "num_experts_per_tok": 1},
    "mistral": {},
    "phi3": {},
    "qwen3": {"layer_types": MIXED, "use_sliding_window": True},
    "cohere2": {"layer_types": MIXED},
}
OTHERS: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1},
    "ministral": {"layer_types": MIXED},
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "starcoder2": {},
    "olmo3": {"layer_types": MIXED},
    "exaone4": {"layer_types": MIXED},
    "smollm3": {"layer_types": MIXED, "use_sliding_window": True},
    # The last layers of these two read the keys of the layers before them.
    "gemma3n_text": {
        "layer_types": MIXED[:2] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 264,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        "layer_types": MIXED[:2] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 264,
        "hidden_size_per_layer_input": 8,
        "global_head_dim": 8,
    },
}
EAGER_ONLY = ("gemma2", "gpt_oss")
CASES = [(kind, way) for kind in FAMILIES for way in ("eager", "sdpa") if way == "eager" or kind not in EAGER_ONLY]


@cache
def windowed(kind: str, way: str = "eager") -> Any:
    torch.manual_seed(5)
    made = AutoConfig.for_model(kind, **SIZES | (FAMILIES | OTHERS).get(kind, {}))
    model = AutoModelForCausalLM.from_config(made, attn_implementation=way, experts_implementation="eager")
    return model.double().eval().requires_grad_(False)


def fresh(model: Any, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits


def far(rows: Tensor, model: Any, paths: list[list[int]]) -> float:
    """The largest difference to the model's own logits behind each path."""
    return max(float((row - fresh(model, path)).abs().max()) for row, path in zip(rows, paths, strict=True))


@pytest.fixture(params=["1", "0"], ids=["lean", "library"])
def lean(request, monkeypatch):
    """Both ways to run a model; a fresh decoder for each."""
    monkeypatch.setenv("SPECVIZ_LEAN", request.param)
    monkeypatch.setattr(decoder, "_decoders", weakref.WeakKeyDictionary())


@pytest.mark.usefixtures("lean")
@pytest.mark.parametrize("length", [3, WINDOW, 30])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_chains_trees_and_rolling_back(kind, way, length):
    """Prompts shorter than the window, of its length and longer: every row's logits are those of a plain call."""
    model = windowed(kind, way)
    for min_rows in (0, 8):
        session = Session(model, capacity=64, min_rows=min_rows)
        ids = ids_from(1, length)
        assert far(session.extend(ids), model, [ids]) < CLOSE
        a, b, c, d, e = ids_from(2, 5)
        rows = session.score(a, torch.tensor([b, c, d]), (-1, 0, 1))
        assert far(rows, model, [[*ids, *tail] for tail in ([a], [a, b], [a, b, c], [a, b, c, d])]) < CLOSE
        session.keep_path(())  # all refused
        ids.append(a)
        # Two branches side by side, so that places and positions part; the second is kept.
        rows = session.score(b, torch.tensor([c, d, e, a, c, b]), (-1, -1, 0, 1, 3, 4))
        tails = ([b], [b, c], [b, d], [b, c, e], [b, d, a], [b, d, a, c], [b, d, a, c, b])
        assert far(rows, model, [[*ids, *tail] for tail in tails]) < CLOSE
        session.keep_path((1, 3, 4))
        ids += [b, d, a, c]
        assert session.length == len(ids)
        assert far(session.score(e, torch.tensor([a]), (-1,)), model, [[*ids, e], [*ids, e, a]]) < CLOSE
        session.roll_back(2)
        assert far(session.extend([c, d]), model, [[*ids[:2], c, d]]) < CLOSE
        session.close()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_families_with_windows(kind):
    """A long prompt, a tree and a step behind it; some windows are named by a layer, some by the configuration."""
    model, ids = windowed(kind, "sdpa"), ids_from(1, 30)
    assert WINDOW in windows_of(model)
    session = Session(model, capacity=64)
    assert far(session.extend(ids), model, [ids]) < CLOSE
    a, b, c, d = ids_from(2, 4)
    rows = session.score(a, torch.tensor([b, c, d]), (-1, -1, 1))
    assert far(rows, model, [[*ids, *tail] for tail in ([a], [a, b], [a, c], [a, c, d])]) < CLOSE
    session.keep_path((1, 2))
    assert far(session.score(b, torch.tensor([a]), (-1,)), model, [[*ids, a, c, d, b], [*ids, a, c, d, b, a]]) < CLOSE


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_the_bound_would_notice_a_wrong_window(kind, way, monkeypatch):
    """One token more or fewer in sight is far outside the bound of the test before."""
    model = windowed(kind, way)
    ids = ids_from(1, 30)
    for off in (1, -1):
        monkeypatch.setattr(
            decoder, "narrowed", lambda seen, at, start, w, off=off: narrowed(seen, at, start, w and w + off)
        )
        assert far(Session(model, capacity=64).extend(ids), model, [ids]) > 100 * CLOSE


@pytest.mark.parametrize("length", [4, 20])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_greedy_text_is_the_librarys_own(kind, way, length, monkeypatch):
    """Plain, looked-up and drafted, as a chain and as a tree, past the window; and `generate` with its own cache."""
    model, prompt = windowed(kind, way), ids_from(3, length)
    right = sequential(model, prompt, 16)
    with torch.inference_mode():
        own = model.generate(
            torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None,
            attention_mask=torch.ones(1, length, dtype=torch.int64),  # else it takes a byte of id 0 for padding
            suppress_tokens=list(range(260, 264)),
        )  # fmt: skip
    assert own[0, length:].tolist() == right
    engine = generator(model, model, eos=())
    for method in ("plain", "prompt-lookup", "draft-model", "lookahead"):
        play(engine, prompt, config(method, max_new_tokens=16), plain=right)

    def tree(ids: Sequence[int], n: int) -> Proposal:
        return random_tree(len(ids), right[len(ids) - length :][: min(n, 1 + len(ids) % 4)], 13, n)[0]

    made = registry.Method("script", "Script", "Made in a test.", "exact", lambda *_: (ScriptDrafter(tree), None))
    monkeypatch.setitem(registry.METHODS, "script", made)
    for exact in (False, True):
        play(engine, prompt, config("script", max_new_tokens=16, exact=exact), plain=right)


def test_a_window_that_the_code_does_not_look_through_hides_nothing():
    """Llama's code sees all, also where its configuration still has a number from the model it was made of."""
    model, ids = windowed("llama"), ids_from(1, 30)
    assert model.config.sliding_window == WINDOW
    assert windows_of(model) == (None, None, None)
    assert far(Session(model, capacity=64).extend(ids), model, [ids]) < CLOSE


@pytest.mark.parametrize("kind", ["dory", "hrm_text"])
def test_rounds_through_the_same_layers_are_refused(kind):
    with pytest.raises(CacheNotCroppableError, match=f"“{kind}”.*each round"):
        windows_of(types.SimpleNamespace(config=AutoConfig.for_model(kind)))


def test_one_mask_for_layers_that_differ_is_refused():
    """Mistral's code makes one mask for all layers; a configuration that asks for two kinds is not followed there."""
    made = AutoConfig.for_model("mistral", **SIZES)
    made.layer_types = MIXED
    with pytest.raises(CacheNotCroppableError, match=r"“mistral”.*one mask"):
        windows_of(types.SimpleNamespace(config=made))


def test_windows_are_told_layer_by_layer():
    assert windows_of(windowed("gemma3_text")) == (WINDOW, None, WINDOW)
    assert windows_of(windowed("mistral")) == (WINDOW, WINDOW, WINDOW)


def test_chunks_are_no_windows():
    """Llama 4 attends in chunks, which its cache holds like a window; the words of another chunk would be seen."""
    made = AutoConfig.for_model("llama4_text", attention_chunk_size=16)
    with pytest.raises(CacheNotCroppableError, match="chunked_attention"):
        windows_of(types.SimpleNamespace(config=made))
