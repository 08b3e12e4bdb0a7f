"""Is this a causal language model at all? By what its configuration says, and by what a later token does to it."""

from __future__ import annotations

from typing import Any

import torch

from specviz.errors import ModelLoadError

__all__ = ["kind_refusal", "looks_ahead", "require_causal"]

_NEEDED = "specviz runs causal language models, which write one token behind the other."
_PROBE = (5, 17, 3, 11, 7, 2, 13, 1)
"""Ids of a short text; those from the fifth on are changed."""

_NUM_KEPT = 4


def kind_refusal(name: str, config: Any) -> str | None:
    """Why a model of this configuration is no causal language model, in a sentence; None if nothing speaks against it.

    config: of transformers, as the folder has it. Its `architectures` name the class that the weights were saved from.
    """
    classes = [str(one)[:80] for one in getattr(config, "architectures", None) or ()]
    saved_as = f" ({classes[0]})" if classes else ""
    if getattr(config, "is_encoder_decoder", False):
        return f"{name} is an encoder-decoder{saved_as}: it answers an input of its own kind. {_NEEDED}"
    if not classes or any(_is_made_for_generation(one) for one in classes):
        return None
    first = classes[0]
    if first.endswith(("MaskedLM", "ForPreTraining")):
        return f"{name} is an encoder{saved_as}: it fills gaps and sees what comes after them. {_NEEDED}"
    if _sees_pictures(config) or "Vision" in first or "Image" in first:
        return f"{name} is a vision model{saved_as}: it reads pictures and writes no text. {_NEEDED}"
    if first.endswith("Model"):
        return f"{name} has no output layer{saved_as}: it is an embedding model, or a model's trunk. {_NEEDED}"
    return f"{name} was not made to write text{saved_as}. {_NEEDED}"


def _is_made_for_generation(class_name: str) -> bool:
    """Whether a class of transformers can generate; True where transformers does not know it, as its pass will tell."""
    import transformers

    known = getattr(transformers, class_name, None)
    return known is None or not hasattr(known, "can_generate") or bool(known.can_generate())


def _sees_pictures(config: Any) -> bool:
    return hasattr(config, "image_size") and not hasattr(config, "vocab_size")


def looks_ahead(model: Any, vocab_size: int) -> bool:
    """Whether changing the second half of a short text changes the logits of the first by more than rounding.

    Two passes of one shape, so a causal model's rows are equal, or nearly so: where a tensor happens to lie in memory
    may decide how a product is summed, and experts may be chosen by rounding. The limit, the root of the format's
    smallest step, lies far above that and far below what a seen token does.
    """
    weight = next(model.parameters())
    ids = torch.tensor([[i % vocab_size for i in _PROBE]], device=weight.device)
    other = ids.clone()
    other[0, _NUM_KEPT:] = (other[0, _NUM_KEPT:] + max(1, vocab_size // 2)) % vocab_size
    with torch.inference_mode():
        one, two = (model(input_ids=text, use_cache=False).logits[0, :_NUM_KEPT].float() for text in (ids, other))
    step = torch.finfo(weight.dtype if weight.dtype.is_floating_point else one.dtype).eps
    return float((one - two).abs().max()) > step**0.5 * float(one.abs().max())


def require_causal(name: str, model: Any, vocab_size: int) -> None:
    """Raises ModelLoadError where a later token changes what the model says of an earlier one."""
    if looks_ahead(model, vocab_size):
        raise ModelLoadError(
            f"In {name} a later token changes the logits of earlier ones, so it is an encoder, or reads its prompt "
            f"both ways. {_NEEDED}"
        )
