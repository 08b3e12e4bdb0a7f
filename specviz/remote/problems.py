"""What went wrong with a serving engine, in words: what was wrong, what was got, what to do next."""

from __future__ import annotations

import json

import httpx
import httpx_sse

from specviz.errors import RemoteError
from specviz.remote.address import ATTACH_KEY, Address
from specviz.remote.chunks import whole_text

__all__ = ["broken_off", "problem_of", "refusal"]


def problem_of(error: Exception, address: Address) -> RemoteError:
    """The sentence for a request that failed on its way."""
    name = address.name
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, httpx.ConnectTimeout):
        return RemoteError(f"{name} cannot be reached: no answer to the connection. Check the address and the network.")
    if isinstance(error, httpx.ConnectError):
        return RemoteError(f"{name} does not answer: nothing listens there. Start it, or wait until it has started.")
    if isinstance(error, httpx.TimeoutException):
        return RemoteError(f"{name} took the request and does not answer. It may be overloaded or hung: see its log.")
    if isinstance(error, httpx_sse.SSEError):
        return RemoteError(f"{name} answered, but not with a stream of tokens. Is it an OpenAI-compatible server?")
    if isinstance(error, httpx.HTTPError):
        return RemoteError(f"{name} broke the connection off. It may be restarting; try again in a minute.")
    return RemoteError(f"{name} sent something that is not the protocol: {str(error)[:120]}.")


def broken_off(address: Address, num_tokens: int, why: str) -> str:
    """The sentence for a stream that ended before the answer did."""
    if not num_tokens:
        return f"{address.name} {why}, before the first token. Try again, or look at its log."
    return f"{address.name} {why} after {num_tokens} token{'' if num_tokens == 1 else 's'}. Everything so far is kept."


def refusal(status: int, body: str, address: Address) -> RemoteError:
    """The sentence for an answer with an error status. The server's own words are kept, without the key."""
    name, said = address.name, _said(body)
    if address.key:
        said = said.replace(address.key, "…")
    if status in (401, 403):
        what = "refused the key" if address.key else "wants a key"
        return RemoteError(f"{name} {what}. Put the server's own into {ATTACH_KEY} and start specviz again.")
    if status == 404:
        said = said or "Is it an OpenAI-compatible server?"
        return RemoteError(f"{name} does not know what it was asked for (404). {said}")
    if status == 429:
        return RemoteError(f"{name} has too many requests (429). Try again later.")
    if status >= 500:
        said = said or "It may be starting, or have failed: see its log."
        return RemoteError(f"{name} cannot answer now ({status}). {said}")
    return RemoteError(f"{name} refused the request ({status}). {said}".strip())


def _said(body: str) -> str:
    """The message in an error's JSON; nothing of a page of HTML."""
    try:
        data = json.loads(body)
        data = data.get("error", data)
        text = data if isinstance(data, str) else data.get("message") or data.get("detail")
    except (ValueError, AttributeError):
        return ""
    return whole_text(text).strip()[:300]
