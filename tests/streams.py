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

__all__ = [
    "METHOD_STREAMS",
    "STREAMS",
    "attached",
    "cascade",
    "chain",
    "copied",
    "early_exit",
    "feature",
    "hostile",
    "jacobi",
    "lookahead",
    "plain",
    "table",
    "tree",
]

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
                note=DraftNote("model"),
            ),
            step(
                2,
                [drafted(14, " blue", -1, "accepted"), drafted(15, " because", 0, "accepted")],
                [emitted(14, " blue", "accepted"), emitted(15, " because", "accepted"), emitted(16, " of", "bonus")],
                11,
                gamma=2,
                note=DraftNote("model"),
            ),
            step(3, [], [emitted(17, " air", "target")], 12, draft_s=0.0, gamma=0),
            step(
                4,
                [
                    drafted(18, ".", -1, "accepted", draft_prob=0.9),
                    drafted(2, "<|end|>", 0, "accepted", label="<|end|>"),
                ],
                [emitted(18, ".", "accepted"), emitted(2, "<|end|>", "accepted", label="<|end|>", special=True)],
                13,
                note=DraftNote("model"),
            ),
        ],
        "eos",
    )


def tree() -> list[Event]:
    """Medusa: two siblings refused before a third is kept, then its child is refused with an untried cousin."""
    heads = {"num_heads": 2, "trained": True}
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
                note=DraftNote("tree", "6 candidates on 2 levels", heads | {"levels": [3, 3]}),
            ),
            step(
                2,
                [drafted(37, " sun", -1, "accepted"), drafted(38, "light", 0, "accepted")],
                [emitted(37, " sun", "accepted"), emitted(38, "light", "accepted"), emitted(39, ".", "bonus")],
                10,
                rows=3,
                note=DraftNote("tree", "2 heads, one guess each", heads | {"levels": [1, 1]}),
            ),
        ],
    )


