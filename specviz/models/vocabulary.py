"""Do two tokenizers read the same ids as the same text? Else a draft's tokens have to be translated."""

from __future__ import annotations

from typing import Any

from specviz.errors import TokenizerMismatchError

__all__ = ["check_same_vocabulary", "is_same_vocabulary"]


def is_same_vocabulary(target_tokenizer: Any, draft_tokenizer: Any) -> bool:
    """Whether `check_same_vocabulary` finds no difference."""
    try:
        check_same_vocabulary(target_tokenizer, draft_tokenizer)
    except TokenizerMismatchError:
        return False
    return True


def check_same_vocabulary(target_tokenizer: Any, draft_tokenizer: Any) -> None:
    """Compare the text of every id that both tokenizers know.

    Sizes decide nothing (case 110): models of one family pad their output layers differently, and one may know a few
    control tokens more. Ids that only one of them knows are left to the engine, which neither drafts nor emits an id
    that the other cannot read.

    Raises:
        TokenizerMismatchError: naming the first id that the two read differently.
    """
    target, draft = _texts_by_id(target_tokenizer), _texts_by_id(draft_tokenizer)
    for token_id in sorted(target.keys() & draft.keys()):
        if target[token_id] != draft[token_id]:
            raise TokenizerMismatchError(
                "These two models do not share a vocabulary. The draft reads token "
                f"{token_id} as “{_shown(draft_tokenizer, draft[token_id])}”, "
                f"the target as “{_shown(target_tokenizer, target[token_id])}”. "
                "Choose a draft from the same family, or prompt lookup, which needs none."
            )
    if not target.keys() & draft.keys():
        raise TokenizerMismatchError(
            "These two models have no token in common. "
            "Choose a draft from the same family, or prompt lookup, which needs none."
        )


def _texts_by_id(tokenizer: Any) -> dict[int, str]:
    return {token_id: text for text, token_id in tokenizer.get_vocab().items()}


def _shown(tokenizer: Any, token: str) -> str:
    """A token's text, at most 40 characters; its own spelling where it is only a part of a character."""
    text = str(tokenizer.convert_tokens_to_string([token]))
    return (token if "\ufffd" in text or not text else text)[:40]
