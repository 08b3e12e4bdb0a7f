"""The Lab: what is measured, what is said about it, and the statistics behind the exactness panel. Tiny random models
in float64 stand in for the pair; clocks are read, never judged."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import loaded_pair, tiny_llama
from hypothesis import given
from hypothesis import strategies as st

from specviz import run as run_module
from specviz import verify as verify_module
from specviz.cli import main
from specviz.config import RunConfig, SamplingParams
from specviz.drafters.registry import METHODS
from specviz.errors import ConfigError, TraceError
from specviz.generator import SpeculativeGenerator
from specviz.lab.experiment import Ask, Finding, Report, Stopped, conduct
from specviz.lab.experiments import EXPERIMENTS
from specviz.lab.gamma import ALPHAS, as_good, best_of, formulas, lengths_for, measure_gamma, surface, theory_at
from specviz.lab.goodness import LEAST_EXPECTED, chi_square_p, fit
from specviz.lab.length import contexts_for
from specviz.lab.precision import count_agreeing
from specviz.lab.record import RECORDED, load_findings, save_finding, to_csv
from specviz.lab.sampling import STUB, enumerate_stub
from specviz.lab.words import answer, measured_where
from specviz.models.decoder import decoder_for
from specviz.sampling import probabilities
from specviz.theory import speed_up
from specviz.verify import verify_likely

QUICK = RunConfig("draft-model", gamma=3, max_new_tokens=12, exact=False)


def engine_of(target_seed: int = 0, draft_seed: int = 1) -> SpeculativeGenerator:
    target = tiny_llama(target_seed, positions=512)
    draft = target if draft_seed == target_seed else tiny_llama(draft_seed, positions=512)
    return SpeculativeGenerator(loaded_pair(target, draft))


def nothing() -> None:
    pass


def last_finding(name: str, engine: SpeculativeGenerator, ask: Ask) -> Finding:
    found = [report.finding for report in EXPERIMENTS[name].measure(engine, ask, nothing)]
    finding = [one for one in found if one is not None][-1]
    assert finding.is_whole
    return finding


# --- the chi-square test ---------------------------------------------------------------------------------------------


def test_p_values_are_those_of_the_tables() -> None:
    """Published quantiles of chi-square; with two degrees of freedom it is exp(-x / 2)."""
    for degrees, quantile, p in ((1, 3.841, 0.05), (1, 6.635, 0.01), (5, 11.070, 0.05), (10, 23.209, 0.01)):
        assert chi_square_p(quantile, degrees) == pytest.approx(p, rel=2e-3)
    assert chi_square_p(3.0, 2) == pytest.approx(math.exp(-1.5), rel=1e-12)
    assert chi_square_p(0.0, 4) == 1.0
    assert chi_square_p(math.inf, 4) == 0.0


def test_a_fit_by_hand() -> None:
    """(60 - 50)² / 50 + (40 - 50)² / 50 = 4, one degree of freedom."""
    result = fit({"a": 0.5, "b": 0.5}, {"a": 60, "b": 40})
    assert (result.chi_square, result.degrees) == (pytest.approx(4.0), 1)
    assert result.p_value == pytest.approx(0.0455, abs=1e-4)


def test_rare_outcomes_are_pooled_and_the_pool_is_never_too_small() -> None:
    probs = {"a": 0.5, "b": 0.3, "c": 0.04, "d": 0.03, "e": 0.03}
    result = fit(probs, {"a": 48, "b": 33, "c": 5, "e": 2, "unforeseen": 12})
    assert [cell.outcome for cell in result.cells] == ["a", "b", None]
    assert result.cells[-1].expected == pytest.approx(20.0)
    assert result.cells[-1].observed == 19
    narrow = fit({"a": 0.6, "b": 0.38}, {"a": 60, "b": 38, "z": 2})
    assert [(cell.outcome, cell.observed) for cell in narrow.cells] == [("a", 60), (None, 40)]
    assert fit({"a": 0.999}, {"a": 100}).p_value is None


def test_what_cannot_happen_is_seen() -> None:
    """All the mass on two outcomes, and a third comes up: it joins the rarest cell, which then stands out."""
    result = fit({"a": 0.9, "b": 0.1}, {"a": 50, "c": 50})
    assert result.p_value is not None
    assert result.p_value < 1e-12


@given(st.lists(st.integers(1, 50), min_size=2, max_size=12), st.integers(40, 400), st.integers(0, 10**6))
def test_every_sample_lands_in_one_cell(weights: list[int], total: int, seed: int) -> None:
    probs = {i: weight / sum(weights) for i, weight in enumerate(weights)}
    rng = torch.Generator().manual_seed(seed)
    seen = Counter(torch.multinomial(torch.tensor(list(probs.values())), total, True, generator=rng).tolist())
    result = fit(probs, seen)
    assert sum(cell.observed for cell in result.cells) == total
    assert sum(cell.expected for cell in result.cells) == pytest.approx(total)
    assert len(result.cells) == 1 or all(cell.expected >= LEAST_EXPECTED - 1e-9 for cell in result.cells)


def test_p_is_uniform_where_the_law_holds() -> None:
    """400 tests of 200 draws from the law itself: p under 0.05 in 20, give or take 3.5 standard errors (15)."""
    rng = torch.Generator().manual_seed(5)
    law = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    probs = dict(enumerate(law.tolist()))
    low = 0
    for _ in range(400):
        result = fit(probs, Counter(torch.multinomial(law, 200, True, generator=rng).tolist()))
        assert result.p_value is not None
        low += result.p_value < 0.05
    assert 5 <= low <= 35


# --- sampling --------------------------------------------------------------------------------------------------------


def test_the_enumeration_is_the_target_s_own_distribution() -> None:
    """Token by token against the transformers model itself, in float64."""
    engine = engine_of()
    ids, sampling = [65, 66, 67], SamplingParams(temperature=2.0, top_k=3)
    *_, (done, table) = enumerate_stub(engine, ids, sampling, 1e-12)
    assert done == 1.0
    assert sum(table.values()) == pytest.approx(1.0)
    target, vocab = engine.loaded.target, engine.loaded.vocab_size
    for (first, second), prob in table.items():
        logits = target(torch.tensor([[*ids, first]])).logits[0, :, :vocab]
        p = probabilities(logits[-2], sampling)[first] * probabilities(logits[-1], sampling)[second]
        assert prob == pytest.approx(float(p), rel=1e-6)


def alike_engine() -> SpeculativeGenerator:
    """A draft that is the target with noise on its output layer: about half of what it draws is kept."""
    target, draft = tiny_llama(positions=512), tiny_llama(positions=512)
    noise = torch.randn(draft.lm_head.weight.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    draft.lm_head.weight.add_(0.8 * noise)
    return SpeculativeGenerator(loaded_pair(target, draft))


def sampling_ask(**more: Any) -> Ask:
    config = RunConfig("draft-model", gamma=3, sampling=SamplingParams(temperature=5.0, top_k=4, seed=11), exact=False)
    return Ask("abc", replace(config, **more), num_samples=300)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_speculative_sampling_passes_the_test_and_drafts_were_really_tested(rule: str) -> None:
    """Seeded, so it does not flicker; a right rule lands under 0.01 for one seed in a hundred."""
    finding = last_finding("sampling", alike_engine(), sampling_ask(verify=rule))
    assert finding.facts["p_value"] > 0.01
    assert finding.facts["num_tested"] >= 300
    assert 0.2 < finding.facts["num_accepted"] / finding.facts["num_tested"] < 0.9
    assert sum(row["observed"] for row in finding.rows) == 300
    headline, rest = answer(finding)
    assert "agree with the target’s own distribution" in headline
    assert "Agreement is no proof" in rest


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_rule_that_keeps_every_draft_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the draft's distribution instead."""

    def keeps_all(*args: Any, detail: bool = False) -> Any:
        return verify_likely(*args, threshold=0.0)

    monkeypatch.setattr(run_module, "verify_sampling" if rule == "token" else "verify_block", keeps_all)
    finding = last_finding("sampling", alike_engine(), sampling_ask(verify=rule))
    assert finding.facts["p_value"] < 1e-6
    assert "This is not chance" in answer(finding)[0]


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_rule_that_draws_anew_from_p_after_a_refusal_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual slip: the residual max(p - q, 0) is forgotten, so what the draft likes comes up too often."""
    monkeypatch.setattr(verify_module, "residual", lambda p, q: p)
    finding = last_finding("sampling", alike_engine(), sampling_ask(verify=rule))
    assert finding.facts["p_value"] < 1e-6


def test_an_approximate_rule_is_shown_to_be_one() -> None:
    finding = last_finding("sampling", alike_engine(), sampling_ask(verify="threshold", threshold=0.01))
    assert finding.facts["p_value"] < 1e-6
    assert "as this approximate rule says" in answer(finding)[0]


def test_a_greedy_setting_is_tested_at_temperature_1() -> None:
    ask = replace(sampling_ask(sampling=SamplingParams(seed=3)), num_samples=20)
    finding = last_finding("sampling", engine_of(), ask)
    assert finding.about["temperature"] == 1.0
    assert all(len(row["ids"].split()) <= STUB for row in finding.rows)


# --- greedy ----------------------------------------------------------------------------------------------------------


def test_a_greedy_run_that_equals_plain_says_so_with_the_self_test() -> None:
    finding = last_finding("greedy", engine_of(), Ask("abc", replace(QUICK, exact=True)))
    assert finding.facts["first_difference"] is None
    assert all(row["is_same"] for row in finding.rows)
    headline, rest = answer(finding)
    assert headline.startswith("Identical: all 12 tokens")
    assert "contexts 46 to 67 and 496" in rest  # the longest that leaves room for two passes in 512 places


def test_the_first_difference_is_named_with_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong verifier replaces the third token, so the texts part there and the gap is that of the target's logits."""
    engine = engine_of()
    right = run_module.verify_greedy

    def wrong(proposal: Any, logits: Any, params: Any, history: Any, **more: Any) -> Any:
        verdict = right(proposal, logits, params, history, **more)
        first = len(history) == prompt_len + 2
        return replace(verdict, path=(), next_token=65) if first else verdict

    plain = list(engine.stream("abc", replace(QUICK, method="plain", gamma=0)))
    prompt_len = len(plain[0].prompt_ids)
    monkeypatch.setattr(run_module, "verify_greedy", wrong)
    drafting = replace(QUICK, gamma=1, max_new_tokens=6)
    run = list(engine.stream("abc", drafting))[-1].token_ids
    monkeypatch.setattr(engine, "stream_plain", lambda prompt, config: iter(plain))
    finding = last_finding("greedy", engine, Ask("abc", drafting))
    place = next(i for i, (a, b) in enumerate(zip(run, plain[-1].token_ids, strict=False)) if a != b)
    assert finding.facts["first_difference"] == place
    assert finding.facts["gap"] == pytest.approx(engine.logit_gap([*plain[0].prompt_ids, *run[:place]]))
    assert [row["is_same"] for row in finding.rows[: place + 1]] == [True] * place + [False]
    assert f"first difference is token {place + 1} of" in answer(finding)[1]


