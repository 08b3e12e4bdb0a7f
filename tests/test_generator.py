"""The loop, over every method and over drafters that lie: text, fates, counters, caches, errors, and ends.

Every run here is checked against all invariants of the design (`checks.check_invariants`). Numbers of cases are those
of the list of public failures of other projects.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
from checks import (
    BadDrafter,
    check_invariants,
    ids_from,
    log_of,
    noisy,
    play,
    random_tree,
    sequential,
    steps_of,
    wild_llama,
)
from fakes import (
    EOS,
    ScriptDrafter,
    TableModel,
    TapeModel,
    byte_tokenizer,
    config,
    found_exact,
    generator,
    ids_of,
    tiny_gpt2,
    tiny_llama,
)

import specviz.drafters.model
import specviz.errors
import specviz.run
from specviz.config import RunConfig
from specviz.drafters import registry
from specviz.drafters.base import DraftContext, Drafter, Need
from specviz.errors import ConfigError
from specviz.events import PrefillDone, RunFinished, RunStarted, StepDone
from specviz.generator import SpeculativeGenerator
from specviz.models.cache import InPlaceCache
from specviz.models.session import MAX_NODES, Session
from specviz.proposal import Proposal
from specviz.sampling import coin, draw

PROMPT = ids_of("abcabcabc hello")
METHODS = registry.names()
OUTSIDE = [name for name in METHODS if not registry.METHODS[name].needs & {Need.HIDDEN, Need.LAYERS, Need.STATES}]
"""Methods that see nothing of a target but its logits, and so run on models that have nothing else."""

TAPE = [ord(c) - 33 for c in "abcdefghijklmnopqrstuvwxyz"]
"""Ids of 26 letters in the byte tokenizer."""


@cache
def wild() -> Any:
    return wild_llama(1)


@cache
def near() -> Any:
    """Agrees with `wild` at about two places of three."""
    return noisy(wild(), 0.03)


@cache
def looping() -> Any:
    """A target that falls into a loop, which prompt lookup can follow."""
    return tiny_llama(0, layers=2)


@cache
def greedy_text(name: str, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    return sequential({"wild": wild, "looping": looping}[name](), prompt, num_tokens)


def _without_traceback(record: logging.LogRecord) -> bool:
    """Pytest keeps every record of a test, and a traceback keeps the frames that hold a run."""
    record.exc_info = None
    return True


@pytest.fixture(autouse=True)
def live_caches(monkeypatch) -> Iterator[Callable[[], int]]:
    """I8: when a test ends, no cache is alive and no thread is left. Yields the number of caches that hold entries."""
    caches: list[weakref.ref[InPlaceCache]] = []
    threads = threading.active_count()

    class Watched(Session):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            caches.append(weakref.ref(self._cache))

    def num_alive() -> int:
        return sum(cache is not None and cache.num_bytes > 0 for cache in [ref() for ref in caches])

    monkeypatch.setattr(specviz.run, "Session", Watched)
    monkeypatch.setattr(specviz.drafters.model, "Session", Watched)
    monkeypatch.setattr(specviz.errors._log, "filters", [_without_traceback])
    yield num_alive
    if any(ref() for ref in caches):
        gc.collect()
    assert not any(ref() for ref in caches), "a cache outlives its run"
    assert threading.active_count() <= threads


@pytest.fixture
def script(monkeypatch) -> Callable[[Any], Drafter]:
    """Register a drafter, or a function of (ids, max_tokens) that drafts, as method `script`."""

    def register(drafter: Any) -> Drafter:
        made: Drafter = ScriptDrafter(drafter) if callable(drafter) else drafter
        method = registry.Method("script", "Script", "Made in a test.", "exact", lambda *_: (made, None))
        monkeypatch.setitem(registry.METHODS, "script", method)
        return made

    return register


def follow(tape: Sequence[int], prompt_len: int) -> Callable[[Sequence[int], int], list[int]]:
    """Drafts what the tape goes on with, as much as is asked for."""
    return lambda ids, n: list(tape[len(ids) - prompt_len :][:n])


def tape_engine(tape: Sequence[int], *, eos: Sequence[int] = (EOS,), **more: Any) -> SpeculativeGenerator:
    """A target and a draft model that both write the tape after a prompt of one token."""
    return generator(TapeModel(tape, 1, **more), TapeModel(tape, 1, **more), eos=eos)


def finish(events: Sequence[Any]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


# --- losslessness -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*OUTSIDE, "script"])
@pytest.mark.parametrize("slot", range(6))
def test_case_1_end_token_at_every_slot(method, slot, script):
    """Case 1: EOS at draft slots 0 to 3, on the bonus slot, and one step later; nothing behind it anywhere."""
    tape = [*TAPE[:slot], EOS, *TAPE[10:20]]
    script(follow(tape, 1))
    events = play(tape_engine(tape), [40], config(method, gamma=4, max_new_tokens=12), plain=tape[: slot + 1])
    end, last = finish(events), steps_of(events)[-1]
    assert end.reason == "eos"
    assert end.token_ids.index(EOS) == len(end.token_ids) - 1
    assert end.text == "abcdef"[:slot]
    assert last.cache_len == 1 + slot + (last.emitted[-1].origin == "accepted")
    if method in ("script", "draft-model", "quantized-copy"):
        assert last.emitted[-1].origin == ("bonus" if slot == 4 else "accepted")
        assert slot == 4 or last.drafted[-1].token_id == EOS


def test_case_1_text_behind_an_end_token_in_a_tree_is_left_out(script):
    """Case 1 in a tree: a branch ends in EOS with children, its sibling is kept."""
    tape = TAPE[:6]
    tree = Proposal(torch.tensor([EOS, 7, tape[0], tape[1]]), (-1, 0, -1, 2))
    script(lambda ids, n: tree if len(ids) == 1 else [])
    events = play(tape_engine(tape), [40], config("script", max_new_tokens=6), plain=tape)
    assert [(t.token_id, t.parent, t.fate) for t in steps_of(events)[0].drafted] == [
        (EOS, -1, "rejected"),
        (tape[0], -1, "accepted"),
        (tape[1], 1, "accepted"),
    ]


@pytest.mark.parametrize("method", METHODS)
def test_case_3_no_end_token_configured(method):
    """Case 3: the prompt of the report, eos unset."""
    prompt = [5, 6, 7, 8, 9, 10, 11, 7, 8]
    engine = generator(looping(), near(), eos=())
    events = play(engine, prompt, config(method, max_new_tokens=15), plain=greedy_text("looping", tuple(prompt), 15))
    assert finish(events).reason == "length"
    assert finish(events).num_tokens == 15


@pytest.mark.parametrize("method", [*OUTSIDE, "script"])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_case_4_exactly_as_many_tokens_as_asked_for(method, gamma, script):
    """Case 4: max_new_tokens x gamma with a drafter that is always right, and no block is cut by the limit."""
    tape = TAPE[:18]
    script(follow(tape, 1))
    engine = tape_engine(tape)
    for num_tokens in (1, 2, 3, 5, 17):
        events = play(engine, [40], config(method, gamma=gamma, max_new_tokens=num_tokens), plain=tape[:num_tokens])
        assert finish(events).reason == "length"
        assert all(len(step.emitted) == step.num_accepted + 1 for step in steps_of(events))
        if method == "script":
            assert len(steps_of(events)) == -(-num_tokens // (gamma + 1))
    with pytest.raises(ConfigError, match=r"max-new-tokens.*between 1 and"):
        config(method, max_new_tokens=0)


@pytest.mark.parametrize("method", ["plain", "draft-model", "script"])
def test_case_6_stop_text_before_length_limit(method, script):
    """Case 6: a stop inside the block that would also reach the limit; and the mirror, where the limit comes first."""
    script(follow(TAPE, 1))
    engine = tape_engine(TAPE)
    events = play(engine, [40], config(method, gamma=6, max_new_tokens=5, stop=("c",)), plain=TAPE[:3])
    assert (finish(events).reason, finish(events).text) == ("stop", "ab")
    events = play(engine, [40], config(method, gamma=6, max_new_tokens=5, stop=("f",)), plain=TAPE[:5])
    assert (finish(events).reason, finish(events).text) == ("length", "abcde")
    events = play(engine, [40], config(method, gamma=6, max_new_tokens=5, stop=("e",)), plain=TAPE[:5])
    assert (finish(events).reason, finish(events).text) == ("stop", "abcd")


@pytest.mark.parametrize("method", ["plain", "draft-model", "script"])
@pytest.mark.parametrize("gamma", [1, 2, 3, 7])
def test_case_6_stop_text_across_tokens_and_steps(method, gamma, script):
    """Stop texts of several tokens, cut by every step boundary, one of them ending in a character of three bytes."""
    tape = [*ids_of("abc€def€ghi"), EOS]
    script(follow(tape, 1))
    for stop, text in (
        (("c€d",), "ab"),
        (("zzz", "f€"), "abc€de"),
        (("€g", "def"), "abc€"),
        (("nowhere",), "abc€def€ghi"),
    ):
        events = play(tape_engine(tape), [40], config(method, gamma=gamma, max_new_tokens=40, stop=stop))
        assert finish(events).text == text
        assert finish(events).reason == ("eos" if stop == ("nowhere",) else "stop")


def test_drafts_behind_a_stop_are_in_no_counter(script):
    """Six drafted, the third completes the stop: three drafted, three accepted, nothing of the rest in the event."""
    script(follow(TAPE, 1))
    events = play(tape_engine(TAPE), [40], config("script", gamma=6, max_new_tokens=20, stop=("bc",)))
    (step,) = steps_of(events)
    assert (step.num_drafted, step.num_accepted, len(step.emitted), step.cache_len) == (3, 3, 3, 1 + 3)


def test_run_that_ends_inside_a_character_shows_what_is_left():
    """I4: the length limit falls between the bytes of a character; the text is what `decode` makes of the ids."""
    tape = ids_of("ab🔥")
    for num_tokens, text in ((2, "ab"), (3, "ab\ufffd"), (5, "ab\ufffd"), (6, "ab🔥")):
        events = play(tape_engine(tape), [40], config("draft-model", max_new_tokens=num_tokens))
        assert finish(events).text == text


@pytest.mark.parametrize("method", METHODS)
def test_case_7_every_method_writes_the_text_of_a_loop_of_plain_calls(method):
    """Case 7a: 8 prompts x 32 tokens in float64 against a loop of our own with transformers alone; 2 targets."""
    for name, model, draft in (("wild", wild(), near()), ("looping", looping(), noisy(looping(), 0.02))):
        engine = generator(model, draft, eos=())
        for seed in range(4):
            prompt = ids_from(seed, 3 + 9 * seed)
            plain = greedy_text(name, tuple(prompt), 32)
            play(engine, prompt, config(method, gamma=1 + 2 * seed, max_new_tokens=32), plain=plain)


def test_methods_really_accept_in_these_runs():
    """Guards the tests above: a draft that is never right, or always, would hide faults."""
    events = list(generator(wild(), near(), eos=()).stream(PROMPT, config("draft-model", gamma=3, max_new_tokens=60)))
    counts = Counter(step.num_accepted for step in steps_of(events))
    assert min(counts[0], counts[1] + counts[2], counts[3]) >= 3, counts
    events = list(generator(looping(), eos=()).stream(PROMPT, config("prompt-lookup", gamma=4, max_new_tokens=60)))
    assert sum(step.num_accepted for step in steps_of(events)) >= 20


HOSTILE: dict[str, Callable[[Sequence[int], int], Any]] = {
    "random": lambda ids, n: ids_from(sum(ids) * 31 + len(ids), n),
    "always wrong": lambda ids, n: [(ids[-1] + 1) % 250] * n,
    "always EOS": lambda ids, n: [EOS] * n,
    "nothing": lambda ids, n: [],
    "too long": lambda ids, n: ids_from(len(ids), n + 40),
    "one token repeated": lambda ids, n: [ids[-1]] * n,
    "right then garbage": lambda ids, n: [*greedy_text("wild", tuple(PROMPT), 48)[len(ids) - len(PROMPT) :][:2], 3, 3][
        :n
    ],
    "at random right": lambda ids, n: [
        token if (len(ids) * 7 + i) % 3 else 9
        for i, token in enumerate(greedy_text("wild", tuple(PROMPT), 48)[len(ids) - len(PROMPT) :][:n])
    ],
    "only sometimes": lambda ids, n: (
        greedy_text("wild", tuple(PROMPT), 48)[len(ids) - len(PROMPT) :][:n] * (len(ids) % 2)
    ),
    "special tokens": lambda ids, n: [256, 257, 259, 0][:n],
    "case 112: V, V + 3, -1": lambda ids, n: [*[260, 263, -1][len(ids) % 3 :], 4],
    "case 112: far outside": lambda ids, n: [2**40, -(2**40), 264][:n],
    "case 112: behind a right one": lambda ids, n: [
        *greedy_text("wild", tuple(PROMPT), 48)[len(ids) - len(PROMPT) :][:1],
        -1,
        5,
    ],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_case_9_hostile_drafters_never_change_greedy_text(name, script):
    """Cases 9 and 112: a drafter may change the speed, never the text."""
    script(HOSTILE[name])
    engine = generator(wild(), eos=(EOS,))
    plain = sequential(wild(), PROMPT, 40, eos=(EOS,))
    for gamma, exact in ((1, False), (4, False), (7, True), (12, False)):
        settings = config("script", gamma=gamma, max_new_tokens=40, exact=exact)
        events = play(engine, PROMPT, settings, plain=plain)
        if name == "nothing":
            assert all(token.origin == "target" for step in steps_of(events) for token in step.emitted)


@pytest.mark.parametrize("penalty", [1.5, 0.8])
@pytest.mark.parametrize("method", [*METHODS, "script"])
def test_case_10_penalty_sees_tokens_drafted_earlier_in_the_block(method, penalty, script):
    """Case 10: equal to a loop with transformers' own processor; and the penalty changes the text at all."""
    model = {1.5: looping, 0.8: wild}[penalty]()
    prompt = ids_of("abababababab")
    plain = sequential(model, prompt, 40, penalty=penalty)
    assert plain != sequential(model, prompt, 40)
    script(lambda ids, n: plain[len(ids) - len(prompt) :][:n])
    engine = generator(model, noisy(model, 0.02), eos=())
    settings = config(method, gamma=6, max_new_tokens=40, repetition_penalty=penalty)
    events = play(engine, prompt, settings, plain=plain)
    if method == "script":
        assert all(step.num_accepted == step.num_drafted for step in steps_of(events))


