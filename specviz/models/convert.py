"""A GGUF file as safetensors and a tokenizer, once, so that later loads are quick and need no GGUF reader."""

from __future__ import annotations

import logging as stdlib_logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specviz.errors import ModelLoadError

__all__ = ["CONVERTER_VERSION", "Progress", "check_tokenizer", "convert_gguf", "quiet_libraries", "read_gguf_metadata"]

CONVERTER_VERSION = 1
"""Raised when a conversion would come out differently; older conversions are then made again."""

Progress = Callable[[str, float | None], None]
"""Told what is being done, and which part of the whole is behind us, in [0, 1], or None where that is unknown."""

CONTROL_TOKEN = 3
"""The GGUF token type of control tokens; 1 is a normal token."""

SAMPLE_TEXTS = (
    "The quick brown fox doesn't jump over 1234 dogs.",
    "  def f(x):\n\n\treturn x ** 2  # naïve\r\n",
    "1. One\n\n2. Two  3",
    "Ελληνικά, 日本語, עברית, 🙂👩‍👩‍👧, a\u0301",
    "<|im_start|>user\nhi<|im_end|>\n",
)


def convert_gguf(gguf: Path, out: Path, progress: Progress) -> None:
    """Write `gguf` into the folder `out` as model.safetensors, config.json and tokenizer files.

    Stored as float32: dequantized 4-bit and 8-bit blocks are a float16 scale times an integer (plus an offset), and of
    SmolLM2's 134,515,008 weights 106,626,503 change when rounded to bfloat16. float32 keeps all of them, and a bfloat16
    run rounds once, at load.

    Raises:
        ModelLoadError: the tokenizer does not come out as the file describes it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    with quiet_libraries():
        progress("Reading the model file", 0.05)
        metadata = read_gguf_metadata(gguf)
        progress("Rebuilding the tokenizer", 0.15)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **options)
        mend_tokenizer(tokenizer, metadata)
        tokenizer.save_pretrained(out)
        check_tokenizer(AutoTokenizer.from_pretrained(out, local_files_only=True, trust_remote_code=False), metadata)
        progress("Unpacking 4-bit weights to full precision (a quarter of a minute)", 0.35)
        with _no_tensor_bar():
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, dtype=torch.float32, quantization_config=_dequantize_config(), **options
            )
        progress("Saving the weights", 0.9)
        # save_pretrained takes the model for a GGUF one, which cannot be saved, until these two are gone.
        for holder, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
            if hasattr(holder, name):
                delattr(holder, name)
        model.save_pretrained(out, max_shard_size="1TB")  # one file, whatever its size


def read_gguf_metadata(gguf: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelLoadError("Unpacking this model needs the package gguf: pip install gguf") from error
    return {name: field.contents() for name, field in GGUFReader(gguf).fields.items()}


def mend_tokenizer(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    """Put back what a GGUF file does not carry over into a tokenizer.

    The pre-tokenizer is only named there ("smollm"), and transformers falls back to GPT-2's. SmolLM splits off every
    digit first. Without that, blanks and line breaks before a digit come out as tokens the model was not trained on:
    the numbered list "\\n\\n1." is one double line break for the model, but two single ones with GPT-2's rule.
    """
    from tokenizers import pre_tokenizers

    if metadata.get("tokenizer.ggml.pre") == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
            ]
        )
    tokenizer.clean_up_tokenization_spaces = False  # "clean-up" would make the shown text differ from the tokens
    tokenizer.chat_template = metadata.get("tokenizer.chat_template", tokenizer.chat_template)
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if length:
        tokenizer.model_max_length = int(length)


def check_tokenizer(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    """Compare a saved and reloaded tokenizer with what the GGUF file says about it. Raises ModelLoadError."""
    texts = metadata["tokenizer.ggml.tokens"]
    vocab = tokenizer.get_vocab()
    control = {i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == CONTROL_TOKEN}
    added = tokenizer.added_tokens_decoder
    checks = {
        "the vocabulary": len(vocab) == len(texts) and all(vocab.get(text) == i for i, text in enumerate(texts)),
        "the control tokens": control == {i for i, token in added.items() if token.special},
        "the chat template": tokenizer.chat_template == metadata.get("tokenizer.chat_template"),
        "decoding": all(
            tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text for text in SAMPLE_TEXTS
        ),
    }
    for role, ours in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        expected = metadata.get(f"tokenizer.ggml.{role}_token_id")
        checks[f"the {role} token"] = expected is None or getattr(tokenizer, f"{ours}_token_id") == expected
    wrong = [name for name, passed in checks.items() if not passed]
    if wrong:
        raise ModelLoadError(
            f"The tokenizer unpacked from the model file does not match the file in {', '.join(wrong)}. "
            "Install the versions named in requirements.txt and fetch the model again."
        )


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep progress bars and advice of the model libraries off the terminal: nothing in them is for the user to do."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    level, hub_bars, bars = logging.get_verbosity(), are_progress_bars_disabled(), logging.is_progress_bar_enabled()
    bitsandbytes = stdlib_logging.getLogger("bitsandbytes")
    bitsandbytes_level = bitsandbytes.level
    bitsandbytes.setLevel(stdlib_logging.ERROR)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        bitsandbytes.setLevel(bitsandbytes_level)
        if bars:
            logging.enable_progress_bar()
        if not hub_bars:
            enable_progress_bars()


@contextmanager
def _no_tensor_bar() -> Iterator[None]:
    """The GGUF reader of transformers draws a bar that its own switch does not reach; take the drawing out."""
    from transformers import modeling_gguf_pytorch_utils as module

    drawn = getattr(module, "tqdm", None)
    if drawn is None:  # another version of transformers, which draws nothing or elsewhere
        yield
        return
    module.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        module.tqdm = drawn


def _dequantize_config() -> Any:
    """Ask for dense weights by name where transformers knows how to be asked; older versions always unpack."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return None
    return GgufConfig(dequantize=True)
