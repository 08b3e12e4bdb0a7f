"""What a serving engine's counters said over time, and what it comes to a second. Pure: samples in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.remote.counters import ServerCounters

__all__ = ["KEPT_S", "History", "Sample", "Stretch"]

KEPT_S = 1800.0
"""How far back the history goes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters at a moment, in seconds of any clock that only goes forward."""

    at_s: float
    counters: ServerCounters


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was counted between two samples. Rates with a zero denominator, or of what is not told, are None."""

    seconds: float
    counted: ServerCounters

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return _ratio(self.counted.num_accepted, self.counted.num_drafted)

    @property
    def acceptance_length(self) -> float | None:
        """tau = 1 + accepted / steps that drafted; as the server says it where it counts only what has finished."""
        mean = _ratio(self.counted.num_accepted, self.counted.num_drafts)
        if mean is None:
            return self.counted.accept_length if self.counted.num_running else None
        return 1.0 + mean

    @property
    def drafts_per_s(self) -> float | None:
        return _ratio(self.counted.num_drafts, self.seconds)

    @property
    def tokens_per_s(self) -> float | None:
        counted = self.counted
        return _ratio(counted.num_generated if counted.num_decoded is None else counted.num_decoded, self.seconds)

    def by_position(self) -> list[float | None]:
        """Acceptance by place in the draft, unconditional: accepted there / steps that drafted."""
        return [_ratio(accepted, self.counted.num_drafts) for accepted in self.counted.accepted_at]


@dataclass(frozen=True, slots=True)
class History:
    """Samples of one server, oldest first, none older than KEPT_S. restarted_at_s: when its counters last fell."""

    samples: tuple[Sample, ...] = ()
    restarted_at_s: float | None = None

    def add(self, sample: Sample) -> History:
        """With one more. Where a count fell the server has restarted, and what was before is forgotten."""
        if self.samples and sample.counters.since(self.samples[-1].counters) is None:
            return History((sample,), sample.at_s)
        kept = tuple(old for old in self.samples if sample.at_s - old.at_s <= KEPT_S)
        return History((*kept, sample), self.restarted_at_s)

    def last(self, seconds: float) -> Stretch | None:
        """The newest `seconds`, or what there is of them; None with less than two samples."""
        return self._between(self._index_before(seconds), len(self.samples) - 1)

    def before(self, seconds: float) -> Stretch | None:
        """All but the newest `seconds`."""
        return self._between(0, self._index_before(seconds))

    def stretches(self, most: int) -> list[tuple[float, Stretch]]:
        """(end in seconds before the newest sample, what was counted in it), oldest first, at most `most` of them."""
        stride = max(1, -(-(len(self.samples) - 1) // most))
        ends = list(range(len(self.samples) - 1, 0, -stride))[::-1]
        found: list[tuple[float, Stretch]] = []
        for end in ends:
            stretch = self._between(max(0, end - stride), end)
            if stretch is not None:
                found.append((self.samples[-1].at_s - self.samples[end].at_s, stretch))
        return found

    def _index_before(self, seconds: float) -> int:
        """The newest sample that is at least `seconds` old, else the oldest."""
        old = [i for i, sample in enumerate(self.samples) if self.samples[-1].at_s - sample.at_s >= seconds]
        return old[-1] if old else 0

    def _between(self, first: int, last: int) -> Stretch | None:
        if not 0 <= first < last:
            return None
        a, b = self.samples[first], self.samples[last]
        counted = b.counters.since(a.counters)
        return None if counted is None else Stretch(b.at_s - a.at_s, counted)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None
