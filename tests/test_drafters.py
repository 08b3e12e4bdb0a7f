"""What every drafter owes the loop, and what each of them promises by itself.

Numbers of cases are those of the list of public failures of other projects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from checks import ids_from, noisy, play, sequential, steps_of, wild_llama
from fakes import EOS, ScriptDrafter, TableModel, config, generator, ids_of, loaded_pair
from hypothesis import given
from hypothesis import strategies as st

from specviz.config import SamplingParams
from specviz.drafters import registry
from specviz.drafters.base import DraftContext, Drafter, Need, Outcome
from specviz.drafters.model import ModelDrafter
from specviz.drafters.options import read_options
from specviz.drafters.prompt_lookup import LONGEST_NGRAM, PromptLookupDrafter
from specviz.errors import ConfigError
from specviz.models.session import MAX_NODES, Session
from specviz.proposal import Proposal, Verdict
from specviz.sampling import uniform_generator

METHODS = registry.names()
GREEDY = SamplingParams()
WARM = SamplingParams(temperature=1.0)
KNOWN = 260


@cache
def wild() -> Any:
    return wild_llama(1)


@cache
def near() -> Any:
    return noisy(wild(), 0.03)


def build(method: str, max_new_tokens: int = 100) -> Drafter:
    """A fresh drafter of one method on the tiny pair."""
    entry, loaded = registry.get_method(method), loaded_pair(wild(), near())
    refusal = entry.refusal(loaded)
    if refusal:
        pytest.skip(refusal)
    options = read_options(method, entry.options, {})
    return entry.build(loaded, config(method, max_new_tokens=max_new_tokens, options=options))[0]


def shown(ids: Sequence[int], params: SamplingParams) -> DraftContext:
    """What the loop shows a drafter: the target has read all but the last id."""
    session = Session(wild(), capacity=len(ids) + 8, keep_hidden=True, taps=(1,))
    if len(ids) > 1:
        session.extend(ids[:-1])
    return DraftContext(ids, params, session.tail, session)


def first_path(proposal: Proposal) -> tuple[int, ...]:
    """The candidates that are tried first, from the root to a leaf; all of a chain."""
    children = proposal.children_of()
    path = [-1]
    while path[-1] in children:
        path.append(children[path[-1]][0])
    return tuple(path[1:])


def outcome_of(proposal: Proposal, kept: int, token_ids: Sequence[int]) -> Outcome:
    """What the loop tells after a target with random logits kept the first `kept` candidates of the first path."""
    whole = first_path(proposal)
    path = whole[:kept]
    origin = "target" if not whole else "bonus" if path == whole else "corrected"
    logits = torch.rand(len(proposal) + 1, KNOWN, generator=torch.Generator().manual_seed(len(proposal)))
    scored = [node + 1 for node in range(len(proposal)) if proposal.is_scored_only(node)]
    rows = logits[scored] if scored else None
    return Outcome(proposal, Verdict(path, token_ids[-1], origin), path, tuple(token_ids), rows, None, logits)


def drive(drafter: Drafter, prompt: Sequence[int], params: SamplingParams, num_steps: int = 12) -> Iterator[Proposal]:
    """A run as the loop makes it, with a target that keeps k = 0, 1, 2, ... drafts and adds an id of its own."""
    rng = uniform_generator(1)
    ids = list(prompt)
    drafter.reset(ids)
    for step in range(num_steps):
        proposal = drafter.propose(shown(ids, params), 1 + step % 5, rng)
        yield proposal
        path = first_path(proposal)
        kept = step % (len(path) + 1)
        new = [*(int(proposal.token_ids[node]) for node in path[:kept]), (ids[-1] * 7 + step) % 250]
        ids += new
        drafter.observe(outcome_of(proposal, kept, new))
        if step % 4 == 3:  # a step in which the loop did not ask
            ids.append(step)
            drafter.observe(outcome_of(Proposal.empty(), 0, [step]))


# --- the contract -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampling"])
@pytest.mark.parametrize("prompt", [[5], [1, 2] * 8, ids_from(3, 40), [EOS] * 5, [256, 257, 259]], ids=str)
def test_contract_of_proposals(method, params, prompt):
    """At most as many tokens as asked for, int64, known ids, and q above 0, summing to 1, wherever q is given."""
    drafter = build(method)
    for step, proposal in enumerate(drive(drafter, prompt, params)):
        assert proposal.token_ids.dtype == torch.int64
        depths = [d for node, d in enumerate(proposal.depth_of()) if not proposal.is_scored_only(node)]
        assert max(depths, default=0) <= 1 + step % 5
        assert len(proposal) <= MAX_NODES
        assert all(0 <= token < KNOWN for token in proposal.token_ids.tolist())
        assert all(0 <= value <= 1 for value in proposal.confidence)
        if proposal.probs is not None:
            assert proposal.probs.shape == (len(proposal), KNOWN)
            assert proposal.probs.is_floating_point()
            picked = proposal.probs.gather(1, proposal.token_ids[:, None])
            assert bool((picked > 0).all())
            assert torch.allclose(proposal.probs.sum(-1), torch.ones(len(proposal), dtype=proposal.probs.dtype))
        if params is GREEDY:
            assert proposal.probs is None, "a token that was chosen has no q"
        assert drafter.num_bytes >= 0
    drafter.close()
    assert drafter.num_bytes == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampling"])
def test_contract_of_reset(method, params):
    """After a reset, whatever ran before: the same proposals as a fresh drafter; also after a run that broke off."""
    prompt, other = ids_of("abcabcabcab"), ids_from(8, 50)
    told = [proposal.token_ids.tolist() for proposal in drive(build(method), prompt, params)]
    drafter = build(method)
    for _ in drive(drafter, other, params):
        pass
    assert [proposal.token_ids.tolist() for proposal in drive(drafter, prompt, params)] == told
    for _ in zip(range(3), drive(drafter, other, params), strict=False):
        pass
    assert [proposal.token_ids.tolist() for proposal in drive(drafter, prompt, params)] == told
    assert method == "plain" or any(told)


@pytest.mark.parametrize("method", METHODS)
def test_contract_of_close(method):
    """May come at any time, twice, before reset, and between propose and observe; memory is given back."""
    for moment in range(4):
        drafter = build(method)
        if moment >= 1:
            drafter.reset(ids_from(1, 30))
        if moment >= 2:
            drafter.propose(shown(ids_from(1, 30), WARM), 3, uniform_generator(0))
        if moment >= 3:
            drafter.observe(outcome_of(Proposal.empty(), 0, [4]))
        drafter.close()
        drafter.close()
        assert drafter.num_bytes == 0


@pytest.mark.parametrize("method", METHODS)
def test_contract_of_the_context(method):
    """A drafter changes nothing of what it is shown, and copes with a context that is not what it saw before: shorter,
    longer by a lot, and different from its first token on."""
    drafter = build(method, 400)
    drafter.reset(ids_from(1, 30))
    rng = uniform_generator(0)
    for ids in ([*ids_from(1, 30), 4], ids_from(1, 12), [9], ids_from(5, 200), ids_from(6, 31), [EOS, EOS], [3] * 60):
        before = tuple(ids)
        proposal = drafter.propose(shown(ids, GREEDY), 4, rng)
        assert tuple(ids) == before
        assert len(first_path(proposal)) <= 4
        if method in ("draft-model", "quantized-copy"):
            assert proposal.token_ids.tolist() == sequential(near(), ids, 4)
    drafter.close()


@pytest.mark.parametrize("method", METHODS)
def test_contract_of_the_random_stream(method):
    """Greedy drafting draws nothing, sampling only from the run's stream, never from torch's own."""
    state = torch.get_rng_state()
    for params in (GREEDY, WARM):
        drafter, rng = build(method), uniform_generator(5)
        drafter.reset(ids_of("abab"))
        drafter.propose(shown(ids_of("abab"), params), 3, rng)
        drawn = not torch.equal(rng.get_state(), uniform_generator(5).get_state())
        assert drawn == (params is WARM and method in ("draft-model", "quantized-copy", "early-exit", "feature"))
        drafter.close()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", METHODS)
def test_registry_entries_are_complete(method):
    """Title, summary of one line, word and needs; the drafter's own name is the registry's."""
    entry = registry.get_method(method)
    assert entry.name == method == build(method).name
    assert entry.title
    assert entry.summary.endswith(".")
    assert "\n" not in entry.summary
    assert entry.exactness in ("exact", "lossless", "approximate")
    assert entry.refusal(loaded_pair(wild(), near())) is None
    refusal = entry.refusal(loaded_pair(wild()))
    assert (refusal is not None) == (Need.DRAFT in entry.needs)


def test_unknown_names_are_refused_with_the_list():
    with pytest.raises(ConfigError, match="plain, prompt-lookup"):
        registry.get_method("x" * 200)
    assert METHODS[0] == "plain"


# --- prompt lookup ------------------------------------------------------------------------------------------------


def look_up(ids: Sequence[int], n: int = 4, prompt_len: int | None = None) -> Proposal:
    drafter = PromptLookupDrafter()
    drafter.reset(ids[:prompt_len])
    return drafter.propose(DraftContext(list(ids), GREEDY), n, uniform_generator(0))


def brute_force(ids: Sequence[int], n: int) -> list[int]:
    """The rule by its words: longest suffix that occurred before, latest place, what stood behind it."""
    for length in range(min(LONGEST_NGRAM, len(ids) - 1), 0, -1):
        for start in range(len(ids) - length - 1, -1, -1):
            if list(ids[start : start + length]) == list(ids[-length:]):
                return list(ids[start + length :][:n])
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8), st.integers(1, 40))
def test_prompt_lookup_equals_brute_force(ids, n, prompt_len):
    """Random texts over 4 ids, read as prompt and answer cut anywhere."""
    assert look_up(ids, n, prompt_len).token_ids.tolist() == brute_force(ids, n)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=30))
def test_prompt_lookup_as_the_text_grows(ids):
    """One drafter asked at every length equals a fresh one: the index is kept up, whatever the steps."""
    drafter = PromptLookupDrafter()
    drafter.reset(ids[:1])
    for end in range(1, len(ids) + 1, 1 + len(ids) % 3):
        made = drafter.propose(DraftContext(ids[:end], GREEDY), 4, uniform_generator(0))
        assert made.token_ids.tolist() == brute_force(ids[:end], 4)


def test_prompt_lookup_prefers_the_longest_suffix():
    """[7 8] stood before 1; 8 alone, later, before 2."""
    assert look_up([7, 8, 1, 5, 8, 2, 7, 8], 1).token_ids.tolist() == [1]


def test_prompt_lookup_prefers_the_latest_place():
    assert look_up([7, 8, 1, 7, 8, 2, 7, 8], 1).token_ids.tolist() == [2]


def test_prompt_lookup_ends_where_the_text_ends():
    """[4 4] matches itself one place back: a single token stands behind it."""
    assert look_up([4, 4, 4], 8).token_ids.tolist() == [4]
    assert look_up([1, 2, 3, 1, 2], 8).token_ids.tolist() == [3, 1, 2]


@pytest.mark.parametrize("ids", [[1], [1, 2], [1, 2, 3, 4]])
def test_prompt_lookup_without_a_match_proposes_nothing_and_says_so(ids):
    proposal = look_up(ids)
    assert len(proposal) == 0
    assert "not occurred" in proposal.note.text


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.integers(1, 6))
def test_prompt_lookup_tells_which_span_it_copied(ids, n):
    """source_start and source_end cut exactly the copied ids out of the text, match_len equal ids stand before both."""
    proposal = look_up(ids, n)
    if len(proposal):
        data = proposal.note.data
        start, length = data["source_start"], data["match_len"]
        assert proposal.note.kind == "copied"
        assert ids[start : data["source_end"]] == proposal.token_ids.tolist()
        assert ids[start - length : start] == ids[-length:]
        assert 1 <= length <= LONGEST_NGRAM
        assert start < data["source_end"] == start + len(proposal) <= len(ids)


def test_prompt_lookup_is_a_point_mass():
    """Copied tokens were chosen, not drawn: no q, also when sampling."""
    drafter = PromptLookupDrafter()
    drafter.reset([1, 2, 1])
    assert drafter.propose(DraftContext([1, 2, 1], WARM), 4, uniform_generator(0)).probs is None


# --- model drafts -------------------------------------------------------------------------------------------------


class Spied(Session):
    """Writes down how many tokens each pass was fed."""

    fed: list[int]

    def extend(self, token_ids: Sequence[int], **more: Any) -> Any:
        self.fed.append(len(token_ids))
        return super().extend(token_ids, **more)


@pytest.fixture
def fed(monkeypatch) -> list[int]:
    counts: list[int] = []
    monkeypatch.setattr(Spied, "fed", counts, raising=False)
    monkeypatch.setattr("specviz.drafters.model.Session", Spied)
    return counts


def model_drafter(model: Any = None) -> ModelDrafter:
    return ModelDrafter("draft-model", model or near(), vocab_size=KNOWN, max_new_tokens=100)


def test_case_37_what_the_draft_is_fed_after_each_kind_of_step(fed):
    """Case 37: all but the last prompt token, then one token after a refusal, two after a full acceptance, more after
    steps without a draft; behind each round the cache holds context + drafted - 1 entries."""
    drafter = model_drafter()
    ids = ids_from(2, 20)
    drafter.reset(ids)
    assert fed == [19]
    rng = uniform_generator(0)
    for kept, expected in ((1, 1), (0, 1), (3, 1), (2, 2), (3, 1), (3, 2)):
        fed.clear()
        proposal = drafter.propose(DraftContext(ids, GREEDY), 3, rng)
        assert fed == [expected, 1, 1]
        assert drafter._session.length == len(ids) + 3 - 1
        ids = [*ids, *proposal.token_ids.tolist()[:kept], 251]
        drafter.observe(outcome_of(proposal, kept, ids[-kept - 1 :]))
    ids = [*ids, 5, 6, 7]
    fed.clear()
    drafter.propose(DraftContext(ids, GREEDY), 2, rng)
    assert fed == [2 + 3, 1]
    drafter.close()


def test_case_37_the_targets_own_token_may_be_the_drafted_one(fed):
    """A draft cut short (an end token, a stop) may go on just as drafted: what agrees is not fed again."""
    drafter = model_drafter()
    ids = ids_from(2, 20)
    drafter.reset(ids)
    first = drafter.propose(DraftContext(ids, GREEDY), 4, uniform_generator(0)).token_ids.tolist()
    fed.clear()
    drafter.propose(DraftContext([*ids, *first[:2]], GREEDY), 1, uniform_generator(0))
    assert fed == [1]
    drafter.close()


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_case_37_drafts_after_a_refusal_are_right_again(gamma):
    """Case 37: a context with wrong tokens in it at random places: every draft equals plain decoding behind it."""
    drafter = model_drafter()
    ids = ids_from(4, 10)
    drafter.reset(ids)
    for turn in range(12):
        proposal = drafter.propose(DraftContext(ids, GREEDY), gamma, uniform_generator(0))
        assert proposal.token_ids.tolist() == sequential(near(), ids, gamma)
        kept = ids_from(turn, 1, gamma + 1)[0]
        ids = [*ids, *proposal.token_ids.tolist()[:kept], ids_from(100 + turn, 1)[0]]
    drafter.close()


@pytest.mark.parametrize("gamma", range(1, 9))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_37_a_draft_that_is_the_target_is_always_kept(gamma, temperature):
    """Case 37: gamma 1 to 8, greedy and T = 1: every drafted token of every round is accepted, q equals p."""
    engine = generator(wild(), wild(), eos=())
    settings = config("draft-model", gamma=gamma, max_new_tokens=40, temperature=temperature, seed=gamma)
    events = play(engine, ids_from(gamma, 12), settings)
    for step in steps_of(events):
        assert step.num_accepted == step.num_drafted == step.gamma
        for token in step.drafted:
            assert token.draft_prob == pytest.approx(token.target_prob, abs=1e-6)
            assert temperature == 0 or token.overlap == pytest.approx(1.0, abs=1e-9)


def test_case_10_the_draft_sees_its_own_tokens_in_the_penalty():
    """Case 10 on the draft's side: its greedy tokens are those of a loop with the penalty, row by row."""
    ids = ids_of("abababab")
    for penalty in (0.3, 0.6):  # below 1 it draws back to what was just drafted
        drafter = model_drafter()
        drafter.reset(ids)
        params = SamplingParams(repetition_penalty=penalty)
        proposal = drafter.propose(DraftContext(ids, params), 12, uniform_generator(0))
        assert proposal.token_ids.tolist() == sequential(near(), ids, 12, penalty=penalty)
        assert proposal.token_ids.tolist() != sequential(near(), ids, 12)
        drafter.close()


