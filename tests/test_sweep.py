"""The sweep: what can be varied, that every setting is measured beside plain decoding, and rows that pandas reads."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics

import pandas
import pytest
from fakes import loaded_pair, tiny_llama

from specviz.bench import sweep
from specviz.bench.contest import Contestant, Result
from specviz.bench.prompts import read_entries
from specviz.bench.runner import Entry
from specviz.bench.settings import MAX_SETTINGS, can_vary, combine, default_vary, read_vary, setting_columns
from specviz.bench.sweep import check_settings, measure, sweep_rows, theory
from specviz.cli import main
from specviz.config import DEFAULT_GAMMA, RunConfig
from specviz.drafters.registry import METHODS, get_method
from specviz.errors import ConfigError
from specviz.generator import SpeculativeGenerator
from specviz.metrics import Counters
from specviz.theory import speed_up

ENTRIES = [Entry("a", "x", (65, 66, 67)), Entry("b", "y", (66, 66, 66)), Entry("c", "y", (70, 71))]

CONSTANTS = ["date", "pair", "dtype", "device", "machine", "threads", "method", "max_new_tokens", "repeat", "seed"]
OUTCOME = [
    "regime", "num_prompts", "num_timed", "exactness", "min_rows", "tokens_per_s", "plain_tokens_per_s", "speed_up",
    "speed_up_low", "speed_up_high", "is_best", "alpha", "acceptance_rate", "acceptance_length", "block_efficiency",
    "coverage", "mean_drafted", "draft_share", "verify_share", "other_share", "c", "v", "v_undrafted",
    "theory_speed_up", "num_equal", "num_steps", "num_tokens", "num_drafted", "num_accepted", "num_rejections",
    "num_drafting_steps", "target_work", "draft_s", "verify_s", "other_s", "decode_s",
]  # fmt: skip
SUMS = [*(name for name in OUTCOME if name.startswith("num_")), *OUTCOME[-5:]]


def settings_of(method: str, *texts: str, seed: int = 0):
    found = get_method(method)
    return combine(found, read_vary(found, texts), max_new_tokens=8, seed=seed)


def labels_of(method: str, *texts: str) -> list[str]:
    return [setting.label for setting in settings_of(method, *texts)]


def tiny_engine(seed: int = 0) -> SpeculativeGenerator:
    return SpeculativeGenerator(loaded_pair(tiny_llama(seed, positions=1024), tiny_llama(1, positions=1024)))


# --- settings --------------------------------------------------------------------------------------------------------


def test_every_combination_is_a_setting_and_the_last_name_changes_fastest() -> None:
    assert labels_of("draft-model", "gamma=1,3", "temperature=0,0.5") == [
        "gamma=1 temperature=0.0",
        "gamma=1 temperature=0.5",
        "gamma=3 temperature=0.0",
        "gamma=3 temperature=0.5",
    ]
    config = settings_of("lookahead", "gamma=3", "window=5", "exact=off", seed=7)[0].config
    assert config == RunConfig(
        "lookahead",
        gamma=3,
        max_new_tokens=8,
        sampling=dataclasses.replace(config.sampling, seed=7),
        exact=False,
        options={"window": 5},
    )


def test_a_semicolon_separates_values_that_have_commas() -> None:
    tree = get_method("medusa")
    assert read_vary(tree, ["tree=chain;4,2,1;paths:0/1"]) == {"tree": ["chain", "4,2,1", "paths:0/1"]}
    assert read_vary(tree, ["tree=4,2,1;"]) == {"tree": ["4,2,1"]}
    assert read_vary(tree, ["tree=4,2"]) == {"tree": ["4", "2"]}
    assert read_vary(tree, ["gamma = 2; 3;2"]) == {"gamma": [2, 3]}


def test_dashes_in_names_are_taken_and_values_have_their_type() -> None:
    early = get_method("early-exit")
    assert read_vary(early, ["exit-layer=1,2", "draft-length=best", "confidence=1"]) == {
        "exit_layer": [1, 2],
        "draft_length": ["best"],
        "confidence": [1.0],
    }


@pytest.mark.parametrize(
    ("method", "text", "says"),
    [
        ("prompt-lookup", "window=2", "'window' cannot be varied. For prompt-lookup there are: gamma, "),
        ("prompt-lookup", "confidence=0.2", "'confidence' cannot be varied"),
        ("prompt-lookup", "draft_quant=int8", "'draft_quant' cannot be varied"),
        ("prompt-lookup", "draft_length=confidence", "draft-length takes fixed, heuristic, best; got 'confidence'"),
        ("plain", "gamma=2", "'gamma' cannot be varied. For plain there are: temperature, exact, width."),
        ("feature", "gamma", "--vary takes NAME=VALUE,VALUE,...; got 'gamma'"),
        ("feature", "gamma=,", "--vary takes NAME=VALUE"),
        ("feature", "=1", "'' cannot be varied"),
        ("feature", "gamma=two", "--vary gamma: gamma takes whole numbers; got 'two'"),
        ("feature", "gamma=99", "gamma must lie between 0 and 15; got 99"),
        ("feature", "confidence=nan", "confidence must be a number"),
        ("feature", "exact=perhaps", "exact takes auto, on, off; got 'perhaps'"),
        ("feature", "draft_quant=int3", "draft-quant takes auto, nf4"),
        ("lookahead", "ngram=1", "ngram must lie between 2 and 8; got 1. For lookahead there are: "),
        ("lookahead", "pool=sea", "pool must be one of text, window; got 'sea'"),
        ("early-exit", "temperature=-1", "temperature must lie between 0.0 and 5.0; got -1.0"),
    ],
)
def test_unknown_names_and_values_are_refused_with_what_there_is(method: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_vary(get_method(method), [text])
    assert says in str(caught.value)
    assert "For " in str(caught.value)


def test_a_name_is_varied_once_and_the_product_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="gamma is varied twice"):
        read_vary(get_method("feature"), ["gamma=1", "gamma=2"])
    gammas, heats = ",".join(map(str, range(10))), ",".join(str(n / 10) for n in range(20))
    assert len(labels_of("jacobi", f"gamma={gammas}", f"temperature={heats}")) == MAX_SETTINGS
    with pytest.raises(ConfigError, match="10 gamma × 20 temperature × 2 exact are 400"):
        settings_of("jacobi", f"gamma={gammas}", f"temperature={heats}", "exact=on,off")


def test_what_acts_only_with_another_setting_implies_it() -> None:
    doubting = settings_of("feature", "confidence=0.2,0.4")
    assert [(s.config.draft_length, s.config.confidence) for s in doubting] == [
        ("confidence", 0.2),
        ("confidence", 0.4),
    ]
    assert settings_of("feature", "threshold=0.1")[0].config.verify == "threshold"
    assert settings_of("feature", "delta=0.1")[0].config.verify == "typical"
    assert settings_of("plain", "width=4")[0].config.exact is True
    assert labels_of("feature", "draft_length=fixed,confidence", "confidence=0.2,0.4") == [
        "draft_length=fixed",
        "draft_length=confidence confidence=0.2",
        "draft_length=confidence confidence=0.4",
    ]
    assert len(labels_of("feature", "verify=typical,threshold", "epsilon=0.1,0.2", "threshold=0.3,0.4")) == 4
    with pytest.raises(ConfigError, match="Vary verify as well, as in --vary verify=typical,threshold"):
        settings_of("feature", "epsilon=0.1", "threshold=0.3")
    with pytest.raises(ConfigError, match="confidence does nothing unless draft_length is confidence"):
        settings_of("feature", "draft_length=fixed,best", "confidence=0.2")


def test_combinations_that_cannot_run_are_refused_by_name_before_a_model_is_there() -> None:
    with pytest.raises(ConfigError, match=r"gamma=2 tree=0,1: tree must be chain"):
        settings_of("medusa", "gamma=2", "tree=chain;0,1")
    with pytest.raises(ConfigError, match=r"gamma=9 exact=on: Exact mode checks gamma \+ 1 = 10 tokens"):
        settings_of("draft-model", "gamma=1,9", "exact=off,on")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_defaults_that_make_settings(name: str) -> None:
    method = get_method(name)
    settings = combine(method, read_vary(method, default_vary(method, 30)), max_new_tokens=8, seed=0)
    assert 4 <= len(settings) <= 16
    assert list(can_vary(method)) == list(setting_columns(method, settings[0].config))


def test_the_defaults_of_early_exit_fit_the_target() -> None:
    early = get_method("early-exit")
    assert default_vary(early, 30) == ["exit_layer=2,4,8,10,15,20"]
    assert default_vary(early, 5) == ["exit_layer=2,4"]
    assert default_vary(early, 2) == ["exit_layer=1"]


def test_columns_hold_what_acts_in_a_run() -> None:
    method = get_method("cascade")
    columns = setting_columns(method, settings_of("cascade", "threshold=0.5", "exact=off", "fallback=none")[0].config)
    assert columns == {
        "gamma": DEFAULT_GAMMA, "draft_length": "fixed", "draft_quant": "auto", "verify": "threshold", "epsilon": None,
        "delta": None, "threshold": 0.5, "temperature": 0.0, "exact": "off", "width": None, "fallback": "none",
        "fallback_tree": "auto",
    }  # fmt: skip


# --- measuring -------------------------------------------------------------------------------------------------------


def clocked(monkeypatch, rate) -> list[str]:
    """Runs become records with made-up speeds; `rate` gives tokens a second by name, prompt's first id and turn."""
    log: list[str] = []
    turns: dict[tuple[str, int], itertools.count] = {}

    def method(engine, config, name):
        def run(ids, limit):
            log.append(name)
            turn = next(turns.setdefault((name, ids[0]), itertools.count())) - (ids[0] == 65)  # the warm-up is on `a`
            counters = Counters(
                num_steps=5, num_tokens=8, target_work=5.0, draft_s=1.0, verify_s=2.0, other_s=1.0,
                drafting_verify_s=1.5, num_drafting_steps=3, num_drafted=9, num_accepted=3, num_rejections=2,
            )  # fmt: skip
            seconds = (limit - 1) / rate(name, ids[0], turn)
            return Result(tuple(range(limit)), 0.1, seconds, limit - 1, counters)

        return Contestant(name, run)

    monkeypatch.setattr(sweep, "specviz_method", method)
    return log


