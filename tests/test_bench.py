"""The benchmark: turns alternate, warm-up is apart, ratios are what they are said to be."""

from __future__ import annotations

import json

import pytest
from fakes import loaded_pair, tiny_llama

from specviz.bench.contest import PEERS, Contestant, Result, peer, specviz_method
from specviz.bench.machine import memory_bandwidth
from specviz.bench.report import score_row
from specviz.bench.runner import Entry, Score, contest, geometric_mean
from specviz.cli import main
from specviz.config import RunConfig
from specviz.generator import SpeculativeGenerator
from specviz.metrics import Counters
from specviz.models.decoder import decoder_for

ENTRIES = [Entry("a", "x", (65, 66, 67)), Entry("b", "y", (66, 66, 66))]


def clocked(name: str, rate: float, log: list[str]) -> Contestant:
    def run(ids, limit):
        log.append(name)
        return Result(tuple(range(limit)), 0.1, (limit - 1) / rate, limit - 1)

    return Contestant(name, run)


def test_turns_alternate_and_the_warm_up_is_not_counted() -> None:
    log: list[str] = []
    scores = contest([clocked("p", 10, log), clocked("q", 20, log)], ENTRIES, limit=8, repeat=2)
    assert log == ["p", "q", "p", "q", "q", "p", "q", "p", "p", "q"]
    assert scores[0].rates == {"a": [pytest.approx(10)] * 2, "b": [pytest.approx(10)] * 2}
    assert scores[1].speed_up(scores[0], ["a", "b"]) == pytest.approx(2.0)
    assert scores[0].speed_up(scores[1], ["a"]) == pytest.approx(0.5)
    assert scores[0].spread == pytest.approx(0.0)
    assert scores[0].speed_up(scores[1], ["a", "missing"]) is None


def test_geometric_mean_lets_double_and_half_cancel() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)


def test_merged_counters_give_the_rates_of_all_runs_together() -> None:
    one, two = (
        Counters(num_accepted=3, num_rejections=1, accepted_at=[2, 1]),
        Counters(num_accepted=1, num_rejections=3, accepted_at=[1]),
    )
    assert one.merge(two).alpha == 0.5
    assert one.accepted_at == [3, 1]


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_writes_the_ids_of_plain_decoding_on_a_tiny_model(name: str) -> None:
    model, draft = tiny_llama(), tiny_llama(1)
    engine = SpeculativeGenerator(loaded_pair(model, draft))
    ours = specviz_method(engine, RunConfig(method="plain", exact=False)).run((65, 66, 67, 65, 66), 24)
    theirs = peer(name, engine, 3).run((65, 66, 67, 65, 66), 24)
    assert theirs.token_ids == ours.token_ids
    assert theirs.num_rest < len(theirs.token_ids)
    assert theirs.rest_s > 0
    assert theirs.tokens_per_s


def test_the_command_prints_a_table_and_one_json_line_last(capsys, monkeypatch, tmp_path) -> None:
    model = tiny_llama(positions=1024)
    monkeypatch.setattr("specviz.models.loader.load_pair", lambda *args, **more: loaded_pair(model, model))
    table = tmp_path / "t.csv"
    words = [
        "bench",
        "--repeat",
        "2",
        "--max-new-tokens",
        "12",
        "--methods",
        "plain,prompt-lookup",
        "--peers",
        "plain",
        "--overheads",
        "--csv",
        str(table),
    ]
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    data = json.loads(out[-1])
    assert [row["name"] for row in data["rows"]] == ["plain", "prompt-lookup", "transformers plain"]
    assert data["rows"][0]["speed_up"] == pytest.approx(1.0)
    assert set(data["rows"][0]["regimes"]) == {"copying", "code", "facts", "story", "translation", "dialogue"}
    assert data["passes"]["v"]["1"] == 1.0
    packed = decoder_for(model).num_bytes
    assert data["rows"][0]["memory_bytes"] > packed > 0
    assert "memory_bytes" not in data["rows"][2]
    assert data["overheads"]["traced"] > 0 < data["overheads"]["detailed"]
    assert data["overheads"]["long_context"] is None  # this model does not read so far
    assert len(table.read_text().splitlines()) == 1 + 3 * 6 * 2
    assert main(["bench", "--methods", "magic"]) == 2


def test_a_row_holds_the_measured_speed_up_against_theory() -> None:
    """alpha 3/4, two drafted in each of two steps, c = 0.1, v = 1.2: S = (1 + 3/4 + 9/16) / 1.4."""
    entry, names = ENTRIES[0], ("plain", "chain")
    plain, chain = (Score(name, rates={"a": [1.0]}, answers={"a": (1,)}, prefills=[0.1]) for name in names)
    for score, counters in (
        (plain, Counters(num_steps=4, num_tokens=4, verify_s=4.0)),
        (
            chain,
            Counters(
                num_steps=2, num_drafting_steps=2, num_drafted=4, num_accepted=3, num_rejections=1, num_tokens=5,
                draft_s=0.4, verify_s=2.4, drafting_verify_s=2.4, other_s=0.2,
            ),
        ),
    ):  # fmt: skip
        score.has_counters = True
        score.totals = counters
    row = score_row(chain, (plain, chain), [entry])
    assert row["theory_speed_up"] == pytest.approx((1 + 0.75 + 0.75**2) / (2 * 0.1 + 1.2))
    assert row["over_theory"] == pytest.approx((5 / 3.0) / row["theory_speed_up"])


def test_bandwidth_is_a_plausible_number() -> None:
    """Between 0.1 and 10,000 GB/s: a unit mixed up would leave that range."""
    assert 1e8 < memory_bandwidth(8, 3) < 1e13
