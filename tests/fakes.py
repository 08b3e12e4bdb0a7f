"""Small stand-ins: tape and table models of a few lines, tiny random transformers models in float64, a byte tokenizer.

None of them stands in for the thing under test: they give the loop a target whose every next token is known.
"""

from __future__ import annotations

import tempfile
import types
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specviz.config import RunConfig, SamplingParams
from specviz.drafters.base import DraftContext, Outcome
from specviz.drafters.feature_head import fresh_parts
from specviz.events import ModelInfo
from specviz.generator import SpeculativeGenerator
from specviz.models.catalog import ModelPair, WeightSource
from specviz.models.exactness import ExactnessReport
from specviz.models.loader import LoadedPair
from specviz.models.session import Session
from specviz.models.trunk import save_trunk, trunk_refusal
from specviz.proposal import Proposal
from specviz.train.student import fresh_trunk

BOS, START, END, THINK = "<|bos|>", "<|im_start|>", "<|im_end|>", "<think>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 byte tokens, three control tokens, one added token that is not special: 260 ids. No merges, no network."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (BOS, START, END)])
    backend.add_tokens([AddedToken(THINK, special=False, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=END)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def ids_of(text: str) -> list[int]:
    """Ids of a text, one a byte, control tokens as theirs."""
    ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False)
    return ids


EOS = 258
VOCAB = 260


class FakeModel(torch.nn.Module):
    """Base of models that need no cache: next-token logits are a function of the ids up to a row and its position.

    Counts its passes; `fail_at` raises in that pass.
    """

    def __init__(self, vocab: int, max_positions: int = 4096) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64), requires_grad=False)
        self.config = LlamaConfig(
            vocab_size=vocab, num_hidden_layers=1, max_position_embeddings=max_positions, bos_token_id=0, eos_token_id=0
        )
        self.num_passes = 0
        self.fail_at: int | None = None

    def row(self, token: int, position: int) -> Tensor:
        raise NotImplementedError

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, cache: Any, use_cache: bool
    ) -> types.SimpleNamespace:
        self.num_passes += 1
        if self.num_passes == self.fail_at:
            raise RuntimeError("injected failure with a secret path /home/somebody and hf_secrettoken")
        empty = torch.zeros(1, 1, input_ids.shape[1], 1, dtype=torch.float64)
        cache.update(empty, empty, 0)
        pairs = zip(input_ids[0].tolist(), position_ids[0].tolist(), strict=True)
        return types.SimpleNamespace(logits=torch.stack([self.row(t, p) for t, p in pairs])[None])


class TapeModel(FakeModel):
    """Writes the given ids after the prompt whatever is fed: the logits at position i point to tape[i + 1]."""

    def __init__(self, tape: Sequence[int], prompt_len: int, vocab: int = VOCAB, **more: Any) -> None:
        super().__init__(vocab, **more)
        self.tape, self.prompt_len, self.vocab = list(tape), prompt_len, vocab

    def row(self, token: int, position: int) -> Tensor:
        place = position + 1 - self.prompt_len
        logits = torch.zeros(self.vocab, dtype=torch.float64)
        if 0 <= place < len(self.tape):
            logits[self.tape[place]] = 10.0
        return logits


class TableModel(FakeModel):
    """A first-order chain: logits of the next token are table[last token]."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(table.shape[0])
        self.table = table.double()

    def row(self, token: int, position: int) -> Tensor:
        return self.table[token]


class ScriptDrafter:
    """Proposes what a function of the context says; the same object for every run."""

    name = "script"
    needs: frozenset[Any] = frozenset()
    num_bytes = 0

    def __init__(self, script: Callable[[Sequence[int], int], Proposal | Sequence[int]]) -> None:
        self.script = script
        self.outcomes: list[Outcome] = []

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self.outcomes.clear()

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        made = self.script(context.token_ids, max_tokens)
        return made if isinstance(made, Proposal) else Proposal.chain(made)

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def close(self) -> None:
        pass


def tiny_llama(
    seed: int = 0, vocab: int = 264, layers: int = 3, positions: int = 512, scale: float = 1.0
) -> LlamaForCausalLM:
    """A random Llama in float64, logits well apart (scale stretches the output layer)."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=48, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions, bos_token_id=256, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).double().eval().requires_grad_(False)
    model.lm_head.weight.mul_(40.0 * scale)
    model.model.embed_tokens.weight.mul_(20.0)
    return model