def test_case_10_penalty_and_temperature_draw_what_the_sequential_rule_draws(script):
    """Case 10 with sampling: after a drafted 0 the second token's odds are those with 0 in the history.

    Target: three ids, all logits 2; penalty 2 halves the logit of a seen id. History [2], then 0: p = softmax(1, 2, 1),
    so the middle id has 0.576 (without the drafted token it would have 0.422). About 200 draws: standard deviation
    0.035; the bound of 0.11 fails a right engine for 2 seeds in 1000.
    """
    script(lambda ids, n: [0])
    engine = generator(TableModel(torch.full((3, 3), 2.0)), eos=())
    hits = total = 0
    for seed in range(600):
        settings = config("script", gamma=1, max_new_tokens=2, temperature=1.0, repetition_penalty=2.0, seed=seed)
        ids = finish(list(engine.stream([2], settings))).token_ids
        if ids[0] == 0:
            total += 1
            hits += ids[1] == 1
    assert total > 150
    assert abs(hits / total - 0.576) < 0.11


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_case_14_a_second_run_equals_the_first(method, temperature):
    """Case 14: A, B with another gamma, A again on one engine, and A on a fresh one; whole logs compared."""
    engine = generator(wild(), near())
    first = play(engine, PROMPT, config(method, max_new_tokens=24, temperature=temperature, seed=3, detail=True))
    play(engine, ids_from(8, 30), config(method, gamma=7, max_new_tokens=9, temperature=temperature, seed=4))
    again = play(engine, PROMPT, config(method, max_new_tokens=24, temperature=temperature, seed=3, detail=True))
    fresh = play(
        generator(wild(), near()),
        PROMPT,
        config(method, max_new_tokens=24, temperature=temperature, seed=3, detail=True),
    )
    assert log_of(first) == log_of(again) == log_of(fresh)