def test_settings_take_turns_with_plain_decoding(monkeypatch) -> None:
    log = clocked(monkeypatch, lambda *_: 10.0)
    said: list[float] = []
    settings = settings_of("prompt-lookup", "gamma=1,2")
    measured = measure(
        tiny_engine(), settings, ENTRIES[:2], limit=8, repeat=2, progress=lambda text, part: said.append(part)
    )
    forth = ["plain", "gamma=1", "gamma=2"]
    assert log == forth + forth + forth[::-1] + forth[::-1] + forth
    assert [item.setting.label for item in measured] == forth[1:]
    assert measured[0].plain is measured[1].plain
    assert said[2:] == sorted(said[2:]) and said[-1] == 1.0


def test_other_sampling_and_another_draft_have_a_plain_decoding_of_their_own(monkeypatch) -> None:
    log = clocked(monkeypatch, lambda *_: 10.0)
    settings = settings_of("draft-model", "gamma=1,2", "temperature=0,0.7")
    said: list[float] = []
    measured = measure(
        tiny_engine(), settings, ENTRIES[:1], limit=8, repeat=1, progress=lambda text, part: said.append(part)
    )
    cold = ["plain", "gamma=1 temperature=0.0", "gamma=2 temperature=0.0"]
    warm = ["plain", "gamma=1 temperature=0.7", "gamma=2 temperature=0.7"]
    assert log == cold + cold + warm + warm
    assert [item.setting.label for item in measured] == [setting.label for setting in settings]
    assert measured[0].plain is measured[2].plain is not measured[1].plain
    assert said[4:] == sorted(said[4:]) and said[-1] == 1.0
    quants = settings_of("draft-model", "draft_quant=int8,float32")
    log.clear()
    measure(tiny_engine(), quants, ENTRIES[:1], limit=8, repeat=1)
    assert log.count("plain") == 4


