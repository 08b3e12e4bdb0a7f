"""Lookahead and Jacobi: the window against the paper's words, the pool against brute force, the text against plain.

Numbers of cases are those of the list of public failures of other projects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from checks import ids_from, log_of, noisy, play, sequential, steps_of, wild_llama
from fakes import EOS, TableModel, TapeModel, config, generator, ids_of, loaded_pair, tiny_llama
from hypothesis import given
from hypothesis import strategies as st

from specviz.config import SamplingParams
from specviz.drafters import registry
from specviz.drafters.base import DraftContext, Outcome
from specviz.drafters.lookahead import LOOKAHEAD_OPTIONS, JacobiDrafter, LookaheadDrafter, NgramPool
from specviz.drafters.options import read_options
from specviz.errors import ConfigError
from specviz.events import DraftNote, RunFinished, StepDone
from specviz.models.session import MAX_NODES
from specviz.proposal import Proposal, Verdict
from specviz.sampling import uniform_generator

GREEDY = SamplingParams()
SHAPES = [(4, 3, 3), (1, 2, 1), (1, 4, 2), (2, 2, 3), (5, 2, 1), (3, 4, 2), (2, 5, 1), (16, 8, 16)]
"""W, N, G."""


@cache
def wild() -> Any:
    """A target whose text wanders: hardly a guess is right."""
    return wild_llama(1)


@cache
def looping() -> Any:
    """A target that falls into a loop: guesses are often right."""
    return tiny_llama(0, layers=2)


def options(window: int, ngram: int, guesses: int, pool: str = "text") -> dict[str, Any]:
    return {"window": window, "ngram": ngram, "guesses": guesses, "pool": pool}


def build(window: int = 4, ngram: int = 3, guesses: int = 3, pool: str = "text", limit: int = 1000) -> LookaheadDrafter:
    return LookaheadDrafter(window=window, ngram=ngram, guesses=guesses, pool=pool, max_new_tokens=limit)


def propose(drafter: Any, ids: Sequence[int], max_tokens: int = 15) -> Proposal:
    made: Proposal = drafter.propose(DraftContext(list(ids), GREEDY), max_tokens, uniform_generator(0))
    return made


def candidates(proposal: Proposal) -> list[int]:
    return [node for node in range(len(proposal)) if not proposal.is_scored_only(node)]


def paths(proposal: Proposal) -> set[tuple[int, ...]]:
    """The candidate paths that end in a leaf, as tokens."""
    children = proposal.children_of()
    behind: dict[int, tuple[int, ...]] = {-1: ()}
    for node in candidates(proposal):
        behind[node] = (*behind[proposal.parents[node]], int(proposal.token_ids[node]))
    return {behind[node] for node in candidates(proposal) if node not in children}


@pytest.fixture
def made(monkeypatch) -> list[LookaheadDrafter]:
    """The drafters of the runs of a test, with their pools kept as they were when the run closed them."""
    drafters: list[LookaheadDrafter] = []

    class Kept(LookaheadDrafter):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            drafters.append(self)
            self.windows: list[list[list[int]]] = []
            self.outcomes: list[Outcome] = []
            self.last_pool: dict[int, list[tuple[int, ...]]] = {}

        def propose(self, *arguments: Any) -> Proposal:
            proposal = super().propose(*arguments)
            self.windows.append(proposal.note.data["window"])
            return proposal

        def observe(self, outcome: Outcome) -> None:
            super().observe(outcome)
            self.outcomes.append(outcome)
            self.last_pool = {ngram[0]: self.pool.find(ngram[0]) for ngram in self.pool}

    monkeypatch.setattr(registry, "LookaheadDrafter", Kept)
    return drafters


# --- the window ---------------------------------------------------------------------------------------------------


def attended(proposal: Proposal) -> list[set[int]]:
    """What the session's mask shows to each node, -1 for the last committed token: ancestors and itself."""
    seen: list[set[int]] = []
    for node, parent in enumerate(proposal.parents):
        seen.append({node, -1} | (seen[parent] if parent >= 0 else set()))
    return seen


