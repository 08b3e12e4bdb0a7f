"""The cascade: who speaks, what is told about it, and that everyone follows the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from checks import BadDrafter, ids_from, log_of, noisy, play, sequential, steps_of, wild_llama
from checks_table import table_of
from fakes import ScriptDrafter, config, generator, ids_of, loaded_pair

from specviz.config import SamplingParams
from specviz.drafters import registry
from specviz.drafters.base import DraftContext, Drafter, Outcome
from specviz.drafters.budget import ROWS, Budget, Costs
from specviz.drafters.cascade import CascadeDrafter
from specviz.drafters.model import ModelDrafter
from specviz.drafters.ngram_table import NgramTableDrafter
from specviz.drafters.prompt_lookup import PromptLookupDrafter
from specviz.drafters.suffix import SuffixDrafter
from specviz.errors import ConfigError
from specviz.models import stored
from specviz.models.session import Session
from specviz.proposal import Proposal, Verdict
from specviz.sampling import uniform_generator

GREEDY, WARM = SamplingParams(), SamplingParams(temperature=1.0)


class Named(ScriptDrafter):
    """A script drafter with a name and a diary."""

    num_bytes = 7

    def __init__(self, name: str, answer: Sequence[int]) -> None:
        super().__init__(lambda ids, n: list(answer)[:n])
        self.name = name
        self.diary: list[str] = []

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        super().reset(prompt_ids)
        self.diary.append("reset")

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        self.diary.append("propose")
        return super().propose(context, max_tokens, rng)

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        self.diary.append("observe")

    def close(self) -> None:
        self.diary.append("close")


def ask(drafter: Drafter, ids: Sequence[int], n: int = 4, params: SamplingParams = GREEDY) -> Proposal:
    return drafter.propose(DraftContext(list(ids), params), n, uniform_generator(0))


CHEAP = Costs(tuple(1 + 0.01 * rows for rows in ROWS), draft=0.01, level=0.01)
DEAR = Costs(tuple(1 + 0.01 * rows for rows in ROWS), draft=3.0, level=3.0)


def cascade(ids: Sequence[int], *tables: Sequence[int]) -> CascadeDrafter:
    made = CascadeDrafter([SuffixDrafter(None), NgramTableDrafter(table_of([0], *tables))])
    made.reset(ids)
    return made


def test_the_first_with_something_to_offer_speaks_alone():
    silent, first, second = Named("silent", []), Named("first", [1, 2]), Named("second", [3])
    made = CascadeDrafter([silent, first, second])
    made.reset([5])
    proposal = ask(made, [5])
    assert proposal.token_ids.tolist() == [1, 2]
    assert proposal.note.data == {"from": "first", "passed": [["silent", 0, 0]]}
    outcome = Outcome(proposal, Verdict((0,), 9, "corrected"), (0,), (1, 9))
    made.observe(outcome)
    assert made.num_bytes == 21
    made.close()
    assert silent.diary == first.diary == ["reset", "propose", "observe", "close"]
    assert second.diary == ["reset", "observe", "close"]
    assert silent.outcomes == second.outcomes == [outcome]


def test_nobody_has_anything():
    made = CascadeDrafter([Named("a", []), Named("b", [])])
    proposal = ask(made, [5])
    assert len(proposal) == 0
    assert proposal.note.data == {"from": None, "passed": [["a", 0, 0], ["b", 0, 0]]}


def test_suffix_decoding_comes_first_and_its_note_stays():
    ids = [7, 8, 1, 5, 7, 8]
    proposal = ask(cascade(ids, [7, 8, 2]), ids, 1)
    assert proposal.token_ids.tolist() == [1]
    assert proposal.note.kind == "suffix"
    assert proposal.note.data["match_len"] == 2
    assert (proposal.note.data["from"], proposal.note.data["passed"]) == ("suffix", [])
    assert proposal.note.text.startswith("suffix: ")


def test_the_table_speaks_where_the_run_has_nothing():
    proposal = ask(cascade([5, 7, 8], [7, 8, 2]), [5, 7, 8], 1)
    assert proposal.token_ids.tolist() == [2]
    assert proposal.note.kind == "table"
    assert proposal.note.data["from"] == "ngram-table"
    assert proposal.note.data["passed"] == [["suffix", 0, 0]]


class Grower(Named):
    """A model that takes others' candidates into its tree; its diary tells whether it was given some."""

    joins = True

    def propose_with(
        self, context: DraftContext, max_tokens: int, rng: torch.Generator, others: Proposal | None
    ) -> Proposal:
        self.diary.append("joined" if others is not None else "alone")
        return super().propose(context, max_tokens, rng)


