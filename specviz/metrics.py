"""Counters of a run and the rates derived from them.

Only counts and seconds are added up; every rate is a property of the counters, so a rate has one definition.
A rate with a zero denominator is None.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from specviz.events import EngineCounts, Event, PrefillDone, RunFinished, RunStarted, StepDone

__all__ = ["ROLLING_STEPS", "Baseline", "Counters", "fold", "summary"]

ROLLING_STEPS = 8
"""Steps in the window of the live charts."""


@dataclass(slots=True)
class Counters:
    """Raw counts of a run; feed it events with `update`.

    num_tested: drafted tokens the target really tried: accepted ones plus one for each step that ended in a refusal.
    tested_at, accepted_at, drafted_at: by place in the draft, first place first.
    accepted_histogram: accepted_histogram[k] = steps that drafted and kept exactly k tokens.
    num_prefill_tokens: tokens that a serving engine wrote with the prompt; they are in no step and in no other count.
    num_untimed_steps, num_untimed_tokens, num_untimed_drafted: of steps whose pass read the prompt as well, and whose
        seconds are the prefill's. They are in all other counts, and left out of rates by time.
    steps_are_told: whether every step said what it drafted; a serving engine's may not, its counters come at the end.
    drafted_is_known: whether the drafted tokens of the whole run are known. rejections_are_known: likewise.
    is_bound: other requests ran beside: what was drafted and refused is at most what is counted here.
    fates_are_told: whether it is known of every token of the target's own how it came about.
    """

    num_steps: int = 0
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_rejections: int = 0
    num_rejected: int = 0
    num_discarded: int = 0
    num_corrected: int = 0
    num_bonus: int = 0
    num_target: int = 0
    num_drafting_steps: int = 0
    target_work: float = 0.0
    prefill_s: float = 0.0
    first_step_s: float | None = None
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    drafting_verify_s: float = 0.0
    prompt_len: int = 0
    overlap_sum: float = 0.0
    num_overlaps: int = 0
    num_prefill_tokens: int = 0
    num_untimed_steps: int = 0
    num_untimed_tokens: int = 0
    num_untimed_drafted: int = 0
    is_chain: bool = True
    steps_are_told: bool = True
    drafted_is_known: bool = True
    rejections_are_known: bool = True
    is_bound: bool = False
    fates_are_told: bool = True
    reason: str | None = None
    tested_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    accepted_histogram: list[int] = field(default_factory=list)
    recent: deque[tuple[int, int, int, int, float]] = field(default_factory=lambda: deque(maxlen=ROLLING_STEPS))

    def update(self, event: Event) -> Counters:
        """Add one event; returns self."""
        if isinstance(event, StepDone):
            self._add_step(event)
        elif isinstance(event, PrefillDone):
            self.prompt_len, self.prefill_s = event.prompt_len, event.prefill_s
            self.num_prefill_tokens = len(event.emitted)
        elif isinstance(event, RunFinished):
            self.reason = event.reason
            if event.counts is not None and not self.steps_are_told:
                self._take_counts(event.counts)
        elif isinstance(event, RunStarted):
            self.prompt_len = len(event.prompt_ids)
        return self

    def _add_step(self, step: StepDone) -> None:
        seconds = step.draft_s + step.verify_s + step.other_s
        self.num_steps += 1
        self.num_tokens += len(step.emitted)
        self.num_accepted += step.num_accepted
        self.target_work += step.target_work
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s
        self.other_s += step.other_s
        if self.first_step_s is None:
            self.first_step_s = seconds
        for token in step.emitted:
            self.num_corrected += token.origin == "corrected"
            self.num_bonus += token.origin == "bonus"
            self.num_target += token.origin == "target"
        self.num_rejected += sum(token.fate == "rejected" for token in step.drafted)
        self.num_discarded += sum(token.fate == "discarded" for token in step.drafted)
        overlaps = [token.overlap for token in step.drafted if token.overlap is not None]
        self.overlap_sum += sum(overlaps)
        self.num_overlaps += len(overlaps)

        num_drafted = len(step.drafted) if step.num_drafted is None else step.num_drafted
        if step.num_drafted is None:
            self.steps_are_told = self.drafted_is_known = self.rejections_are_known = self.fates_are_told = False
            num_drafted = max(num_drafted, step.num_accepted)
        refused = any(token.origin == "corrected" for token in step.emitted) or (
            not step.drafted and step.num_drafted is not None and step.num_drafted > step.num_accepted
        )
        self.num_drafted += num_drafted
        self.num_rejections += refused
        if step.with_prompt:
            self.num_untimed_steps += 1
            self.num_untimed_tokens += len(step.emitted)
            self.num_untimed_drafted += num_drafted
        if not step.drafted:  # told as a number only
            self.num_rejected += refused
            self.num_discarded += num_drafted - step.num_accepted - refused
        is_merged = step.num_drafted is None and step.target_work > 1  # several steps at once: no place is known
        if num_drafted and not is_merged:
            self.num_drafting_steps += 1
            self.drafting_verify_s += step.verify_s
            _grow(self.accepted_histogram, step.num_accepted)
            self.accepted_histogram[step.num_accepted] += 1
            depth = _depth(step) if step.drafted else num_drafted
            self.is_chain &= not step.drafted or depth == len(step.drafted)
            for place in range(depth):
                _grow(self.drafted_at, place)
                self.drafted_at[place] += 1
            for place in range(step.num_accepted + refused):
                _grow(self.tested_at, place)
                self.tested_at[place] += 1
            for place in range(step.num_accepted):
                _grow(self.accepted_at, place)
                self.accepted_at[place] += 1
            _grow(self.accepted_at, len(self.tested_at) - 1)
        num_timed = 0 if step.with_prompt else len(step.emitted)
        self.recent.append((step.num_accepted, int(refused), num_drafted, num_timed, seconds))

    def _take_counts(self, counts: EngineCounts) -> None:
        """The whole run's counts from a serving engine, in place of what its steps could not tell.

        Beside other requests they are the most that can be this run's; what was accepted is known from its own text.
        """
        if counts.drafted_by_step:
            self._take_steps(counts)
            return
        self.drafted_is_known, self.is_bound = True, counts.is_bound
        drafts, drafted, rejections = counts.num_drafts, counts.num_drafted, counts.num_rejections
        refused = counts.num_drafted - counts.num_accepted
        if self.is_bound:  # a step has one draft at most, and that has a token for each place at most
            has_merged = self.target_work > self.num_steps  # then only a step's one token bounds their number
            drafts = min(drafts, self.num_tokens if has_merged else self.num_steps)
            drafted = min(drafted, drafts * (len(counts.accepted_at) or drafted))
            most = min(drafts, drafted - self.num_accepted)
            rejections = most if rejections is None else min(rejections, most)
            refused = drafted - self.num_accepted + rejections
        else:
            self.num_accepted = min(self.num_accepted, counts.num_accepted)  # less where messages carried several steps
            self.accepted_at = list(counts.accepted_at)
            reached = [drafts, *(count for count in self.accepted_at if count)]
            self.accepted_histogram = [a - b for a, b in itertools.pairwise([*reached, 0])]
        self.num_drafting_steps, self.num_drafted = drafts, drafted
        self.rejections_are_known = rejections is not None
        self.num_rejections = rejections or 0
        self.tested_at = [drafts] + [0] * (len(self.accepted_at) - 1)  # the rest is known for drafts of one length only
        if counts.num_accepted == counts.num_drafted:
            self.tested_at = list(self.accepted_at)
        elif rejections is not None:
            self.tested_at[1:] = self.accepted_at[:-1]
        self.num_rejected = self.num_rejections
        self.num_discarded = max(0, refused - self.num_rejections)

    def _take_steps(self, counts: EngineCounts) -> None:
        """The list that a serving engine keeps of this run's drafting steps, whatever ran beside: nothing is a bound.

        A last step that the answer's end cut short counts as the engine counts it, in full.
        """
        drafted, accepted = counts.drafted_by_step, counts.accepted_by_step
        refused = [a < d for d, a in zip(drafted, accepted, strict=True)]
        is_cut = self.num_accepted < counts.num_accepted  # then the last step wrote no token of its own
        own = self.num_tokens - min(self.num_accepted, counts.num_accepted) - is_cut
        self.drafted_is_known = self.rejections_are_known = self.fates_are_told = True
        self.num_drafting_steps, self.num_drafted, self.num_accepted = len(drafted), sum(drafted), sum(accepted)
        self.num_rejections = self.num_rejected = sum(refused)
        self.num_discarded = self.num_drafted - self.num_accepted - self.num_rejected
        self.num_corrected = max(0, min(own, self.num_rejections - (is_cut and refused[-1])))
        whole = len(refused) - sum(refused) - (is_cut and not refused[-1])
        self.num_bonus = max(0, min(own - self.num_corrected, whole))
        self.num_target = max(0, own - self.num_corrected - self.num_bonus)
        places = max(drafted)
        self.drafted_at = _reaching(drafted, places)
        self.tested_at = _reaching([a + r for a, r in zip(accepted, refused, strict=True)], places)
        self.accepted_at = _reaching(accepted, places)
        self.accepted_histogram = [accepted.count(kept) for kept in range(1 + max(accepted))]

    def merge(self, other: Counters) -> Counters:
        """Add another run's counts, for rates over several runs; the rolling window stays this one's. Returns self."""
        for name in (f.name for f in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            if name == "is_bound":
                self.is_bound = mine or theirs
            elif isinstance(mine, bool):
                setattr(self, name, mine and theirs)
            elif isinstance(mine, int | float):
                setattr(self, name, mine + theirs)
            elif isinstance(mine, list):
                setattr(self, name, [a + b for a, b in itertools.zip_longest(mine, theirs, fillvalue=0)])
        return self

    # --- rates ---------------------------------------------------------------------------------------------

    @property
    def num_tested(self) -> int:
        return self.num_accepted + self.num_rejections

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return _ratio(self.num_accepted, self.num_drafted) if self.drafted_is_known else None

    @property
    def alpha(self) -> float | None:
        """Per-token acceptance: accepted / tested."""
        return _ratio(self.num_accepted, self.num_tested) if self.rejections_are_known else None

    @property
    def rolling_alpha(self) -> float | None:
        """alpha over the last ROLLING_STEPS steps."""
        accepted = sum(a for a, *_ in self.recent)
        return _ratio(accepted, accepted + sum(r for _, r, *_ in self.recent)) if self.steps_are_told else None

    @property
    def rolling_acceptance_rate(self) -> float | None:
        """acceptance_rate over the last ROLLING_STEPS steps."""
        drafted = sum(d for _, _, d, *_ in self.recent)
        return _ratio(sum(a for a, *_ in self.recent), drafted) if self.steps_are_told else None

    @property
    def acceptance_length(self) -> float | None:
        """tau = 1 + accepted / steps that drafted."""
        return None if self.mean_accepted is None else 1.0 + self.mean_accepted

    @property
    def mean_accepted(self) -> float | None:
        """Drafted tokens kept per drafting step: tau without the target's own token."""
        return _ratio(self.num_accepted, self.num_drafting_steps) if self.drafted_is_known else None

    @property
    def block_efficiency(self) -> float | None:
        """Tokens emitted / target work in full passes, prefill excluded."""
        return _ratio(self.num_tokens, self.target_work)

    @property
    def accepted_per_pass(self) -> float | None:
        """Block efficiency without the target's own tokens: accepted / target work in full passes."""
        return _ratio(self.num_accepted, self.target_work)

    @property
    def coverage(self) -> float | None:
        """kappa = steps that drafted / steps."""
        return _ratio(self.num_drafting_steps, self.num_steps) if self.drafted_is_known else None

    @property
    def mean_drafted(self) -> float | None:
        """Tokens drafted per drafting step."""
        return _ratio(self.num_drafted, self.num_drafting_steps) if self.drafted_is_known else None

    @property
    def overlap(self) -> float | None:
        """Mean over tested positions of sum min(p, q)."""
        return _ratio(self.overlap_sum, self.num_overlaps)

    @property
    def decode_s(self) -> float:
        """Seconds of all steps; prefill excluded."""
        return self.draft_s + self.verify_s + self.other_s

    @property
    def first_token_s(self) -> float | None:
        """prefill + first step."""
        if self.num_prefill_tokens:
            return self.prefill_s
        return None if self.first_step_s is None else self.prefill_s + self.first_step_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        return _ratio(self.num_timed_tokens, self.decode_s)

    @property
    def rolling_tokens_per_s(self) -> float | None:
        """Tokens a second over the last ROLLING_STEPS steps.

        A server's first messages may leave it together, in no time: too few of them give no rate.
        """
        if not self.steps_are_told and len(self.recent) < ROLLING_STEPS // 2:
            return None
        return _ratio(sum(n for *_, n, _ in self.recent), sum(s for *_, s in self.recent))

    @property
    def total_tokens_per_s(self) -> float | None:
        """Tokens a second with prefill included."""
        return _ratio(self.num_prefill_tokens + self.num_tokens, self.prefill_s + self.decode_s)

    @property
    def draft_s_per_token(self) -> float | None:
        """Seconds of drafting per drafted token; over a plain step's seconds it is c."""
        return _ratio(self.draft_s, self.num_drafted - self.num_untimed_drafted)

    @property
    def s_per_step(self) -> float | None:
        return _ratio(self.decode_s, self.num_timed_steps)

    @property
    def verify_s_per_step(self) -> float | None:
        return _ratio(self.verify_s, self.num_timed_steps)

    @property
    def num_timed_steps(self) -> int:
        """Steps that have seconds of their own."""
        return self.num_steps - self.num_untimed_steps

    @property
    def num_timed_tokens(self) -> int:
        """Tokens of those steps."""
        return self.num_tokens - self.num_untimed_tokens

    def by_position(self, *, unconditional: bool = False) -> list[dict[str, float | int | None]]:
        """Acceptance by place in the draft, with a 95 % Wilson interval.

        Conditional (default): accepted / tested at that place. Unconditional: accepted / steps that drafted.
        """
        out: list[dict[str, float | int | None]] = []
        for place, accepted in enumerate(self.accepted_at):
            trials = self.num_drafting_steps if unconditional else self.tested_at[place]
            trials = trials if self.drafted_is_known else 0
            low, high = _wilson(accepted, trials)
            out.append({"accepted": accepted, "of": trials, "rate": _ratio(accepted, trials), "low": low, "high": high})
        return out

    def to_json(self) -> dict[str, Any]:
        """All counts and rates as strict JSON: what the page, the trace and the command line show."""
        names = [
            "num_steps", "num_tokens", "num_drafted", "num_accepted", "num_rejections", "num_tested", "num_rejected",
            "num_discarded", "num_corrected", "num_bonus", "num_target", "num_drafting_steps", "target_work",
            "acceptance_rate", "alpha", "acceptance_length", "block_efficiency", "accepted_per_pass", "coverage",
            "mean_drafted", "mean_accepted", "overlap", "prefill_s", "first_token_s", "decode_s", "draft_s", "verify_s",
            "other_s", "decode_tokens_per_s", "total_tokens_per_s", "draft_s_per_token", "s_per_step",
            "verify_s_per_step", "prompt_len", "is_chain",
            "num_prefill_tokens", "steps_are_told", "is_bound", "fates_are_told",
        ]  # fmt: skip
        untold = self._untold()
        return {name: None if name in untold else getattr(self, name) for name in names}

    def _untold(self) -> set[str]:
        """Counts that a serving engine left open."""
        names: set[str] = set()
        if not self.steps_are_told:
            names |= {"draft_s", "verify_s", "draft_s_per_token", "verify_s_per_step"}
        if not self.fates_are_told:
            names |= {"num_corrected", "num_bonus"}
        if not self.rejections_are_known:
            names |= {"num_rejections", "num_tested", "num_rejected", "num_discarded"}
        if not self.drafted_is_known:
            names |= {"num_drafted", "num_drafting_steps"}
        return names