# --- sampling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_case_28_seeds(method):
    """Case 28: same seed, same log; other seeds, other texts; unseeded runs differ and report their seed; the global
    generator is untouched; a neighbour's run in between changes nothing."""
    engine = generator(wild(), near(), eos=())
    settings = {"method": method, "max_new_tokens": 12, "temperature": 1.0}
    state = torch.get_rng_state()
    first = play(engine, PROMPT, config(**settings, seed=42))
    half = engine.stream(PROMPT, config(**settings, seed=42))
    begun = list(itertools.islice(half, 5))
    neighbour = generator(wild(), near(), eos=())
    play(neighbour, ids_from(1, 9), config(**settings, seed=7))
    torch.rand(3, generator=torch.Generator().manual_seed(1))
    assert log_of(first) == log_of([*begun, *half])
    texts = {finish(play(engine, PROMPT, config(**settings, seed=seed))).token_ids for seed in range(1, 6)}
    assert len(texts) >= 2
    unseeded = [play(engine, PROMPT, config(**settings)) for _ in range(2)]
    assert finish(unseeded[0]).token_ids != finish(unseeded[1]).token_ids
    seed = unseeded[0][0].settings["seed"]
    assert finish(play(engine, PROMPT, config(**settings, seed=seed))).token_ids == finish(unseeded[0]).token_ids
    assert torch.equal(torch.get_rng_state(), state)


def test_case_30_first_replacement_and_bonus_token_are_drawn(script):
    """Case 30: p = (.5, .5, 0, 0) everywhere, T = 1. In every role both ids come up half of the time.

    700 runs; the bonus role sees about 350. The bound is 4.5 standard deviations, so each role of a right engine fails
    for less than one seed in 100 000.
    """
    table = torch.tensor([0.0, 0.0, -1e9, -1e9]).repeat(4, 1)
    plan = {1: [], 2: [3], 3: [0]}  # by ids before the step: nothing, a token of probability 0, a coin flip
    script(lambda ids, n: plan.get(len(ids), []))
    engine = generator(TableModel(table), eos=())
    roles: dict[str, list[int]] = {"target": [], "corrected": [], "bonus": [], "accepted": []}
    for seed in range(700):
        events = list(engine.stream([2], config("script", max_new_tokens=5, temperature=1.0, seed=seed)))
        steps = steps_of(events)
        roles["target"].append(steps[0].emitted[0].token_id)
        roles["corrected"].append(steps[1].emitted[-1].token_id)
        if steps[2].emitted[-1].origin == "bonus":
            roles["bonus"].append(steps[2].emitted[-1].token_id)
        roles["accepted"].append(steps[2].num_accepted)
        if seed < 20:
            check_invariants(events, engine.loaded, config("script", max_new_tokens=5, temperature=1.0, seed=seed))
    for role, values in roles.items():
        assert set(values) == {0, 1}
        assert len(values) >= 250
        assert abs(sum(values) - len(values) / 2) < 4.5 * (len(values) / 4) ** 0.5, role


@pytest.mark.parametrize("method", OUTSIDE)
def test_case_32_low_temperatures_approach_greedy(method, table_for):
    """Case 32: logit gap of at least 1; at T <= 0.01 the text is the greedy one (odds of another: e^-100 a token)."""
    table = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(i)).double() for i in range(8)])
    table2 = table + torch.randn(8, 8, generator=torch.Generator().manual_seed(9))
    table_for(8)
    engine = generator(TableModel(table), TableModel(table2), eos=())
    greedy = finish(play(engine, [1, 2], config(method, max_new_tokens=60))).token_ids
    agreement = []
    for temperature in (1.0, 0.1, 0.01, 0.001, 1e-4, 1e-45):
        settings = config(method, max_new_tokens=60, temperature=temperature, seed=1)
        ids = finish(play(engine, [1, 2], settings)).token_ids
        best = table.argmax(-1)
        agreement.append(sum(int(best[a]) == b for a, b in itertools.pairwise((2, *ids))))
        if temperature <= 0.01:
            assert ids == greedy
    assert agreement == sorted(agreement)
    assert agreement[0] < 55


class TreeSampler:
    """Draws siblings without putting back, or chooses the two likeliest: the two forms of a lossless tree."""

    name = "script"
    needs: frozenset[Any] = frozenset()
    num_bytes = 0

    def __init__(self, table: torch.Tensor, *, drawn: bool) -> None:
        self.q, self.drawn = torch.softmax(table, -1), drawn

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None: ...
    def observe(self, outcome: Any) -> None: ...
    def close(self) -> None: ...

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[torch.Tensor] = []
        for parent in [-1] if max_tokens == 1 else [-1, 0, 1]:
            q = self.q[context.token_ids[-1] if parent == -1 else tokens[parent]].clone()
            for _ in range(2):
                q = q / q.sum()
                token = draw(q, rng) if self.drawn else int(q.argmax())
                tokens.append(token)
                parents.append(parent)
                rows.append(q.clone())
                q[token] = 0.0
        return Proposal(torch.tensor(tokens), tuple(parents), torch.stack(rows) if self.drawn else None)


def chi_square(ids: Sequence[int], table: torch.Tensor, temperature: float = 1.0) -> float:
    """Sum over states of the chi-square statistic of the next token; V(V - 1) degrees of freedom."""
    size = len(table)
    p = torch.softmax(table.double() / temperature, -1)
    counts = torch.zeros(size, size, dtype=torch.float64)
    for a, b in itertools.pairwise(ids):
        counts[a, b] += 1
    expected = counts.sum(-1, keepdim=True) * p
    return float(((counts - expected) ** 2 / expected).sum())


TABLE = torch.randn(5, 5, generator=torch.Generator().manual_seed(5)).double()
OTHER = (TABLE + torch.randn(5, 5, generator=torch.Generator().manual_seed(6))).double()


@pytest.mark.parametrize(
    "kind", ["plain", "prompt-lookup", "draft-model", "quantized-copy", "drawn tree", "chosen tree"]
)
def test_sampled_text_follows_the_target(kind, script):
    """A chain of 5 states, 1300 tokens in one run: transition counts against the target's table.

    Chi-square with 20 degrees of freedom is above 52.4 with odds of 1 in 10 000 per kind; a draft's table in place of
    the target's gives more than a hundred (checked below).
    """
    target, draft = TableModel(TABLE), TableModel(OTHER)
    target.config.max_position_embeddings = draft.config.max_position_embeddings = 1 << 14
    script(TreeSampler(OTHER, drawn=kind == "drawn tree"))
    method = "script" if "tree" in kind else kind
    settings = config(method, gamma=2, max_new_tokens=1300, temperature=1.0, seed=11)
    events = play(generator(target, draft, eos=()), [0], settings)
    ids = (0, *finish(events).token_ids)
    assert chi_square(ids, TABLE) < 52.4
    assert chi_square(ids, OTHER) > 100
    if method != "plain":
        counts = Counter(step.num_accepted for step in steps_of(events))
        assert min(counts[0], counts[1], counts[2]) > 20