def lookahead() -> list[Event]:
    """Window and pool travel in the note; rows that were only scored are neither drafted nor counted."""
    first = {
        "window": [[10, 41, 42], [43, 44, 45]],
        "window_texts": [["?", " b", " c"], [" d", " e", " f"]],
        "pool_hits": 0,
        "pool_size": 7,
        "guesses": [],
        "num_warm": 0,
        "answers": [" e", " f", " g"],
    }
    second = {
        "window": [[40, 44, 45], [44, 45, 46]],
        "window_texts": [[" red", " e", " f"], [" e", " f", " g"]],
        "pool_hits": 2,
        "pool_size": 9,
        "guesses": [[41, 42], [43, 45]],
        "num_warm": 2,
        "answers": [" and", " light", " sky"],
    }
    no_q = {"draft_prob": None, "overlap": None}
    return stream(
        started("lookahead", draft=None, width=0, exactness_reason="The window shares the pass."),
        [
            step(
                1,
                [],
                [emitted(40, " red", "target")],
                6,
                rows=7,
                note=DraftNote(
                    "lookahead", "nothing in the pool begins with this token; the window is warming up", first
                ),
            ),
            step(
                2,
                [
                    drafted(41, " and", -1, "accepted", **no_q),
                    drafted(42, " blue", 0, "accepted", **no_q),
                    drafted(43, " or", -1, "discarded", **no_q),
                    drafted(45, " f", 2, "discarded", **no_q),
                ],
                [emitted(41, " and", "accepted"), emitted(42, " blue", "accepted"), emitted(44, " light", "bonus")],
                9,
                rows=11,
                note=DraftNote("lookahead", "2 guesses from the pool", second),
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


RIVER = ("The", " river", " runs", " past", " the", " mill", ".", " The", " canal", " runs", " past")


def _copy(index: int, texts: Sequence[str], source: int, match: int, **more: object) -> StepDone:
    """A step that copied `texts` from place `source`: all kept but the last, which the target calls a canal."""
    ids = [200 + source + i for i in range(len(texts))]
    kept = [emitted(one, text, "accepted") for one, text in zip(ids[:-1], texts, strict=False)]
    fates = ["accepted"] * (len(texts) - 1) + ["rejected"]
    tokens = [drafted(*both, i - 1, fates[i], draft_prob=None) for i, both in enumerate(zip(ids, texts, strict=True))]
    data = {"source_start": source, "source_end": source + len(texts), "match_len": match}
    note = DraftNote("copied", f"Copied: {len(texts)} that followed the same {match} earlier in the text", data)
    out = [*kept, emitted(99, " canal", "corrected")]
    return step(index, tokens, out, 10 + index, note=note, **more)


def copied() -> list[Event]:
    """Prompt lookup: a span of the prompt, one of the answer, and a word that has not occurred before."""
    start = started(
        "prompt-lookup",
        draft=None,
        prompt="".join(RIVER),
        prompt_ids=tuple(200 + i for i in range(len(RIVER))),
        prompt_texts=RIVER,
        exactness="exact",
    )
    silent = DraftNote("copied", "the last token has not occurred before")
    return stream(
        start,
        [
            _copy(1, [" the", " mill", "."], 4, 2),
            step(2, [], [emitted(98, "\n", "target")], 14, note=silent, draft_s=0.0),
            step(3, [], [emitted(204, " the", "target")], 15, note=silent, draft_s=0.0),
            _copy(4, [" mill", " canal"], 12, 1),
        ],
    )


def table() -> list[Event]:
    """N-gram table: three look-ups behind two, three and one token; the last one is refused."""
    data = {
        "match_len": 2,
        "context_ids": [9, 10],
        "count": 34,
        "total": 51,
        "match_lens": [2, 3, 1],
        "counts": [34, 5, 1],
        "totals": [51, 5, 8],
    }
    note = DraftNote("table", "after the same 2 tokens the corpus went on like this 34 of 51 times", data)
    tokens = [
        drafted(11, " The", -1, "accepted", draft_prob=34 / 51),
        drafted(12, " sky", 0, "accepted", draft_prob=1.0),
        drafted(13, " was", 1, "rejected", draft_prob=0.125),
    ]
    out = [emitted(11, " The", "accepted"), emitted(12, " sky", "accepted"), emitted(14, " is", "corrected")]
    return stream(started("ngram-table", draft=None), [step(1, tokens, out, 8, note=note)])


def suffix() -> list[Event]:
    """Suffix decoding: a chain that ends in doubt, then a tree of both sources."""
    data = {
        "match_len": 3,
        "source": "answers",
        "counts": [34, 5],
        "totals": [51, 5],
        "expected": 1.2,
        "asked": [["run", 1, 2, 1, 0.4], ["answers", 3, 51, 2, 1.2]],
        "stop": "doubt",
        "doubted": [" was", 1, 8, 0.06],
        "least": 0.1,
    }
    note = DraftNote("suffix", "the same 3 tokens in answers read beforehand 51 times", data)
    tokens = [
        drafted(11, " The", -1, "accepted", draft_prob=0.6),
        drafted(12, " sky", 0, "rejected", draft_prob=0.7),
    ]
    out = [emitted(11, " The", "accepted"), emitted(14, " sea", "corrected")]
    more = {"source": "run", "counts": [3, 1, 1], "totals": [4, 4, 3], "stop": "full", "doubted": None}
    tree_note = DraftNote("suffix", "the same 3 tokens in this run 4 times", data | more)
    branches = [
        drafted(15, " is", -1, "accepted", draft_prob=0.6),
        drafted(16, " was", -1, "discarded", draft_prob=0.2),
        drafted(17, " blue", 0, "accepted", draft_prob=0.3),
    ]
    then = [emitted(15, " is", "accepted"), emitted(17, " blue", "accepted"), emitted(18, ".", "bonus")]
    return stream(
        started("suffix", draft=None, width=0),
        [step(1, tokens, out, 8, note=note), step(2, branches, then, 10, rows=4, note=tree_note)],
    )


def jacobi() -> list[Event]:
    """Jacobi: start values refused, then guesses of the last pass with one start value behind them."""
    no_q = {"draft_prob": None}
    start, mixed = {"window": [[5, 6]], "num_start": 2}, {"window": [[11, 15]], "num_start": 1}
    return stream(
        started("jacobi", draft=None),
        [
            step(
                1,
                [drafted(5, "Why", -1, "rejected", **no_q), drafted(6, " is", 0, "discarded", **no_q)],
                [emitted(10, "The", "corrected")],
                6,
                note=DraftNote("lookahead", "0 guesses of the last pass, 2 start values", start),
            ),
            step(
                2,
                [drafted(11, " sky", -1, "accepted", **no_q), drafted(15, " is", 0, "rejected", **no_q)],
                [emitted(11, " sky", "accepted"), emitted(12, " looks", "corrected")],
                8,
                note=DraftNote("lookahead", "1 guesses of the last pass, 1 start values", mixed),
            ),
        ],
    )


def feature() -> list[Event]:
    """A feature head that grew a tree, with the layers that it reads."""
    note = DraftNote("tree", "3 candidates on 2 levels", {"levels": [2, 1], "taps": [1, 2]})
    tokens = [
        drafted(11, "The", -1, "accepted"),
        drafted(12, "Blue", -1, "discarded"),
        drafted(13, " sky", 0, "accepted"),
    ]
    out = [emitted(11, "The", "accepted"), emitted(13, " sky", "accepted"), emitted(14, " is", "bonus")]
    return stream(started("feature", width=0), [step(1, tokens, out, 8, rows=4, note=note)])


def cascade() -> list[Event]:
    """A cascade: one drafter promises too little and another's candidates grow in a head's tree, lookup speaks, nobody
    speaks."""
    _, _, second, _ = feature()
    assert isinstance(second, StepDone) and second.note
    weak = {**second.note.data, "from": "feature", "passed": [["ngram-table", 0.5, 1.24]], "joined": ["suffix"]}
    strong = {"source_start": 2, "source_end": 3, "match_len": 1, "from": "prompt-lookup", "passed": []}
    none = {"from": None, "passed": [["prompt-lookup", 0, 0.8], ["feature", 0, 0]]}
    words = "prompt-lookup: Copied: 1 that followed the same 1 earlier in the text"
    word = drafted(7, " the", -1, "accepted", draft_prob=None)
    return stream(
        started("cascade", width=0),
        [
            replace(second, note=DraftNote("tree", f"feature: {second.note.text}", weak)),
            step(
                2,
                [word],
                [emitted(7, " the", "accepted"), emitted(8, " sky", "bonus")],
                10,
                note=DraftNote("copied", words, strong),
            ),
            step(
                3,
                [],
                [emitted(9, " blue", "target")],
                11,
                note=DraftNote("cascade", "no drafter had anything to offer", none),
            ),
        ],
    )


def plain() -> list[Event]:
    """No drafts: a pass for every token."""
    texts = ("The", " sky", " is", " blue")
    steps = [step(i, [], [emitted(10 + i, text, "target")], 5 + i, rows=1, gamma=0) for i, text in enumerate(texts, 1)]
    return stream(started("plain", draft=None, gamma=0, width=0), steps)


STREAMS = {
    "chain": chain,
    "tree": tree,
    "lookahead": lookahead,
    "early-exit": early_exit,
    "attached": attached,
    "hostile": hostile,
}

METHOD_STREAMS = {
    "copied": copied,
    "table": table,
    "suffix": suffix,
    "jacobi": jacobi,
    "feature": feature,
    "cascade": cascade,
    "plain": plain,
}
"""Runs of further methods, for the page that draws each in its own way."""
