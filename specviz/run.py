"""One run: propose, score, verify, roll back, observe. Each round is one event.

The loop is a coroutine. It yields events, and passes that it wants the target to make; it goes on with the logits. Who
drives it decides whether a pass is made alone or with others: `Run.events` makes each at once, a batch shares them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specviz.config import RunConfig
from specviz.detokenize import Detokenizer, Piece, StopScanner, visible_part
from specviz.drafters.base import DraftContext, Drafter, Need, Outcome
from specviz.drafters.length import DraftLength
from specviz.errors import sentence_for
from specviz.events import (
    DraftedToken,
    EmittedToken,
    Event,
    FinishReason,
    PrefillDone,
    RowFate,
    RunFinished,
    RunStarted,
    StepDone,
    TopToken,
)
from specviz.models.loader import LoadedPair
from specviz.models.machine import peak_resident_bytes
from specviz.models.session import MAX_NODES, PREFILL_ROWS, PassRequest, Session
from specviz.proposal import Proposal, Trial, Verdict
from specviz.sampling import uniform_generator
from specviz.verify import verify_block, verify_greedy, verify_likely, verify_sampling

__all__ = ["Run", "Steps", "open_session"]

Steps = Generator[Event | PassRequest, Tensor | None, None]
"""What a run yields, and is sent: the logits of a pass that it asked for, None behind an event."""


def open_session(loaded: LoadedPair, drafter: Drafter, capacity: int, min_rows: int = 0) -> Session:
    """A session of the target that hands out what the drafter needs."""
    taps: Sequence[int] | None = getattr(drafter, "taps", None) if Need.STATES in drafter.needs else None
    hidden = Need.HIDDEN in drafter.needs
    return Session(loaded.target, capacity=capacity, min_rows=min_rows, keep_hidden=hidden, taps=taps)


@dataclass(slots=True)
class _Clock:
    """Seconds of a step's three parts. Model passes end in a wait for the device, so that none is charged elsewhere."""

    device: str
    last: float = 0.0

    def start(self) -> None:
        self.lap()

    def lap(self) -> float:
        """Seconds since the last call."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        return seconds


class Run:
    """The state of one run.

    session: of the target, its own until it is given another cache. piece: prompt tokens a pass at most.
    most_nodes: how many candidates a tree keeps that was asked for so many tokens, None for all. Only for greedy runs.
    """

    def __init__(
        self,
        loaded: LoadedPair,
        drafter: Drafter,
        config: RunConfig,
        started: RunStarted,
        limit: int,
        length: DraftLength,
    ) -> None:
        self.loaded = loaded
        self.drafter = drafter
        self.config = config
        self.started = started
        self.limit = limit
        self.context = list(started.prompt_ids)
        self.rng = uniform_generator(config.sampling.seed or 0)
        self.length = length
        self.session = open_session(loaded, drafter, len(self.context) + limit, started.min_rows)
        self.detokenizer = Detokenizer(loaded.tokenizer)
        self.scanner = StopScanner(config.stop)
        self.emitted: list[EmittedToken] = []
        self.piece = PREFILL_ROWS
        self.most_nodes: Callable[[int], int | None] = lambda ask: None
        self.clock = _Clock(str(loaded.device))
        self.began = time.perf_counter()
        self.prefill_s = 0.0
        self.first_step_s: float | None = None
        self.decode_s = 0.0
        self.num_steps = 0
        self._proposal = Proposal.empty()
        self._drafted_at: dict[int, DraftedToken] = {}
        self._root_text = ""

    def events(self) -> Iterator[Event]:
        """The run on its own: every pass is made when it is asked for."""
        steps = self.steps()
        try:
            item = next(steps)
            while True:
                if not isinstance(item, PassRequest):
                    yield item
                    item = next(steps)
                    continue
                try:
                    logits = item.run()
                except Exception as error:
                    item = steps.throw(error)
                else:
                    item = steps.send(logits)
        except StopIteration:
            return
        finally:
            steps.close()

    def steps(self) -> Steps:
        """The loop. A pass that fails is told by throwing its error in; closing frees the run's memory."""
        reason: FinishReason | None = None
        message = ""
        try:
            yield self.started
            try:
                prefill = yield from self._prefill()
            except Exception as error:
                yield self._finish("error", sentence_for(error, stays="What is there stays."))
                return
            yield prefill
            while reason is None:
                try:
                    step, reason = yield from self._step()
                except Exception as error:
                    reason, message = "error", sentence_for(error, stays="What is there stays.")
                    break
                yield step
            yield self._finish(reason, message or self._reason_in_words(reason))
        finally:
            self.close()

    def close(self) -> None:
        """Free what a run that has not begun holds; closing its `steps` does it for one that has."""
        try:
            self.drafter.close()
        finally:
            self.session.close()

    def row_fates(self) -> tuple[tuple[RowFate, ...], tuple[str, ...]]:
        """What became of each row of the last step's pass, the last committed token first, and what it reads as."""
        fates: list[RowFate] = ["target"]
        texts = [self._root_text]
        for node in range(len(self._proposal)):
            token = self._drafted_at.get(node)
            scored = self._proposal.is_scored_only(node)
            fates.append("scored" if scored else "discarded" if token is None else token.fate)
            texts.append("" if token is None else token.text or token.label)
        return tuple(fates), tuple(texts)

    def _prefill(self) -> Generator[PassRequest, Tensor, PrefillDone]:
        while self.session.length < len(self.context) - 1:
            request = self.session.read(self.context[self.session.length : -1], max_rows=self.piece)
            yield request
            self.prefill_s += request.seconds
        self.clock.start()
        self.drafter.reset(self.context, self.session)
        self.prefill_s += self.clock.lap()
        return PrefillDone(len(self.context), self.prefill_s)

    def _step(self) -> Generator[PassRequest, Tensor, tuple[StepDone, FinishReason | None]]:
        """One round. Whoever makes its pass does so before the next event, for that may be asked for on another
        thread."""
        sampling = self.config.sampling
        ask = min(self.length.next(), self.limit - len(self.emitted) - 1)
        self.clock.start()
        proposal = Proposal.empty()
        if ask > 0:
            shown = DraftContext(self.context, sampling, self.session.tail, self.session)
            proposal = self.drafter.propose(shown, ask, self.rng)
        draft_s = self.clock.lap()

        proposal = self._likeliest(self._fitting(proposal, ask), self.most_nodes(ask))
        known = (proposal.token_ids >= 0) & (proposal.token_ids < self.loaded.vocab_size)
        to_score = torch.where(known, proposal.token_ids, 0)  # an id without an embedding cannot be looked up
        other_s = self.clock.lap()

        request = self.session.check(self.context[-1], to_score, proposal.parents)
        logits = yield request
        logits = logits[:, : self.loaded.vocab_size]
        verify_s = request.seconds
        self.clock.start()

        verdict = self._verify(proposal, logits)
        tokens, kept, pieces, reason = self._accept(proposal, verdict)
        other_s += self.clock.lap()
        self.session.keep_path(verdict.path[:kept], is_last=reason is not None)
        verify_s += self.clock.lap()
        self.context += [token.token_id for token in tokens]

        self.drafter.observe(self._outcome(proposal, verdict, kept, tokens, logits))
        draft_s += self.clock.lap()

        last = self.emitted[-1] if self.emitted else None
        self._root_text = (last.text or last.label) if last else self.started.prompt_texts[-1]
        self._proposal = proposal
        drafted = self._drafted(proposal, verdict, kept, pieces, cut=kept == len(tokens))
        other_s += self.clock.lap()
        self.length.observe(len(drafted), kept, verdict.origin == "corrected")
        self.num_steps += 1
        seconds = draft_s + verify_s + other_s
        self.decode_s += seconds
        if self.first_step_s is None:
            self.first_step_s = seconds
        self.emitted += tokens  # not before: what a failed step would have emitted is in no event
        step = StepDone(
            index=self.num_steps,
            drafted=drafted,
            num_drafted=len(drafted),
            emitted=tuple(tokens),
            num_accepted=kept,
            rows=self.session.rows,
            target_work=self.session.work,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=other_s,
            cache_len=len(self.session.token_ids),
            gamma=ask if self.started.gamma else 0,
            note=proposal.note if proposal.note.kind else None,
            num_padding=self.session.num_padding,
            num_again=self.session.num_again,
            company=request.company,
        )
        return step, reason

    def _fitting(self, proposal: Proposal, ask: int) -> Proposal:
        """Without candidates deeper than was asked for, and without those drafted behind an end token.

        Rows that are only scored are the drafter's own affair: they may be deeper, and hold any token.
        """
        token_ids = proposal.token_ids.tolist()
        depths = proposal.depth_of()
        kept: list[int] = []
        alive: set[int] = {-1}  # nodes that a candidate may hang from
        for node, parent in enumerate(proposal.parents[:MAX_NODES]):
            if proposal.is_scored_only(node):
                if parent == -1 or parent in kept:
                    kept.append(node)
            elif parent in alive and depths[node] <= ask:
                kept.append(node)
                if token_ids[node] not in self.loaded.eos_ids:
                    alive.add(node)
        return proposal.keep(kept)

    def _likeliest(self, proposal: Proposal, most: int | None) -> Proposal:
        """A tree cut to its `most` likeliest candidates by the draft's own word, each with all it hangs from."""
        if most is None or len(proposal) <= most or not proposal.confidence or any(proposal.scored_only):
            return proposal
        paths: list[float] = []
        for node, parent in enumerate(proposal.parents):
            paths.append(proposal.confidence[node] * (1.0 if parent < 0 else paths[parent]))
        order = sorted(range(len(paths)), key=lambda node: (-paths[node], node))
        return proposal.keep(sorted(order[:most]))

    def _verify(self, proposal: Proposal, logits: Tensor) -> Verdict:
        logits = logits.cpu()
        config = self.config
        params, detail = config.sampling, config.detail
        if config.is_approximate:
            limits = {"epsilon": config.epsilon, "delta": config.delta}
            if config.verify == "threshold":
                limits = {"threshold": config.threshold}
            return verify_likely(proposal, logits, params, self.context, self.rng, detail=detail, **limits)
        if params.is_greedy:
            return verify_greedy(proposal, logits, params, self.context, detail=detail)
        by_block = config.is_by_block and proposal.is_drawn_chain
        rule = verify_block if by_block else verify_sampling
        return rule(proposal, logits, params, self.context, self.rng, detail=detail)

    def _accept(
        self, proposal: Proposal, verdict: Verdict
    ) -> tuple[list[EmittedToken], int, list[Piece], FinishReason | None]:
        """What the step adds to the answer, up to an end token or a stop text.

        Returns:
            The emitted tokens, how many of them were drafted, the pieces of all drafted tokens, and why the run ends.
        """
        token_ids = proposal.token_ids.tolist()
        pieces = self.detokenizer.peek(token_ids, proposal.parents)
        probs = {trial.node: trial.target_prob for trial in verdict.trials}
        tokens: list[EmittedToken] = []
        reason: FinishReason | None = None
        for node in (*verdict.path, None):
            token_id = verdict.next_token if node is None else token_ids[node]
            piece = self.detokenizer.push(token_id)
            origin = verdict.origin if node is None else "accepted"
            prob = verdict.next_prob if node is None else probs.get(node)
            tokens.append(EmittedToken(token_id, piece.text, origin, piece.label, piece.special, prob))
            self.scanner.feed(visible_part(piece))
            if token_id in self.loaded.eos_ids:
                reason = "eos"
            elif self.scanner.found is not None:
                reason = "stop"
            if reason:
                break
        if reason is None and len(self.emitted) + len(tokens) >= self.limit:
            reason = "length" if self.limit == self.config.max_new_tokens else "context"
        if reason is None and 0 < self.config.time_limit_s <= time.perf_counter() - self.began:
            reason = "time"
        if reason:
            last = tokens[-1]
            rest = self.detokenizer.finish()
            piece = Piece(last.text, last.label, last.special).plus(rest)
            tokens[-1] = replace(last, text=piece.text, label=piece.label)
            self.scanner.feed(rest)
        kept = sum(token.origin == "accepted" for token in tokens)
        return tokens, kept, pieces, reason

    def _outcome(
        self, proposal: Proposal, verdict: Verdict, kept: int, tokens: list[EmittedToken], logits: Tensor
    ) -> Outcome:
        rows = [node + 1 for node in range(len(proposal)) if proposal.is_scored_only(node)]
        return Outcome(
            proposal,
            verdict,
            verdict.path[:kept],
            tuple(token.token_id for token in tokens),
            logits[rows] if rows else None,
            None if self.session.hidden is None else self.session.hidden[: len(proposal) + 1],
            logits,
        )

    def _drafted(
        self, proposal: Proposal, verdict: Verdict, kept: int, pieces: list[Piece], *, cut: bool
    ) -> tuple[DraftedToken, ...]:
        """The drafted tokens with their fates; `cut`: the answer ended inside the draft, what is behind is left out."""
        trials = {trial.node: trial for trial in verdict.trials}
        token_ids = proposal.token_ids.tolist()
        path = set(verdict.path[:kept])
        behind: set[int] = set()
        last = verdict.path[kept - 1] if cut and kept else None
        index: dict[int, int] = {-1: -1}
        out: list[DraftedToken] = []
        for node, parent in enumerate(proposal.parents):
            if proposal.is_scored_only(node):
                continue
            if parent in behind or (last is not None and parent == last):
                behind.add(node)
                continue
            index[node] = len(out)
            trial = trials.get(node)
            confidence = proposal.confidence[node] if proposal.confidence else None
            out.append(
                self._drafted_token(token_ids[node], pieces[node], index[parent], node in path, trial, confidence)
            )
        self._drafted_at = {node: out[at] for node, at in index.items() if node >= 0}
        return tuple(out)

    def _drafted_token(
        self, token_id: int, piece: Piece, parent: int, kept: bool, trial: Trial | None, confidence: float | None
    ) -> DraftedToken:
        if trial is None:
            return DraftedToken(token_id, piece.text, parent, "discarded", piece.label, draft_prob=confidence)
        return DraftedToken(
            token_id,
            piece.text,
            parent,
            "accepted" if kept else "discarded" if trial.accepted or trial.is_behind else "rejected",
            piece.label,
            confidence if trial.draft_prob is None else trial.draft_prob,
            trial.target_prob,
            trial.accept_prob,
            trial.coin,
            trial.overlap,
            self._top(trial.draft_dist),
            self._top(trial.target_dist),
            () if trial.accepted else self._top(trial.residual),
            trial.prefix_prob,
            trial.block_prob,
        )

    def _top(self, dist: Tensor | None) -> tuple[TopToken, ...]:
        if dist is None:
            return ()
        probs, ids = torch.topk(dist, min(5, dist.shape[-1]))
        pairs = [(i, p) for i, p in zip(ids.tolist(), probs.tolist(), strict=True) if p > 0]
        return tuple(TopToken(i, self._name(i), float(f"{p:.3g}")) for i, p in pairs)

    def _name(self, token_id: int) -> str:
        piece = self.detokenizer.fork().push(token_id)
        return piece.text or piece.label

    def _reason_in_words(self, reason: FinishReason) -> str:
        if reason == "context":
            return f"The model reads {self.loaded.max_context} tokens, prompt included, and they are used up."
        if reason == "time":
            return f"The time limit of {self.config.time_limit_s:g} s was reached. Everything so far is kept."
        return ""

    def _finish(self, reason: FinishReason, message: str = "") -> RunFinished:
        text = "".join(visible_part(token) for token in self.emitted)
        if self.scanner.found is not None:
            text = text[: self.scanner.found]
        memory = {
            "target_bytes": self.loaded.target_info.num_bytes,
            "target_packed_bytes": self.session.packed_bytes,
            "draft_bytes": self.started.draft.num_bytes if self.started.draft else 0,
            "target_cache_bytes": self.session.num_bytes,
            "draft_cache_bytes": self.drafter.num_bytes,
            "peak_resident_bytes": peak_resident_bytes(),
        }
        return RunFinished(
            reason=reason,
            text=text,
            token_ids=tuple(token.token_id for token in self.emitted),
            num_tokens=len(self.emitted),
            num_steps=self.num_steps,
            prefill_s=self.prefill_s,
            first_token_s=None if self.first_step_s is None else self.prefill_s + self.first_step_s,
            decode_s=self.decode_s,
            message=message,
            memory=memory,
        )