def test_what_cannot_run_is_refused_by_name_before_anything_runs(monkeypatch) -> None:
    log = clocked(monkeypatch, lambda *_: 10.0)
    engine = tiny_engine()
    with pytest.raises(ConfigError, match=r"exit_layer=3: exit-layer must lie between 1 and 2"):
        measure(engine, settings_of("early-exit", "exit_layer=1,3"), ENTRIES, limit=8, repeat=1)
    long = Entry("endless", "x", (65,) * 1024)
    with pytest.raises(ConfigError, match="endless: The prompt has 1024 tokens"):
        measure(engine, settings_of("prompt-lookup", "gamma=1"), [*ENTRIES, long], limit=8, repeat=1)
    assert log == []


def test_checking_decodes_nothing_and_says_the_word_of_each_setting() -> None:
    engine = tiny_engine()
    passes = []
    engine.exactness_report()
    forward = engine.loaded.target.forward
    engine.loaded.target.forward = lambda *args, **more: passes.append(1) or forward(*args, **more)
    started = check_settings(engine, settings_of("medusa", "tree=chain;2,1", "exact=on"), ENTRIES)
    assert not passes
    assert [(one.exactness, one.width) for one in started] == [("exact", 8), ("lossless", 8)]


# --- rows ------------------------------------------------------------------------------------------------------------