# --- cache, ends, and broken runs ---------------------------------------------------------------------------------


def test_case_37_a_draft_that_is_the_target_is_always_right():
    """Case 37: acceptance 1.0 in every round, gamma 1, 3, 5; the draft never falls behind."""
    engine = generator(wild(), wild(), eos=())
    for gamma in (1, 3, 5):
        events = play(engine, PROMPT, config("draft-model", gamma=gamma, max_new_tokens=80))
        for step in steps_of(events):
            assert step.num_accepted == step.num_drafted == step.gamma


def engines_apart(method: str) -> tuple[SpeculativeGenerator, list[Any]]:
    """An engine, and the log of a run on a fresh one."""
    settings = config(method, gamma=4, max_new_tokens=11, seed=1)
    return generator(wild(), near(), eos=()), log_of(play(generator(wild(), near(), eos=()), PROMPT, settings))


@pytest.mark.parametrize("method", METHODS)
def test_cases_40_and_94_closing_at_every_yield_leaves_nothing(method, live_caches):
    """Cases 40 and 94: close after 0, 1, 2, ... events; memory freed, the next run like one on a fresh engine."""
    engine, fresh = engines_apart(method)
    settings = config(method, gamma=4, max_new_tokens=11, seed=1)
    for num_events in range(len(fresh) + 1):
        run = engine.stream(PROMPT, settings)
        taken = list(itertools.islice(run, num_events))
        run.close()
        assert len(taken) == num_events
        assert live_caches() == 0
        assert not engine.loaded.lock.locked()
    assert log_of(play(engine, PROMPT, settings)) == fresh


def test_case_94_a_closed_run_makes_no_further_pass():
    """Case 94: 2000 tokens asked for, the reader leaves after 5 events."""
    model = TapeModel(TAPE * 80, 1)
    run = generator(model, eos=()).stream([40], config("plain", max_new_tokens=2000))
    list(itertools.islice(run, 5))
    before = model.num_passes
    run.close()
    assert model.num_passes == before == 3
    assert next(run, None) is None


@pytest.mark.parametrize("where", ["reset", "propose", "observe"])
@pytest.mark.parametrize("at", [1, 3])
def test_case_40_a_drafter_that_raises(where, at, script, caplog):
    """Cases 40 and 93: reason `error` with what is there, nothing inner shows, the next run is right."""
    script(BadDrafter(where, at))
    engine, fresh = engines_apart("draft-model")
    settings = config("script", max_new_tokens=11)
    events = list(engine.stream(PROMPT, settings))
    if where == "reset" and at == 3:
        check_invariants(events, engine.loaded, settings)
        return
    check_invariants(events, engine.loaded, settings)
    end = finish(events)
    assert end.reason == "error"
    assert len(steps_of(events)) == (0 if where == "reset" else at - 1)
    assert "/home" not in end.message
    assert "hf_secret" not in end.message
    assert end.message.split()[-1].strip(".") in caplog.text
    assert log_of(play(engine, PROMPT, config("draft-model", gamma=4, max_new_tokens=11, seed=1))) == fresh


def test_a_drafter_that_raises_at_its_end_still_frees_the_target(script, live_caches):
    """I8 does not rest on a drafter's good manners."""
    script(BadDrafter("close", 1))
    with pytest.raises(RuntimeError, match="secret"):
        list(generator(wild()).stream(PROMPT, config("script", max_new_tokens=5)))
    gc.collect()  # the traceback holds the run, but not its cache
    assert live_caches() == 0


@pytest.mark.parametrize("fail_at", [1, 2, 4])
def test_case_40_a_target_that_raises(fail_at, script):
    """Case 40: failures in prefill (pass 1) and in verification; then a right run on the same models."""
    model = TapeModel(TAPE, 2)
    script(follow(TAPE, 2))
    engine = generator(model)
    model.fail_at = fail_at
    events = play(engine, [40, 41], config("script", gamma=2, max_new_tokens=20))
    end = finish(events)
    assert end.reason == "error"
    assert "secret" not in end.message
    assert end.num_tokens == 3 * max(0, fail_at - 2)
    assert any(isinstance(event, PrefillDone) for event in events) == (fail_at > 1)
    play(engine, [40, 41], config("script", gamma=2, max_new_tokens=20), plain=TAPE[:20])


@pytest.mark.parametrize("fail_at", [1, 2, 5])
def test_case_40_a_draft_model_that_raises(fail_at):
    target, draft = TapeModel(TAPE, 2), TapeModel(TAPE, 2)
    engine = generator(target, draft)
    draft.fail_at = fail_at
    assert finish(play(engine, [40, 41], config("draft-model", gamma=2, max_new_tokens=20))).reason == "error"
    play(engine, [40, 41], config("draft-model", gamma=2, max_new_tokens=20), plain=TAPE[:20])


