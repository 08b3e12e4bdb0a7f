"""Where drafts made for one pair lie: the user's own in the cache folder, those that come with specviz in assets.

<cache>/<pair>/drafts/<method>/      first
assets/drafts/<pair>/<method>/       then
"""

from __future__ import annotations

from pathlib import Path

from specviz.models.fetch import cache_dir

__all__ = ["ASSETS", "draft_folder", "own_folder"]

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "drafts"


def own_folder(pair: str, method: str) -> Path:
    """Where a draft that is trained here is put, and looked for first."""
    return cache_dir() / pair / "drafts" / method


def draft_folder(pair: str, method: str) -> Path | None:
    """The folder of a pair's draft for this method, None where there is none.

    Names of pairs are the catalog's, or made safe by `custom_pair`; a visitor cannot name a folder.
    """
    places = (own_folder(pair, method), ASSETS / pair / method)
    return next((folder for folder in places if folder.is_dir() and any(folder.iterdir())), None)
