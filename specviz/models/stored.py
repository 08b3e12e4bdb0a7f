"""Where drafts made for one pair lie: the user's own in the cache folder, those that come with specviz in assets.

<cache>/<pair>/drafts/<method>/      first
assets/drafts/<pair>/<method>/       then
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specviz import assets
from specviz.errors import ModelLoadError
from specviz.models.fetch import cache_dir

__all__ = ["ASSETS", "draft_folder", "own_folder", "read_tensors"]

ASSETS = assets.ASSETS / "drafts"


def own_folder(pair: str, method: str) -> Path:
    """Where a draft that is trained here is put, and looked for first."""
    return cache_dir() / pair / "drafts" / method


def draft_folder(pair: str, method: str) -> Path | None:
    """The folder of a pair's draft for this method, None where there is none.

    Names of pairs are the catalog's, or made safe by `custom_pair`; a visitor cannot name a folder.
    """
    places = (own_folder(pair, method), ASSETS / pair / method)
    return next((folder for folder in places if folder.is_dir() and any(folder.iterdir())), None)


def read_tensors(folder: Path, names: Any, manifest: str, what: str) -> dict[str, Tensor]:
    """All tensors of the files that a draft's manifest lists.

    Args:
        names: as read from the manifest; anything but names of safetensors files in this folder is refused.
        manifest: the manifest's own name. what: the draft, for messages, such as "the trained draft".
    Raises:
        ModelLoadError: no list of files, or one that is missing or damaged.
    """
    if not isinstance(names, list) or not all(
        isinstance(name, str) and re.fullmatch(r"[\w-]+\.safetensors", name) for name in names
    ):
        raise ModelLoadError(f"{manifest} of {what} does not list its files.")
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{name} of {what} is missing or damaged.") from error
    return tensors
