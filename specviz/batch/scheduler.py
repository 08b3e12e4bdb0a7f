"""Who gets into the next pass: runs join and leave a batch between any two passes.

Each run goes through its own loop (`specviz.run`) until it asks for a pass. The batch gathers what all of them ask for,
makes one pass, and lets each go on with its own rows. Prompts are read in pieces beside the others' checks. Where the
pool of pages runs full, the youngest run gives its pages back, and computes them again when there is room.

Sources: Yu et al. (2022), Orca, OSDI, section 3 (iteration-level scheduling, selective batching); Agrawal et al.
(2024), Sarathi-Serve, arXiv 2403.02310, section 4 (prompts in pieces); Kwon et al. (2023), arXiv 2309.06180, section
4.5 (preemption by recomputation).
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from specviz.batch.company import company_report
from specviz.batch.load import Load, LoadLength
from specviz.batch.paged_cache import PagedCache, PageStore
from specviz.batch.pages import PoolFullError
from specviz.batch.record import (
    BatchEvent,
    BatchFinished,
    BatchStarted,
    PassDone,
    PassRows,
    SequenceArrived,
    SequencePages,
)
from specviz.batch.shared_pass import run_shared
from specviz.batch.ticket import Ticket
from specviz.config import RunConfig
from specviz.drafters.base import Need
from specviz.errors import ConfigError
from specviz.events import Event, StepDone
from specviz.generator import SpeculativeGenerator
from specviz.models.decoder import LeanDecoder, decoder_for
from specviz.models.session import KEY_BLOCK, PassRequest

__all__ = ["Batch", "run_together"]

_log = logging.getLogger(__name__)

PIECE = KEY_BLOCK
"""Prompt tokens of one sequence in a pass."""

MAX_ROWS = 128
"""Rows of a pass beyond which prompts wait; one piece always gets in."""

POOL_BYTES = 1 << 30
"""Of the pool where nothing else is said. Only pages that have been written take memory."""

COST_ROWS = (1, 8, 16, 32, 64)


class Batch:
    """Runs that share the target's passes. Not for two threads at a time.

    tickets: all that came, by number. record: is told what happens, see `specviz.batch.record`.
    """

    def __init__(
        self,
        generator: SpeculativeGenerator,
        *,
        max_running: int = 8,
        num_pages: int = 0,
        max_rows: int = MAX_ROWS,
        by_load: bool = True,
        record: Callable[[BatchEvent], None] | None = None,
    ) -> None:
        """
        Args:
            max_running: sequences that share passes at most. num_pages: of the pool; 0 takes what POOL_BYTES hold.
            max_rows: of a pass, see MAX_ROWS.
            by_load: greedy runs draft less where a fuller pass makes it pay; their text does not depend on it.
        """
        self.generator, self.max_running, self.max_rows = generator, max_running, max_rows
        self.tickets: list[Ticket] = []
        self.waiting: list[Ticket] = []
        self.running: list[Ticket] = []
        self.preempted: list[Ticket] = []
        loaded = generator.loaded
        decoder = decoder_for(loaded.target)
        self._decoder = decoder if isinstance(decoder, LeanDecoder) else None
        self._store: PageStore | None = None
        if self._decoder is not None:
            self._store = PageStore(self._decoder, num_pages or _default_pages(self._decoder))
        self._load: Load | None = None
        if by_load and max_running > 1 and self._decoder is not None:
            self._load = Load(COST_ROWS, generator.pass_costs(COST_ROWS))
        self.record = record
        self._began = time.perf_counter()
        self._num_passes = self._num_rows = self._most_used = 0
        self._seconds = self._target_s = 0.0
        self._tables: dict[int, tuple[int, ...]] = {}
        self._tell(
            lambda: BatchStarted(
                target=loaded.target_info.name,
                dtype=loaded.target_info.dtype,
                device=str(loaded.device),
                page_tokens=KEY_BLOCK,
                num_pages=self._store.pool.num_pages if self._store else 0,
                page_bytes=self._store.page_bytes if self._store else 0,
                max_running=max_running,
                max_rows=max_rows,
                started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
        )

    def add(self, prompt: str | Sequence[int], config: RunConfig) -> Ticket:
        """Put a run in line.

        Raises:
            ConfigError and others: as `SpeculativeGenerator.prepare`; or the run is longer than all pages together.
                The other runs go on.
        """
        run = self.generator.prepare(prompt, config)
        session, started = run.session, run.started
        alone = self._why_alone(run.drafter.needs, started.width, session.min_rows, session.can_share)
        if self._store is not None and session.can_share:
            pool = self._store.pool
            most = -(-(len(run.context) + run.limit + config.gamma + 1 + session.min_rows) // KEY_BLOCK)
            if most > pool.num_pages:
                raise ConfigError(
                    f"This run may need {most} pages of {KEY_BLOCK} tokens, and the batch has {pool.num_pages}. "
                    "Shorten the prompt or ask for fewer tokens."
                )
            if self._load is not None and config.sampling.is_greedy:
                run.length = length = LoadLength(run.length, self._load)
                run.most_nodes = length.most_nodes
        run.piece = PIECE
        ticket = Ticket(len(self.tickets), run, alone, time.perf_counter())
        self.tickets.append(ticket)
        self.waiting.append(ticket)
        self._tell(
            lambda: SequenceArrived(
                sequence=ticket.number,
                run_id=started.run_id,
                method=started.method,
                prompt=started.prompt[:200],
                prompt_len=len(started.prompt_ids),
                gamma=started.gamma,
                max_new_tokens=config.max_new_tokens,
                exactness=started.exactness,
                at_s=self._now(),
                alone=alone,
            )
        )
        return ticket

    def step(self) -> bool:
        """Make one pass. Returns whether there is anything left to do."""
        began, at_s = time.perf_counter(), self._now()
        for ticket in [t for t in (*self.running, *self.preempted, *self.waiting) if t.is_cancelled]:
            ticket.close()
            self._leave(ticket)
        self._admit()
        chosen = self._choose()
        if not chosen:
            return bool(self.running or self.waiting or self.preempted)
        copied = tuple(goal for t, _ in chosen if t.cache is not None for _, goal in t.cache.copied)
        places = [ticket.run.session.length for ticket, _ in chosen]
        answers, target_s, num_rows = self._make(chosen)
        if self._load is not None:
            self._load.num_running = max(1, len(self.running))
        rows: list[PassRows] = []
        # Those alone come last: drafting inside the target's cache may take pages, and nobody's are in use by then.
        for i in sorted(range(len(chosen)), key=lambda i: bool(chosen[i][0].alone)):
            ticket, request = chosen[i]
            step = self._go_on(ticket, request, answers[i], len(chosen))
            rows.append(ticket.rows(request, places[i], step, bool(ticket.alone)))
        self._num_passes += 1
        self._num_rows += num_rows
        seconds = time.perf_counter() - began
        self._seconds += seconds
        self._target_s += target_s
        self._tell(lambda: self._pass_done(at_s, seconds, target_s, num_rows, rows, copied))
        for ticket in [t for t in self.running if t.is_over]:
            self._leave(ticket)
        return bool(self.running or self.waiting or self.preempted)

    def play(self) -> None:
        """Make passes until every run is over."""
        while self.step():
            pass
        self.close()

    def close(self) -> None:
        """End what still runs, free all memory, and record the end."""
        for ticket in (*self.running, *self.preempted, *self.waiting):
            ticket.close()
            self._leave(ticket)
        self._tell(
            lambda: BatchFinished(
                num_sequences=len(self.tickets),
                num_passes=self._num_passes,
                num_tokens=sum(ticket.num_tokens for ticket in self.tickets),
                num_rows=self._num_rows,
                seconds=self._seconds,
                target_s=self._target_s,
                most_used_pages=self._most_used,
            )
        )
        self._store = None

    @property
    def num_used_pages(self) -> int:
        return self._store.pool.num_used if self._store else 0

    # --- one pass ---------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Let in who has been waiting, those who were put back first."""
        for line in (self.preempted, self.waiting):
            while line and len(self.running) < self.max_running:
                ticket = line[0]
                if self._store is not None and ticket.run.session.can_share:
                    pool, session = self._store.pool, ticket.run.session
                    if ticket.pages_for() > pool.num_free and self.running:
                        return
                    # The states of a prompt are in no page: who needs them has to read it all.
                    if ticket.cache is not None:
                        ticket.cache.table = pool.open(session.token_ids[: session.num_read])
                    else:
                        known = [] if session.keeps_states else ticket.run.context[:-2]
                        table = pool.open(known)
                        ticket.num_shared = table.length
                        session.use(PagedCache(self._store, table), known[: table.length])
                line.pop(0)
                ticket.state = "running"
                self.running.append(ticket)
                self.running.sort(key=lambda t: t.number)
                if ticket.request is None:
                    ticket.go_on()
        for ticket in [t for t in self.running if t.is_over]:
            self._leave(ticket)

    def _choose(self) -> list[tuple[Ticket, PassRequest]]:
        """The passes to be made now, their pages reserved: all checks, and prompts as far as there is room."""
        budget = self.max_rows - sum(len(t.request.ids) for t in self.running if t.request and not _reads(t))
        chosen: list[tuple[Ticket, PassRequest]] = []
        has_piece = False
        for ticket in list(self.running):  # the oldest first: they never have to make room for younger ones
            if ticket not in self.running:
                continue
            request = ticket.wish(PIECE)
            if _reads(ticket):
                if has_piece and len(request.ids) > budget:
                    continue
                has_piece = True
                budget -= len(request.ids)
            if ticket.cache is None or self._reserve(ticket, request):
                chosen.append((ticket, request))
        return chosen

    def _reserve(self, ticket: Ticket, request: PassRequest) -> bool:
        """Open the pass's pages, if need be at the cost of younger runs; False where the run itself stepped back."""
        cache = ticket.cache
        assert cache is not None
        while True:
            try:
                cache.open(request.rows, request.key_len)
                return True
            except PoolFullError:
                victim = [t for t in self.running if t.cache is not None][-1]
                self._preempt(victim)
                if victim is not ticket:
                    continue
                if not self.num_used_pages:  # it does not fit even alone
                    ticket.go_on(ConfigError("A step of this run needs more pages than the batch has. Draft less."))
                    self._leave(ticket)
                return False

    def _preempt(self, ticket: Ticket) -> None:
        ticket.run.session.set_aside()
        ticket.state = "preempted"
        ticket.num_preempted += 1
        self.running.remove(ticket)
        self.preempted.append(ticket)
        self.preempted.sort(key=lambda t: t.number)

    def _make(self, chosen: Sequence[tuple[Ticket, PassRequest]]) -> tuple[list[Tensor | Exception], float, int]:
        """Make the passes. Returns the answers, the target's seconds, and the rows."""
        began = time.perf_counter()
        answers: list[Tensor | Exception | None] = [None] * len(chosen)
        shared = [i for i, (ticket, _) in enumerate(chosen) if not ticket.alone]
        num_rows = sum(len(request.ids) if i in shared else request.rows for i, (_, request) in enumerate(chosen))
        if shared and self._decoder is not None:
            try:
                found = run_shared(self._decoder, [chosen[i][1] for i in shared])
                for i, answer in zip(shared, found, strict=True):
                    answers[i] = answer
            except Exception:  # somebody's rows do not work: each on its own, so that only that run ends
                _log.exception("a shared pass failed; its sequences go on one by one")
        for i, (_, request) in enumerate(chosen):
            if answers[i] is None:
                try:
                    answers[i] = request.run()
                except Exception as error:
                    answers[i] = error
        return [answer for answer in answers if answer is not None], time.perf_counter() - began, num_rows

    def _go_on(self, ticket: Ticket, request: PassRequest, answer: Tensor | Exception, company: int) -> StepDone | None:
        """Hand a run its rows."""
        ticket.num_passes += 1
        ticket.sum_company += company
        session, cache = ticket.run.session, ticket.cache
        if isinstance(answer, Exception):
            ticket.go_on(answer)
            return None
        if cache is not None and request.kind != "check":
            cache.table.name(session.token_ids[: session.num_read])
        if request.kind == "again":
            return None
        request.seconds, request.company = ticket.waited(), company
        if ticket.alone and cache is not None:
            self._make_room(ticket, request)
        step = ticket.go_on(answer)
        if step is not None and step.drafted and isinstance(ticket.run.length, LoadLength):
            ticket.run.length.paid(len(step.drafted), step.draft_s)
        return step

    def _make_room(self, ticket: Ticket, request: PassRequest) -> None:
        """Pages for drafting inside the target's own cache, which cannot be interrupted."""
        assert ticket.cache is not None and self._store is not None
        rows = 2 * (ticket.run.config.gamma + 1 + ticket.run.session.min_rows) + KEY_BLOCK
        while ticket.cache.num_missing(ticket.run.session.length + rows) > self._store.pool.num_free:
            victims = [t for t in self.running if t is not ticket and t.cache is not None and not t.is_over]
            if not victims:
                return
            self._preempt(victims[-1])

    def _leave(self, ticket: Ticket) -> None:
        for line in (self.running, self.waiting, self.preempted):
            if ticket in line:
                line.remove(ticket)
        self._tell(lambda: ticket.left(self._now()))

    def _why_alone(self, needs: frozenset[Need], width: int, min_rows: int, can_share: bool) -> str:
        """Why a run's passes hold no rows of others, in a sentence; "" where they can."""
        if not can_share:
            return "This target runs through transformers, one sequence a pass."
        if Need.LAYERS in needs:
            return "Early exit checks on from the states its first layers left, so its passes hold nothing else."
        if width:
            loaded = self.generator.loaded
            report = company_report(loaded.target, min_rows, width, loaded.vocab_size)
            if not report.passed:
                return f"This run promises the bits of plain decoding. {report.sentence}"
        return ""

    # --- the record -------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _tell(self, event: Callable[[], BatchEvent]) -> None:
        if self.record is not None:
            self.record(event())

    def _pass_done(
        self,
        at_s: float,
        seconds: float,
        target_s: float,
        num_rows: int,
        rows: list[PassRows],
        copied: tuple[int, ...],
    ) -> PassDone:
        owners = [t for t in self.running if t.cache is not None and t.cache.table.pages]
        tables = {t.number: tuple(t.cache.table.pages) for t in owners if t.cache is not None}
        before = {page for pages in self._tables.values() for page in pages}
        after = {page for pages in tables.values() for page in pages}
        self._tables = tables
        pool = self._store.pool if self._store else None
        self._most_used = max(self._most_used, len(after))
        return PassDone(
            index=self._num_passes,
            at_s=at_s,
            seconds=seconds,
            target_s=target_s,
            num_rows=num_rows,
            rows=tuple(sorted(rows, key=lambda row: row.sequence)),
            tables=tuple(SequencePages(t.number, tables[t.number], t.run.session.length) for t in owners),
            num_used=pool.num_used if pool else 0,
            num_free=pool.num_free if pool else 0,
            running=tuple(t.number for t in self.running if not t.is_over),
            waiting=tuple(t.number for t in self.waiting),
            preempted=tuple(t.number for t in self.preempted),
            cached=pool.cached if pool else (),
            taken=tuple(sorted(after - before)),
            freed=tuple(sorted(before - after)),
            copied=copied,
        )


def run_together(
    generator: SpeculativeGenerator,
    jobs: Sequence[tuple[str | Sequence[int], RunConfig]],
    **settings: object,
) -> list[list[Event]]:
    """Run several prompts in shared passes, all of them arriving at once. Returns each run's own events."""
    batch = Batch(generator, max_running=max(1, len(jobs)), **settings)  # type: ignore[arg-type]
    tickets = [batch.add(prompt, config) for prompt, config in jobs]
    batch.play()
    return [list(ticket.events) for ticket in tickets]


def _reads(ticket: Ticket) -> bool:
    """Whether its next pass reads tokens rather than checks them."""
    return ticket.run.session.is_aside or (ticket.request is not None and ticket.request.kind == "prompt")


def _default_pages(decoder: LeanDecoder) -> int:
    heads = decoder.heads
    page = 2 * decoder.num_layers * heads.num_keys * heads.head_dim * KEY_BLOCK * decoder.dtype.itemsize
    return max(16, min(4096, POOL_BYTES // page))
