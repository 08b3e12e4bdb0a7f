"""Files to take away: Gradio copies one for the download at once, so here they live for a minute."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Outbox"]

KEPT_S = 60


class Outbox:
    """A folder private to this user, gone with the process."""

    def __init__(self) -> None:
        self._root = tempfile.TemporaryDirectory(prefix="specviz-")

    @property
    def folder(self) -> Path:
        return Path(self._root.name)

    def write(self, texts: Mapping[str, str]) -> list[str]:
        """Paths of new files of these names and texts, in a folder of their own.

        Raises:
            OSError: the disk is full. Nothing is left then: half a file would be offered as a whole one, and take the
            room that is missing.
        """
        for old in self.folder.iterdir():
            if time.time() - old.stat().st_mtime > KEPT_S:
                shutil.rmtree(old, ignore_errors=True)
        box = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            for name, text in texts.items():
                (box / name).write_text(text, encoding="utf-8", errors="replace")  # half a surrogate pair is no text
        except OSError:
            shutil.rmtree(box, ignore_errors=True)
            raise
        return [str(box / name) for name in texts]
