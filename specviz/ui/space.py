"""Where the page runs: on this machine, or as a Hugging Face Space, which tells so by environment variables."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specviz.models.fetch import cache_dir

__all__ = ["on_space", "on_zero_gpu", "settle_in"]


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


def _can_make(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