@pytest.mark.parametrize(("w", "n", "g"), SHAPES)
def test_attended_sets_are_those_of_the_paper(w, n, g):
    """Row r of column c (row 0 of column 0 is the last committed token) attends to row 0 up to column c, then down its
    own column, and to no guess; it stands c + r places on. Guesses see no window token."""
    drafter = build(w, n, g)
    drafter.reset(ids_from(1, 30))
    drafter.pool.add(range(100, 100 + n))
    proposal = propose(drafter, [*ids_from(1, 30), 100])
    first = len(candidates(proposal))
    assert first == n - 1
    place: dict[tuple[int, int], int] = {}  # (row, column) -> node
    node = first
    for c in range(w):
        for r in range(n - 1):
            if (r, c) == (0, 0):
                place[r, c] = -1
            else:
                place[r, c] = node
                node += 1
    assert node == len(proposal)
    assert 1 + len(proposal) == w * (n - 1) + (n - 1)
    seen, depths, window = attended(proposal), proposal.depth_of(), proposal.note.data["window"]
    assert [len(row) for row in window] == [w] * (n - 1)
    for (r, c), node in place.items():
        if node >= 0:
            assert seen[node] == {place[0, k] for k in range(c + 1)} | {place[k, c] for k in range(r + 1)} | {-1}
            assert depths[node] == c + r
            assert int(proposal.token_ids[node]) == window[r][c]
    assert window[0][0] == 100
    assert all(not any(proposal.is_scored_only(i) for i in seen[node] if i >= 0) for node in candidates(proposal))


def first_choice(model: Any, ids: Sequence[int]) -> int:
    with torch.inference_mode():
        return int(model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1, :260].argmax())


@pytest.mark.parametrize(("w", "n", "g"), SHAPES[:-1])
@pytest.mark.parametrize("pool", ["text", "window"])
def test_case_12_pool_and_window_equal_brute_force(w, n, g, pool, made):
    """Case 12: from the recorded windows alone, by plain calls of the target on the tokens each window token may see:
    every next window (shifted by the accepted tokens), and after the run the whole pool with its order."""
    model, prompt = looping(), ids_of("ababab")
    settings = config("lookahead", gamma=7, max_new_tokens=24, options=options(w, n, g, pool))
    events = play(generator(model, eos=()), prompt, settings, plain=sequential(model, prompt, 24))
    (drafter,) = made
    context = list(prompt)
    expected: dict[int, list[tuple[int, ...]]] = {}

    def enter(ngram: Sequence[int]) -> None:
        known = expected.setdefault(ngram[0], [])
        guess = tuple(ngram[1:])
        known[:] = [guess, *(other for other in known if other != guess)][:g]

    if pool == "text":
        for i in range(len(prompt) - n + 1):
            enter(prompt[i : i + n])
    ages = [0] * w
    for step, window in zip(steps_of(events), drafter.windows, strict=False):
        columns = [[row[c] for row in window] for c in range(len(window[0]))]
        ages = ages[: len(columns)]
        new = []
        for c, column in enumerate(columns):
            visible = [*context[:-1], *window[0][: c + 1], *column[1:]]
            new.append(first_choice(model, visible))
            if ages[c] >= n - 2:
                enter([*column, new[c]])
        emitted = [token.token_id for token in step.emitted]
        context += emitted
        if pool == "text":
            for end in range(len(context) - len(emitted) + 1, len(context) + 1):
                if end >= n:
                    enter(context[end - n : end])
        moved = [[*column[1:], token] for column, token in zip(columns, new, strict=True)][step.num_accepted :]
        ages = [age + 1 for age in ages][step.num_accepted :]
        ages += [0] * (w - len(ages))
        following = drafter.windows[step.index] if step.index < len(drafter.windows) else None
        if following is not None:
            shown = [[row[c] for row in following] for c in range(len(following[0]))]
            for c, (is_there, wanted) in enumerate(zip(shown, moved, strict=False)):
                assert is_there[c == 0 :] == wanted[c == 0 :]
    for token in steps_of(events)[-1].emitted if steps_of(events)[-1].gamma == 0 and pool == "text" else ():
        context.append(token.token_id)
        enter(context[-n:])
    assert drafter.last_pool == expected
    assert any(step.num_accepted for step in steps_of(events)) or (w, pool) == (1, "window") or n > 4


