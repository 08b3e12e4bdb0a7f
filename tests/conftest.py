"""Order and shared fixtures: fast tests first, the real small model after, the browser last."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tiny tensors gain nothing from more, and threads that wait take a core each

settings.register_profile("specviz", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("specviz")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable sort by cost, so that a broken basis shows in seconds."""
    items.sort(key=lambda item: 2 * bool(item.get_closest_marker("browser")) + bool(item.get_closest_marker("real")))


@pytest.fixture(autouse=True, scope="session")
def _one_browser() -> Iterator[None]:
    from browser import close_browser

    yield
    close_browser()


@pytest.fixture(autouse=True, scope="session")
def _drafts_of_the_tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The pair `tiny` of fakes.py finds an n-gram table over its 260 ids beside the drafts that come with specviz."""
    from checks_table import tiny_table

    from specviz.models import stored

    folder = tmp_path_factory.mktemp("drafts")
    for pair in stored.ASSETS.iterdir():
        (folder / pair.name).symlink_to(pair)
    tiny_table().save(folder / "tiny" / "ngram-table" / "table.safetensors")
    (folder / "tiny" / "feature").mkdir()
    (folder / "tiny" / "feature" / "card.md").write_text("fakes.py makes a head for the target at hand")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "ASSETS", folder)
        yield


@pytest.fixture
def table_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], None]:
    """Gives the pair `tiny` a table over another number of ids, for this test."""
    from checks_table import tiny_table

    from specviz.models import stored

    def give(vocab: int) -> None:
        tiny_table(vocab).save(tmp_path / "drafts" / "tiny" / "ngram-table" / "table.safetensors")
        monkeypatch.setattr(stored, "ASSETS", tmp_path / "drafts")

    return give


@pytest.fixture(autouse=True)
def _global_random_state_untouched() -> Iterator[None]:
    """No run may draw from torch's global stream (case 28); tests that seed it restore it by this as well."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def pytest_sessionstart() -> None:
    """What is imported by now lives as long as the session: collecting garbage need not look at it each time."""
    gc.collect()
    gc.freeze()
