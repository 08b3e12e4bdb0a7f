"""Hand-made event streams of the five kinds of step: chain, tree, lookahead, early exit, attached server.

They obey every invariant of a real run and need no model; metrics, trace and page must read all five.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specviz.events import (
    DraftedToken,
    DraftNote,
    EmittedToken,
    Event,
    ModelInfo,
    PrefillDone,
    RunFinished,
    RunStarted,
    StepDone,
    TopToken,
)

__all__ = ["STREAMS", "attached", "chain", "early_exit", "hostile", "lookahead", "tree"]

PROMPT = "Why is the sky blue?"


def started(method: str, **changes: object) -> RunStarted:
    values: dict[str, object] = dict(
        run_id=f"test-{method}",
        method=method,
        prompt=PROMPT,
        prompt_ids=(5, 6, 7, 8, 9, 10),
        prompt_texts=("Why", " is", " the", " sky", " blue", "?"),
        target=ModelInfo("tiny-target", source="test", dtype="float32", num_params=1000, num_bytes=4000),
        draft=ModelInfo("tiny-draft", source="test", dtype="nf4", quantization="nf4", num_params=1000, num_bytes=900),
        dtype="float32",
        width=8,
        exactness="lossless",
        exactness_reason="Sampled at T = 0.8: the same distribution.",
        verify="sampling",
        gamma=4,
        settings={"gamma": 4, "temperature": 0.8, "max_new_tokens": 32},
        machine={"processor": "test", "threads": 2},
        versions={"specviz": "0"},
        started_at="2026-01-01T00:00:00+00:00",
        pair="tiny",
        num_layers=4,
    )
    return RunStarted(**(values | changes))  # type: ignore[arg-type]


def drafted(token_id: int, text: str, parent: int, fate: str, **more: object) -> DraftedToken:
    known: dict[str, object] = {"draft_prob": 0.5}
    if fate != "discarded":
        known |= {"target_prob": 0.4, "accept_prob": 0.8, "coin": 0.2 if fate == "accepted" else 0.9, "overlap": 0.7}
    return DraftedToken(token_id, text, parent, fate, **(known | more))  # type: ignore[arg-type]


def emitted(token_id: int, text: str, origin: str, **more: object) -> EmittedToken:
    return EmittedToken(token_id, text, origin, **more)  # type: ignore[arg-type]


def finished(steps: Sequence[StepDone], reason: str = "length") -> RunFinished:
    tokens = [token for step in steps for token in step.emitted]
    decode_s = sum(step.draft_s + step.verify_s + step.other_s for step in steps)
    return RunFinished(
        reason,  # type: ignore[arg-type]
        text="".join(token.text for token in tokens if not token.special),
        token_ids=tuple(token.token_id for token in tokens),
        num_tokens=len(tokens),
        num_steps=len(steps),
        prefill_s=0.1,
        first_token_s=0.1 + sum((steps[0].draft_s, steps[0].verify_s, steps[0].other_s)) if steps else None,
        decode_s=decode_s,
    )


def stream(start: RunStarted, steps: list[StepDone], reason: str = "length") -> list[Event]:
    return [start, PrefillDone(len(start.prompt_ids), 0.1), *steps, finished(steps, reason)]


def step(
    index: int, tokens: Sequence[DraftedToken], out: Sequence[EmittedToken], cache_len: int, **more: object
) -> StepDone:
    values: dict[str, object] = dict(
        index=index,
        drafted=tuple(tokens),
        num_drafted=len(tokens),
        emitted=tuple(out),
        num_accepted=sum(token.origin == "accepted" for token in out),
        rows=8,
        target_work=1.0,
        draft_s=0.02,
        verify_s=0.05,
        other_s=0.001,
        cache_len=cache_len,
        gamma=4,
    )
    return StepDone(**(values | more))  # type: ignore[arg-type]


def chain() -> list[Event]:
    """Draft model: a refusal with detail, a full acceptance with bonus, a step without a draft, EOS at the end."""
    top = (TopToken(20, " looks", 0.5), TopToken(21, " appears", 0.2))
    return stream(
        started("draft-model"),
        [
            step(
                1,
                [
                    drafted(11, "The", -1, "accepted"),
                    drafted(12, " sky", 0, "accepted"),
                    drafted(21, " appears", 1, "rejected", draft_top=top, target_top=top, residual_top=top),
                    drafted(14, " blue", 2, "discarded"),
                ],
                [emitted(11, "The", "accepted"), emitted(12, " sky", "accepted"), emitted(20, " looks", "corrected")],
                8,
            ),
            step(
                2,
                [drafted(14, " blue", -1, "accepted"), drafted(15, " because", 0, "accepted")],
                [emitted(14, " blue", "accepted"), emitted(15, " because", "accepted"), emitted(16, " of", "bonus")],
                11,
                gamma=2,
            ),
            step(3, [], [emitted(17, " air", "target")], 12, draft_s=0.0),
            step(
                4,
                [drafted(18, ".", -1, "accepted"), drafted(2, "<|end|>", 0, "accepted", label="<|end|>")],
                [emitted(18, ".", "accepted"), emitted(2, "<|end|>", "accepted", label="<|end|>", special=True)],
                13,
            ),
        ],
        "eos",
    )


def tree() -> list[Event]:
    """Medusa: two siblings refused before a third is kept, then its child is refused with an untried cousin."""
    return stream(
        started("medusa", draft=None, width=0, exactness="lossless", exactness_reason="Trees run at their own width."),
        [
            step(
                1,
                [
                    drafted(30, " light", -1, "rejected"),
                    drafted(31, " air", -1, "accepted"),
                    drafted(32, " gas", -1, "discarded"),
                    drafted(33, " molecules", 0, "discarded"),
                    drafted(34, " scatters", 1, "rejected"),
                    drafted(35, " bends", 1, "rejected"),
                ],
                [emitted(31, " air", "accepted"), emitted(36, " splits", "corrected")],
                7,
                rows=7,
                note=DraftNote("tree", "6 candidates on 2 levels", {"levels": [3, 3]}),
            ),
            step(
                2,
                [drafted(37, " sun", -1, "accepted"), drafted(38, "light", 0, "accepted")],
                [emitted(37, " sun", "accepted"), emitted(38, "light", "accepted"), emitted(39, ".", "bonus")],
                10,
                rows=3,
            ),
        ],
    )


def lookahead() -> list[Event]:
    """Window and pool travel in the note; rows that were only scored are neither drafted nor counted."""
    note = DraftNote(
        "lookahead",
        "2 guesses from the pool",
        {
            "window": [[40, 41, 42], [43, 44, 45]],
            "window_texts": [[" a", " b", " c"], [" d", " e", " f"]],
            "pool_hits": 2,
            "pool_size": 9,
        },
    )
    return stream(
        started("lookahead", draft=None, width=0, exactness_reason="The window shares the pass."),
        [
            step(1, [], [emitted(40, " red", "target")], 6, rows=7, note=note),
            step(
                2,
                [
                    drafted(41, " and", -1, "accepted"),
                    drafted(42, " blue", 0, "accepted"),
                    drafted(43, " or", -1, "discarded"),
                ],
                [emitted(41, " and", "accepted"), emitted(42, " blue", "accepted"), emitted(44, " light", "bonus")],
                9,
                rows=11,
                note=note,
            ),
        ],
    )


def early_exit() -> list[Event]:
    """The first 2 of 4 layers draft 2 tokens; verification runs the remaining layers: work 2*2/4 + 1."""
    note = DraftNote("layers", "layers 1 to 2 drafted, 3 to 4 checked", {"exit_layer": 2, "num_layers": 4})
    return stream(
        started("early-exit", draft=None, width=0),
        [
            step(
                1,
                [drafted(50, " Light", -1, "accepted"), drafted(51, " goes", 0, "rejected")],
                [emitted(50, " Light", "accepted"), emitted(52, " bends", "corrected")],
                7,
                rows=3,
                target_work=2.0,
                note=note,
            ),
        ],
    )


def attached() -> list[Event]:
    """A serving engine tells what it kept, not what it refused; whether it drafted at all is unknown (None).

    Its first token comes with the prompt, before any step; its steps tell their whole time only.
    """
    start = started(
        "attached", draft=None, width=0, exactness="unchecked", exactness_reason="Checked by the server, not here."
    )
    untold: dict[str, object] = {"num_drafted": None, "draft_s": 0.0, "verify_s": 0.0, "other_s": 0.07, "rows": 0}
    steps = [
        step(1, [], [emitted(60, " bright", "accepted"), emitted(61, " sky", "target")], 8, **untold),
        step(2, [], [emitted(62, " is", "target")], 9, **untold),
    ]
    prefill = PrefillDone(len(start.prompt_ids), 0.1, (emitted(59, "The", "target"),))
    end = finished(steps)
    ids = (59, *end.token_ids)
    end = replace(end, text="The" + end.text, token_ids=ids, num_tokens=len(ids), first_token_s=0.1)
    return [start, prefill, *steps, end]


def hostile() -> list[Event]:
    """Text that a page could mistake for markup, templates, formulas or nothing at all (cases 75, 77, 84, 86)."""
    nasty = [
        "<img src=x onerror=alert(1)>", "${1+1}", "`x`", "\\u0041", "\n", "\t", "   ", " ", "", "$5 and $6", "**b**",
        "שלום", "مرحبا 123", "🔥", "</script><b>", "&amp;", "{{value}}", '" onmouseover="x',
    ]  # fmt: skip
    steps = []
    for i, text in enumerate(nasty):
        label = "F0 9F" if text == "" else ""
        steps.append(
            step(
                i + 1,
                [drafted(70 + i, text, -1, "accepted", label=label), drafted(90, nasty[-1 - i], 0, "rejected")],
                [emitted(70 + i, text, "accepted", label=label), emitted(91, nasty[-1 - i], "corrected")],
                7 + 2 * i,
            )
        )
    return stream(started("draft-model", prompt="<b>${x}</b>", prompt_texts=tuple("<b>${x"[:6])), steps)


STREAMS = {
    "chain": chain,
    "tree": tree,
    "lookahead": lookahead,
    "early-exit": early_exit,
    "attached": attached,
    "hostile": hostile,
}
