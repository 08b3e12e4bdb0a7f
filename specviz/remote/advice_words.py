"""What `specviz.remote.advice` found, in words: the answer, and the sum behind it."""

from __future__ import annotations

from collections.abc import Sequence

from specviz.remote.advice import Advice

__all__ = ["answer", "sums"]


def answer(advice: Advice, name: str) -> str:
    """The gamma that pays, by load; where a plain step was not measured, what it depends on."""
    if not advice.best:
        last = advice.choices[-1]
        if not advice.loads:
            missing = "How long a step takes has not been measured yet: it needs requests that run."
        else:
            missing = (
                "How long a plain step takes is not known: attach a server of the same model that does not speculate, "
                f"under the same load, or run: python -m specviz bench --attach http://PLAIN --attach http://{name} "
                "--concurrency 1,2,4,8"
            )
        limit = f"as long as a drafted token costs less than {last.break_even:.2f} plain steps"
        return f"γ = {last.gamma} pays {limit}. {missing}"
    words = []
    for loads, gamma in _runs(advice):
        where = f"{loads[0]} request" if loads == [1] else f"{_spread(loads)} requests"
        if not gamma:
            words.append(f"with {where} at once no draft pays")
            continue
        gains = [advice.choices[gamma - 1].speed_up[n] for n in loads]
        gain = f"{min(gains):.2f}" if len({f"{g:.2f}" for g in gains}) == 1 else f"{min(gains):.2f} to {max(gains):.2f}"
        words.append(f"with {where} at once γ = {gamma} pays best, {gain} times plain decoding")
    sentence = "; ".join(words)
    text = sentence[0].upper() + sentence[1:] + "."
    if advice.grows:
        text += f" The last place is kept so often that a γ above {advice.gamma} is worth a try."
    return text


def sums(advice: Advice) -> list[str]:
    """How the speed-up of today's gamma comes about, a line a load."""
    lines = []
    for requests, c in advice.costs.items():
        own, plain = advice.loads[requests], advice.plain[requests]
        last = advice.choices[-1]
        step_ms, plain_ms, share = 1000 * own.step_s, 1000 * plain.step_s, own.drafted_share
        if share > 0.995:
            cost = f"({step_ms:.1f} / {plain_ms:.1f} − 1) / {last.gamma}"
            gain = f"{last.tokens:.2f} / (1 + {last.gamma} × {c:.3f})"
        else:
            cost = f"({step_ms:.1f} / {plain_ms:.1f} − 1) / ({share:.2f} × {last.gamma})"
            gain = (
                f"({share:.2f} × {last.tokens:.2f} + {1 - share:.2f}) / "
                f"({share:.2f} × (1 + {last.gamma} × {c:.3f}) + {1 - share:.2f})"
            )
        lines.append(
            f"{requests} at once: a step takes {step_ms:.1f} ms, a plain one {plain_ms:.1f} ms. A drafted token costs "
            f"{cost} = {c:.3f} plain steps, so γ = {last.gamma} gives {gain} = "
            f"{last.speed_up[requests]:.2f} times plain."
        )
    return lines


def _runs(advice: Advice) -> list[tuple[list[int], int]]:
    """Neighbouring loads with the same gamma."""
    out: list[tuple[list[int], int]] = []
    for requests, gamma in sorted(advice.best.items()):
        if out and out[-1][1] == gamma:
            out[-1][0].append(requests)
        else:
            out.append(([requests], gamma))
    return out


def _spread(loads: Sequence[int]) -> str:
    return f"{loads[0]}" if len(loads) == 1 else f"{loads[0]} to {loads[-1]}"