# --- the sweep over draft lengths ------------------------------------------------------------------------------------


def test_lengths_are_those_that_a_pass_can_check() -> None:
    assert lengths_for(QUICK) == (1, 2, 3, 4, 5, 6, 7)
    assert lengths_for(replace(QUICK, width=16)) == (1, 2, 3, 4, 5, 6, 8, 10, 12, 15)
    assert lengths_for(replace(QUICK, width=4)) == (1, 2, 3)


def test_a_sweep_gives_every_length_beside_plain_and_points_on_theory_s_curve() -> None:
    finding = last_finding("gamma", engine_of(), Ask("abc", QUICK, repeat=2))
    assert [row["gamma"] for row in finding.rows] == [1, 2, 3, 4, 5, 6, 7]
    facts = finding.facts
    assert facts["is_chain"]
    for row in finding.rows:
        assert row["speed_up_low"] <= row["speed_up"] <= row["speed_up_high"]
        assert row["theory_speed_up"] == pytest.approx(
            speed_up(
                facts["alpha"], row["mean_drafted"], facts["c"], row["v"], kappa=row["coverage"],
                v_undrafted=row["v_undrafted"],
            )
        )  # fmt: skip
        assert row["num_equal"] == 1
    assert json.loads(json.dumps(finding.to_json(), allow_nan=False))
    assert len(formulas(finding)) in (3, 4)