def test_case_12_a_fully_matched_guess_gives_its_bonus_token(made):
    """Case 12: guess g1 g2 g3 right and t behind it: 3 accepted, 4 emitted, in one step."""
    tape = [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]
    prompt = [9, 40, 41, 42, 9]  # the n-gram 9 40 41 42 is in the prompt
    engine = generator(TapeModel(tape, len(prompt)), eos=())
    settings = config("lookahead", gamma=4, max_new_tokens=9, options=options(3, 4, 2))
    first = steps_of(play(engine, prompt, settings, plain=tape[:9]))[0]
    assert (first.num_drafted, first.num_accepted) == (3, 3)
    assert [(token.token_id, token.origin) for token in first.emitted] == [
        (40, "accepted"),
        (41, "accepted"),
        (42, "accepted"),
        (43, "bonus"),
    ]


@pytest.mark.parametrize(("w", "n"), [(3, 3), (4, 4), (6, 3)])
def test_case_12_the_pool_holds_the_ngrams_of_the_true_sequence(w, n, made):
    """Case 12: a target that writes its tape whatever it reads, no id twice, so every guess it makes is right for one
    place only. All n-grams of the pool are then n-grams of prompt and tape, also where hits moved the window on; only
    the first token of a column may be a start value still."""
    tape = list(range(40, 90))
    engine = generator(TapeModel(tape, 1), eos=())
    play(engine, [7], config("lookahead", gamma=6, max_new_tokens=30, options=options(w, n, 2)), plain=tape[:30])
    (drafter,) = made
    text = [7, *tape]
    true = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)}
    held = {(key, *guess) for key, guesses in drafter.last_pool.items() for guess in guesses}
    wrong = {ngram for ngram in held if ngram not in true}
    assert all(ngram[0] == 7 for ngram in wrong)
    assert all(tuple(ngram[1:]) in {t[1:] for t in true} for ngram in wrong)
    assert sum(outcome.verdict.path != () for outcome in drafter.outcomes) >= 3
    # From the answer's first token on; the key 7 is shared with start values, which have pushed its own n-gram out.
    assert {tuple(text[i : i + n]) for i in range(1, 30 - n + 2)} <= held


def test_start_values_come_from_the_prompt_and_warm_up_lasts_n_minus_2_passes():
    """Nothing but the window feeds this pool, and a target that keeps nothing moves no column: the pool is empty for
    N - 2 passes and has W n-grams behind the next."""
    prompt = [11, 12, 13]
    drafter = build(3, 5, 4, "window")
    drafter.reset(prompt)
    ids = list(prompt)
    for step in range(6):
        proposal = propose(drafter, ids)
        if step == 0:
            assert {token for row in proposal.note.data["window"] for token in row} == {11, 12, 13}
        data = proposal.note.data
        assert data["num_warm"] == (3 if step >= 3 else 0)
        assert ("warming up" in proposal.note.text) == (step < 3)
        assert data["pool_size"] == (0 if step < 4 else 3 * (step - 3))
        scored = len(proposal) - len(candidates(proposal))
        logits = torch.zeros(scored, 300)
        logits[torch.arange(scored), torch.arange(scored) + 20 * step + 30] = 1.0
        ids.append(200 + step)
        drafter.observe(Outcome(proposal, Verdict((), ids[-1], "target"), (), (ids[-1],), logits))