@dataclass(frozen=True, slots=True)
class Baseline:
    """Plain decoding of the same prompt, one token a pass, measured beside the run.

    same_text: whether both wrote the same ids; None where the question makes no sense (sampled, another length).
    first_difference: index of the first token that differs, None where none does. gap: distance of the two best logits
        there. width_same: whether plain decoding in the run's own passes wrote the run's ids, where that was asked.
    num_untimed: tokens whose seconds are not in `decode_s`, as they came with the prompt.
    """

    num_tokens: int
    decode_s: float
    same_text: bool | None = None
    first_difference: int | None = None
    gap: float | None = None
    width_same: bool | None = None
    num_untimed: int = 0

    @property
    def tokens_per_s(self) -> float | None:
        return _ratio(self.num_tokens - self.num_untimed, self.decode_s)

    @property
    def s_per_token(self) -> float | None:
        return _ratio(self.decode_s, self.num_tokens - self.num_untimed)

    @classmethod
    def of(cls, plain: Iterable[Event], run: Iterable[Event] = ()) -> Baseline | None:
        """From the events of a plain run, compared with the ids of a finished greedy run; None if it did not finish."""
        before = list(plain)
        ends = [event for event in before if isinstance(event, RunFinished)]
        if not ends or not ends[0].num_tokens:
            return None
        same, first = None, None
        events = list(run)
        if events and isinstance(events[0], RunStarted) and events[0].verify == "greedy":
            other = next((event for event in events if isinstance(event, RunFinished)), None)
            if other is not None:
                pairs = zip(ends[0].token_ids, other.token_ids, strict=False)
                first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                same = first is None
        untimed = sum(len(event.emitted) for event in before if isinstance(event, StepDone) and event.with_prompt)
        return cls(ends[0].num_tokens, ends[0].decode_s, same, first, num_untimed=untimed)

    def ids_to_difference(self, run: Sequence[Event]) -> list[int]:
        """Prompt and answer up to the first token that differs: where the two best logits are asked for."""
        started, finished = run[0], run[-1]
        assert isinstance(started, RunStarted)
        assert isinstance(finished, RunFinished)
        return [*started.prompt_ids, *finished.token_ids[: self.first_difference]]

    def explained(self, run: Sequence[Event], gap: float, width_plain: Sequence[Event]) -> Baseline:
        """With the gap at the first difference, and whether plain decoding in the run's own passes wrote the run's ids.

        width_plain: events of that plain run; empty where the run does not promise to the bit.
        """
        finished, other = run[-1], width_plain[-1] if width_plain else None
        assert isinstance(finished, RunFinished)
        same = None
        if isinstance(other, RunFinished) and other.reason not in ("error", "cancelled"):
            same = all(a == b for a, b in zip(other.token_ids, finished.token_ids, strict=False))
        return replace(self, gap=gap, width_same=same)

    def to_json(self) -> dict[str, Any]:
        return {
            "num_tokens": self.num_tokens,
            "decode_s": self.decode_s,
            "tokens_per_s": self.tokens_per_s,
            "s_per_token": self.s_per_token,
            "same_text": self.same_text,
            "first_difference": self.first_difference,
            "gap": self.gap,
            "width_same": self.width_same,
        }


