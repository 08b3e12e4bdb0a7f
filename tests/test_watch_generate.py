"""transformers' own `generate` under `specviz.watch`: the same text, and a record that is right (issue 19).

Target and drafts are tiny and random, in float64, so that equality is equality. The draft is the target with noise on
its weights: it is right often and wrong often.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_model, make_tokenizer
from transformers import GenerationMixin, LogitsProcessor

import specviz
from specviz.errors import ConfigError
from specviz.events import Event, PrefillDone, RunFinished, RunStarted, StepDone
from specviz.generate.adapter import BUILT_FOR
from specviz.generate.watch import WatchedRun, watch
from specviz.metrics import Baseline, Counters, fold
from specviz.trace import load_trace

PROMPT = torch.tensor([[70, 71, 72, 73, 70, 71, 72, 73, 70, 71]])
KINDS = ("plain", "assisted", "lookup", "early-exit", "universal")


def noisy(model: Any, scale: float, seed: int = 5) -> Any:
    twin, rng = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for param in twin.parameters():
        param.data += scale * torch.randn(param.shape, generator=rng, dtype=param.dtype)
    return twin


class Tiny:
    """A target, and for each kind of assisted generation what `generate` is called with."""

    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        self.target = make_model(265, layers=3).double()
        self.draft = noisy(self.target, 0.02)

    def ways(self, kind: str) -> dict[str, Any]:
        if kind == "universal":  # fresh ones: sampling changes this assistant for good
            return {
                "assistant_model": make_model(267, seed=3).double(),
                "tokenizer": make_tokenizer(),
                "assistant_tokenizer": make_tokenizer(extra=("hello", "abc")),
            }
        return {
            "plain": {},
            "assisted": {"assistant_model": self.draft},
            "lookup": {"prompt_lookup_num_tokens": 4},
            "early-exit": {"assistant_early_exit": 2},
        }[kind]

    def write(self, **more: Any) -> list[int]:
        out = self.target.generate(PROMPT, **{"max_new_tokens": 24, "pad_token_id": 0, "eos_token_id": None} | more)
        ids: list[int] = out[0, PROMPT.shape[1] :].tolist()
        return ids


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


def parts(run: WatchedRun) -> tuple[RunStarted, PrefillDone, list[StepDone], RunFinished]:
    started, prefill, *steps, finished = run.events
    assert isinstance(started, RunStarted)
    assert isinstance(prefill, PrefillDone)
    assert isinstance(finished, RunFinished)
    return started, prefill, [step for step in steps if isinstance(step, StepDone)], finished


def is_untouched(model: Any) -> bool:
    patched = {"generate", "_get_candidate_generator"} & model.__dict__.keys()
    return not patched and not model._forward_hooks and not model._forward_pre_hooks


# --- the text, and what is told of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_watching_changes_no_token_and_no_random_number(tiny: Tiny, kind: str, sampled: bool) -> None:
    """Issue 19: nothing about the output changes, and what is recorded is this very output."""
    more = {"do_sample": sampled, **({"temperature": 0.8, "top_k": 20} if sampled else {})}
    ways = tiny.ways(kind)
    if kind == "universal":  # its first call cuts the assistant's output layer, which draws random numbers
        tiny.write(**ways, **more)
    torch.manual_seed(11)
    alone, state = tiny.write(**ways, **more), torch.get_rng_state()
    torch.manual_seed(11)
    with watch(tiny.target, tiny.tokenizer) as run:
        watched = tiny.write(**ways, **more)
    assert watched == alone
    assert torch.equal(torch.get_rng_state(), state)
    assert is_untouched(tiny.target)

    started, prefill, steps, finished = parts(run)
    counters = run.counters
    assert list(started.prompt_ids) == PROMPT[0].tolist()
    assert list(finished.token_ids) == [t.token_id for step in steps for t in step.emitted] == alone
    assert counters.num_accepted + counters.num_corrected + counters.num_bonus + counters.num_target == len(alone)
    assert (finished.reason, finished.num_tokens, prefill.prompt_len) == ("length", 24, PROMPT.shape[1])
    assert finished.text == tiny.tokenizer.decode(alone, skip_special_tokens=True)
    for step in steps:
        kept = [t.token_id for t in step.emitted if t.origin == "accepted"]
        assert (
            kept
            == [t.token_id for t in step.drafted if t.fate == "accepted"]
            == [t.token_id for t in step.drafted[: step.num_accepted]]
        )
        fates = [t.fate for t in step.drafted[step.num_accepted :]]
        assert fates[1:] == ["discarded"] * len(fates[1:])
    if kind == "plain":
        assert counters.num_drafted == 0 and started.method == "transformers" and started.draft is None
    else:
        assert counters.num_drafted > 0
    if kind in ("assisted", "early-exit"):
        assert counters.num_accepted > 0 < counters.num_corrected
    assert (started.settings["temperature"], started.verify == "greedy") == ((0.8, False) if sampled else (0.0, True))


def test_drafted_and_kept_are_what_transformers_counts(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a second witness: the matches that transformers itself reports to its candidate generator."""
    from transformers.generation import AssistedCandidateGenerator

    told: list[tuple[int, int]] = []
    update = AssistedCandidateGenerator.update_candidate_strategy

    def spy(self: Any, input_ids: Any, scores: Any, num_matches: int) -> None:
        told.append((scores.shape[1] - 1, int(num_matches)))
        update(self, input_ids, scores, num_matches)

    monkeypatch.setattr(AssistedCandidateGenerator, "update_candidate_strategy", spy)
    with watch(tiny.target) as run:
        tiny.write(assistant_model=tiny.draft)
    assert [(step.num_drafted, step.num_accepted) for step in parts(run)[2]] == told
    assert len({kept for _, kept in told}) > 1


