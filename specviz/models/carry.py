"""Does a model's recurrent state come back? Asked of each such model once, before its first token."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from specviz.errors import CacheNotCroppableError
from specviz.models.session import Session
from specviz.models.states import has_states
from specviz.models.windows import check_croppable

__all__ = ["require_states"]

_PROBE = (5, 17, 3, 11, 7, 2, 13, 1, 9, 4, 15, 8)
_SPLIT = (5, 6, 9)
"""Where the probe is cut: a prompt, a token whose draft is refused, a draft that is kept, and the rest."""

_NEEDED = (
    "Choose another model: full attention, sliding windows and the recurrent states of Mamba 2, Qwen3-Next, Qwen3.5, "
    "LFM2, Granite 4, Falcon-H1 and Jamba work."
)

_found: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def require_states(model: Any) -> None:
    """Refuse a model whose past cannot be taken back, a recurrent state that does not carry over included.

    Raises:
        CacheNotCroppableError: naming the model type.
    """
    check_croppable(model)
    if not has_states(model):
        return
    if model not in _found:
        _found[model] = _refusal(model)
    if _found[model]:
        raise CacheNotCroppableError(_found[model])


def _refusal(model: Any) -> str:
    """Empty if what a session says of a short text is what one pass over all of it says, up to rounding."""
    config = model.config.get_text_config(decoder=True)
    kind = getattr(config, "model_type", type(model).__name__)
    ids = [token % int(config.vocab_size) for token in _PROBE]
    try:
        with torch.inference_mode():
            text = torch.tensor([ids], device=next(model.parameters()).device)
            expected = model(input_ids=text, use_cache=False).logits[0].float()
        got = _in_pieces(model, ids).float()
    except (AttributeError, AssertionError, IndexError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        why = f"that specviz cannot reach ({type(error).__name__})"
    else:
        step = torch.finfo(next(p.dtype for p in model.parameters() if p.is_floating_point())).eps
        limit = max(step, torch.finfo(torch.float32).eps) ** 0.5  # states are kept in float32 at most
        if float((expected - got).abs().max()) <= limit * float(expected.abs().max()):
            return ""
        why = "that does not come back to what it was before a refused draft"
    return f"Models of type “{kind}” keep a recurrent state {why}, so refused words would change the text. {_NEEDED}"


def _in_pieces(model: Any, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocab] logits, read as a run reads: a prompt, a refused draft, a kept one, and once more a block."""
    first, second, third = _SPLIT
    session = Session(model, capacity=len(ids))
    try:
        rows = [session.extend(ids[:first], num_logits=first)]
        wrong = torch.tensor([(token + 1) % max(ids) for token in ids[second:third]])
        rows.append(session.score(ids[first], wrong, tuple(range(-1, len(wrong) - 1)))[:1])
        session.keep_path(())
        draft = torch.tensor(ids[second + 1 : third])
        rows.append(session.score(ids[second], draft, tuple(range(-1, len(draft) - 1))))
        session.keep_path(tuple(range(len(draft))))
        rows.append(session.extend(ids[third:], num_logits=len(ids) - third))
        return torch.cat(rows)
    finally:
        session.close()