def test_q_is_what_the_token_was_drawn_from():
    """Case 19 for the model draft: q is the transformed distribution behind the draft; nothing outside top-k."""
    params = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, repetition_penalty=1.3)
    drafter = model_drafter(TableModel(torch.randn(KNOWN, KNOWN, generator=torch.Generator().manual_seed(0))))
    drafter.reset([1, 2, 3])
    rng = uniform_generator(0)
    seen = set()
    for _ in range(20):
        proposal = drafter.propose(DraftContext([1, 2, 3], params), 3, rng)
        assert bool(((proposal.probs > 0).sum(-1) <= 5).all())
        assert bool((proposal.probs.gather(1, proposal.token_ids[:, None]) > 0).all())
        seen.add(tuple(proposal.token_ids.tolist()))
        assert proposal.confidence == pytest.approx(
            proposal.probs.gather(1, proposal.token_ids[:, None])[:, 0].tolist()
        )
    assert len(seen) > 5
    drafter.close()


def test_case_110_a_draft_that_lacks_ids_reads_on():
    """Case 110: 24 rows in the draft, 260 ids in the text: ids without a row stop no run, and are never drafted."""
    small = wild_llama(2, vocab=24)
    drafter = model_drafter(small)
    for ids in ([1, 2, 200, 3], [259, 1], [30] * 6):
        drafter.reset(ids)
        proposal = drafter.propose(DraftContext(ids, WARM), 4, uniform_generator(1))
        assert all(0 <= token < 24 for token in proposal.token_ids.tolist())
    drafter.close()
    play(
        generator(wild(), small, eos=()),
        [1, 2],
        config("draft-model", max_new_tokens=20),
        plain=sequential(wild(), [1, 2], 20),
    )


def test_script_drafter_of_the_fakes_keeps_the_contract():
    """The stand-in used everywhere else does what it says."""
    drafter = ScriptDrafter(lambda ids, n: [1] * n)
    assert drafter.propose(DraftContext([5], GREEDY), 3, uniform_generator(0)).token_ids.tolist() == [1, 1, 1]