def test_speed_up_is_a_ratio_of_medians_between_the_lowest_and_the_highest_of_one_turn(monkeypatch) -> None:
    rates = {  # by name, then by prompt's first id and turn
        "plain": {65: [10, 20, 30], 66: [5, 5, 5], 70: [8, 2, 4]},
        "gamma=1": {65: [30, 20, 45], 66: [10, 20, 5], 70: [4, 4, 4]},
        "gamma=2": {65: [1, 1, 1], 66: [50, 50, 50], 70: [1, 1, 1]},
    }
    clocked(monkeypatch, lambda name, first, turn: rates[name][first][turn])
    measured = measure(tiny_engine(), settings_of("prompt-lookup", "gamma=1,2"), ENTRIES, limit=8, repeat=3)
    rows = sweep_rows(measured, ENTRIES, repeat=3)
    assert [(row["gamma"], row["regime"]) for row in rows] == list(itertools.product((1, 2), ("x", "y", "all")))
    one = rows[2]
    assert one["speed_up"] == pytest.approx((30 / 20 * 10 / 5 * 4 / 4) ** (1 / 3))
    assert one["speed_up_low"] == pytest.approx((1 * 1 * 0.5) ** (1 / 3))
    assert one["speed_up_high"] == pytest.approx((3 * 4 * 2) ** (1 / 3))
    assert one["tokens_per_s"] == statistics.median([30, 10, 4])
    assert one["plain_tokens_per_s"] == statistics.median([20, 5, 4])
    assert [row["is_best"] for row in rows] == [True, False, True, False, True, False]
    assert one["num_equal"] == one["num_prompts"] == one["num_timed"] == 3


def test_rows_of_regimes_add_up_to_the_row_over_all() -> None:
    engine = tiny_engine()
    settings = settings_of("draft-model", "gamma=2,4", "exact=off")
    rows = sweep_rows(measure(engine, settings, ENTRIES, limit=10, repeat=2), ENTRIES, repeat=2)
    table = pandas.DataFrame(rows)
    for gamma in (2, 4):
        mine = table[table.gamma == gamma]
        parts, whole = mine[mine.regime != "all"], mine[mine.regime == "all"].iloc[0]
        for name in SUMS:
            assert parts[name].sum() == pytest.approx(whole[name]), name
        assert whole.num_tokens == 2 * 3 * 10
        assert whole.alpha == pytest.approx(whole.num_accepted / (whole.num_accepted + whole.num_rejections))
        assert whole.acceptance_length == pytest.approx(1 + whole.num_accepted / whole.num_drafting_steps)
        assert whole.block_efficiency == pytest.approx(whole.num_tokens / whole.target_work)
        assert whole.draft_share + whole.verify_share + whole.other_share == pytest.approx(1.0)
        assert whole.num_equal == 3  # float64: near-ties do not occur
        assert whole.speed_up_low <= whole.speed_up <= whole.speed_up_high


def test_prompts_without_a_regime_are_only_in_the_row_over_all() -> None:
    entries = [Entry("a", "all", (65, 66, 67)), Entry("b", "all", (66, 66))]
    measured = measure(tiny_engine(), settings_of("jacobi", "gamma=1"), entries, limit=6, repeat=1)
    rows = sweep_rows(measured, entries, repeat=1)
    assert [row["regime"] for row in rows] == ["all"]
    assert rows[0]["speed_up_low"] is None and rows[0]["speed_up"] > 0