# --- the pool -----------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), max_size=40), st.integers(1, 4))
def test_pool_keeps_the_latest_of_each_key(ngrams, per_key):
    """Against the rule by its words: distinct n-grams of a key, the latest first, at most `per_key`."""
    pool = NgramPool(per_key)
    for ngram in ngrams:
        pool.add(ngram)
    for key in range(3):
        latest = dict.fromkeys(tuple(ngram[1:]) for ngram in reversed(ngrams) if ngram[0] == key)
        # An n-gram that was forgotten and came back is as good as new, so the latest are those of the whole list.
        assert pool.find(key) == list(latest)[:per_key]
    assert pool.size == len(list(pool)) <= 3 * per_key
    pool.clear()
    assert (pool.size, pool.find(0)) == (0, [])


def test_guesses_share_their_beginnings_and_are_cut_to_what_is_asked_for():
    drafter = build(2, 4, 4)
    drafter.reset([1])
    for guess in ((5, 6, 7), (8, 6, 7), (5, 6, 9), (5, 4, 9)):
        drafter.pool.add((3, *guess))
    proposal = propose(drafter, [1, 3])
    assert len(candidates(proposal)) == 9
    assert paths(proposal) == {(5, 6, 7), (5, 6, 9), (5, 4, 9), (8, 6, 7)}
    assert int(proposal.token_ids[1]) == 4, "the latest guess is tried first"
    assert proposal.note.data["guesses"] == [[5, 4, 9], [5, 6, 9], [8, 6, 7], [5, 6, 7]]
    assert (proposal.note.data["pool_hits"], proposal.note.data["pool_size"]) == (4, 4)
    assert proposal.note.text.startswith("4 guesses from the pool")
    assert paths(propose(drafter, [1, 3], 2)) == {(5, 6), (5, 4), (8, 6)}
    assert paths(propose(drafter, [1, 3], 1)) == {(5,), (8,)}
    assert propose(drafter, [1, 3]).probs is None


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("w", "n", "g"), SHAPES)
@pytest.mark.parametrize("pool", ["text", "window"])
def test_greedy_text_is_that_of_plain_decoding(w, n, g, pool):
    """Two targets x two prompts x two draft lengths in float64, against a loop of plain transformers calls."""
    for model in (wild(), looping()):
        engine = generator(model, eos=())
        for seed, gamma in ((0, 15), (1, 2)):
            prompt = ids_from(seed, 4 + 20 * seed)
            settings = config("lookahead", gamma=gamma, max_new_tokens=28, seed=seed, options=options(w, n, g, pool))
            play(engine, prompt, settings, plain=sequential(model, prompt, 28))


@pytest.mark.parametrize("gamma", [1, 2, 5, 15])
def test_jacobi_text_is_that_of_plain_decoding(gamma):
    for model in (wild(), looping(), noisy(looping(), 0.02)):
        for seed in range(3):
            prompt = ids_from(seed, 1 + 10 * seed)
            events = play(
                generator(model, eos=()),
                prompt,
                config("jacobi", gamma=gamma, max_new_tokens=30),
                plain=sequential(model, prompt, 30),
            )
            assert all(step.rows == step.gamma + 1 for step in steps_of(events))


def test_methods_really_accept_in_these_runs():
    """Guards the tests above: guesses that are never right would hide faults. (Jacobi's are right where the target
    hardly minds the token before, so in the runs on a tape and a table below.)"""
    events = list(generator(looping(), eos=()).stream(ids_of("abcabc"), config("lookahead", max_new_tokens=60)))
    assert sum(step.num_accepted for step in steps_of(events)) >= 20


