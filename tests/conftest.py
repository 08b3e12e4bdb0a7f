"""Order and shared fixtures: fast tests first, the real small model after, the browser last."""

from __future__ import annotations

import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tiny tensors gain nothing from more, and threads that wait take a core each

settings.register_profile("specviz", deadline=None, max_examples=100, derandomize=True)
settings.load_profile("specviz")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable sort by cost, so that a broken basis shows in seconds."""
    items.sort(key=lambda item: 2 * bool(item.get_closest_marker("browser")) + bool(item.get_closest_marker("real")))


@pytest.fixture(autouse=True)
def _global_random_state_untouched() -> Iterator[None]:
    """No run may draw from torch's global stream (case 28); tests that seed it restore it by this as well."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