def summary(started: RunStarted, counters: Counters, finished: RunFinished) -> dict[str, Any]:
    """A whole run as one flat object of strict JSON: what the command line and the API give to programs."""
    return {
        "run_id": started.run_id,
        "pair": started.pair,
        "method": started.method,
        "gamma": started.gamma,
        "dtype": started.dtype,
        "width": started.width,
        "min_rows": started.min_rows,
        "exactness": started.exactness,
        "seed": started.settings.get("seed"),
        "text": finished.text,
        "token_ids": list(finished.token_ids),
        "finish_reason": finished.reason,
        "message": finished.message,
    } | counters.to_json()


def fold(events: Iterable[Event]) -> Counters:
    """The counters of a whole stream."""
    counters = Counters()
    for event in events:
        counters.update(event)
    return counters


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _grow(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))


def _reaching(values: Sequence[int], places: int) -> list[int]:
    """[places] how many of the values are larger than each place's index."""
    found = [0] * (places + 1)
    for value in values:
        found[value] += 1
    return list(itertools.accumulate(found[:0:-1]))[::-1]


def _depth(step: StepDone) -> int:
    """Length of the longest root-to-leaf path of the drafted tree."""
    depths: list[int] = []
    for token in step.drafted:
        depths.append(1 + (depths[token.parent] if token.parent >= 0 else 0))
    return max(depths, default=0)


def _wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float | None, float | None]:
    """Wilson (1927) score interval of a proportion."""
    if not trials:
        return None, None
    share, scale = successes / trials, 1.0 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)