def test_probabilities_are_the_models_own(tiny: Tiny) -> None:
    """q and p of every tested token, and min(1, p/q), recomputed from the models. At temperature 0.8 transformers draws
    the draft at 0.8 * 0.8, as its processors come once from the target's call and once from the draft's own, and q is
    what the draft was really drawn from."""
    torch.manual_seed(2)
    with watch(tiny.target, tiny.tokenizer, detail=True) as run:
        tiny.write(assistant_model=tiny.draft, do_sample=True, temperature=0.8, top_k=0)
    ids, num_tested = PROMPT[0].tolist(), 0

    def probs(model: Any, text: list[int], temperature: float) -> torch.Tensor:
        with torch.inference_mode():
            return (model(torch.tensor([text])).logits[0, -1] / temperature).softmax(-1)

    for step in parts(run)[2]:
        text = list(ids)
        for token in step.drafted:
            if token.fate == "discarded":
                assert token.accept_prob is None and token.target_prob is None
                continue
            q, p = probs(tiny.draft, text, 0.8 * 0.8), probs(tiny.target, text, 0.8)
            assert token.draft_prob == pytest.approx(float(q[token.token_id]), rel=1e-4)
            assert token.target_prob == pytest.approx(float(p[token.token_id]), rel=1e-4, abs=1e-7)
            assert token.accept_prob == pytest.approx(min(1.0, float(p[token.token_id] / q[token.token_id])), rel=1e-3)
            assert token.overlap == pytest.approx(float(torch.minimum(p, q).sum()), rel=1e-4)
            assert token.target_top[0].prob == pytest.approx(float(p.max()), rel=1e-4)
            assert bool(token.residual_top) == (token.fate == "rejected")
            text.append(token.token_id)
            num_tested += 1
        ids += [token.token_id for token in step.emitted]
    assert num_tested > 8
    assert any("temperature twice" in note for note in parts(run)[0].notes)


def test_what_cannot_be_known_is_said(tiny: Tiny) -> None:
    """Coins stay in transformers; a copied draft has no q; a foreign draft's q is over its own tokens."""
    said: dict[tuple[str, bool], str] = {}
    for kind, sampled in itertools.product(("plain", "lookup", "universal"), (False, True)):
        ways = tiny.ways(kind)
        with watch(tiny.target) as run:
            tiny.write(**ways, do_sample=sampled)
        started, _, steps, _ = parts(run)
        said[kind, sampled] = " ".join(started.notes)
        tokens = [token for step in steps for token in step.drafted]
        assert all(token.coin is None for token in tokens)
        assert "pass that" in said[kind, sampled]
        assert ("by their ids" in said[kind, sampled]) == (kind != "universal")  # which is given a tokenizer
        if kind == "lookup":
            assert all(token.draft_prob is None for token in tokens)
            assert sampled == any(token.accept_prob is not None for token in tokens)
    assert "coins" in said["lookup", True] and "coins" not in said["lookup", False]
    assert "(q)" in said["lookup", False] and "(q)" in said["universal", False]
    assert "after temperature" in said["plain", True] and "after temperature" not in said["plain", False]


def test_early_exit_counts_the_targets_work_layer_by_layer(tiny: Tiny) -> None:
    """A step of n draft passes over 2 of 3 layers, and the check of all 3: 1 + n 2/3. Drafts have a pass a token."""
    with watch(tiny.target) as run:
        tiny.write(assistant_early_exit=2)
    for step in parts(run)[2]:
        assert step.target_work == pytest.approx(1 + len(step.drafted) * 2 / 3)