def test_jacobi_guesses_are_the_corrections_of_the_last_pass():
    """By brute force: the target's first choice behind each guess, in the context of the guesses before it."""
    model, prompt = looping(), ids_of("hello")
    events = play(generator(model, eos=()), prompt, config("jacobi", gamma=5, max_new_tokens=20))
    ids = list(prompt)
    wanted: list[int] = []
    for step in steps_of(events):
        guesses = [token.token_id for token in step.drafted]
        assert guesses[: len(wanted)] == wanted[: len(guesses)]
        if step.gamma:
            assert step.note.data == {"window": [guesses], "num_start": max(0, len(guesses) - len(wanted))}
        wanted = [first_choice(model, [*ids, *guesses[: i + 1]]) for i in range(len(guesses))][step.num_accepted :]
        ids += [token.token_id for token in step.emitted]


def test_jacobi_solves_a_target_that_ignores_what_it_reads():
    """The tape is written whatever is fed: one pass corrects all guesses, the next one keeps them all."""
    tape = list(range(40, 70))
    steps = steps_of(play(generator(TapeModel(tape, 1), eos=()), [7], config("jacobi", gamma=4, max_new_tokens=20)))
    assert [step.num_accepted for step in steps] == [0, 4, 0, 4, 0, 4, 0, 0]


@pytest.mark.parametrize("method", ["lookahead", "jacobi"])
def test_a_draft_that_was_not_checked_moves_the_guesses_on(method):
    """Under a cascade another drafter's proposal may be in the pass: then nothing is learnt from its rows, and guesses
    stay at the places they were made for."""
    drafter = registry.get_method(method).build(
        loaded_pair(looping()), config(method, options=options(4, 3, 3) if method == "lookahead" else {})
    )[0]
    drafter.reset([1, 2, 3, 4, 5, 6])
    before = propose(drafter, [1, 2, 3, 4, 5, 6], 4).note.data["window"]
    other = Proposal.chain([200, 201])
    drafter.observe(Outcome(other, Verdict((0,), 9, "corrected"), (0,), (200, 9), None, None, torch.rand(3, 260)))
    after = propose(drafter, [1, 2, 3, 4, 5, 6, 200, 9], 4).note.data["window"]
    first = 1 if method == "lookahead" else 0  # row 0 begins with the last committed token
    assert after[0][first:2] == before[0][2 + first : 4]
    assert [row[:2] for row in after[1:]] == [row[2:] for row in before[1:]]


@pytest.mark.parametrize("gamma", [1, 4])
def test_the_window_shrinks_towards_the_end_of_a_run(gamma):
    """With r tokens to come the last look-up is r - 2 places away: no column begins behind it, and rows follow."""
    settings = config("lookahead", gamma=gamma, max_new_tokens=9, options=options(5, 3, 2, "window"))
    emitted = 0
    for step in steps_of(play(generator(wild(), eos=()), ids_from(1, 8), settings)):
        remaining = 9 - emitted
        if step.gamma:
            width = min(5, remaining - 2)
            assert [len(row) for row in step.note.data["window"]] == [width, width]
            assert step.rows == max(1, 2 * width) + step.num_drafted
        else:
            assert (step.rows, step.note) == (1, None)
        emitted += len(step.emitted)


def test_steps_with_scored_rows_alone_are_steps_without_a_draft():
    """Their token is the target's, nothing is counted as drafted, and the pass has the window's rows."""
    settings = config("lookahead", gamma=4, max_new_tokens=12, options=options(4, 3, 3, "window"))
    steps = steps_of(play(generator(wild(), eos=()), ids_from(1, 8), settings))
    assert (steps[0].num_drafted, steps[0].rows, steps[0].emitted[0].origin) == (0, 8, "target")
    assert all((step.emitted[-1].origin == "target") == (step.num_drafted == 0) for step in steps)
    assert all(step.target_work == 1.0 for step in steps)


