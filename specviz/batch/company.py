"""Asked of a machine: does a sequence compute the same bits in a shared pass as alone?"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specviz.batch.paged_cache import PagedCache, PageStore
from specviz.batch.shared_pass import run_shared
from specviz.models.decoder import LeanDecoder
from specviz.models.session import KEY_BLOCK, PassRequest, Session

__all__ = ["CompanyReport", "check_company", "company_report"]

_reports: weakref.WeakKeyDictionary[Any, dict[tuple[int, int], CompanyReport]] = weakref.WeakKeyDictionary()

CONTEXTS = (46, 62, 63, 64, 65, 100, 130, 30)
"""Tokens before each sequence's first check: on both sides of a page's end."""

ROUNDS = ((1,) * 8, (1, 2, 3, 4, 5, 6, 7, 8), (8,) * 8, (1, 0, 0, 3, 0, 0, 0, 0), (1, 0, 0, 0, 0, 0, 0, 0))
"""Rows that each sequence brings, pass by pass; 0 sits the pass out."""


@dataclass(frozen=True, slots=True)
class CompanyReport:
    """num_equal of num_positions logits rows were the same bits as in passes of their own. max_rows: of a pass."""

    num_positions: int
    num_equal: int
    max_rows: int
    seconds: float

    @property
    def passed(self) -> bool:
        return self.num_equal == self.num_positions > 0

    @property
    def sentence(self) -> str:
        return (
            f"Self-test of shared passes: {self.num_equal} of {self.num_positions} positions equal to the bit in "
            f"company and alone, in passes of up to {self.max_rows} rows."
        )


def company_report(model: Any, min_rows: int, width: int, vocab_size: int) -> CompanyReport:
    """What `check_company` finds, asked once for a model and then kept with it."""
    reports = _reports.setdefault(model, {})
    if (min_rows, width) not in reports:
        reports[min_rows, width] = check_company(model, min_rows, width, vocab_size)
    return reports[min_rows, width]


def check_company(model: Any, min_rows: int, width: int, vocab_size: int) -> CompanyReport:
    """Run the same sequences in shared passes and alone, and compare every logit.

    What a pass leaves in the cache is read by the next, so keys and values that differ show as well. The prompts come
    in pieces here and in one piece there.
    """
    began = time.perf_counter()
    rng = torch.Generator().manual_seed(2)
    contexts = [torch.randint(vocab_size, (count + 32,), generator=rng).tolist() for count in CONTEXTS]
    decoder = LeanDecoder.of(model)
    store = PageStore(decoder, sum(-(-len(ids) // KEY_BLOCK) + 1 for ids in contexts))
    together = [Session(model, capacity=len(ids), min_rows=min_rows) for ids in contexts]
    alone = [Session(model, capacity=len(ids), min_rows=min_rows) for ids in contexts]
    equal = total = most = 0
    try:
        for session in together:
            session.use(PagedCache(store, store.pool.open()))
        for count, ids, session in zip(CONTEXTS, contexts, alone, strict=True):
            session.extend(ids[:count])
        while pieces := [
            session.read(ids[session.length : count], max_rows=KEY_BLOCK)
            for count, ids, session in zip(CONTEXTS, contexts, together, strict=True)
            if session.length < count
        ]:
            most = max(most, _run(decoder, pieces)[1])
        for wanted in ROUNDS:
            rows = [min(count, width) for count in wanted]
            both = [
                [_check(sessions[i], contexts[i], count) for i, count in enumerate(rows) if count]
                for sessions in (together, alone)
            ]
            logits, num_rows = _run(decoder, both[0])
            most = max(most, num_rows)
            for mine, request in zip(logits, both[1], strict=True):
                right = request.run()
                total += len(right)
                equal += int((mine == right).all(-1).sum())
            for requests in both:
                for request in requests:
                    request.session.keep_path(tuple(range(len(request.ids) - 1)))
    finally:
        for session in (*together, *alone):
            session.close()
    return CompanyReport(total, equal, most, time.perf_counter() - began)


def _check(session: Session, ids: Sequence[int], count: int) -> PassRequest:
    tokens = ids[session.length : session.length + count]
    return session.check(tokens[0], torch.tensor(tokens[1:], dtype=torch.int64), tuple(range(-1, count - 2)))


def _run(decoder: LeanDecoder, requests: Sequence[PassRequest]) -> tuple[list[torch.Tensor], int]:
    """Make a shared pass. Returns its answers and its rows."""
    for request in requests:
        request.session.cache.open(request.rows, request.key_len)
    return run_shared(decoder, requests), sum(len(request.ids) for request in requests)