def test_an_end_inside_the_draft(tiny: Tiny) -> None:
    """An accepted end token ends the answer: nothing behind it was tested, and no token of the target's follows."""
    text = tiny.write(assistant_model=tiny.target)
    end = next(token for place, token in enumerate(text) if place > 2 and token not in text[:place])
    with watch(tiny.target) as run:
        short = tiny.write(assistant_model=tiny.target, eos_token_id=end)
    finished = parts(run)[3]
    assert short == text[: text.index(end) + 1]
    assert (list(finished.token_ids), finished.reason) == (short, "eos")
    assert sum(len(step.emitted) for step in parts(run)[2]) == len(short)


# --- time -------------------------------------------------------------------------------------------------------------


def test_time_is_told_apart_and_recording_is_in_none_of_it(tiny: Tiny) -> None:
    """The listener burns 10 ms an event; the run's seconds are those of the wall clock without them."""
    burnt = 0.0

    def burn(event: Event) -> None:
        nonlocal burnt
        began = time.perf_counter()
        while time.perf_counter() - began < 0.01:
            pass
        burnt += time.perf_counter() - began

    began = time.perf_counter()
    with watch(tiny.target, on_event=burn) as run:
        entered = time.perf_counter()
        tiny.write(assistant_model=tiny.draft)
        wall = time.perf_counter() - entered
    assert began < entered
    _, prefill, steps, finished = parts(run)
    first, *rest = steps
    assert first.with_prompt and first.draft_s == first.verify_s == first.other_s == 0.0
    assert prefill.prefill_s > 0
    assert all(step.draft_s > 0 and step.verify_s > 0 and not step.with_prompt for step in rest)
    assert finished.decode_s == pytest.approx(sum(step.draft_s + step.verify_s + step.other_s for step in rest))
    assert finished.decode_s + prefill.prefill_s <= wall - burnt


def test_rates_leave_out_the_step_whose_time_is_the_prompts() -> None:
    """5 tokens in the untimed step and 6 in two of 1 s: 3 tokens a second, 2 s of drafting for 8 drafted tokens."""
    blank: dict[str, Any] = {
        "drafted": (),
        "num_accepted": 0,
        "rows": 1,
        "target_work": 1.0,
        "cache_len": 1,
        "gamma": 4,
    }
    token = specviz.events.EmittedToken(1, "a", "target")
    steps: list[Event] = [
        StepDone(1, emitted=(token,) * 5, num_drafted=4, draft_s=0, verify_s=0, other_s=0, with_prompt=True, **blank),
        StepDone(2, emitted=(token,) * 3, num_drafted=4, draft_s=0.5, verify_s=0.5, other_s=0, **blank),
        StepDone(3, emitted=(token,) * 3, num_drafted=4, draft_s=0.5, verify_s=0.5, other_s=0, **blank),
    ]
    counters = Counters()
    for step in steps:
        counters.update(step)
    assert (counters.num_tokens, counters.num_drafted, counters.num_steps) == (11, 12, 3)
    assert counters.decode_tokens_per_s == counters.rolling_tokens_per_s == 3.0
    assert (counters.s_per_step, counters.verify_s_per_step, counters.draft_s_per_token) == (1.0, 0.5, 1 / 8)
    base = Baseline.of([*steps, RunFinished("length", "", (1,) * 11, 11, 3, 0.1, 0.1, 2.0)])
    assert base is not None and base.tokens_per_s == 3.0


# --- keeping a run ----------------------------------------------------------------------------------------------------


