"""transformers' own assisted generation as a lane of the race: the same draft, text and clock (issue 19)."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

pytest.importorskip("gradio")

import torch
from fakes import loaded_pair, tiny_llama
from hosts import Loader, make_host

from specviz.config import RunConfig, SamplingParams
from specviz.errors import ConfigError
from specviz.events import ModelInfo, RunFinished, RunStarted, StepDone
from specviz.generate.peers import assistant_of, stream_peer
from specviz.generate.titles import PEERS
from specviz.generator import SpeculativeGenerator
from specviz.metrics import fold
from specviz.models.trunk import build_trunk
from specviz.ui.access.visits import Visit
from specviz.ui.race.lanes import to_csv
from specviz.ui.race.racing import RaceEncoder, RaceSettings, run_race

PAIRS = ("tiny", "other")
PROMPT = "abc abc abc"


def raced(*racers: str, loader: Loader | None = None, **values: Any) -> tuple[list[dict[str, Any]], RaceEncoder]:
    settings = RaceSettings.read({"prompt": PROMPT, "max_new_tokens": 24} | values, list(racers), PAIRS)
    encoder = RaceEncoder("r")
    sent = [json.loads(text)["race"] for text in run_race(make_host(loader), Visit(), settings, encoder)]
    return sent, encoder


def engine(draft: Any = None) -> SpeculativeGenerator:
    return SpeculativeGenerator(loaded_pair(tiny_llama(), draft if draft is not None else tiny_llama(1)))


def is_alone() -> bool:
    return not any(thread.name == "specviz-transformers" for thread in threading.enumerate())


def test_transformers_races_with_the_same_draft_and_text() -> None:
    """Each lane is a run like any other: compared with plain decoding token by token, its counts adding up."""
    _, encoder = raced("transformers-assisted", "transformers-lookup", gamma=3, seed="7")
    plain, *peers = encoder.lanes
    assert [lane.method for lane in peers] == list(PEERS)
    for lane in peers:
        started, counters = lane.started, fold(lane.events)
        assert started is not None and plain.started is not None and plain.finished is not None
        assert lane.is_whole and lane.plain is not None and lane.plain.same_text and lane.speed_up
        assert (started.prompt, started.prompt_ids) == (PROMPT, plain.started.prompt_ids)
        assert (started.gamma, started.settings["seed"], started.pair, started.width) == (3, 7, "tiny", 0)
        assert counters.num_accepted + counters.num_corrected + counters.num_bonus + counters.num_target == 24
        assert max(step.num_drafted or 0 for step in lane.events if isinstance(step, StepDone)) == 3
    names = [lane.started.draft.name for lane in peers if lane.started and lane.started.draft]
    assert names == ["tiny-draft"]
    assert "transformers-assisted,lossless,24," in to_csv(encoder.lanes)


def test_the_first_step_takes_no_time_and_counts_in_no_rate() -> None:
    """It came with the prompt: tokens a second are those of the other steps, over their seconds."""
    sent, encoder = raced("transformers-lookup")
    [_, shown] = [lane for delta in sent for lane in delta.get("lanes", [])]
    steps = [event for event in encoder.lanes[1].events if isinstance(event, StepDone)]
    assert shown["title"] == "transformers: prompt lookup"
    assert shown["steps"][0][0] == 0.0 and shown["steps"][0][2] is None
    assert shown["caption"] == "lossless, γ 5. Its first step came with the prompt"
    later = sum(len(step.emitted) for step in steps[1:])
    seconds = sum(step.draft_s + step.verify_s + step.other_s for step in steps[1:])
    assert shown["tokens_per_s"] == pytest.approx(later / seconds)


def test_a_sampled_run_repeats_by_its_seed_and_leaves_the_global_random_numbers() -> None:
    config = RunConfig(max_new_tokens=20, gamma=3, sampling=SamplingParams(temperature=0.9, seed=5))
    own, texts = engine(), []
    state = torch.get_rng_state()
    for _ in range(2):
        *_, finished = stream_peer(own, "transformers-assisted", PROMPT, config)
        assert isinstance(finished, RunFinished)
        texts.append(finished.token_ids)
    assert texts[0] == texts[1] and len(set(texts[0])) > 1
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_with_a_cut_output_layer_is_widened(temperature: float) -> None:
    """As the trained draft of the default pair is: it drafts the ids that it has, and the text is plain decoding's."""
    target = tiny_llama()
    ids = torch.arange(40, 200, 2)
    trunk = build_trunk(target, 1, ids).double().eval()
    head = trunk.lm_head
    loaded = loaded_pair(target, target)
    loaded.draft_model = lambda *args, **more: (trunk, ModelInfo("trunk"))  # type: ignore[method-assign]
    own = SpeculativeGenerator(loaded)
    config = RunConfig(max_new_tokens=24, gamma=3, sampling=SamplingParams(temperature=temperature, seed=3))
    events = list(stream_peer(own, "transformers-assisted", PROMPT, config))
    drafted = [token for event in events if isinstance(event, StepDone) for token in event.drafted]
    assert drafted and {token.token_id for token in drafted} <= set(ids.tolist())
    assert trunk.lm_head is head and trunk.generation_config is not assistant_of(loaded, 3)[0].generation_config
    if not temperature:
        *_, plain = own.stream_plain(PROMPT, config)
        assert isinstance(plain, RunFinished) and isinstance(events[-1], RunFinished)
        assert events[-1].token_ids == plain.token_ids


def test_94_a_peer_is_stopped_and_closed_like_any_run() -> None:
    """Its thread is over when the iterator is, and the model is as it was."""
    own = engine()
    run = stream_peer(own, "transformers-assisted", PROMPT, RunConfig(max_new_tokens=200, gamma=3))
    assert isinstance(next(run), RunStarted)
    assert not is_alone()
    run.close()  # type: ignore[attr-defined]
    assert is_alone()
    assert "generate" not in own.loaded.target.__dict__ and not own.loaded.target._forward_hooks
    late = RunConfig(max_new_tokens=200, gamma=3, time_limit_s=1e-6)
    *_, finished = stream_peer(own, "transformers-lookup", PROMPT, late)
    assert isinstance(finished, RunFinished) and finished.reason == "time" and finished.num_tokens < 200


def test_93_a_failure_within_transformers_tells_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any, **__: Any) -> Any:
        raise RuntimeError("boom /home/somebody hf_secrettoken")

    monkeypatch.setattr("transformers.generation.PromptLookupCandidateGenerator.get_candidates", boom)
    sent, encoder = raced("transformers-lookup", "transformers-assisted")
    assert "The log has the details" in encoder.lanes[1].problem
    assert encoder.lanes[2].is_whole
    assert not any(secret in json.dumps(sent) for secret in ("boom", "/home", "hf_"))
    assert is_alone()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"draft_length": "heuristic"}, "fixed draft length"),
        ({"gamma": 0}, "fixed draft length"),
        ({"verify": "typical"}, "no typical acceptance"),
    ],
)
def test_what_transformers_cannot_do_alike_is_said_in_its_lane(values: dict[str, Any], words: str) -> None:
    _, encoder = raced("transformers-lookup", **values)
    assert words in encoder.lanes[1].problem and not encoder.lanes[1].events


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(ConfigError, match="Known are transformers-assisted, transformers-lookup"):
        stream_peer(engine(), "<img src=x>", PROMPT, RunConfig())


def test_the_tab_offers_transformers_where_the_pair_has_its_draft() -> None:
    from specviz.ui.race.tab import _choices

    host = make_host()
    offered = {name for _, name in _choices(host.pairs["tiny"])}
    assert set(PEERS) <= offered
