"""The text of a message, shared out among its tokens so that the pieces join to exactly that text."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.events import EmittedToken, Origin
from specviz.remote.chunks import UNTOLD_ID, StreamChunk, StreamToken

__all__ = ["emitted_tokens"]


def emitted_tokens(chunk: StreamChunk, origins: Sequence[Origin]) -> tuple[EmittedToken, ...]:
    """The tokens of a message as events: [n] origins for its [n] tokens, at least one.

    A server sends one text for several tokens; their names in `logprobs` say where to cut it. Where those do not fit
    (a character spread over tokens, a stop text held back) the rest of the text goes to the last token.
    A last token with a name that is not in the text is a control token, as the end of an answer is.
    """
    rest = chunk.text
    pieces: list[str] = []
    for token in chunk.tokens[:-1]:
        pieces.append(token.name if rest.startswith(token.name) else "")
        rest = rest[len(pieces[-1]) :]
    pieces.append(rest)
    last = len(chunk.tokens) - 1
    control = bool(chunk.finish and not chunk.stop and not rest and chunk.tokens[-1].name)
    return tuple(
        _emitted(token, piece, origin, special=control and place == last)
        for place, (token, piece, origin) in enumerate(zip(chunk.tokens, pieces, origins, strict=True))
    )


def _emitted(token: StreamToken, piece: str, origin: Origin, *, special: bool) -> EmittedToken:
    if special:
        return EmittedToken(token.token_id, token.name, origin, token.name, special=True, target_prob=token.prob)
    label = "" if piece else "no id" if token.token_id == UNTOLD_ID else f"id {token.token_id}"
    return EmittedToken(token.token_id, piece, origin, label, target_prob=token.prob)