class Sure(Named):
    """A drafter that knows how sure it is, and what is expected of it."""

    def __init__(self, answer: Sequence[int], share: float) -> None:
        super().__init__("sure", answer)
        self.share = share

    @property
    def expected_accepted(self) -> float:
        return 2.0 * self.share

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        found = super().propose(context, max_tokens, rng)
        return Proposal.chain(found.token_ids.tolist(), None, [self.share] * len(found))


@pytest.mark.parametrize(
    ("share", "costs", "expected"),
    [
        (0.99, CHEAP, "sure"),  # nothing left to add
        (0.10, CHEAP, "model"),
        (0.10, DEAR, "sure"),  # it would add something, and take longer than that is worth
    ],
)
def test_a_model_is_asked_where_it_adds_more_than_its_time_would_bring(share, costs, expected):
    first, model = Sure([1, 2], share), Grower("model", [3])
    made = CascadeDrafter([first, model], budget=Budget(costs))
    made.reset([5])
    proposal = ask(made, [5])
    assert proposal.note.data["from"] == expected
    assert proposal.note.data.get("joined") == (["sure"] if expected == "model" else None)
    assert model.diary == (["reset", "joined", "propose"] if expected == "model" else ["reset"])


def test_a_model_that_joins_nobody_is_asked_by_what_it_kept_so_far():
    """A chain cannot grow in one tree: the others speak where they promise more than it keeps, its time taken off."""
    first, model = Sure([1, 2], 0.5), Named("model", [3, 4, 5])
    made = CascadeDrafter([first, model], budget=Budget(CHEAP))
    made.reset([5])
    for kept, speaker in ((3, "model"), (3, "model"), (0, "model")):
        proposal = ask(made, [5])
        assert proposal.note.data["from"] == speaker
        made.observe(Outcome(proposal, Verdict((0,), 9, "corrected"), tuple(range(kept)), (1, 9)))
    for _ in range(30):
        proposal = ask(made, [5])
        made.observe(Outcome(proposal, Verdict((), 9, "corrected"), (), (9,)))
    assert ask(made, [5]).note.data["from"] == "sure", "its drafts are refused: nothing is expected of it any more"


def test_candidates_that_cost_more_than_they_promise_are_left_out():
    first = Sure([1, 2, 3, 4], 0.9)
    for level, most in ((0.0, 4), (10.0, 0)):
        costs = Costs(tuple(1 + level * (rows - 1) for rows in ROWS), draft=9.0, level=9.0)
        made = CascadeDrafter([first, Grower("model", [])], budget=Budget(costs))
        made.reset([5])
        assert len(ask(made, [5])) == most


def test_the_model_catches_up_by_itself():
    """Behind steps in which others drafted, its tokens are those of plain decoding, and q is given for it alone."""
    model = noisy(wild_llama(1), 0.03)
    inner = ModelDrafter("draft-model", model, vocab_size=260, max_new_tokens=200)
    made = CascadeDrafter([PromptLookupDrafter(), inner])
    ids = ids_from(1, 20)
    made.reset(ids)
    seen = set()
    for turn in range(12):
        proposal = ask(made, ids, 3)
        seen.add(proposal.note.data["from"])
        if proposal.note.data["from"] == "draft-model":
            assert proposal.token_ids.tolist() == sequential(model, ids, 3)
            ids = [*ids, proposal.token_ids.tolist()[0], ids[turn], ids[turn + 1]]  # a repeat, for lookup to find
        else:
            ids = [*ids, *ids_from(50 + turn, 2)]
        made.observe(Outcome(proposal, Verdict((), ids[-1], "corrected"), (), (ids[-1],)))
    assert seen == {"prompt-lookup", "draft-model"}
    assert made.num_bytes > 0
    fresh = list(range(60, 90))  # nothing twice
    made.reset(fresh)
    assert ask(made, fresh, 2, WARM).probs is not None
    made.close()
    assert made.num_bytes == 0