def test_trees_have_points_and_no_curve() -> None:
    config = replace(QUICK, method="medusa", options={"tree": "2,1"})
    finding = last_finding("gamma", engine_of(), Ask("abc", config, repeat=1))
    assert not finding.facts["is_chain"]
    assert all(row["theory_speed_up"] is None and row["speed_up"] is not None for row in finding.rows)
    assert surface(finding) is None


def test_stopping_keeps_what_is_there_and_ends_within_a_run() -> None:
    engine = engine_of()
    reports: list[Report] = []
    stop = [False]
    for report in conduct(measure_gamma, engine, Ask("abc", QUICK, repeat=3), lambda: stop[0], 60):
        reports.append(report)
        stop[0] = stop[0] or report.finding is not None
    assert reports[-1].text == "Stopped. Everything so far is kept."
    finding = [r.finding for r in reports if r.finding][-1]
    assert not finding.is_whole
    assert finding.rows
    passes = 0
    decoder = decoder_for(engine.loaded.target)
    forward = decoder.forward

    def counting(*args: Any, **more: Any) -> Any:
        nonlocal passes
        passes += 1
        return forward(*args, **more)

    decoder.forward = counting  # type: ignore[method-assign]
    *_, end = conduct(measure_gamma, engine, Ask("abc", QUICK), lambda: passes >= 4, 60)
    assert end.text == "Stopped. Nothing was measured yet."
    assert passes <= 6