def test_case_40_out_of_memory_is_told_in_words(script):
    script(BadDrafter("propose", 2, RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")))
    end = finish(play(generator(wild()), PROMPT, config("script", max_new_tokens=9)))
    assert end.reason == "error"
    assert end.message.startswith("This machine ran out of memory.")


def test_case_40_an_interrupt_is_not_swallowed(script, live_caches):
    script(BadDrafter("propose", 2, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(generator(wild()).stream(PROMPT, config("script", max_new_tokens=9)))
    assert live_caches() == 0


def test_case_40_a_draft_cache_is_never_rolled_back_by_more_than_it_was_ahead(monkeypatch):
    """Case 40: every rollback takes back between 0 and gamma entries, down to the last round before the limit."""
    trims: list[int] = []
    roll_back = InPlaceCache.roll_back

    def spy(cache: InPlaceCache, length: int) -> None:
        trims.append(cache.length - length)
        roll_back(cache, length)

    monkeypatch.setattr(InPlaceCache, "roll_back", spy)
    for num_tokens in (1, 2, 5, 6, 23):
        play(generator(wild(), near(), eos=()), PROMPT, config("draft-model", gamma=5, max_new_tokens=num_tokens))
    assert set(trims) <= set(range(6))
    assert {0, 4} <= set(trims)


def test_case_46_a_draft_that_reads_less_than_the_target():
    """Case 46: draft 32 positions, prompt 30 (and 20 to 40), 24 new tokens: the target goes on alone, and says so."""
    draft = noisy(wild_llama(1, positions=32), 0.03)
    engine = generator(wild(), draft, eos=())
    for prompt_len in (20, 30, 31, 32, 40):
        prompt = ids_from(3, prompt_len)
        events = play(
            engine, prompt, config("draft-model", gamma=4, max_new_tokens=24), plain=sequential(wild(), prompt, 24)
        )
        length = prompt_len
        for step in steps_of(events):
            assert not step.drafted or length + len(step.drafted) <= 32
            if step.gamma and length >= 32:
                assert "32 tokens at most" in step.note.text
            length += len(step.emitted)
        assert any(step.drafted for step in steps_of(events)) == (prompt_len < 32)


@pytest.mark.parametrize(
    "method", [name for name in METHODS if not registry.METHODS[name].needs & {Need.LAYERS, Need.STATES}]
)
@pytest.mark.parametrize("exact", [False, True])
def test_case_47_a_target_with_64_learned_positions(method, exact):
    """Case 47: prompt 60 of 64, 20 tokens asked for, gamma 8 (exact: 92 of 96, gamma 7); reason `context`, with a
    message; prompts that leave no room are refused."""
    size = 96 if exact else 64
    model = tiny_gpt2(positions=size)
    engine = generator(model, noisy(model, 0.1), eos=())
    gamma = 7 if exact else 8
    for prompt_len in (size - 14, size - 4, size - 1):
        prompt = ids_from(prompt_len, prompt_len)
        plain = sequential(model, prompt, size - prompt_len)
        events = play(engine, prompt, config(method, gamma=gamma, max_new_tokens=20, exact=exact), plain=plain)
        assert finish(events).reason == "context"
        assert f"{size} tokens" in finish(events).message
    play(
        engine,
        ids_from(60, 60),
        config(method, gamma=gamma, max_new_tokens=4, exact=exact),
        plain=sequential(model, ids_from(60, 60), 4),
    )
    for prompt_len in (size, size + 1):
        with pytest.raises(ConfigError, match=rf"{prompt_len} tokens .* {size}.*Shorten"):
            engine.stream(ids_from(1, prompt_len), config(method))


@pytest.mark.parametrize("positions", [32, 61, 64, 70, 76, 77])
def test_case_47_the_self_test_fits_into_short_contexts(positions):
    """The exactness self-test of a model that reads few tokens."""
    report = generator(tiny_gpt2(positions=positions), eos=()).exactness_report(8)
    assert report.num_positions > 0


def test_time_limit():
    """Stops after the step in which the time is over, with a message; a limit that is not reached changes nothing."""
    engine = generator(wild(), near(), eos=())
    events = play(engine, PROMPT, config("draft-model", max_new_tokens=400, time_limit_s=0.05))
    assert finish(events).reason == "time"
    assert 0 < finish(events).num_tokens < 400
    assert "0.05 s" in finish(events).message
    assert finish(play(engine, PROMPT, config("draft-model", max_new_tokens=5, time_limit_s=60.0))).reason == "length"


SETTINGS: list[tuple[dict[str, Any], Callable[[list[Any]], Any], Any]] = [
    ({"gamma": 1}, lambda events: max(step.num_drafted for step in steps_of(events)), 1),
    ({"max_new_tokens": 5}, lambda events: finish(events).num_tokens, 5),
    ({"temperature": 0.0}, lambda events: events[0].verify, "greedy"),
    ({"top_k": 1}, lambda events: {token.target_prob for step in steps_of(events) for token in step.emitted}, {1.0}),
    ({"top_p": 1e-6}, lambda events: {token.target_prob for step in steps_of(events) for token in step.emitted}, {1.0}),
    ({"repetition_penalty": 10.0}, lambda events: len(set(finish(events).token_ids)), 24),
    ({"raw": True}, lambda events: events[0].prompt_ids, tuple(byte_tokenizer()("ab")["input_ids"])),
    ({"detail": True}, lambda events: any(t.target_top for step in steps_of(events) for t in step.drafted), True),
    ({"exact": True, "width": 16}, lambda events: {step.rows for step in steps_of(events)}, {16}),
    ({"verify": "threshold"}, lambda events: events[0].exactness, "approximate"),
    ({"verify": "typical", "epsilon": 0.0}, lambda events: finish(events).reason, "length"),
    ({"draft_length": "heuristic"}, lambda events: len({step.gamma for step in steps_of(events)[:-4]}) > 1, True),
    ({"draft_length": "confidence", "confidence": 1.0}, lambda events: max(s.num_drafted for s in steps_of(events)), 1),
    ({"time_limit_s": 1e-6}, lambda events: finish(events).reason, "time"),
    ({"stop": ("a", "e", "\ufffd", "t")}, lambda events: finish(events).reason, "stop"),
    ({"method": "prompt-lookup"}, lambda events: events[0].method, "prompt-lookup"),
]
"""A change of one setting, what to look at, and what has to be there then and not before."""


@pytest.mark.parametrize(("changes", "look", "wanted"), SETTINGS, ids=[str(changes)[:40] for changes, *_ in SETTINGS])
def test_case_116_every_setting_has_an_effect(changes, look, wanted):
    """The methods' own settings have their effects tested beside each drafter."""
    engine = generator(wild(), near(), eos=())
    usual = {"method": "draft-model", "gamma": 4, "max_new_tokens": 24, "temperature": 1.0, "seed": 3}
    before, after = ([*engine.stream("ab", config(**settings))] for settings in (usual, usual | changes))
    assert look(after) == wanted
    if "epsilon" not in changes:
        assert look(before) != wanted


def test_timings_come_from_the_clock_and_add_up(monkeypatch):
    """A clock that advances one second a look: prefill 1, and draft 2, verification 2, the rest 3 looks per step."""
    ticks = itertools.count()
    monkeypatch.setattr(specviz.run.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    events = list(generator(TapeModel(TAPE, 1), eos=()).stream([40], config("plain", max_new_tokens=3)))
    monkeypatch.undo()
    assert all((s.draft_s, s.verify_s, s.other_s) == (2.0, 2.0, 3.0) for s in steps_of(events))
    end = finish(events)
    assert (end.prefill_s, end.first_token_s, end.decode_s) == (1.0, 8.0, 21.0)


def test_waiting_between_events_is_not_charged():
    """A reader that is slow pays nothing: 5 x 20 ms of waiting, and less than that in all steps together."""
    seconds = []
    run = generator(TapeModel(TAPE, 1), eos=()).stream([40], config("plain", max_new_tokens=5))
    for event in run:
        threading.Event().wait(0.02)
        if isinstance(event, StepDone):
            seconds.append(event.draft_s + event.verify_s + event.other_s)
    assert min(seconds) < 0.02


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_event_may_be_asked_for_from_another_thread(method, temperature):
    """Inference mode and everything else of a thread is entered inside a step, never across a yield."""
    engine = generator(wild(), near(), eos=())
    settings = config(method, max_new_tokens=14, temperature=temperature, seed=2, detail=True)
    alone = play(engine, PROMPT, settings)
    run = engine.stream(PROMPT, settings)
    events = []
    while len(events) < len(alone):
        with ThreadPoolExecutor(1) as thread:
            events.append(thread.submit(next, run).result(timeout=30))
        assert not torch.is_inference_mode_enabled()
    assert log_of(events) == log_of(alone)
    assert next(run, None) is None


# --- exact mode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in METHODS if registry.METHODS[name].exactness == "exact"])
@pytest.mark.parametrize("min_rows", [1, 5, 8])
def test_exact_mode_gives_the_same_run_in_float64(method, min_rows):
    """Width 8 with padding rows, as many as a self-test may ask for, and rounded key lengths: same log but for rows,
    word and command; contexts over 64."""
    engine = found_exact(generator(wild(), near(), eos=()), min_rows)
    for prompt in ([7], PROMPT, ids_from(2, 60)):
        logs = []
        for exact in (False, True):
            chain = {"options": {"fallback_tree": "chain"}} if method == "cascade" else {}
            events = play(engine, prompt, config(method, gamma=7, max_new_tokens=24, exact=exact, **chain), plain=None)
            rows = {step.rows for step in steps_of(events)}
            assert rows == {8} if exact and min_rows == 8 else max(rows) <= 8
            if exact:
                assert all(step.rows == max(min_rows, step.num_drafted + 1) for step in steps_of(events))
            assert events[0].min_rows == (min_rows if exact else 0)
            assert events[0].width == (8 if exact else 0)
            assert events[0].exactness == ("exact" if exact or method == "plain" else "lossless")
            logs.append([[(t.token_id, t.origin) for t in s.emitted] for s in steps_of(events)])
            assert list(finish(events).token_ids) == sequential(wild(), prompt, 24)
        assert logs[0] == logs[1]


def test_exact_mode_refuses_what_does_not_fit_its_width():
    """gamma > width - 1 is refused before anything ran, with the remedies by name."""
    engine = generator(wild(), near())
    with pytest.raises(ConfigError, match=r"gamma 7 or less, or --width 16, or --no-exact"):
        engine.stream(PROMPT, config("draft-model", gamma=8, exact=True))
    found_exact(engine, 16, width=16)
    events = play(engine, PROMPT, config("draft-model", gamma=8, exact=True, width=16, max_new_tokens=20))
    assert {step.rows for step in steps_of(events)} == {16}
    events = play(engine, PROMPT, config("draft-model", gamma=8, exact=None, max_new_tokens=9))
    assert events[0].width == 0
    assert events[0].exactness == "lossless"


def test_words_of_a_run():
    """The word is the weakest of method, rule and temperature, and comes with its reason."""
    engine = generator(wild(), near())
    for temperature, exact, word in (
        (0.0, True, "exact"),
        (0.0, False, "lossless"),
        (0.7, True, "lossless"),
        (0.7, False, "lossless"),
    ):
        started = next(engine.stream(PROMPT, config("draft-model", temperature=temperature, exact=exact)))
        assert started.exactness == word
        assert started.exactness_reason.endswith(".")
    report = engine.exactness_report(8)
    found = f"{report.num_positions} of {report.num_positions}"
    assert found in next(engine.stream(PROMPT, config("draft-model", exact=True))).exactness_reason


@pytest.mark.parametrize(
    ("min_rows", "cost", "exact", "rows"),
    [
        (5, 0.95, True, 5),  # exactness is free: the baseline is the fastest plain decoding there is
        (5, 0.95, None, 5),
        (1, 1.0, None, 1),
        (5, 0.95, False, 1),  # switched off for both
        (5, 1.2, True, 1),  # exactness costs something: no baseline pays for it
        (8, 1.1, None, 1),
    ],
)
def test_plain_baseline_is_one_token_a_pass_with_the_same_text(min_rows, cost, exact, rows):
    engine = found_exact(generator(wild(), near()), min_rows, cost)
    settings = config("draft-model", max_new_tokens=12, exact=exact, detail=True)
    events = list(engine.stream_plain(PROMPT, settings))
    check_invariants(events, engine.loaded, dataclasses.replace(settings, method="plain"))
    assert events[0].method == "plain"
    assert {step.rows for step in steps_of(events)} == {rows}
    assert {step.rows - step.num_padding for step in steps_of(events)} == {1}
    assert finish(events).token_ids == finish(play(engine, PROMPT, settings)).token_ids


def test_free_padding_is_used_by_runs_that_promise_no_bits_as_well():
    """Trees and sampled runs: passes of a chain are those of the baseline, or a speed-up would compare two things. The
    command that repeats the run leaves the choice to the machine again."""
    engine = found_exact(generator(wild(), near()), 5, 0.9)
    for method, more in (("draft-model", {"temperature": 0.8}), ("lookahead", {}), ("draft-model", {"gamma": 9})):
        events = play(engine, PROMPT, config(method, exact=None, max_new_tokens=12, **more))
        assert (events[0].width, events[0].min_rows) == (0, 5)
        assert events[0].exactness == "lossless"
        assert min(step.rows for step in steps_of(events)) >= 5
        assert "exact" not in events[0].command
        because = {
            "lookahead": "more than one chain",
            "draft-model": "up to 7 tokens" if "gamma" in more else "Sampled",
        }
        assert because[method] in events[0].exactness_reason
    assert next(engine.stream(PROMPT, config("lookahead", exact=False))).min_rows == 0
    assert "--no-exact" in next(engine.stream(PROMPT, config("lookahead", exact=False))).command


def test_an_exact_run_on_a_machine_where_padding_is_free_needs_no_second_proof():
    """Its baseline makes the same passes; elsewhere the words name the passes that the proof was made in."""
    engine = found_exact(generator(wild(), near()), 5, 0.9)
    started = next(engine.stream(PROMPT, config("draft-model", exact=None)))
    assert (started.exactness, started.width, started.min_rows, started.fixed_rows) == ("exact", 8, 5, 0)
    assert "however many of 5 to 8 rows a pass has; 5 cost 0.90 of one." in started.exactness_reason
    started = next(found_exact(engine, 8, 1.2).stream(PROMPT, config("draft-model", exact=None)))
    assert (started.exactness, started.width, started.fixed_rows) == ("exact", 8, 8)
    assert "at 8 rows; a pass of 8 rows costs 1.20 of a one-row pass." in started.exactness_reason
    assert next(found_exact(engine, 8, 1.3).stream(PROMPT, config("draft-model", exact=None))).width == 0


# --- trees and rows that are only scored --------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
def test_case_42_random_trees_do_not_change_greedy_text(script, exact):
    """Case 42: 13-node trees with the true path at scattered nodes, in every round; the text and every later logit hang
    on the kept entries being the right ones."""
    plain = greedy_text("wild", tuple(PROMPT), 48)
    paths: list[int] = []

    def tree(ids: Sequence[int], n: int) -> Proposal:
        made, path = random_tree(len(ids), plain[len(ids) - len(PROMPT) :][: min(n, 1 + len(ids) % 4)], 13, n)
        paths.append(len(path))
        return made

    script(tree)
    settings = config("script", gamma=5, max_new_tokens=48, exact=exact, detail=True)
    events = play(generator(wild(), eos=()), PROMPT, settings, plain=plain)
    steps = [step for step in steps_of(events) if step.gamma]
    assert [step.num_accepted for step in steps] == paths
    assert all(step.rows == 14 for step in steps)
    scattered = [i for step in steps for i, t in enumerate(step.drafted) if t.fate == "accepted" and t.parent != i - 1]
    assert len(scattered) > 8


def test_case_42_probabilities_of_the_tree_are_those_of_a_fresh_run(script):
    """After rounds of scattered paths the target's probabilities equal those of a pass over the whole text."""
    plain = greedy_text("wild", tuple(PROMPT), 48)
    script(lambda ids, n: random_tree(len(ids), plain[len(ids) - len(PROMPT) :][: min(n, 3)], 13, n)[0])
    events = play(generator(wild(), eos=()), PROMPT, config("script", gamma=4, max_new_tokens=48), plain=plain)
    with torch.inference_mode():
        logits = wild()(input_ids=torch.tensor([[*PROMPT, *plain]])).logits[0, len(PROMPT) - 1 : -1, :260]
    fresh = torch.softmax(logits.float(), -1)
    found = [token.target_prob for step in steps_of(events) for token in step.emitted]
    for i, prob in enumerate(found):
        assert prob == pytest.approx(float(fresh[i, plain[i]]), abs=1e-6)


def test_trees_when_sampling(script):
    """Random trees of chosen tokens at T = 1: every invariant, and the run repeats under its seed."""
    script(lambda ids, n: random_tree(len(ids), ids_from(len(ids), min(n, 2)), 9, n)[0])
    engine = generator(wild(), eos=())
    settings = config("script", gamma=3, max_new_tokens=40, temperature=1.5, seed=5, detail=True)
    assert log_of(play(engine, PROMPT, settings)) == log_of(play(engine, PROMPT, settings))


def test_a_branch_that_passed_and_lost_is_discarded_not_rejected(script):
    """A rule that keeps what is likely enough passes several branches, and the longest wins. A token of another one was
    tried and never refused: it is discarded, with the probability that it was tried by."""
    script(lambda ids, n: Proposal(torch.tensor([40, 7, 41]), (-1, -1, 0)) if n >= 2 else [])
    fates = {}
    for floor in (0.0, 1.0):
        settings = config("script", gamma=2, max_new_tokens=6, verify="threshold", threshold=floor)
        first = steps_of(list(tape_engine(range(40, 60)).stream([65], settings)))[0]
        fates[floor] = [token.fate for token in first.drafted]
        assert [token.target_prob is not None for token in first.drafted] == [True, True, floor == 0.0]
    assert fates == {0.0: ["accepted", "discarded", "accepted"], 1.0: ["rejected", "rejected", "discarded"]}


def test_a_tree_that_is_too_large_is_cut(script):
    """Case 92: 2000 siblings; the cache has room for MAX_NODES, the rest is dropped, also at the end of a run."""
    script(lambda ids, n: Proposal(torch.tensor(ids_from(len(ids), 2000)), (-1,) * 2000))
    plain = greedy_text("wild", tuple(PROMPT), 48)[:8]
    events = play(generator(wild(), eos=()), PROMPT, config("script", max_new_tokens=8), plain=plain)
    assert all(step.num_drafted == (MAX_NODES if step.gamma else 0) for step in steps_of(events))


@pytest.mark.parametrize("exact", [False, True])
def test_scored_only_rows_are_delivered_and_never_counted(script, exact):
    """Rows for the drafter's own use: any depth, any token (an end token too), on a path of their own or behind a
    candidate; no fate, no counter, and their logits are those of their own path."""
    plain = greedy_text("wild", tuple(PROMPT), 48)

    def rows(ids: Sequence[int], n: int) -> Proposal:
        right = plain[len(ids) - len(PROMPT)]
        tokens = torch.tensor([11, right, EOS, 13, 14, 15, 16, 9])
        parents = (-1, -1, 0, 2, 3, 1, 4, 1)
        return Proposal(tokens, parents, scored_only=(True, False, True, True, True, True, True, False))

    drafter = script(rows)
    engine = generator(wild())
    events = play(engine, PROMPT, config("script", gamma=2, max_new_tokens=10, exact=exact), plain=plain[:10])
    ids = list(PROMPT)
    for step, outcome in zip(steps_of(events), drafter.outcomes, strict=True):
        if step.gamma == 2:
            assert [token.token_id for token in step.drafted] == [int(outcome.proposal.token_ids[1]), 9]
            assert (step.num_drafted, step.num_accepted, step.rows) == (2, 1, 9)
            assert outcome.scored_logits.shape == (6, 260)
            behind = [
                [11],
                [11, EOS],
                [11, EOS, 13],
                [11, EOS, 13, 14],
                [plain[len(ids) - len(PROMPT)], 15],
                [11, EOS, 13, 14, 16],
            ]
            with torch.inference_mode():
                for row, path in zip(outcome.scored_logits, behind, strict=True):
                    alone = wild()(input_ids=torch.tensor([[*ids, *path]])).logits[0, -1, :260]
                    assert float((row - alone).abs().max()) < 1e-6
        ids += [token.token_id for token in step.emitted]
    assert finish(events).num_tokens == 10


def test_a_candidate_behind_a_row_that_is_only_scored_is_dropped(script):
    """No walk can reach it, so it has no fate."""
    script(lambda ids, n: Proposal(torch.tensor([3, 4, 5]), (-1, 0, -1), scored_only=(True, False, False)))
    events = play(generator(wild(), eos=()), PROMPT, config("script", max_new_tokens=6))
    assert {len(step.drafted) for step in steps_of(events) if step.gamma} == {1}


def test_outcomes_tell_the_drafter_what_was_committed(script):
    """Observe comes once a step, also after a step without a draft; `kept` names nodes of the proposal."""
    plain = greedy_text("wild", tuple(PROMPT), 48)
    drafter = script(HOSTILE["only sometimes"])
    events = play(generator(wild(), eos=()), PROMPT, config("script", gamma=3, max_new_tokens=30), plain=plain[:30])
    assert len(drafter.outcomes) == len(steps_of(events))
    assert [i for outcome in drafter.outcomes for i in outcome.token_ids] == plain[:30]
    for outcome, step in zip(drafter.outcomes, steps_of(events), strict=True):
        assert len(outcome.kept) == step.num_accepted
        assert [int(outcome.proposal.token_ids[node]) for node in outcome.kept] == list(outcome.token_ids[:-1])
        assert outcome.scored_logits is None


def test_detail_lists_the_likeliest_tokens(script):
    """With detail on: at most five, falling, three digits, only for tested tokens; residual only at a refusal."""
    engine = generator(wild(), near(), eos=())
    events = play(
        engine, PROMPT, config("draft-model", gamma=4, max_new_tokens=40, temperature=1.0, seed=1, detail=True)
    )
    for token in (token for step in steps_of(events) for token in step.drafted):
        lists = (token.draft_top, token.target_top, token.residual_top)
        for top in lists:
            probs = [entry.prob for entry in top]
            assert probs == sorted(probs, reverse=True)
            assert len(probs) <= 5
            assert all(float(f"{prob:.3g}") == prob for prob in probs)
        assert all(token.target_top and token.draft_top) if token.fate != "discarded" else lists == ((), (), ())
        assert bool(token.residual_top) == (token.fate == "rejected")
        if token.fate == "rejected":
            assert token.token_id not in {entry.token_id for entry in token.residual_top}
    events = play(engine, PROMPT, config("draft-model", max_new_tokens=20, temperature=1.0, seed=1))
    assert not any(token.target_top for step in steps_of(events) for token in step.drafted)


# --- config -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [(40, 32), (32, 40), (40, 24)])
@pytest.mark.parametrize("method", METHODS)
def test_case_110_padded_vocabularies(method, rows, table_for):
    """Case 110: tokenizer 30, output layers of target and draft padded to 40 and 32, the other way round, and a draft
    that lacks some ids. The padding is the likeliest by far, and never proposed, emitted or counted."""
    target, draft = (wild_llama(seed, vocab=count) for seed, count in zip((1, 2), rows, strict=True))
    for model in (target, draft):
        model.lm_head.weight[30:] *= 50.0
    engine = generator(target, draft, eos=())
    engine.loaded.vocab_size = 30
    table_for(30)
    plain = sequential(target, [1, 2], 30, known=30)
    for temperature in (0.0, 1.0):
        settings = config(method, max_new_tokens=30, temperature=temperature, seed=1, detail=True)
        events = play(engine, [1, 2], settings, plain=plain if temperature == 0 else None)
        tokens = [token for step in steps_of(events) for token in step.drafted]
        known = min(30, rows[1]) if method in ("draft-model", "quantized-copy") else 30
        assert all(0 <= token.token_id < known for token in tokens)
        assert all(top.token_id < 30 for token in tokens for top in (*token.draft_top, *token.target_top))


def test_case_110_distribution_with_padding():
    """Case 110: 5 known ids, target padded to 8 rows, draft to 6; transitions of 1300 tokens as in the test above
    (odds of a false alarm 1 in 10 000)."""
    pad = torch.full((8, 8), 3.0).double()
    pad[:5, :5] = TABLE
    other = torch.full((6, 6), 3.0).double()
    other[:5, :5] = OTHER
    engine = generator(TableModel(pad), TableModel(other), eos=())
    engine.loaded.vocab_size = 5
    events = play(engine, [0], config("draft-model", gamma=3, max_new_tokens=1300, temperature=1.0, seed=3))
    assert chi_square((0, *finish(events).token_ids), TABLE) < 52.4


def test_case_112_unknown_ids_when_sampling(script):
    """Case 112 at T = 1: ids without a row have probability 0; no exception, and the text follows the target.

    Chi-square as above, odds 1 in 10 000.
    """
    script(lambda ids, n: [[5], [-1, 0], [8, 3], [2, -1], [2**40]][len(ids) % 5][:n])
    engine = generator(TableModel(TABLE), eos=())
    events = play(engine, [0], config("script", gamma=2, max_new_tokens=1300, temperature=1.0, seed=8))
    unknown = [
        t for step in steps_of(events) for t in step.drafted if not 0 <= t.token_id < 5 and t.fate != "discarded"
    ]
    assert len(unknown) > 60
    assert all(token.fate == "rejected" and token.target_prob == 0 for token in unknown)
    assert chi_square((0, *finish(events).token_ids), TABLE) < 52.4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("raw", [False, True])
def test_cases_118_and_124_odd_prompts(method, raw):
    """Cases 118 and 124: empty, blank, control tokens, one letter, halves of characters, NUL, marks, bidi overrides:
    greedy equality and events that are valid UTF-8."""
    engine = generator(wild(), near())
    odd = [
        "",
        " ",
        "\n",
        "\u200b",
        "<|im_end|>",
        "a",
        "ok\ud800bad",
        "a\x00b",
        "\u202eabc",
        "e" + "\u0301" * 40,
        "🔥\udfff",
    ]
    for prompt in odd:
        events = play(engine, prompt, config(method, max_new_tokens=4, raw=raw))
        started = events[0]
        plain = sequential(wild(), started.prompt_ids, 4, eos=(EOS,))
        assert list(finish(events).token_ids) == plain
        started.command.encode()
        if "\ud800" in prompt or "\x00" in prompt:
            assert started.notes
            assert "\x00" not in started.command


def test_case_118_nothing_to_start_from():
    """Case 118: an empty prompt and no start token: a friendly request, raised before the run."""
    engine = generator(wild())
    tokenizer = type(byte_tokenizer())(tokenizer_object=byte_tokenizer().backend_tokenizer)
    engine.loaded.tokenizer = tokenizer
    with pytest.raises(ConfigError, match="Type some text"):
        engine.stream("", config("plain", raw=True))


def test_case_124_ten_thousand_combining_marks():
    """Case 124: far more tokens than fit is refused with both numbers; where they fit, they run."""
    prompt = "a" + "\u0301" * 10_000
    with pytest.raises(ConfigError, match=r"20001 tokens .* 512"):
        generator(wild()).stream(prompt, config("plain", raw=True))
    long = generator(TapeModel(TAPE, 4001, max_positions=1 << 15))
    play(long, prompt[:2001], config("prompt-lookup", raw=True, max_new_tokens=2), plain=TAPE[:2])


@pytest.mark.parametrize(
    "prompts",
    [
        [[1, 2], [3]],
        ["one", "two"],
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([[1], [2]]),
        ["1", "2"],
        [1.5],
        [],
        [-1],
        [260],
        None,
        7,
    ],
    ids=str,
)
def test_case_122_several_prompts_at_once_are_refused(prompts):
    """Case 122: never a silent drop, never one of two; and other things that are not one sequence of ids."""
    with pytest.raises(ConfigError, match="one after the other"):
        generator(wild()).stream(prompts, config("plain"))


def test_prompts_of_ids_may_be_any_sequence_of_whole_numbers():
    engine = generator(wild())
    logs = [
        log_of(play(engine, prompt, config("plain", max_new_tokens=3, seed=1)))
        for prompt in (PROMPT, tuple(PROMPT), torch.tensor(PROMPT))
    ]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize("method", ["plain", "draft-model", "script"])
def test_several_end_tokens(method, script):
    """Whichever comes first ends the run, and only that one."""
    tape = [*TAPE[:3], 256, *TAPE[3:6], EOS, *TAPE[6:9]]
    script(follow(tape, 1))
    for eos, length in (((EOS,), 8), ((EOS, 256), 4), ((256,), 4), ((TAPE[1], EOS), 2), ((), 11)):
        events = play(tape_engine(tape, eos=eos), [40], config(method, gamma=3, max_new_tokens=11), plain=tape[:length])
        assert finish(events).reason == ("eos" if eos else "length")


def test_unknown_methods_and_missing_drafts_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"Unknown method 'nonsense'.*prompt-lookup"):
        generator(wild()).stream(PROMPT, config("nonsense"))
    with pytest.raises(ConfigError, match=r"no draft model of its own.*quantized-copy"):
        generator(wild()).stream(PROMPT, config("draft-model"))


def test_the_started_event_holds_all_settings():
    """Every field of the configuration is in the run's settings, so a trace can repeat it."""
    settings = config("prompt-lookup", gamma=3, stop=("x",), top_k=4, temperature=0.5, seed=9, max_new_tokens=2)
    started = play(generator(wild()), "hello", settings)[0]
    assert isinstance(started, RunStarted)
    fields = {field.name for field in dataclasses.fields(RunConfig)} - {"sampling", "options"}
    assert fields < set(started.settings)
    assert started.settings["top_k"] == 4
    assert started.settings["stop"] == ["x"]
    assert "--stop x" in started.command
    assert "--seed 9" in started.command


# --- devices ------------------------------------------------------------------------------------------------------


class FarTensor(torch.Tensor):
    """A tensor on a pretended device: any operation together with a near tensor raises; `.cpu()` brings it home."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = list(
            itertools.chain.from_iterable(
                a if isinstance(a, list | tuple) else [a] for a in (*args, *(kwargs or {}).values())
            )
        )
        near_ones = [a for a in flat if isinstance(a, torch.Tensor) and not isinstance(a, FarTensor) and a.dim()]
        if near_ones:
            raise RuntimeError("Expected all tensors to be on the same device")
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.cpu:
            return result.as_subclass(torch.Tensor)
        return result


class FarModel(TableModel):
    """A target whose logits lie on another device."""

    def forward(self, input_ids: Any, position_ids: Any, attention_mask: Any, cache: Any, use_cache: bool) -> Any:
        output = super().forward(input_ids, position_ids, attention_mask, cache, use_cache)
        output.logits = output.logits.as_subclass(FarTensor)
        return output


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_107_target_and_draft_on_different_devices(temperature):
    """Case 107 without a GPU: logits that refuse to meet near tensors; the same run as with all on one device."""
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(3).as_subclass(FarTensor) + torch.zeros(3)
    settings = config(
        "draft-model", max_new_tokens=30, temperature=temperature, seed=4, repetition_penalty=1.2, detail=True
    )
    logs = []
    for target, draft in (
        (TableModel, TableModel),
        (FarModel, TableModel),
        (TableModel, FarModel),
        (FarModel, FarModel),
    ):
        logs.append(log_of(play(generator(target(TABLE), draft(OTHER), eos=()), [0, 1], settings)))
    assert logs[0] == logs[1] == logs[2] == logs[3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("places", [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_case_107_on_a_real_gpu(places):
    """Case 107: greedy equality with draft and target on different devices."""
    target, draft = (
        wild_llama(1).to(places[0]),
        near().to(places[1]) if places[1] == "cpu" else noisy(wild(), 0.03).to("cuda"),
    )
    engine = generator(target, draft, eos=())
    engine.loaded.device = torch.device(places[0])
    play(engine, PROMPT, config("draft-model", max_new_tokens=40), plain=greedy_text("wild", tuple(PROMPT), 48)[:40])


def test_coins_come_from_the_runs_own_stream():
    """Two generators with one seed give the same coins; a coin is below 1."""
    streams = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert [coin(streams[0]) for _ in range(5)] == [coin(streams[1]) for _ in range(5)]
    assert all(0 <= coin(streams[0]) < 1 for _ in range(100))
