"""What strangers may send, by hypothesis: settings, links, trees, damaged traces. Each fault found has a plain test.

SPECVIZ_FUZZ=50 tries that many times as many inputs, other ones each time.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import gradio as gr
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import STREAMS

from specviz.config import RunConfig, SamplingParams
from specviz.drafters.registry import METHODS
from specviz.errors import SpecvizError, TraceError
from specviz.metrics import Baseline, fold
from specviz.proposal import Proposal
from specviz.sampling import uniform_generator
from specviz.trace import dump_trace, parse_trace, steps_frame, tokens_frame
from specviz.ui.charts import summarize
from specviz.ui.settings import DEFAULTS, WatchSettings, read_link
from specviz.ui.wire.stream import recorded_delta
from specviz.verify import verify_greedy, verify_likely, verify_sampling

PAIRS = ("tiny", "other")
FACTOR = int(os.environ.get("SPECVIZ_FUZZ", "1"))


def examples(count: int) -> settings:
    return settings(max_examples=count * FACTOR, derandomize=FACTOR == 1)


HUGE = st.sampled_from([2**53, -(2**63), 10**400, -(10**4000), 1e308, -0.0, 5e-324, math.nan, math.inf, -math.inf])
NUMBERS = st.one_of(HUGE, st.integers(), st.floats())
TEXTS = st.one_of(
    st.text(st.characters(), max_size=40),  # lone surrogates and NUL among them
    st.sampled_from(
        ["\ud800", "a\x00b", "\u202eabc", "<|im_end|>", "NaN", "<img src=x onerror=alert(1)>", "x" * 30_000]
    ),
)
FEW = st.one_of(NUMBERS, TEXTS, st.none(), st.booleans(), st.lists(TEXTS, max_size=9), st.just({"a": [1]}))
"""Small, so that the search spends itself on which field gets which."""


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


# --- settings ------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(sorted(DEFAULTS)), FEW, min_size=1, max_size=2))
@examples(400)
def test_any_settings_are_taken_or_refused_in_a_sentence(values: dict[str, Any]) -> None:
    try:
        read = WatchSettings.read(values, PAIRS)
    except SpecvizError as error:
        sentence = str(error)
        assert sentence.isprintable() or "\n" in sentence
        sentence.encode()
        assert len(sentence) < 700
        return
    read.prompt.encode()
    for stop in read.config.stop:
        stop.encode()
    assert read.pair in PAIRS
    assert read.config.gamma in range(16)
    assert 1 <= read.config.max_new_tokens <= 4096
    assert 1.0 <= read.config.time_limit_s <= 600.0
    assert math.isfinite(read.config.sampling.temperature)


@given(st.dictionaries(st.sampled_from(sorted(DEFAULTS)), TEXTS, max_size=6))
@examples(60)
def test_any_link_restores_what_holds(query: dict[str, str]) -> None:
    good, ignored = read_link(query, PAIRS)
    assert set(good) | set(ignored) == set(query)
    WatchSettings.read(good | ({"exact": "auto"} if "exact" in good else {}), PAIRS)


# --- the endpoint for programs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spec_events() -> Any:
    from hosts import make_host, take

    from specviz.ui.page import build_page

    host = make_host()
    turn, _ = take(host)
    turn.close()
    demo = build_page(host)
    return next(fn.fn for fn in demo.fns.values() if fn.api_name == "spec_events")


PARAMETERS = (
    "prompt", "method", "gamma", "max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "seed",
    "stop", "pair", "dtype", "exact", "width", "draft_quant", "draft_length", "confidence", "verify", "epsilon",
    "delta", "threshold", "options", "raw", "detail", "time_limit_s",
)  # fmt: skip
OPTIONS = st.dictionaries(st.sampled_from(["window", "tree", "ngram", "min_count", "\ud800"]), FEW, max_size=2)


@given(
    st.sampled_from(sorted(METHODS)),
    st.dictionaries(st.sampled_from(PARAMETERS), FEW, max_size=2),
    st.one_of(st.none(), OPTIONS),
)
@examples(150)
def test_any_call_of_the_endpoint_is_a_run_or_a_sentence(
    spec_events: Any, method: str, values: dict[str, Any], options: Any
) -> None:
    call: dict[str, Any] = {"prompt": "ab", "method": method, "gamma": 2, "max_new_tokens": 2, "options": options}
    call |= values
    try:
        sent = list(spec_events(**call))
    except gr.Error as refused:
        said = refused.message
        assert "Something failed inside" not in said, call
        said.encode()
        return
    assert sent[-1]["type"] == "Summary"
    assert sent[-2]["reason"] != "error", sent[-2]["message"]
    json.dumps(sent, allow_nan=False).encode()


# --- trees ---------------------------------------------------------------------------------------------------------

VOCAB = 6


@st.composite
def trees(draw: st.DrawFn) -> Proposal:
    """Any tree of up to 12 nodes over ids that the target has and has not, drawn or chosen, some rows only scored."""
    n = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(n))
    ids = torch.tensor([draw(st.integers(-2, VOCAB + 1)) for _ in range(n)], dtype=torch.int64)
    probs = None
    if n and draw(st.booleans()):
        rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        probs = torch.softmax(torch.randn(n, VOCAB, generator=rng) * draw(st.sampled_from([0.1, 3.0, 40.0])), -1)
    scored = [draw(st.booleans()) for _ in range(n)] if draw(st.integers(0, 3)) == 0 else []
    for node, parent in enumerate(parents):  # a candidate never hangs from a row that is only scored
        if scored and parent >= 0 and scored[parent]:
            scored[node] = True
    return Proposal(ids, parents, probs, tuple(scored))


@given(trees(), st.integers(0, 99), st.sampled_from([0.0, 0.05, 0.7, 5.0]), st.sampled_from([1.0, 1.3]), st.booleans())
@examples(150)
def test_any_tree_gives_a_verdict_that_holds(
    proposal: Proposal, seed: int, temperature: float, penalty: float, detail: bool
) -> None:
    """Whatever the rule: the path goes down the tree from the root over tokens that were tried and kept, no row that is
    only scored is tried, and what follows is a token of the target's."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(proposal) + 1, VOCAB, generator=rng) * 4
    params = SamplingParams(temperature=temperature, repetition_penalty=penalty, top_k=3 if seed % 2 else 0)
    coins = uniform_generator(seed)
    verdicts = [
        verify_greedy(proposal, logits, SamplingParams(repetition_penalty=penalty), [1, 2], detail=detail),
        verify_likely(proposal, logits, params, [1, 2], coins, epsilon=0.1, delta=0.3, detail=detail),
        verify_likely(proposal, logits, params, [1, 2], coins, threshold=0.0, detail=detail),
    ]
    if not params.is_greedy:
        verdicts.append(verify_sampling(proposal, logits, params, [1, 2], coins, detail=detail))
    for verdict in verdicts:
        kept = {trial.node for trial in verdict.trials if trial.accepted}
        above = -1
        for node in verdict.path:
            assert proposal.parents[node] == above
            assert node in kept
            assert 0 <= proposal.token_ids[node] < VOCAB
            above = node
        assert not any(proposal.is_scored_only(trial.node) for trial in verdict.trials)
        assert len({trial.node for trial in verdict.trials}) == len(verdict.trials)
        assert 0 <= verdict.next_token < VOCAB
        assert verdict.next_prob is not None and 0.0 < verdict.next_prob <= 1.001
        tried = any(proposal.parents[trial.node] == above for trial in verdict.trials)
        assert verdict.origin == ("corrected" if tried else "bonus" if proposal.children_of() else "target")


