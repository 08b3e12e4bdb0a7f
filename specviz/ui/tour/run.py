"""A recorded run with what the guided tour asks of it: its figures, and steps that show something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specviz.errors import TraceError
from specviz.events import DraftedToken, StepDone
from specviz.metrics import Baseline, Counters, fold
from specviz.trace import Trace
from specviz.words import verdict

__all__ = ["TourRun", "choose_coin", "choose_refusal", "choose_step"]

CONTEXT_WORDS = 8


@dataclass(frozen=True)
class TourRun:
    """A recorded run with what the stops ask of it."""

    name: str
    title: str
    trace: Trace

    @cached_property
    def counters(self) -> Counters:
        return fold(self.trace.events)

    @cached_property
    def plain(self) -> Baseline:
        plain = Baseline.of(self.trace.plain, self.trace.events)
        if plain is None or plain.s_per_token is None:
            raise TraceError(f"The run {self.name!r} was recorded without plain decoding.")
        return plain

    @property
    def plain_s(self) -> float:
        """Seconds of one token of plain decoding."""
        seconds = self.plain.s_per_token
        assert seconds is not None
        return seconds

    @cached_property
    def steps(self) -> list[StepDone]:
        return [event for event in self.trace.events if isinstance(event, StepDone)]

    @cached_property
    def verdict(self) -> dict[str, Any]:
        return verdict(self.trace.started, self.counters, self.plain, recorded=True)

    @property
    def draft_cost(self) -> float:
        """c: seconds of one drafted token over those of a plain one."""
        return (self.counters.draft_s_per_token or 0.0) / self.plain_s

    @property
    def machine(self) -> str:
        about = self.trace.started.machine
        threads = about.get("threads")
        return f"{about.get('processor', 'an unnamed processor')}, {threads} thread{'' if threads == 1 else 's'}"

    def context(self, step: StepDone) -> list[dict[str, str]]:
        """The last words before a step, as blocks' words."""
        texts = [token.text for before in self.steps[: step.index - 1] for token in before.emitted if not token.special]
        return [{"text": "… " + "".join(texts[-CONTEXT_WORDS:]).lstrip(), "kind": ""}] if texts else []

    def link(self, step: StepDone | None = None, tab: str = "inspect") -> dict[str, Any]:
        return {"tab": tab, "trace": self.name, "step": step.index if step else 0}


def choose_step(run: TourRun, test: Callable[[StepDone], bool]) -> StepDone:
    """The first step behind the first that passes, of tokens that have a text. Raises TraceError: there is none."""
    for step in run.steps:
        labelled = [token.label for token in step.drafted] + [token.label for token in step.emitted]
        if step.index > 1 and test(step) and not any(labelled):
            return step
    raise TraceError(f"The run {run.name!r} has no step that shows what its stop of the tour is about.")


def choose_refusal(run: TourRun) -> StepDone:
    """A chain that lost its tail: something kept, something refused, something never tested."""
    return choose_step(
        run,
        lambda step: (
            {"accepted", "rejected", "discarded"} == {token.fate for token in step.drafted}
            and step.emitted[-1].origin == "corrected"
        ),
    )


def choose_coin(run: TourRun) -> tuple[StepDone, DraftedToken]:
    """A guess that could have gone either way; a refused one if there is any."""
    open_ones = [
        (step, token)
        for step in run.steps
        if step.index > 1
        for token in step.drafted
        if token.accept_prob is not None and token.coin is not None and 0.15 <= token.accept_prob <= 0.85
        if token.draft_prob and token.target_prob and not token.label and len(token.text.strip()) > 2
    ]
    if not open_ones:
        raise TraceError(f"The run {run.name!r} has no coin that could have fallen either way.")
    return min(open_ones, key=lambda pair: (pair[1].fate != "rejected", abs((pair[1].accept_prob or 0) - 0.4)))
