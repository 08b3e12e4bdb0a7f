"""Which servers the dashboard is attached to: said by whoever starts it, on the command line or in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from specviz.errors import ConfigError

__all__ = ["ATTACH", "ATTACH_KEY", "Address", "read_addresses"]

ATTACH = "SPECVIZ_ATTACH"
ATTACH_KEY = "SPECVIZ_ATTACH_KEY"
MAX_SERVERS = 16


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. name: host, port and path, as the page shows it. key: of its API, never shown."""

    url: str
    name: str
    key: str = field(default="", repr=False)


def read_addresses(given: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> list[Address]:
    """The servers of `--attach`, else those of SPECVIZ_ATTACH, apart by spaces or commas.

    SPECVIZ_ATTACH_KEY holds one key for all of them, or one for each in the same order, apart by commas.

    Raises:
        ConfigError: no http address, one with a password in it, the same one twice, keys of another number.
    """
    urls = list(given) or _words(environment.get(ATTACH, ""))
    keys = [key.strip() for key in environment.get(ATTACH_KEY, "").split(",")]
    if len(keys) > 1 and len(keys) != len(urls):
        raise ConfigError(f"{ATTACH_KEY} holds {len(keys)} keys for {len(urls)} servers. Give one for all or one each.")
    if len(urls) > MAX_SERVERS:
        raise ConfigError(f"{len(urls)} servers are too many to attach to; at most {MAX_SERVERS}.")
    found = [_address(url, keys[i] if len(keys) > 1 else keys[0]) for i, url in enumerate(urls)]
    names = [address.name for address in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} was given twice. Attach to each server once.")
    return found


def _address(url: str, key: str) -> Address:
    wanted = "Give one like http://HOST:PORT."
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{url[:80]!r} is no address of a server: {error}. {wanted}") from error
    if parts.username or parts.password:
        raise ConfigError(f"An address may not hold a name or password. Put the server's key into {ATTACH_KEY}.")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(f"{url[:80]!r} is no address of a server. {wanted}")
    path = parts.path.rstrip("/").removesuffix("/v1")
    shown = f"[{host}]" if ":" in host else host
    name = f"{shown}:{port}{path}" if port else f"{shown}{path}"
    return Address(f"{parts.scheme}://{name}", name, key)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]