def test_the_time_limit_ends_an_experiment_and_is_named() -> None:
    *_, end = conduct(measure_gamma, engine_of(), Ask("abc", QUICK), lambda: False, 0.0)
    assert end.text.startswith("The time limit of 0 s was reached.")


def test_the_time_left_is_told_from_progress_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("specviz.lab.experiment.time.monotonic", lambda: now[0])

    def experiment(engine: Any, ask: Any, check: Any) -> Any:
        for fraction in (0.0, 0.25, 0.5, 1.0):
            now[0] = 80.0 * fraction
            yield Report("x", fraction)

    texts = [report.text for report in conduct(experiment, None, None, lambda: False, 1e9)]  # type: ignore[arg-type]
    assert texts == ["x", "x. About 1 min 0 s left", "x. About 40 s left", "x", "Measured in 1 min 20 s."]


@pytest.mark.parametrize("name", ["gamma", "greedy", "sampling"])
def test_plain_decoding_has_nothing_to_measure(name: str) -> None:
    with pytest.raises(ConfigError, match="Choose another method"):
        list(EXPERIMENTS[name].measure(engine_of(), Ask("abc", RunConfig("plain", gamma=0)), nothing))


def row_of(gamma: int, s: float, low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "gamma": gamma, "speed_up": s, "speed_up_low": low or s, "speed_up_high": high or s, "alpha": 0.8, "v": 1.1,
        "v_undrafted": None, "mean_drafted": float(gamma), "coverage": 1.0, "acceptance_rate": 0.5,
        "acceptance_length": 3.0, "num_drafting_steps": 10, "num_steps": 10, "draft_s": 0.1, "verify_s": 0.3,
        "theory_speed_up": s,
    } | more  # fmt: skip


FACTS = {
    "is_chain": True, "top": 7, "gamma": 4, "alpha": 0.8, "acceptance_rate": 0.5, "kappa": 1.0, "c": 0.1, "v": 1.1,
    "plain_s_per_token": 0.02, "repeat": 3, "reason": "The guesses cost too much.",
}  # fmt: skip
ABOUT = {
    "date": "2026-01-02T03:04:05+00:00", "machine": "A machine", "threads": 2, "device": "cpu", "pair": "tiny",
    "title": "Tiny", "dtype": "bfloat16", "method": "draft-model", "method_title": "Draft model", "gamma": 4,
    "temperature": 0.0, "max_new_tokens": 64, "prompt": "=x",
}  # fmt: skip


def gamma_finding(*rows: dict[str, Any], **facts: Any) -> Finding:
    return Finding("gamma", ABOUT, rows, FACTS | facts, True)