def test_a_prompt_that_is_over_in_one_step_counts_in_no_speed(monkeypatch) -> None:
    clocked(monkeypatch, lambda *_: 10.0)
    settings = settings_of("prompt-lookup", "gamma=1,2")
    measured = measure(tiny_engine(), settings, ENTRIES, limit=8, repeat=2)
    measured[0].score.rates.pop("b")
    rows = sweep_rows(measured, ENTRIES, repeat=2)
    assert [row["num_timed"] for row in rows] == [1, 1, 2] * 2
    assert [row["num_prompts"] for row in rows] == [1, 2, 3] * 2
    assert rows[5]["speed_up"] == pytest.approx(1.0)
    for item in measured:
        item.score.rates.clear()
    nothing = sweep_rows(measured, ENTRIES, repeat=2)
    assert all(row["speed_up"] is None and row["tokens_per_s"] is None and not row["is_best"] for row in nothing)


def test_theory_takes_the_costs_beside_plain_decoding() -> None:
    """A plain step of 2 s with a pass of 1.6 s; 0.3 s a drafted token; passes of 2.4 s with a draft, 1.6 s without."""
    plain = Counters(num_steps=10, num_tokens=10, verify_s=16.0, other_s=4.0)
    run = Counters(
        num_steps=4, num_tokens=9, num_drafted=10, num_drafting_steps=3, num_accepted=5, num_rejections=2,
        draft_s=3.0, verify_s=8.8, drafting_verify_s=7.2,
    )  # fmt: skip
    found = theory(run, plain)
    assert found["c"] == pytest.approx(0.15)
    assert found["v"] == pytest.approx(1.5)
    assert found["v_undrafted"] == pytest.approx(1.0)
    expected = speed_up(5 / 7, 10 / 3, 0.15, 1.5, kappa=0.75, v_undrafted=1.0)
    assert found["theory_speed_up"] == pytest.approx(expected)
    assert theory(run, plain, is_chain=False) == found | {"theory_speed_up": None}
    assert theory(plain, plain) == {"c": None, "v": None, "v_undrafted": 1.0, "theory_speed_up": None}
    assert set(theory(Counters(), Counters()).values()) == {None}


def test_trees_and_sampled_runs_have_no_figure_where_there_is_none() -> None:
    settings = settings_of("medusa", "tree=chain;2,2", "temperature=0,1", "exact=off")
    rows = sweep_rows(measure(tiny_engine(), settings, ENTRIES[:1], limit=8, repeat=1), ENTRIES[:1], repeat=1)
    overall = [row for row in rows if row["regime"] == "all"]
    assert [row["theory_speed_up"] is None for row in overall] == [False, False, True, True]
    assert [row["num_equal"] is None for row in overall] == [False, True, False, True]
    assert [row["exactness"] for row in overall] == ["lossless"] * 4


# --- prompts, command ------------------------------------------------------------------------------------------------


def test_prompts_by_regime_and_ids_that_are_there_once(tmp_path) -> None:
    engine = tiny_engine()
    file = tmp_path / "p.jsonl"
    items = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")]
    lines = [f'{{"id": "{name}", "regime": "{regime}", "prompt": "p\u2028q"}}' for name, regime in items]
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert [entry.name for entry in read_entries(file, 1, engine)] == ["a", "b", "d"]
    assert [entry.name for entry in read_entries(file, 2, engine, ["z", "x"])] == ["a", "c", "d"]
    with pytest.raises(ConfigError, match=r"has no regime 'w'. It has: x, y, z"):
        read_entries(file, 1, engine, ["x", "w"])
    file.write_text('{"id": 1, "prompt": "p"}\n{"id": "1", "prompt": "q"}')
    with pytest.raises(ConfigError, match="has the id '1' twice"):
        read_entries(file, 2, engine)


@pytest.fixture
def on_tiny(monkeypatch):
    engine = tiny_engine()
    monkeypatch.setattr("specviz.models.loader.load_pair", lambda *args, **more: engine.loaded)


