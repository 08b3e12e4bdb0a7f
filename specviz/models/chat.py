"""A visitor's text as the ids a model reads: chat template around it, the text itself always as plain text."""

from __future__ import annotations

import re
from typing import Any

from specviz.errors import ConfigError

__all__ = ["clean_text", "encode_prompt"]

NO_TEMPLATE = "This model has no chat template, so it continues the prompt as it stands."
PLAIN_CONTROL = "The prompt spells control tokens of this model; they are read as plain text."
RAW_CONTROL = "The prompt holds control tokens of this model, and without a chat template they act as such."
EMPTY = "The prompt is empty, so the model starts from its start token alone."
SURROGATES = "Halves of characters, which are no valid Unicode, were replaced."
NULS = "Null characters were taken out of the prompt."

_PRIVATE_USE = range(0xE000, 0xF900)


def encode_prompt(tokenizer: Any, text: str, raw: bool) -> tuple[list[int], list[str]]:
    """The ids of a prompt, at least one, and notes in sentences about what was done to it.

    With a chat template the text becomes the user's turn. Control tokens typed in it stay text: they cannot end the
    turn or forge another one (case 88). Without a template (case 114), or with `raw`, it is encoded as it stands.

    Raises:
        ConfigError: nothing to start from, as the prompt is empty and the model has no start token (case 118).
    """
    text, notes = clean_text(text)
    if not raw and not tokenizer.chat_template:
        notes.append(NO_TEMPLATE)
        raw = True
    typed = _control_pattern(tokenizer).search(text) is not None
    if raw:
        ids = list(tokenizer(text)["input_ids"])
        if typed:
            notes.append(RAW_CONTROL)
    else:
        ids = _encode_turn(tokenizer, text)
        if typed:
            notes.append(PLAIN_CONTROL)
    if not ids:
        if tokenizer.bos_token_id is None:
            raise ConfigError("The prompt is empty, and this model has no start token to begin from. Type some text.")
        ids = [int(tokenizer.bos_token_id)]
    if raw and not text:
        notes.append(EMPTY)
    return ids, notes


def clean_text(text: str) -> tuple[str, list[str]]:
    """Text that every tokenizer and every UTF-8 file can take, and notes on what was changed (case 124).

    Two halves of a surrogate pair become the character they stand for, a half alone becomes U+FFFD.
    """
    notes = []
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if joined.count("\ufffd") > text.count("\ufffd"):
        notes.append(SURROGATES)
    text = joined
    if "\0" in text:
        text = text.replace("\0", "")
        notes.append(NULS)
    return text, notes


def _encode_turn(tokenizer: Any, text: str) -> list[int]:
    """The user's turn in the model's chat template, up to where the answer begins.

    Typed control tokens are hidden from the template behind private-use characters. So every control token in what it
    writes is its own, and the rest is encoded with control tokens switched off. A text without control tokens comes out
    as `apply_chat_template` has it, for what lies between two control tokens is encoded in one piece.
    """
    typed = list(dict.fromkeys(_control_pattern(tokenizer).findall(text)))
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in text)
    marks = dict(zip(typed, free, strict=False))
    if len(marks) < len(typed):
        raise ConfigError("The prompt uses every private-use character there is. Shorten it.")
    hidden = _replace(text, marks)
    try:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": hidden}], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # templates are programs of the model's authors and raise what they like
        raise ConfigError(
            f"The chat template of this model does not take the prompt: {str(error)[:200]}. Try without it (--raw)."
        ) from error
    back = {mark: control for control, mark in marks.items()}
    ids: list[int] = []
    for piece, control in _split(tokenizer, rendered):
        if piece:
            ids += tokenizer(_replace(piece, back), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if control:
            ids.append(int(tokenizer.convert_tokens_to_ids(control)))
    return ids


def _split(tokenizer: Any, rendered: str) -> list[tuple[str, str]]:
    """(plain text, the control token after it or ""), in order. Tokens that swallow blanks beside them do so here."""
    tokens = {str(token): token for token in tokenizer.added_tokens_decoder.values() if token.special}
    pieces, position, strip = [], 0, False
    for match in _control_pattern(tokenizer).finditer(rendered):
        piece = rendered[position : match.start()]
        token = tokens[match[0]]
        piece = piece.lstrip() if strip else piece
        pieces.append((piece.rstrip() if token.lstrip else piece, match[0]))
        position, strip = match.end(), token.rstrip
    rest = rendered[position:]
    return [*pieces, (rest.lstrip() if strip else rest, "")]


def _control_pattern(tokenizer: Any) -> re.Pattern[str]:
    """Matches the text of any control token, longer ones first."""
    texts = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special} - {""}
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _replace(text: str, table: dict[str, str]) -> str:
    if not table:
        return text
    pattern = "|".join(re.escape(key) for key in sorted(table, key=len, reverse=True))
    return re.sub(pattern, lambda match: table[match[0]], text)
