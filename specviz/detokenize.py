"""Token ids into pieces of text that join to exactly the decoded text, one token at a time.

A character may be spread over several tokens, so a token cannot simply be decoded alone; and decoding everything again
at each token costs more the longer the answer gets. Both usual decoders are therefore run here as they are defined, on
bytes, keeping only what is not yet decided:

    byte-level BPE (GPT-2, Qwen, SmolLM2, Llama 3)   every token is bytes; at most 3 wait for the rest of a character
    byte fallback (Llama 2, Mistral, Gemma)          tokens are text, a few one byte; a row of those waits for its end

All others (WordPiece, Metaspace alone, ...) go through `tokenizer.decode` on a window of the last tokens.

Text that was given out never changes. What has to wait belongs to a later token, or at the end of a run to the last:

    pieces = [detokenizer.push(token_id) for token_id in emitted_ids]
    if finish_reason is not None:                       # known before the step is emitted
        pieces[-1] = pieces[-1].plus(detokenizer.finish())
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = [
    "Detokenizer",
    "Piece",
    "StopScanner",
    "split_text",
    "token_bytes",
    "token_names",
    "visible_part",
    "visible_text",
]

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")  # the Rust parser takes a plus sign for a digit
_MAX_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to the text; the fields are those of events.EmittedToken.

    text: "" while the token is only a part of an unfinished character. It may begin with characters, or with U+FFFD for
        bytes that can no longer become one, that tokens before it left open. So a control token's text is its name and
        sometimes more in front; `visible_part` keeps that.
    label: of a control token its name as it stands in the text; of a token without text what to draw instead: its bytes
        in hexadecimal ("F0 9F"), else its name, else "id N". Of all others "".
    special: a control token. Added tokens that are not special (<think>) are ordinary text.
    """

    text: str
    label: str = ""
    special: bool = False

    def plus(self, rest: str) -> Self:
        """This piece with what `Detokenizer.finish` returned at its end."""
        return replace(self, text=self.text + rest, label=self.label if self.special else "") if rest else self


class Detokenizer:
    """The text of one run as it grows. Made once per run; microseconds per token whatever the length.

    The pushed pieces and `finish()` join to `tokenizer.decode(ids, skip_special_tokens=False,
    clean_up_tokenization_spaces=False)`. That holds for every sequence of ids where the decoder is one of the two usual
    kinds; for the others as long as a token changes no text behind the tokens just before it.
    Ids that the tokenizer does not have (a padded output layer, -1) add nothing and raise nothing.
    """

    __slots__ = ("_stream", "_tokens")

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._stream = _stream_for(tokenizer)
        self._tokens = _Tokens(tokenizer, self._stream.read)

    def push(self, token_id: int) -> Piece:
        """Append a token and return what it adds."""
        token = self._tokens[token_id]
        if token is None:
            return Piece("", f"id {token_id}")
        text = self._stream.push(token)
        if token.special:
            return Piece(text, token.text or token.name, special=True)
        return Piece(text, "" if text else token.data.hex(" ").upper() or token.name or f"id {token_id}")

    def peek(self, token_ids: Sequence[int], parents: Sequence[int] | None = None) -> list[Piece]:
        """The pieces of drafted tokens, each as if the walk from here had reached it. Changes nothing.

        Args:
            token_ids: [n] drafted tokens.
            parents: [n] index of the node before each, -1 = here; a parent comes before its children. None: a chain.
        """
        nodes: list[Detokenizer] = []
        pieces: list[Piece] = []
        for index, token_id in enumerate(token_ids):
            parent = index - 1 if parents is None else parents[index]
            node = (self if parent < 0 else nodes[parent]).fork()
            pieces.append(node.push(token_id))
            nodes.append(node)
        return pieces

    def fork(self) -> Detokenizer:
        """A cheap independent copy at the same place."""
        twin = object.__new__(Detokenizer)
        twin._stream = self._stream.copy()
        twin._tokens = self._tokens  # only a memo of the vocabulary, the same for all
        return twin

    def finish(self) -> str:
        """End the text: what still waits, as `decode` writes it (U+FFFD for incomplete bytes). A second call gives "".

        The generator adds it to the run's last piece with `Piece.plus`. Where a run ends without a further step
        (cancelled, out of time), nothing can be added to what was sent, and the tail is left out.
        """
        return self._stream.finish()