# --- traces --------------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def change(lines: list[str], draw: Any) -> None:
    """Put anything anywhere, or move, double or cut a line."""
    number = draw(st.integers(1, len(lines) - 1))
    how = draw(st.sampled_from(["value", "value", "value", "key", "drop", "double", "swap", "cut"]))
    if how in ("value", "key"):
        try:
            data = json.loads(lines[number])
        except ValueError:
            return
        path = draw(st.sampled_from(places(data) or [("type",)]))
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        if how == "value" or not isinstance(inner, dict):
            inner[path[-1]] = draw(st.one_of(FEW, st.sampled_from([20, 40, 400, 900]).map(nested)))
        else:
            inner[draw(TEXTS)] = inner.pop(path[-1])
        lines[number] = json.dumps(data)
    elif how == "drop":
        del lines[number]
    elif how == "double":
        lines.insert(number, lines[number])
    elif how == "swap":
        lines[number], lines[-1] = lines[-1], lines[number]
    else:
        lines[number] = lines[number][: draw(st.integers(0, 200))]


@given(st.data(), st.sampled_from(sorted(STREAMS)))
@examples(200)
def test_a_changed_trace_is_refused_or_read_as_one_that_everything_takes(data: st.DataObject, name: str) -> None:
    events = STREAMS[name]()
    lines = dump_trace(events, plain=events).splitlines()
    for _ in range(data.draw(st.integers(1, 2))):
        if len(lines) > 1:
            change(lines, data.draw)
    try:
        trace = parse_trace("\n".join(lines).encode("utf-8", "surrogatepass"))
    except TraceError as error:
        str(error).encode()
        return
    trace.damage.encode()
    again = parse_trace(dump_trace(trace.events, trace.plain).encode())
    assert (again.events, again.plain) == (trace.events, trace.plain)
    counters = fold(trace.events)
    json.dumps(counters.to_json(), allow_nan=False)
    plain = Baseline.of(trace.plain, trace.events)
    json.loads(recorded_delta(trace.events, plain, "uploaded"))
    steps_frame(trace.events)
    tokens_frame(trace.events)


@pytest.mark.parametrize("name", STREAMS)
def test_the_figures_take_what_the_reader_takes(name: str) -> None:
    events = STREAMS[name]()
    summarize(parse_trace(dump_trace(events).encode()).events, Baseline.of(events, events))


def test_run_config_refuses_what_is_no_number() -> None:
    for value in ("3", None, [], {}, math.nan, True):
        with pytest.raises(SpecvizError):
            RunConfig(gamma=value)  # type: ignore[arg-type]