def tiny_gpt2(seed: int = 0, vocab: int = 264, positions: int = 64) -> GPT2LMHeadModel:
    """A random GPT-2 with learned positions in float64."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab, n_embd=48, n_layer=2, n_head=4, n_positions=positions, bos_token_id=256, eos_token_id=256
    )
    model = GPT2LMHeadModel(config).double().eval().requires_grad_(False)
    model.transformer.wte.weight.mul_(20.0)
    return model


_heads: dict[tuple[int, ...], Path] = {}


def feature_head_for(target: Any) -> Path | None:
    """A folder with an untrained feature head for a target of this shape; None where none can be built."""
    if trunk_refusal(target) or target.config.num_hidden_layers < 2:
        return None
    size, depth = int(target.config.hidden_size), int(target.config.num_hidden_layers)
    vocab = min(VOCAB, target.config.vocab_size)
    key = (size, depth, vocab, int(target.config.num_key_value_heads))
    if key not in _heads:
        folder = Path(tempfile.mkdtemp(prefix="specviz-head-"))
        parts = fresh_parts(size, 1, torch.Generator().manual_seed(1))
        trunk = fresh_trunk(target, (depth,), torch.arange(0, vocab, 1))
        about = {"target_layers": depth, "taps": [1]}
        save_trunk(folder, trunk, {"fuse": parts.fuse, "mix": parts.mix}, about)
        _heads[key] = folder
    return _heads[key]


def loaded_pair(
    target: Any, draft: Any = None, *, eos: Sequence[int] = (EOS,), max_context: int | None = None
) -> LoadedPair:
    """A pair around models made in a test."""
    source = WeightSource("test/tiny")
    pair = ModelPair("tiny", "Tiny", source, source if draft is not None else None)
    config = target.config.get_text_config(decoder=True)
    loaded = LoadedPair(
        pair=pair,
        tokenizer=byte_tokenizer(),
        target=target,
        target_info=ModelInfo("tiny-target", source="test", dtype="float64", num_bytes=1),
        dtype=torch.float64,
        device=torch.device("cpu"),
        max_context=max_context or int(config.max_position_embeddings),
        eos_ids=frozenset(eos),
        vocab_size=min(VOCAB, config.vocab_size),
    )
    folder = feature_head_for(target)
    if folder is not None:
        loaded.draft_folders["feature"] = folder
    if draft is not None:
        loaded.draft_model = lambda quant="auto", copy=False: (
            draft,
            ModelInfo("tiny-draft", source="test", dtype="float64"),
        )  # type: ignore[method-assign]
    return loaded


def config(method: str = "plain", **settings: Any) -> RunConfig:
    """A RunConfig with sampling settings taken out of the keywords; exact off unless asked for."""
    names = {"temperature", "top_k", "top_p", "repetition_penalty", "seed"}
    sampling = SamplingParams(**{k: v for k, v in settings.items() if k in names})
    rest = {"exact": False} | {k: v for k, v in settings.items() if k not in names}
    return RunConfig(method=method, sampling=sampling, **rest)


def found_exact(engine: SpeculativeGenerator, min_rows: int, cost: float = 1.0, width: int = 8) -> SpeculativeGenerator:
    """The same engine, as if its self-test had found that so many rows are enough and cost so much of one."""
    engine._reports[width] = ExactnessReport(width, min_rows, 200, 200, 1.0, cost, 0.0)
    return engine


def generator(target: Any, draft: Any = None, **more: Any) -> SpeculativeGenerator:
    return SpeculativeGenerator(loaded_pair(target, draft, **more))