def test_the_verdict_names_the_best_length_and_those_as_good() -> None:
    rows = (row_of(2, 1.70), row_of(3, 1.9, 1.85, 1.95), row_of(4, 1.93, 1.90, 1.97), row_of(5, 1.91), row_of(7, 1.4))
    headline, rest = answer(gamma_finding(*rows))
    assert headline == "Draft 4 tokens a step: 1.93 times as fast as plain."
    assert rest.startswith("Lengths 3 to 5 are as good, within the spread. At 7 it is 1.40×")
    assert as_good(rows) == [3, 4, 5]
    assert best_of(rows) is rows[2]


def test_the_verdict_is_not_to_speculate_where_that_is_slower_and_says_why() -> None:
    headline, rest = answer(gamma_finding(row_of(1, 0.78), row_of(2, 0.6)))
    assert headline == "Do not speculate here: γ 0, plain decoding, is the fastest."
    assert rest == "Nearest: 1 token a step, 0.78 times the speed of plain. The guesses cost too much."
    assert "No gain here" in answer(gamma_finding(row_of(1, 1.08, 0.97, 1.2)))[0]


def test_the_surface_is_theory_s_and_its_row_of_gamma_0_is_plain() -> None:
    finding = gamma_finding(row_of(1, 1.5, v=1.0), row_of(3, 1.8, v=1.2))
    grid = surface(finding)
    assert grid is not None and len(grid) == 8
    assert grid[0] == [1.0] * len(ALPHAS)
    assert grid[2][80] == pytest.approx(speed_up(0.8, 2, 0.1, 1.1))  # between two lengths v lies between
    assert grid[7][80] == pytest.approx(speed_up(0.8, 7, 0.1, 1.2))
    assert theory_at(row_of(3, 1.8), FACTS) == pytest.approx(speed_up(0.8, 3, 0.1, 1.1))


def test_the_circulating_formulas_are_judged_on_the_point() -> None:
    """r = 0.416 in place of α gives 1.71 where a step wrote 4.33 tokens: no bound at all."""
    row = row_of(8, 1.6, alpha=0.8, acceptance_rate=0.416, acceptance_length=4.33)
    loose, limit, wrong, condition = formulas(gamma_finding(row))
    assert loose["value"] == "40.00×"
    assert "a step at γ 8 writes 9 tokens at most, 4.33 on average" in loose["judgement"]
    assert limit["value"] == "5.00×"
    assert wrong["value"] == "1.71×" and wrong["judgement"].startswith("No limit at all: a drafting step wrote 4.33")
    assert condition["value"] == "“gain”"  # 20 / 4.33 ms against (10 + 20) / 8 ms
    assert "says gain (87 against 40 ms)" in condition["judgement"]


# --- the other experiments -------------------------------------------------------------------------------------------


def test_passes_are_measured_from_1_to_64_rows_beside_memory_s_speed() -> None:
    finding = last_finding("passes", engine_of(), Ask("abc", QUICK))
    assert [row["rows"] for row in finding.rows] == [1, 2, 4, 5, 8, 16, 32, 64]
    assert finding.rows[0]["v"] == 1.0
    assert all(row["pass_s_low"] <= row["pass_s"] <= row["pass_s_high"] for row in finding.rows)
    assert finding.facts["floor_s"] == 1 / finding.facts["bandwidth_bytes_per_s"]  # the tiny target says it has 1 byte
    assert "% of that roofline" in answer(finding)[1]


def test_memory_is_that_of_the_loaded_objects() -> None:
    """Keys and values of 3 layers, 2 heads of 12 in float64: 1,152 bytes a token, for target and draft alike."""
    finding = last_finding("memory", engine_of(), Ask("abc", QUICK))
    assert finding.facts["target_bytes_per_token"] == finding.facts["draft_bytes_per_token"] == 3 * 2 * 2 * 12 * 8
    assert [row["context"] for row in finding.rows] == [0, 256, 512]
    assert finding.rows[-1]["target_cache_bytes"] == 512 * 1152
    lookup = last_finding("memory", engine_of(), Ask("abc", replace(QUICK, method="prompt-lookup")))
    assert lookup.facts["draft_bytes_per_token"] == 0
    assert answer(lookup)[0] == "This draft takes no memory of its own: it needs no model."


@pytest.mark.parametrize("method", [name for name in METHODS if name != "ngram-table"])
def test_every_method_s_memory_can_be_weighed(method: str) -> None:
    options = {"exit_layer": 1} if method == "early-exit" else {}
    finding = last_finding("memory", engine_of(), Ask("abc", RunConfig(method, gamma=2, options=options, exact=False)))
    assert finding.facts["target_bytes_per_token"] == 1152