def test_the_command_prints_a_table_and_writes_rows_that_pandas_reads(on_tiny, capsys, tmp_path) -> None:
    rows_csv, rows_json = tmp_path / "t.csv", tmp_path / "t.json"
    words = ["sweep", "--method", "feature", "--vary", "tree=chain;growing:4;2,1", "--vary", "confidence=0.3"]
    words += ["--regimes", "code,story", "--repeat", "2", "--max-new-tokens", "10", "--seed", "3"]
    words += ["--csv", str(rows_csv), "--json", str(rows_json)]
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("3 settings × 2 prompts × 10 tokens × 2 runs.")
    heads = "tree confidence α τ eff. drafted tok/s ÷ plain low–high theory draft/verify/other equal word"
    assert " ".join(out[3].split()) == heads
    assert [line[3:14].strip() for line in out[4:7]] == ["chain", "growing:4", "2,1"]
    assert sum(line.startswith("* ") for line in out[4:7]) == 1
    assert any(line.startswith("* ") and "× plain" in line for line in out[8:])
    assert any(line.startswith("Best by regime: ") for line in out)

    table = pandas.read_csv(rows_csv)
    assert list(table.columns) == CONSTANTS + list(can_vary(get_method("feature"))) + OUTCOME
    assert len(table) == 3 * (2 + 1)
    assert list(table.regime[:3]) == ["code", "story", "all"]
    kinds = {name: kind.kind for name, kind in table.dtypes.items()}
    for name in OUTCOME:
        whole = name.startswith("num_") or name == "min_rows"
        wanted = "b" if name == "is_best" else "i" if whole else "O" if name in ("regime", "exactness") else "f"
        assert kinds[name] in (wanted, "U" if wanted == "O" else wanted), name
    for name in ("threads", "max_new_tokens", "repeat", "seed", "gamma", "width"):
        assert kinds[name] == "i", name
    assert set(table.tree) == {"chain", "growing:4", "2,1"}
    assert table.threshold.isna().all() and (table.confidence == 0.3).all()
    assert table.date.nunique() == 1 and pandas.to_datetime(table.date).dt.year.min() > 2000
    assert (table.seed == 3).all() and (table.repeat == 2).all()
    assert table[table.tree != "chain"].theory_speed_up.isna().all()

    other = pandas.read_json(rows_json)
    assert list(other.columns) == list(table.columns)
    for row, again in zip(json.loads(rows_json.read_text()), table.to_dict("records"), strict=True):
        for name, value in row.items():
            if value is None:
                assert math.isnan(again[name]), name
            else:
                assert again[name] == (pytest.approx(value) if isinstance(value, float) else value), name


@pytest.mark.parametrize(("method", "values"), [("early-exit", ["2"]), ("plain", ["1", "2", "4", "8", "16"])])
def test_the_command_without_vary_takes_the_defaults_of_the_method(on_tiny, capsys, method, values) -> None:
    assert main(["sweep", "--method", method, "--regimes", "facts", "--repeat", "1", "--max-new-tokens", "20"]) == 0
    out = capsys.readouterr().out.splitlines()
    count = "1 setting" if len(values) == 1 else f"{len(values)} settings"
    assert out[0].endswith(f"{count} × 1 prompt × 20 tokens × 1 run.")
    first = "exact=on width=" if method == "plain" else "exit_layer="
    assert [line[3:].split()[first.count("=") - 1] for line in out[4 : 4 + len(values)]] == values
    assert any(f"{first}{value}, " in line for line in out for value in values)


def test_the_command_refuses_before_a_model_is_loaded(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("specviz.models.loader.load_pair", lambda *args, **more: pytest.fail("loaded"))
    for words, says in (
        (["--method", "magic"], "Unknown method 'magic'"),
        (["--method", "feature", "--vary", "gama=1"], "'gama' cannot be varied"),
        (["--method", "feature", "--vary", "tree=tall"], "tree=tall: tree must be chain"),
        (["--method", "feature", "--repeat", "0"], "repeat must lie between 1 and 100"),
        (["--method", "feature", "--csv", str(tmp_path / "none" / "t.csv")], "The table cannot be written to"),
        (["--method", "feature", "--json", str(tmp_path)], "The table cannot be written to"),
    ):
        assert main(["sweep", *words]) == 2
        assert says in capsys.readouterr().err