def split_text(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> list[Piece]:
    """The pieces of a whole text, for example of a prompt; they join to exactly its decoded text."""
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    if pieces:
        pieces[-1] = pieces[-1].plus(detokenizer.finish())
    return pieces


def token_names(tokenizer: PreTrainedTokenizerFast) -> Callable[[int], str]:
    """What to call single tokens by, apart from any text: their own text, else their label. Remembers its answers."""
    fresh = Detokenizer(tokenizer)

    @cache
    def name(token_id: int) -> str:
        piece = fresh.fork().push(token_id)
        return piece.text or piece.label

    return name


class _PieceLike(Protocol):
    """A Piece or an events.EmittedToken."""

    @property
    def text(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def special(self) -> bool: ...


def visible_part(piece: _PieceLike) -> str:
    """A piece's text without the control token: all of an ordinary piece, of a control token what stands in front."""
    if not piece.special:
        return piece.text
    return piece.text[: -len(piece.label)] if piece.label and piece.text.endswith(piece.label) else ""


def visible_text(pieces: Iterable[_PieceLike]) -> str:
    """The pieces joined without control tokens."""
    return "".join(map(visible_part, pieces))


class StopScanner:
    """Looks for stop texts in visible text that comes in pieces, and keeps only as much as a stop text is long.

    Of several stop texts the one that is complete first counts, of two that are complete together the longer. So the
    answer does not depend on where the text was cut into pieces, and a step of many tokens stops where single ones do.
    """

    __slots__ = ("_keep", "_num_seen", "_stops", "_tail", "found")

    found: int | None
    """Where the answer must end, in characters from the start of the visible text; None while no stop text came."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._keep = max(map(len, self._stops), default=1) - 1
        self._tail = ""
        self._num_seen = 0
        self.found = None

    def feed(self, text: str) -> int | None:
        """Append visible text; where the first stop text begins, or None. Once found it stays."""
        if self.found is not None or not text or not self._stops:
            return self.found
        start = self._num_seen - len(self._tail)
        window = self._tail + text
        hits = [(at + len(stop), at) for stop in self._stops if (at := window.find(stop)) >= 0]
        if hits:
            self.found = start + min(hits)[1]
        self._num_seen += len(text)
        self._tail = window[-self._keep :] if self._keep else ""
        return self.found


@dataclass(frozen=True, slots=True)
class _Token:
    """A vocabulary entry as a stream reads it: `data` if it stands for bytes, `text` if it stands for itself."""

    id: int
    name: str
    special: bool
    data: bytes
    text: str


class _Tokens(dict[int, _Token | None]):
    """id -> token, filled as ids appear: a run meets a few hundred of 150 000. None: the tokenizer has no such id."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, read: Callable[[str], tuple[bytes, str]]) -> None:
        super().__init__()
        backend = tokenizer.backend_tokenizer
        self._name: Callable[[int], str | None] = backend.id_to_token
        self._read = read
        # Not all_special_ids: that holds the named ones only (eos, pad, ...), and `decode` hides all with this flag.
        self._special = {key for key, added in backend.get_added_tokens_decoder().items() if added.special}

    def __missing__(self, token_id: int) -> _Token | None:
        name = self._name(token_id) if 0 <= token_id <= _MAX_ID else None
        token = None if name is None else _Token(token_id, name, token_id in self._special, *self._read(name))
        self[token_id] = token
        return token


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> dict[int, tuple[bool, bytes]]:
    """Of every id: whether it is a control token, and the bytes that it stands for; a control token's are its name."""
    tokens = _Tokens(tokenizer, _stream_for(tokenizer).read)
    found = ((token_id, tokens[token_id]) for token_id in tokenizer.get_vocab().values())
    return {
        token_id: (token.special, token.name.encode() if token.special else token.data or token.text.encode())
        for token_id, token in found
        if token is not None
    }


class _Stream(Protocol):
    """A decoder that is fed one token at a time."""

    def read(self, name: str) -> tuple[bytes, str]:
        """The bytes and the text that a vocabulary entry stands for."""

    def push(self, token: _Token) -> str: ...
    def finish(self) -> str: ...
    def copy(self) -> _Stream: ...


def _stream_for(tokenizer: PreTrainedTokenizerFast) -> _Stream:
    decoder: Any = tokenizer.backend_tokenizer.decoder
    # The pickled state is the decoder's own JSON. The tokenizer's whole JSON has it too, but takes 0.1 s to write.
    spec: dict[str, Any] = json.loads(decoder.__getstate__()) if decoder is not None else {"type": "none"}
    chain: list[dict[str, Any]] = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    if [stage["type"] for stage in chain] == ["ByteLevel"]:
        return _ByteLevel()
    return _ByteFallback.from_chain(chain) or _Window.of(tokenizer)


def _byte_level_alphabet() -> dict[str, int]:
    """Character -> byte in byte-level vocabularies: printable bytes stand for themselves, the rest from U+0100 on.

    Source: `bytes_to_unicode` in openai/gpt-2, src/encoder.py.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_level_alphabet()


class _ByteLevel:
    """Every token is bytes; the text is their UTF-8 reading, U+FFFD for each maximal run that cannot be one."""

    __slots__ = ("_pending",)

    def __init__(self, pending: bytes = b"") -> None:
        self._pending = pending  # [0..3] a character's first bytes

    def read(self, name: str) -> tuple[bytes, str]:
        try:
            data = bytes([_ALPHABET[char] for char in name])
        except KeyError:  # an added token in plain writing: one character outside the alphabet, and all count as text
            data = name.encode()
        return data, data.decode(errors="replace")

    def push(self, token: _Token) -> str:
        data = self._pending + token.data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def finish(self) -> str:
        text, self._pending = self._pending.decode(errors="replace"), b""
        return text

    def copy(self) -> _ByteLevel:
        return _ByteLevel(self._pending)


class _ByteFallback:
    """Tokens are text with a sign for the space; characters outside the vocabulary are rows of <0xE2>-like tokens.

    The decoder reads such a row as one: if any of it is not UTF-8, every byte becomes a U+FFFD, the good characters
    too. So a row has to wait until another token ends it: a character shown earlier might have to be taken back.
    """

    __slots__ = ("_replace", "_row", "_strip", "_strip_char")

    def __init__(self, replaced: tuple[tuple[str, str], ...], strip: int, strip_char: str, row: bytes = b"") -> None:
        self._replace = replaced
        self._strip = strip  # how many characters may still be taken off the start of the whole text
        self._strip_char = strip_char
        self._row = row

    @classmethod
    def from_chain(cls, chain: list[dict[str, Any]]) -> _ByteFallback | None:
        """The stream for Replace..., ByteFallback, Fuse and perhaps Strip at the start; None for any other chain."""
        replaced: list[tuple[str, str]] = []
        while chain and chain[0]["type"] == "Replace" and chain[0]["pattern"].get("String"):
            replaced.append((chain[0]["pattern"]["String"], chain[0]["content"]))
            chain = chain[1:]
        if len(chain) == 2:
            chain = [*chain, {"type": "Strip", "content": " ", "start": 0, "stop": 0}]
        if [stage["type"] for stage in chain] != ["ByteFallback", "Fuse", "Strip"] or chain[2]["stop"]:
            return None
        return cls(tuple(replaced), chain[2]["start"], chain[2]["content"])

    def read(self, name: str) -> tuple[bytes, str]:
        for old, new in self._replace:
            name = name.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(name)
        return (bytes([int(match[1], 16)]), "") if match else (b"", name)

    def push(self, token: _Token) -> str:
        if token.data:
            self._row += token.data
            return ""
        return self._stripped(self._row_text() + token.text) if self._row or self._strip else token.text

    def finish(self) -> str:
        return self._stripped(self._row_text())

    def copy(self) -> _ByteFallback:
        return _ByteFallback(self._replace, self._strip, self._strip_char, self._row)

    def _row_text(self) -> str:
        row, self._row = self._row, b""
        try:
            return row.decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(row)

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != self._strip_char:
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class _Window:
    """Any other decoder: decode the last tokens with and without the new one, and give out the difference.

    Held back: byte tokens, a U+FFFD at the end (it may be half a character; the next token settles it) and text that
    the decoder wants to change after it was given out. After `_MAX_HELD` tokens it goes out as it is, to block nothing.
    """

    __slots__ = ("_decode", "_given", "_ids", "_num_settled")

    _CONTEXT = 8  # tokens kept before the ones not yet settled
    _MAX_HELD = 16

    def __init__(self, decode: Callable[[list[int]], str], ids: list[int], num_settled: int, given: str) -> None:
        self._decode = decode
        self._ids = ids
        self._num_settled = num_settled  # of ids: those whose text is all given out
        self._given = given  # of the window's text: what is given out

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> _Window:
        def decode(ids: list[int]) -> str:
            text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            return text if isinstance(text, str) else "".join(text)

        return cls(decode, [], 0, "")

    def read(self, name: str) -> tuple[bytes, str]:
        match = _BYTE_TOKEN.fullmatch(name)
        return (bytes([int(match[1], 16)]) if match else b""), name

    def push(self, token: _Token) -> str:
        self._ids.append(token.id)
        text = self._decode(self._ids)
        if len(self._ids) - self._num_settled > self._MAX_HELD:
            sure = len(text)
        elif token.data or not text.startswith(self._given):
            return ""
        else:
            sure = len(text.rstrip(_REPLACEMENT))
        piece = text[len(self._given) : sure]
        self._given = text[: max(sure, len(self._given))]
        if len(self._given) == len(text):
            self._settle()
        return piece

    def finish(self) -> str:
        text = self._decode(self._ids) if self._ids else ""
        piece, self._given = text[len(self._given) :], text
        return piece

    def copy(self) -> _Window:
        return _Window(self._decode, self._ids.copy(), self._num_settled, self._given)

    def _settle(self) -> None:
        if len(self._ids) >= 2 * self._CONTEXT:
            del self._ids[: -self._CONTEXT]
            self._given = self._decode(self._ids)
        self._num_settled = len(self._ids)