def test_all_are_closed_even_if_one_fails():
    first, last = Named("first", []), Named("last", [])
    with pytest.raises(RuntimeError):
        CascadeDrafter([first, BadDrafter("close", at=1), last]).close()
    assert first.diary == last.diary == ["close"]


# --- through the generator ----------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch):
    """Costs of a machine on which models pay, in place of those of tiny models."""
    monkeypatch.setattr(registry, "costs_of", lambda *_: CHEAP)


@pytest.mark.parametrize("fallback", ["none", "draft-model", "quantized-copy", "feature"])
@pytest.mark.parametrize("table", [True, False])
def test_greedy_runs_equal_plain_decoding(monkeypatch, tmp_path, measured, fallback, table):
    """I1 in float64 with every fallback, with and without a table; whoever is there gets to speak."""
    target = wild_llama(1)
    engine = generator(target, noisy(target, 0.03), eos=())
    prompts = (ids_of("abcabcab"), ids_from(5, 20))
    if fallback != "feature":  # that one's folder is the suite's own
        if table:
            known = sequential(target, prompts[1], 40)[25:]
            table_of(known).save(tmp_path / "tiny" / "ngram-table" / "table.safetensors")
        monkeypatch.setattr(stored, "ASSETS", tmp_path)
    speakers = set()
    for prompt in prompts:
        settings = config("cascade", seed=1, max_new_tokens=40, options={"fallback": fallback})
        events = play(engine, prompt, settings, plain=sequential(target, prompt, 40))
        speakers |= {step.note.data["from"] for step in steps_of(events) if step.note}
        assert log_of(play(engine, prompt, settings)) == log_of(events)
    assert (fallback in speakers) == (fallback != "none")
    assert "suffix" in speakers or fallback == "feature"
    assert ("ngram-table" in speakers) <= (table and fallback == "none")
    assert None not in speakers or fallback == "none"


@pytest.mark.parametrize("fallback", ["none", "draft-model"])
def test_a_draft_that_is_the_target_is_accepted_when_sampling(measured, fallback):
    """Texts give one token and no q, a model gives q, step by step: a model's draft equal to the target is always
    kept, and the verifier takes both kinds in one run."""
    target = wild_llama(1)
    engine = generator(target, target, eos=())
    settings = config("cascade", temperature=1.0, seed=3, max_new_tokens=80, options={"fallback": fallback})
    events = play(engine, ids_from(5, 20), settings)
    for step in steps_of(events):
        if step.note and step.note.data["from"] == "draft-model":
            assert step.num_accepted == step.num_drafted
            assert all(token.overlap == pytest.approx(1.0, abs=1e-9) for token in step.drafted)
        elif step.note and step.note.data["from"] == "suffix":
            tested = [token for token in step.drafted if token.coin is not None]
            assert all(token.overlap == token.target_prob for token in tested), "q holds all in one token"


def test_what_is_reported_as_the_draft():
    loaded = loaded_pair(wild_llama(1), noisy(wild_llama(1), 0.1))
    entry = registry.get_method("cascade")

    def info(**options: Any) -> str:
        found = entry.build(loaded, config("cascade", options=options))[1]
        return found.name if found else ""

    assert info(fallback="none") == "n-gram table"
    assert info().startswith("feature of tiny"), "auto takes what was trained for the pair"
    assert info(fallback="draft-model") == "tiny-draft"


def test_settings_are_refused_by_name():
    engine = generator(wild_llama(1))
    for options, needle in (
        ({"fallback": "magic"}, "fallback must be one of auto, none, feature, draft-model, quantized-copy"),
        ({"fallback_tree": "shrinking"}, "tree"),
        ({"fallback": "draft-model"}, "fallback draft-model: The pair tiny has no draft model"),
        ({"window": 3}, "no option 'window'"),
    ):
        with pytest.raises(ConfigError, match=needle):
            engine.stream([1, 2], config("cascade", options=options))