def test_the_note_has_the_shape_the_page_reads():
    events = play(generator(looping(), eos=()), ids_of("abab"), config("lookahead", max_new_tokens=12))
    for step in steps_of(events):
        if step.gamma:
            assert isinstance(step.note, DraftNote)
            assert step.note.kind == "lookahead"
            shape = {"window", "window_texts", "pool_hits", "pool_size", "guesses", "num_warm", "answers"}
            assert set(step.note.data) == shape
            assert step.note.data["pool_hits"] == len(step.note.data["guesses"])
            assert (step.note.data["pool_hits"] > 0) == (step.num_drafted > 0)


def test_an_end_token_inside_a_guess():
    """The guess is cut behind it by the loop; the window's rows stay, and the pool goes on learning."""
    tape = [40, 41, EOS]
    prompt = [9, 40, 41, EOS, 60, 9]
    settings = config("lookahead", gamma=6, max_new_tokens=9, options=options(3, 5, 2))
    events = play(generator(TapeModel(tape, len(prompt))), prompt, settings, plain=tape)
    assert steps_of(events)[0].num_accepted == 3
    assert events[-1].reason == "eos"


@pytest.mark.parametrize("method", ["lookahead", "jacobi"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_14_no_state_outlives_a_run(method, temperature):
    """Case 14: A, B with another draft length and shape, A again on one engine: the whole logs are equal."""
    engine = generator(looping(), eos=())
    other = {"options": options(2, 4, 2)} if method == "lookahead" else {}
    settings = config(method, max_new_tokens=30, temperature=temperature, seed=3)
    first = play(engine, ids_of("abcab"), settings)
    play(engine, ids_from(8, 30), config(method, gamma=7, max_new_tokens=9, seed=4, **other))
    assert log_of(play(engine, ids_of("abcab"), settings)) == log_of(first)


@pytest.mark.parametrize("method", ["lookahead", "jacobi"])
def test_case_32_low_temperatures_come_to_the_greedy_text(method):
    """Case 32: T = 1, .1, .01, .001 on a table with gaps of 1 and more between its logits.

    At .01 a token other than the first choice has odds under exp(-100), so the text is equal. Agreement rises: at T = 1
    the first choice has about 6 of 10, at .1 all but exp(-10).
    """
    rng = torch.Generator().manual_seed(1)
    table = torch.stack([torch.randperm(6, generator=rng) for _ in range(6)]).double() * 1.2
    engine = generator(TableModel(table), eos=())
    greedy = play(engine, [0, 1, 2], config(method, max_new_tokens=60))[-1].token_ids
    agree = []
    for temperature in (1.0, 0.1, 0.01, 0.001):
        hits = 0
        for seed in range(3):
            settings = config(method, max_new_tokens=60, temperature=temperature, seed=seed)
            ids = play(engine, [0, 1, 2], settings)[-1].token_ids
            hits += sum(a == int(table[b].argmax()) for a, b in zip(ids, (2, *ids), strict=False))
            if temperature <= 0.01:
                assert ids == greedy
        agree.append(hits)
    assert agree == sorted(agree)
    assert agree[0] < agree[-1] == 180


TABLE = torch.tensor(
    [[0.0, 1.5, 0.5, -1.0], [1.0, 0.0, 0.8, 0.2], [0.3, 0.9, -0.5, 1.4], [2.0, 0.1, 0.6, 0.4]], dtype=torch.float64
)


def chi_square(ids: Sequence[int], table: torch.Tensor) -> float:
    """Pearson's statistic of the transitions against softmax(table): rows x (columns - 1) degrees of freedom."""
    counts = Counter(pairwise(ids))
    probs = torch.softmax(table, -1)
    total = 0.0
    for a, row in enumerate(probs.tolist()):
        from_a = sum(counts[a, b] for b in range(len(row)))
        total += sum((counts[a, b] - from_a * p) ** 2 / (from_a * p) for b, p in enumerate(row))
    return total


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("lookahead", options(4, 3, 3)),
        ("lookahead", options(3, 4, 2, "window")),
        ("lookahead", options(4, 2, 4, "window")),
        ("jacobi", {}),
    ],
)
def test_sampling_follows_the_target(method, settings):
    """T = 1: the transitions of 2000 tokens against the target's own table, with many guesses kept and many refused.

    Chi-square with 12 degrees of freedom: 42.8 is passed by a right engine with odds of 1 in 40 000. A rule that would
    keep every guess with the likelier tokens' odds is in the hundreds.
    """
    engine = generator(TableModel(TABLE), eos=())
    run = config(method, gamma=3, max_new_tokens=2000, temperature=1.0, seed=11, options=settings)
    events = list(engine.stream([0, 1], run))
    finished, steps = events[-1], [event for event in events if isinstance(event, StepDone)]
    assert isinstance(finished, RunFinished)
    fates = Counter(token.fate for step in steps for token in step.drafted)
    assert min(fates["accepted"], fates["rejected"]) > 200
    assert chi_square((1, *finished.token_ids), TABLE) < 42.8