def test_a_watched_run_is_a_trace_with_plain_decoding_beside_it(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with specviz.watch(tiny.target, tiny.tokenizer) as run:
        tiny.write()
        tiny.write(assistant_model=tiny.draft)
    run.save(path)
    trace = load_trace(path)
    assert (trace.events, trace.plain, trace.damage) == (tuple(run), run.plain, "")
    assert [one[0].method for one in run.runs if isinstance(one[0], RunStarted)] == [
        "transformers",
        "transformers-assisted",
    ]
    assert run.baseline is not None and run.baseline.same_text and run.baseline.tokens_per_s
    assert len(run) == len(run.events) and fold(run).num_tokens == 24
    assert trace.started.prompt == tiny.tokenizer.decode(PROMPT[0])
    shown = specviz.show(run).html
    assert "transformers: assisted generation" in shown and '"same_text":true' in shown


def test_the_tokenizer_is_found_beside_the_models_weights(tiny: Tiny, tmp_path: Path) -> None:
    tiny.tokenizer.save_pretrained(tmp_path)
    model = copy.deepcopy(tiny.target)
    model.name_or_path = str(tmp_path)
    with watch(model) as run:
        model.generate(PROMPT, max_new_tokens=4, pad_token_id=0, eos_token_id=None)
    started = parts(run)[0]
    assert started.prompt == tiny.tokenizer.decode(PROMPT[0])
    assert started.target.name == started.pair == tmp_path.name  # and no more of the path: a trace may travel


@pytest.mark.browser
def test_the_page_says_where_the_first_steps_time_is(tiny: Tiny, tmp_path: Path) -> None:
    """It has none of its own: nothing is divided by it, and Inspect and the card say why."""
    from browser import open_page

    with watch(tiny.target, tiny.tokenizer) as run:
        tiny.write()
        tiny.write(assistant_model=tiny.draft)
    path = specviz.show(run).save(tmp_path / "run.html")
    with open_page(path.as_uri(), reduced_motion="reduce", viewport={"width": 1280, "height": 900}) as watched:
        page = watched.page
        page.focus("#view .strip")
        page.keyboard.press("Home")
        page.locator("#view .card", has_text="its time is the prompt’s").wait_for()
        page.keyboard.press("Enter")
        page.locator("#view [data-panel=inspect]", has_text="and in no rate").wait_for()
        assert "read with the prompt" in page.inner_html("#view [data-panel=inspect]")
        assert "NaN" not in page.inner_html("#view [data-panel=inspect]")
        page.click("#tab-methods-button")
        assert page.inner_text("#view [data-panel=methods] .title") == "transformers: assisted generation"
        assert watched.errors + watched.messages == []


# --- what goes wrong --------------------------------------------------------------------------------------------------


class Failing(LogitsProcessor):
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("boom")
        return scores


@pytest.mark.parametrize("kind", ["plain", "assisted", "lookup"])
def test_a_failure_inside_generate_leaves_the_model_as_it_was(tiny: Tiny, kind: str) -> None:
    """It is raised as without us, what came before it is kept, and the next call is as good as any."""
    before = tiny.write(**tiny.ways(kind))
    with pytest.raises(RuntimeError, match="boom"), watch(tiny.target) as run:
        tiny.write(**tiny.ways(kind), logits_processor=[Failing(9)])
    assert is_untouched(tiny.target)
    finished = parts(run)[3]
    assert (finished.reason, finished.message) == ("error", "generate failed: RuntimeError: boom")
    assert 0 < finished.num_tokens < 24
    assert tiny.write(**tiny.ways(kind)) == before


def test_a_failure_before_the_first_token_records_nothing(tiny: Tiny, tmp_path: Path) -> None:
    with watch(tiny.target) as run:
        with pytest.raises(RuntimeError, match="boom"):
            tiny.write(logits_processor=[Failing(0)])
        assert run.events == () and run.runs == [] and run.baseline is None
    with pytest.raises(ConfigError, match="Nothing was recorded"):
        run.save(tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match="used once"), watch(tiny.target) as again, again:
        pass
    assert is_untouched(tiny.target)


def test_wrong_use_is_told_in_words(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="takes a transformers model"):
        watch(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match="fast tokenizer"):
        watch(tiny.target, object())
    with watch(tiny.target), pytest.raises(ConfigError, match="watched already"), watch(tiny.target):
        pass
    assert is_untouched(tiny.target)
    for more in ({"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}):
        with watch(tiny.target) as run, pytest.raises(ConfigError, match="one answer at a time"):
            tiny.write(**more)
        assert run.events == ()
    assert is_untouched(tiny.target)


def test_another_transformers_is_named(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The private name that is needed is gone, or takes other arguments: a sentence, before anything is touched."""
    monkeypatch.setattr(GenerationMixin, "_get_candidate_generator", lambda self, config: None)
    with pytest.raises(ConfigError, match=f"transformers {BUILT_FOR}.*input_ids"), watch(tiny.target):
        pass
    monkeypatch.delattr(GenerationMixin, "_get_candidate_generator")
    with pytest.raises(ConfigError, match="_get_candidate_generator is not there"), watch(tiny.target):
        pass
    assert is_untouched(tiny.target)


def test_the_pinned_transformers_is_the_one_it_was_written_for() -> None:
    pinned = Path(__file__).parents[1].joinpath("requirements.txt").read_text(encoding="utf-8")
    assert f"\ntransformers=={BUILT_FOR}." in pinned


def test_a_call_from_another_thread_passes_unseen(tiny: Tiny) -> None:
    """While one is under way: its passes and tokens are in no run, and both write what they write alone."""
    alone, other = tiny.write(assistant_model=tiny.draft), []

    def elsewhere(event: Event) -> None:
        if isinstance(event, PrefillDone):
            thread = threading.Thread(target=lambda: other.append(tiny.write(max_new_tokens=5)))
            thread.start()
            thread.join()

    with watch(tiny.target, on_event=elsewhere) as run:
        assert tiny.write(assistant_model=tiny.draft) == alone
    assert other == [alone[:5]]
    assert len(run.runs) == 1 and list(parts(run)[3].token_ids) == alone
