"""Tiny random models and tokenizers, made on the fly: real classes, no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(
    *,
    chat_template: str | None = CHATML,
    bos: str | None = "<|im_start|>",
    eos: str | None = "<|im_end|>",
    extra: tuple[str, ...] = (),
    control: tuple[str, ...] = CONTROL,
    rstrip: bool = False,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: control tokens first, then 256 bytes, a few merges, and `extra` words at the end."""
    merges = [("t", "o"), ("Ġ", "to"), ("h", "e"), ("Ċ", "Ċ"), ("o", "f"), ("Ġ", "of")]
    texts = [*control, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges), *extra]
    backend = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False, rstrip=rstrip) for text in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=eos, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_model(rows: int = 300, *, seed: int = 0, layers: int = 2, **options: Any) -> LlamaForCausalLM:
    """A random Llama with an output layer of `rows` rows; width 64, so that it can be held in 4 bits."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        **options,
    )
    return LlamaForCausalLM(config).eval()


def save_model(folder: Path, *, rows: int = 300, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    """A model and a tokenizer in `folder`, as a repository of the Hub would hold them. Returns `folder`."""
    tokenizer = make_tokenizer(**{key: options.pop(key) for key in ("chat_template", "eos", "extra") if key in options})
    make_model(rows, **options).to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