@pytest.mark.parametrize("method", ["lookahead", "jacobi"])
@pytest.mark.parametrize("prompt", [[5], [5, 5], [EOS], [256, 257]], ids=str)
def test_case_118_prompts_shorter_than_window_and_ngram(method, prompt):
    """Case 118: one and two tokens, with windows and n-grams longer than the prompt."""
    settings: list[dict[str, Any]] = [options(8, 6, 2), options(1, 8, 1), {}] if method == "lookahead" else [{}]
    for own in settings:
        engine = generator(wild(), eos=())
        play(engine, prompt, config(method, max_new_tokens=8, options=own), plain=sequential(wild(), prompt, 8))


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": 0}, "window must lie between 1 and 16; got 0"),
        ({"window": 17}, "window must lie between 1 and 16"),
        ({"ngram": 1}, "ngram must lie between 2 and 8; got 1"),
        ({"ngram": 2.5}, "ngram must be a whole number from 2 to 8"),
        ({"guesses": 0}, "guesses must lie between 1 and 16"),
        ({"guesses": "three"}, "guesses must be a number from 1 to 16"),
        ({"pool": "yes"}, "pool must be one of text, window"),
        ({"level": 3}, "lookahead has no option 'level'; its own are: window, ngram, guesses, pool"),
    ],
)
def test_bad_options_are_refused_by_name_and_range(given, message):
    with pytest.raises(ConfigError, match=message):
        generator(wild()).stream([1], config("lookahead", options=given))
    if "level" not in given:
        with pytest.raises(ConfigError, match="jacobi has no option"):
            generator(wild()).stream([1], config("jacobi", options=given))


def test_rows_of_a_pass():
    """At the defaults a pass has at most 16 rows, at the highest settings fewer than the session has room for."""
    chosen = read_options("lookahead", LOOKAHEAD_OPTIONS, {})
    assert (chosen["window"] + chosen["guesses"]) * (chosen["ngram"] - 1) + 1 <= 16
    highest = {option.name: option.high for option in LOOKAHEAD_OPTIONS if option.high}
    assert (highest["window"] + highest["guesses"]) * (highest["ngram"] - 1) <= MAX_NODES
    events = play(generator(looping(), eos=()), ids_of("abab"), config("lookahead", gamma=15, max_new_tokens=60))
    assert max(step.rows for step in steps_of(events)) <= 16


def test_registry_lines():
    for name in ("lookahead", "jacobi"):
        assert registry.get_method(name).exactness == "lossless"
    built, info = registry.get_method("jacobi").build(loaded_pair(wild()), config("jacobi"))
    assert isinstance(built, JacobiDrafter)
    assert info is None


def test_closing_early_frees_the_pool() -> None:
    events: Iterator[Any] = generator(looping()).stream(ids_of("abab"), config("lookahead"))
    for _ in range(6):
        next(events)
    events.close()  # type: ignore[attr-defined]
    drafter = build()
    drafter.reset([1, 2, 3, 4])
    assert drafter.pool.size
    drafter.close()
    assert drafter.pool.size == 0
