"""What the web server lets in, before Gradio reads it: no large bodies, no full disk, no fetching, no routes without a
use. Gradio itself has no such limits, and a request reaches its parts whether the page has them or not.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import gradio.processing_utils
from gradio.utils import get_upload_folder
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specviz.trace import MAX_UPLOAD_BYTES

__all__ = ["CLOSED", "MAX_BODY", "MAX_STORED", "Gate", "gate", "refuse_downloads", "use_private_folder"]

MAX_BODY = MAX_UPLOAD_BYTES + 64_000
"""Bytes of one request: an uploaded trace and what a form puts around it."""

MAX_STORED = 256_000_000
"""Bytes of uploads and saved traces that may lie on the disk together; Gradio deletes old ones by and by."""

CLOSED = ("component_server", "deep_link", "process_recording", "proxy=", "run-history", "runs", "stream/", "vibe-")
"""Gradio's routes that specviz has no use for. Some write files for whoever asks, or read another visitor's fields."""

_METHODS_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class Gate:
    """ASGI middleware. Refuses in a plain sentence: 404, 411, 413, or 507 where the disk share is used up."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            status, sentence = refusal
            # The body is not read: closing is what tells the sender to stop.
            await PlainTextResponse(sentence, status, {"connection": "close"})(scope, receive, send)


def gate() -> dict[str, Any]:
    """For `Blocks.launch(app_kwargs=...)`."""
    return {"middleware": [Middleware(Gate)]}


def refuse_downloads() -> None:
    """Keep Gradio from fetching an address that a visitor wrote where a file could stand.

    It does so for any input, text fields too (gradio.processing_utils, 6.31): private addresses are left out, but the
    rest of the internet, at any size, is not.
    """
    for name in ("async_ssrf_protected_download", "async_ssrf_protected_get"):
        assert hasattr(gradio.processing_utils, name), f"Gradio fetches by another function than {name} now"
        setattr(gradio.processing_utils, name, _fetch_nothing)


def use_private_folder() -> None:
    """Let Gradio keep uploads and saved traces where other users of this machine cannot read them.

    Its own choice is one folder for everybody. GRADIO_TEMP_DIR is left alone where it is set.
    """
    if not os.environ.get("GRADIO_TEMP_DIR"):
        global _folder
        _folder = tempfile.TemporaryDirectory(prefix="specviz-")
        os.environ["GRADIO_TEMP_DIR"] = str(Path(_folder.name).resolve())


_folder: tempfile.TemporaryDirectory[str] | None = None  # gone with the process


def _refusal(scope: Scope) -> tuple[int, str] | None:
    path = str(scope["path"])
    if path.rpartition("/gradio_api/")[2].startswith(CLOSED) and "/gradio_api/" in path:
        return 404, "There is nothing here."
    if scope["method"] not in _METHODS_WITH_BODY:
        return None
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    if b"transfer-encoding" in headers or (length and not length.isdigit()):
        return 411, "Send the request with its length."
    size = int(length or 0)
    if size > MAX_BODY:
        return 413, f"The request has {size / 1e6:.0f} MB; at most {MAX_BODY / 1e6:.0f} MB are taken."
    if path.endswith("/upload") and _stored() + size > MAX_STORED:
        return 507, "There is no room for uploads now. Try again in an hour."
    return None


def _stored() -> int:
    """Bytes of the files that Gradio keeps."""
    total = 0
    for folder, _, names in os.walk(get_upload_folder()):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:  # deleted meanwhile
                continue
    return total


async def _fetch_nothing(url: str, cache_dir: str = "") -> Any:
    raise ValueError("Files are not fetched from addresses.")