def test_agreement_counts_first_choices_along_the_target_s_own_answer() -> None:
    engine = engine_of()
    ids = [65, 66, 67]
    plain = RunConfig("plain", gamma=0, max_new_tokens=12, exact=False)
    answer_ids = list(engine.stream(ids, plain))[-1].token_ids
    assert count_agreeing(engine.loaded.target, engine.loaded.vocab_size, ids, answer_ids) == len(answer_ids)
    other = tiny_llama(1, positions=512)
    logits = other(torch.tensor([[*ids, *answer_ids]])).logits[0, :, : engine.loaded.vocab_size]
    by_hand = sum(int(logits[len(ids) - 1 + i].argmax()) == token for i, token in enumerate(answer_ids))
    assert count_agreeing(other, engine.loaded.vocab_size, ids, answer_ids) == by_hand


def test_precision_measures_each_format_and_says_which_is_in_use() -> None:
    finding = last_finding("precision", engine_of(), Ask("abc", QUICK, repeat=1))
    assert [row["format"] for row in finding.rows] == ["float32", "bfloat16", "int8", "nf4"]
    assert all(row["speed_up"] > 0 and row["pass_s"] > 0 for row in finding.rows)


def test_length_goes_to_the_pair_s_limit() -> None:
    assert contexts_for(8192) == [256, 512, 1024, 2048, 4096]
    assert contexts_for(2040) == [256, 512, 1024, 2040]
    finding = last_finding("length", engine_of(), Ask("abc", QUICK))
    assert [row["context"] for row in finding.rows] == [256, 508]
    assert all({"target_s", "check_s", "draft_s"} <= set(row) for row in finding.rows)


# --- records and tables ----------------------------------------------------------------------------------------------


def test_a_finding_survives_its_file_and_its_table_is_harmless(tmp_path: Path) -> None:
    finding = gamma_finding(row_of(1, 1.5, note="=HYPERLINK(1)"))
    save_finding(tmp_path, finding)
    assert load_findings(tmp_path) == {"gamma": finding}
    rows = list(csv.DictReader(io.StringIO(to_csv(finding))))
    assert rows[0]["note"] == "'=HYPERLINK(1)"
    assert rows[0]["pair"] == "tiny"
    assert "prompt" not in rows[0]
    (tmp_path / "gamma.json").write_text("[1, 2")
    with pytest.raises(TraceError, match=r"gamma\.json"):
        load_findings(tmp_path)
    (tmp_path / "gamma.json").write_text('{"name": "gamma"}')
    with pytest.raises(TraceError, match="no record of the Lab"):
        load_findings(tmp_path)


def test_what_ships_is_whole_and_is_never_shown_as_measured_here() -> None:
    recorded = load_findings(RECORDED)
    assert set(recorded) == set(EXPERIMENTS)
    for finding in recorded.values():
        assert finding.is_whole
        where = measured_where(finding, recorded=True)
        assert where.startswith(f"Recorded on {finding.about['date'][:10]} ({finding.about['machine']}, ")
        assert "not measured here" in where
        assert all(answer(finding))
    assert measured_where(gamma_finding(), recorded=False).startswith("Measured here: Tiny")


def test_the_command_prints_answers_and_writes_records(capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    pair = loaded_pair(tiny_llama(positions=512), tiny_llama(1, positions=512))
    monkeypatch.setattr("specviz.models.loader.load_pair", lambda *args, **more: pair)
    words = ["lab", "--only", "memory,gamma", "--repeat", "1", "--max-new-tokens", "8", "--prompt", "abc"]
    assert main([*words, "--record", str(tmp_path), "--csv", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "What speed costs in memory" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gamma.csv", "gamma.json", "memory.csv", "memory.json",
    ]  # fmt: skip
    assert set(load_findings(tmp_path)) == {"gamma", "memory"}
    assert main(["lab", "--only", "magic"]) == 2


def test_a_broken_off_experiment_leaves_no_session_open() -> None:
    def check() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        list(EXPERIMENTS["memory"].measure(engine_of(), Ask("abc", QUICK), check))
