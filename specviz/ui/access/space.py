"""Where the page runs, by the environment: on this machine, behind an office's proxy, or as a Hugging Face Space."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specviz.models.fetch import cache_dir

__all__ = ["on_space", "on_zero_gpu", "reach_loopback_directly", "settle_in"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def on_space() -> bool:
    """Whether this is a Hugging Face Space."""
    return bool(os.environ.get("SPACE_ID"))


def on_zero_gpu() -> bool:
    """Whether this is a Space that borrows a GPU for each run, by the rule of the package `spaces`."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def settle_in() -> None:
    """On a Space whose home cannot be written, downloads go to the temporary folder: nobody is there to set another.

    Elsewhere the folder is the user's choice, and a download that fails says how to choose.
    """
    if on_space() and not os.environ.get("SPECVIZ_CACHE") and not _can_make(cache_dir()):
        os.environ["SPECVIZ_CACHE"] = str(Path(tempfile.gettempdir()) / "specviz")


def reach_loopback_directly() -> None:
    """Leave this machine out of the proxy that an office sets for everything.

    Gradio asks its own server whether it is up, and would ask the proxy instead.
    """
    kept = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host for host in (part.strip() for part in kept.split(",")) if host]
    if "*" not in hosts:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*hosts, *LOOPBACK]))


def _can_make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
