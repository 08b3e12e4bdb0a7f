"""The dashboard around the engine: host, endpoint, page in Chromium. A tiny random model stands in for the pair, as
under test are the line, the checks and the page; `tests/test_generator.py` tests the engine itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("gradio")

from browser import open_page
from gradio_client import Client
from hosts import PAIRS, Loader, deltas, make_host, served, settings, take, wait_until

from specviz.config import RunConfig
from specviz.errors import BusyError, ConfigError, ModelLoadError
from specviz.events import RunFinished, StepDone, event_from_json, event_to_json
from specviz.metrics import Baseline
from specviz.trace import parse_trace
from specviz.ui.access.host import MAX_WAITING, EngineHost, Notice
from specviz.ui.access.visits import Visit
from specviz.ui.access.waiting import wait_for_engine
from specviz.ui.charts import summarize
from specviz.ui.presets import load_regimes
from specviz.ui.problems import sentence_for
from specviz.ui.settings import DEFAULTS, MAX_PROMPT_CHARS, read_link
from specviz.ui.watch.live import measure_plain, new_encoder, run_live
from specviz.ui.wire.recorded import opening_run
from specviz.ui.wire.stream import UPDATES_PER_S, DeltaEncoder, coalesce, stoppable

SECRET = "<b>boom</b> /home/somebody/.cache hf_secrettoken"


# --- settings: case 92 ---------------------------------------------------------------------------------------------


BAD = [
    ("gamma", 10_000, "between 0 and 15"),
    ("gamma", 2.5, "whole number"),
    ("gamma", None, "number from 0 to 15"),
    ("gamma", "4", "number from 0 to 15"),
    ("gamma", True, "number from 0 to 15"),
    ("gamma", 10**400, "more than 300 digits"),
    ("time_limit_s", -(10**5000), "more than 300 digits"),
    ("max_new_tokens", 1e9, "between 1 and 4096"),
    ("max_new_tokens", float("nan"), "number from 1 to 4096"),
    ("max_new_tokens", 0, "between 1 and 4096"),
    ("temperature", float("inf"), "number from 0"),
    ("temperature", -1, "between 0"),
    ("top_k", -5, "between 0"),
    ("top_p", 0, "above 0"),
    ("repetition_penalty", 0, "between 0.1"),
    ("seed", 2**80, "between 0"),
    ("seed", "-1", "whole number"),
    ("seed", "1e3", "whole number"),
    ("seed", [1], "number from 0"),
    ("stop", "\n".join("abcdefghi"), "at most 8"),
    ("stop", "x" * 201, "1 to 200"),
    ("stop", 7, "one per line"),
    ("method", "<img src=x>", "Unknown method"),
    ("method", None, "text"),
    ("pair", "/etc/passwd", "one of tiny"),
    ("dtype", "int1", "one of auto"),
    ("exact", True, "one of auto"),
    ("draft_quant", "q4", "one of auto"),
    ("width", 1e6, "between 1 and 64"),
    ("raw", "yes", "on or off"),
    ("time_limit_s", 0, "between 1"),
    ("time_limit_s", 1e9, "between 1"),
    ("prompt", None, "text"),
    ("prompt", "x" * 5_000_000, "20,000 characters"),
]


@pytest.mark.parametrize(("name", "value", "limit"), BAD, ids=[f"{name}-{limit[:12]}" for name, _, limit in BAD])
def test_92_bad_values_are_refused_with_the_limit_named(name: str, value: Any, limit: str) -> None:
    with pytest.raises(ConfigError, match=limit) as caught:
        settings(**{name: value})
    assert len(str(caught.value)) < 400


def test_good_values_are_taken() -> None:
    read = settings(seed=" 7 ", stop="a\n\\n\n", exact="on", top_k=3.0, gamma=7)
    assert read.config.sampling.seed == 7
    assert read.config.stop == ("a", "\n")
    assert read.config.exact is True
    assert read.config.sampling.top_k == 3
    assert settings(seed=None).config.sampling.seed is None
    assert settings(stop=["\n", "a\\nb"]).config.stop == ("\n", "a\\nb")  # a program's list, to the letter
    half = settings(prompt="half \ud83d", stop="\udc00")
    assert (half.prompt, half.config.stop) == ("half \ufffd", ("\ufffd",))
    with pytest.raises(ConfigError, match="--width 16"):
        settings(exact="on", gamma=8)


def test_a_link_restores_what_holds_and_names_what_does_not() -> None:
    query = {
        "prompt": "hi <b>", "gamma": "7", "temperature": "nan", "method": "plain", "raw": "1", "detail": "true",
        "max_new_tokens": "1e9", "top_p": "0.5", "pair": "nope", "seed": "12", "unknown": "x", "__theme": "dark",
    }  # fmt: skip
    good, ignored = read_link(query, PAIRS)
    assert good == {"prompt": "hi <b>", "gamma": 7, "method": "plain", "raw": True, "top_p": 0.5, "seed": "12"}
    assert sorted(ignored) == ["detail", "max_new_tokens", "pair", "temperature"]


def test_presets_are_six_regimes_that_fit_the_page() -> None:
    regimes = load_regimes()
    assert [regime.name for regime in regimes] == ["facts", "copying", "code", "story", "translation", "dialogue"]
    assert all(regime.prompts and len(text) < MAX_PROMPT_CHARS for regime in regimes for text in regime.prompts)


# --- host ----------------------------------------------------------------------------------------------------------


def test_the_first_load_is_told_in_words_and_ends_ready() -> None:
    loader = Loader()
    loader.gate = threading.Event()
    host = make_host(loader)
    thread = host.start()
    wait_until(lambda: host.status.fraction == 0.5)
    assert (host.status.phase, host.status.text) == ("loading", "Loading Tiny")
    turn = host.turn("tiny")
    first = next(turn)
    assert isinstance(first, Notice)
    assert "Loading Tiny" in first.text
    loader.gate.set()
    assert next(item for item in turn if not isinstance(item, Notice)) is host.engine
    turn.close()
    thread.join(5)
    assert host.status.phase == "ready"
    assert host.status.text.startswith("Ready · Tiny, float64, ")
    assert not host.is_busy


def test_96_switching_keeps_one_pair_in_memory_and_the_old_one_when_the_new_fails() -> None:
    loader = Loader()
    host = make_host(loader)
    for name in ("tiny", "other", "tiny", "third", "other"):
        turn, engine = take(host, name)
        assert engine.loaded.pair.name == name
        del engine
        turn.close()
        assert loader.num_alive == 1
    for name, sentence in (("broken", "damaged"), ("huge", "900.0 GB")):
        turn = host.turn(name)
        with pytest.raises(ModelLoadError, match=sentence):
            list(turn)
        assert not host.is_busy
        assert host.status.phase == "ready"
        turn, engine = take(host, "other")
        assert list(engine.stream("ab", RunConfig("plain", max_new_tokens=3)))[-1].num_tokens == 3
        del engine
        turn.close()
    assert loader.num_alive == 1


def test_96_a_pair_that_fits_only_alone_makes_the_old_one_leave_first_and_come_back() -> None:
    loader = Loader()
    seen: dict[str, int] = {}

    def problem(pair: Any, dtype: str, freed: int) -> str | None:
        if host.engine is None or freed:
            return None
        return f"{pair.title} does not fit beside the other."

    host = make_host(loader, problem=problem)

    def say(text: str, fraction: float | None, pair: str) -> None:
        if text not in seen:
            seen[text] = loader.num_alive

    host._say = say  # type: ignore[method-assign]
    for name in ("tiny", "other"):
        turn, engine = take(host, name)
        del engine
        turn.close()
    assert seen["Loading Other"] == 1
    assert seen["Checking that Other repeats itself to the bit"] == 1
    with pytest.raises(ModelLoadError, match="damaged"):
        list(host.turn("broken"))
    assert host.serves("other", "auto")
    assert seen["Going back to Other"] == 0


def test_93_an_unforeseen_failure_shows_an_id_and_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    loader = Loader()
    loader.fail = RuntimeError(SECRET)
    host = make_host(loader)
    visit = Visit()
    sent = list(run_live(host, visit, settings(), new_encoder()))
    last = json.loads(sent[-1])
    mark = caplog.records[-1].args[0]
    assert mark in last["error"]
    for part in ("boom", "/home", "hf_"):
        assert all(part not in text for text in [*sent, host.status.text])
    assert not host.is_busy
    assert sentence_for(MemoryError()).startswith("This machine ran out of memory.")


def test_82_our_own_errors_are_content_with_the_remedy() -> None:
    host = make_host()
    last = deltas(run_live(host, Visit(), settings(pair="broken"), new_encoder()))[-1]
    assert last["error"] == "These weights are damaged. Choose another pair."
    last = deltas(run_live(host, Visit(), settings(prompt="x" * 3000), new_encoder()))[-1]
    assert "Shorten the prompt." in last["error"]


def test_one_at_a_time_in_the_order_of_arrival_and_a_full_line_says_so() -> None:
    host = make_host()
    first, _ = take(host)
    waiting = [host.turn("tiny") for _ in range(MAX_WAITING)]
    texts = [next(turn).text for turn in waiting]
    assert texts[0].startswith("You are next in line.")
    assert texts[1].startswith("You are second in line.")
    with pytest.raises(BusyError, match="already waiting"):
        next(host.turn("tiny"))
    waiting[0].close()
    assert next(waiting[1]).text.startswith("You are next in line.")
    first.close()
    assert isinstance(next(waiting[2]), Notice)
    assert not isinstance(next(waiting[1]), Notice)
    for turn in waiting:
        turn.close()
    assert host.num_waiting == 0
    assert not host.is_busy


def test_80_starting_and_stopping_while_another_runs_leaves_no_trace() -> None:
    host = make_host()
    turn, engine = take(host)
    run = engine.stream("abc", RunConfig("plain", max_new_tokens=20))
    next(run)
    for _ in range(5):
        visit = Visit()
        waiting = run_live(host, visit, settings(), new_encoder())
        assert "next in line" in next(waiting)
        assert host.num_waiting == 1
        visit.ask_to_stop()
        assert "Stopped before the run began" in list(waiting)[-1]
        assert host.num_waiting == 0
    assert list(run)[-1].reason in ("length", "eos")
    turn.close()


def test_who_waits_is_told_the_same_seldom() -> None:
    """Each message costs the visitor whose run is measured; new words go out at once."""
    words = [Notice(text) for text in ("one", "one", "one", "two", "two")]
    assert list(wait_for_engine(iter([*words, "engine"]), lambda text, _: text)) == ["one", "two"]


def test_a_visitor_who_leaves_during_a_load_leaves_the_engine_to_it() -> None:
    loader = Loader()
    host = make_host(loader)
    loader.gate = threading.Event()
    turn = host.turn("other")
    next(turn)
    turn.close()
    assert host.is_busy
    loader.gate.set()
    wait_until(lambda: not host.is_busy)
    assert host.serves("other", "auto")


# --- a run as deltas -----------------------------------------------------------------------------------------------


def test_94_a_closed_page_ends_the_run_within_a_step_and_frees_the_engine() -> None:
    loader = Loader(delay_s=0.002)
    host = make_host(loader)
    visit = Visit()
    run = run_live(host, visit, settings(method="plain", max_new_tokens=2000), new_encoder())
    for text in run:
        if '"steps"' in text:
            break
    before = loader.num_passes
    assert before > 0
    closer = threading.Thread(target=run.close)  # a generator may be closed on any thread
    closer.start()
    closer.join(5)
    assert loader.num_passes - before <= 1
    assert not host.is_busy
    assert visit.stop is None
    turn, _ = take(host)
    turn.close()


def test_94_stop_keeps_what_is_there() -> None:
    host = make_host(Loader(delay_s=0.002))
    visit = Visit()
    run = run_live(host, visit, settings(max_new_tokens=1900, measure_plain=True), new_encoder())
    sent = []
    for text in run:
        sent.append(json.loads(text))
        if "steps" in sent[-1]:
            visit.ask_to_stop()
    finish = next(delta["finish"] for delta in sent if "finish" in delta)
    steps = sum(len(delta.get("steps", [])) for delta in sent)
    assert finish["reason"] == "cancelled"
    assert 0 < finish["num_tokens"] < 1900
    assert finish["num_steps"] == steps
    size = f"{finish['num_tokens']} tokens in {steps} steps"
    assert sent[-1]["status"]["text"] == f"Stopped after {size}. Everything so far is kept."
    assert sent[-1]["verdict"]["detail"].startswith("Measure plain decoding to see the speed-up.")
    assert not host.is_busy
    assert visit.last is not None
    assert isinstance(visit.last.events[-1], RunFinished)


def test_a_run_then_measures_plain_decoding_and_draws_the_conclusion() -> None:
    host = make_host()
    visit = Visit()
    sent = deltas(run_live(host, visit, settings(measure_plain=True), new_encoder()))
    assert [delta["seq"] for delta in sent] == list(range(len(sent)))
    assert len({delta["run"] for delta in sent}) == 1
    assert "once plain decoding has run" in next(delta for delta in sent if "finish" in delta)["verdict"]["detail"]
    assert sent[-1]["plain"]["num_tokens"] == 12
    assert sent[-1]["plain"]["same_text"] is True
    assert sent[-1]["verdict"]["speed_up"] > 0
    assert sent[-1]["status"]["text"].startswith("Finished: 12 tokens")
    assert visit.last is not None
    assert visit.last.plain


def test_the_baseline_can_be_measured_afterwards() -> None:
    host = make_host()
    visit = Visit()
    assert "no run to compare with" in list(measure_plain(host, visit))[-1]
    sent = deltas(run_live(host, visit, settings(temperature=0.8), new_encoder()))
    assert all("plain" not in delta for delta in sent)
    more = deltas(measure_plain(host, visit))
    assert more[-1]["plain"]["tokens_per_s"] > 0
    assert more[-1]["plain"]["same_text"] is None
    assert more[0]["seq"] == sent[-1]["seq"] + 1
    assert visit.last is not None
    parsed = [visit.last.events[0].settings["seed"], visit.last.plain[0].settings["seed"]]  # type: ignore[union-attr]
    assert parsed[0] == parsed[1]


def test_79_updates_are_few_and_complete() -> None:
    host = make_host()
    turn, engine = take(host)
    encoder = DeltaEncoder("r")
    events = engine.stream("abc", RunConfig("plain", max_new_tokens=600))
    began = time.perf_counter()
    sent = list(coalesce(encoder, events))
    seconds = time.perf_counter() - began
    turn.close()
    finished = json.loads(sent[-1])["finish"]
    assert len(sent) <= 4 + seconds * UPDATES_PER_S * 1.1
    assert sum(len(json.loads(text).get("steps", [])) for text in sent) == finished["num_steps"]
    assert len("".join(sent)) < 1200 * finished["num_steps"]


def test_stopping_ends_the_stream_like_any_other_end() -> None:
    host = make_host()
    turn, engine = take(host)
    stop = threading.Event()
    events = []
    for event in stoppable(engine.stream("abc", RunConfig("plain", max_new_tokens=50)), stop.is_set):
        events.append(event)
        if isinstance(event, StepDone) and event.index == 5:
            stop.set()
    turn.close()
    end = events[-1]
    assert isinstance(end, RunFinished)
    emitted = [token for event in events if isinstance(event, StepDone) for token in event.emitted]
    assert (end.reason, end.num_steps, end.token_ids) == ("cancelled", 5, tuple(token.token_id for token in emitted))
    assert end.text == "".join(token.text for token in emitted if not token.special)


# --- figures and recording -----------------------------------------------------------------------------------------


def test_figures_hold_numbers_and_fixed_words_only() -> None:
    host = make_host()
    visit = Visit()
    asked = settings(prompt="<b>bold</b> <b>bold</b> <b>bold</b>", measure_plain=True)
    list(run_live(host, visit, asked, new_encoder()))
    assert visit.last is not None
    summary = summarize(visit.last.events, visit.last.encoder.plain)
    texts = summary.kept.to_json() + summary.places.to_json() + summary.times.to_json()
    assert "bold" not in texts
    assert "plain step" in texts
    assert [trace.type for trace in summary.times.data] == ["scatter"] * 4
    assert sum(summary.kept.data[0].y) == visit.last.encoder.counters.num_drafting_steps


def test_figures_of_nothing_and_of_plain_decoding_are_drawn_too() -> None:
    empty = summarize(())
    assert empty.kept_text == "No step drafted anything."
    host = make_host()
    visit = Visit()
    list(run_live(host, visit, settings(method="plain"), new_encoder()))
    assert visit.last is not None
    assert summarize(visit.last.events).places_text == "No drafted token was tested."


def test_the_opening_run_is_a_real_one_and_says_where_it_was_measured() -> None:
    recording = opening_run()
    assert recording is not None
    delta = json.loads(recording.delta)
    assert delta["mode"] == "recorded"
    assert delta["start"]["method"] == DEFAULTS["method"]
    assert delta["start"]["prompt"] == load_regimes()[0].prompts[0]
    assert "the machine of the recording" in delta["verdict"]["detail"]
    assert "this machine" not in json.dumps(delta["verdict"])
    assert Baseline.of(recording.trace.plain, recording.trace.events) is not None
    assert all("counters" in step for step in delta["steps"])


# --- served --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, EngineHost, Loader]]:
    loader = Loader(delay_s=0.01)
    with served(loader) as (url, host):
        wait_until(lambda: host.status.phase == "ready", 20)
        yield url, host, loader


@pytest.fixture(scope="module")
def client(site: Any) -> Client:
    return Client(site[0], verbose=False)


@pytest.mark.parametrize("method", ["lookahead", "prompt-lookup"])
def test_programs_get_the_events_as_they_were_made(client: Client, site: Any, method: str) -> None:
    """Gradio sends edits from message to message, and those of nested lists that shrink count wrong: without care
    lookahead's windows arrive garbled and the end of the run is lost."""
    settings: dict[str, Any] = {"method": method, "max_new_tokens": 24, "exact": "off"}
    job = client.submit("say hi say hi", **settings, api_name="/spec_events")
    job.result(timeout=30)  # not by iteration, which waits for ever where messages are lost
    sent = [message for message in job.outputs() if message["type"] == "StepDone"]
    engine = site[1].engine
    assert engine is not None
    events = engine.stream("say hi say hi", RunConfig(method, max_new_tokens=24, exact=False))
    made = [json.loads(json.dumps(event_to_json(event))) for event in events if isinstance(event, StepDone)]
    seconds = ("draft_s", "verify_s", "other_s")
    assert [{k: v for k, v in step.items() if k not in seconds} for step in sent] == [
        {k: v for k, v in step.items() if k not in seconds} for step in made
    ]
    assert job.outputs()[-1]["type"] == "Summary"


def test_the_endpoint_streams_events_and_ends_in_a_summary(client: Client) -> None:
    job = client.submit("abc abc abc", method="draft-model", max_new_tokens=10, api_name="/spec_events")
    sent = list(job)
    assert job.exception() is None
    sent = [message for message in sent if message["type"] != "Waiting"]
    assert [message["type"] for message in (sent[0], sent[1], sent[-2], sent[-1])] == [
        "RunStarted", "PrefillDone", "RunFinished", "Summary",
    ]  # fmt: skip
    events = [event_from_json(message) for message in sent[:-1]]
    assert sent[-1]["token_ids"] == list(events[-1].token_ids)  # type: ignore[union-attr]
    assert sent[-1]["num_tokens"] == 10
    assert sent[-1]["num_steps"] == len(events) - 3


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({"gamma": 10_000}, "between 0 and 15"),
        ({"max_new_tokens": int(1e9)}, "between 1 and 4096"),
        ({"top_k": -5}, "between 0"),
        ({"seed": 2**80}, "between 0"),
        ({"method": "tree"}, "Unknown method"),
        ({"prompt": "x" * 5_000_000}, "20,000 characters"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_92_the_endpoint_refuses_and_goes_on(client: Client, values: dict[str, Any], limit: str) -> None:
    arguments = {"prompt": "ab", "max_new_tokens": 2} | values
    with pytest.raises(Exception, match=limit):
        client.submit(**arguments, api_name="/spec_events").result()
    assert list(client.submit("ab", max_new_tokens=2, api_name="/spec_events"))[-1]["num_tokens"] == 2


def test_94_a_cancelled_endpoint_call_ends_the_run(client: Client, site: Any) -> None:
    _, host, loader = site
    job = client.submit("ab", method="plain", max_new_tokens=1500, api_name="/spec_events")
    for message in job:
        if message["type"] == "StepDone":
            break
    job.cancel()
    wait_until(lambda: not host.is_busy)
    passes = loader.num_passes
    time.sleep(0.2)
    assert loader.num_passes == passes


def test_only_the_endpoint_for_programs_is_listed(client: Client) -> None:
    listed = client.view_api(return_format="dict", print_info=False)
    assert list(listed["named_endpoints"]) == ["/spec_events"]
    assert not listed["unnamed_endpoints"]


# --- in Chromium ---------------------------------------------------------------------------------------------------

READY = "document.querySelector('.ready')?.dataset.phase === 'ready'"
IDLE = "!document.querySelector('#run').disabled"
STATUS = "document.querySelector('#view .status').textContent"


@contextmanager
def opened(url: str, **context: Any) -> Iterator[Any]:
    """A loaded page; afterwards: no error on the console, no request to elsewhere, no update missed."""
    with open_page(url, **({"viewport": {"width": 1280, "height": 900}} | context)) as watched:
        watched.page.wait_for_selector("#run", timeout=30_000)
        watched.page.wait_for_function(READY, timeout=30_000)
        yield watched.page
        assert watched.errors == []
        assert watched.outside == []
        assert not [message for message in watched.messages if "missed updates" in message]


def set_number(page: Any, name: str, value: int) -> None:
    field = page.locator(f"#{name} input[type=number]")
    field.fill(str(value))
    field.press("Tab")


def run_and_wait(page: Any) -> None:
    page.click("#run")
    page.wait_for_function(f"{STATUS}.includes('Finished') || {STATUS}.includes('Stopped')", timeout=30_000)
    page.wait_for_function(IDLE, timeout=30_000)


@pytest.mark.browser
def test_the_page_opens_on_a_recorded_run_then_runs_its_own(site: Any) -> None:
    with opened(site[0], reduced_motion="reduce") as page:
        page.wait_for_selector("#view .recording:visible")
        assert "Recorded run" in page.inner_text("#view .recording")
        assert "machine of the recording" in page.inner_text("#view .account")
        assert page.locator("#view .strip .tk").count() > 20
        page.wait_for_function("document.querySelectorAll('#after .js-plotly-plot').length === 3")

        page.fill("#prompt textarea", "abc <img src=x onerror=alert(1)> ${1+1} abc abc")
        set_number(page, "max-new-tokens", 32)
        run_and_wait(page)
        assert not page.is_visible("#view .recording")
        assert page.inner_text("#view .promptline").endswith("abc <img src=x onerror=alert(1)> ${1+1} abc abc")
        assert "plain decoding of the same prompt" in page.inner_text("#view .verdict")
        page.wait_for_selector("#after .js-plotly-plot .barlayer", timeout=10_000)
        with page.expect_download() as download:
            page.click("#save")
        trace = parse_trace(download.value.path().read_bytes())
        assert trace.damage == ""
        assert trace.plain
        end = trace.events[-1]
        assert isinstance(end, RunFinished)
        assert page.evaluate("document.querySelector('#view .answer').textContent") == end.text


@pytest.mark.browser
def test_94_stop_keeps_the_text_on_the_page_and_the_next_run_starts(site: Any) -> None:
    _, host, loader = site
    with opened(site[0], reduced_motion="reduce") as page:
        set_number(page, "max-new-tokens", 512)
        loader.delay_s = 0.05
        page.click("#run")
        page.wait_for_function("document.querySelector('#view .headline').textContent.match(/in [0-9]+ step/)")
        page.click("#stop")
        page.wait_for_function(f"{STATUS}.startsWith('Stopped after')", timeout=10_000)
        loader.delay_s = 0.01
        page.wait_for_function(IDLE)
        assert page.inner_text("#view .status").endswith("Everything so far is kept.")
        assert not host.is_busy
        count = page.locator("#view .strip .st").count()
        assert count > 0
        page.wait_for_timeout(300)
        assert page.locator("#view .strip .st").count() == count
        assert page.is_visible("#plain")
        page.click("#plain")
        page.wait_for_function("document.querySelector('#view .versus').checkVisibility()", timeout=20_000)
        page.wait_for_function(IDLE)


@pytest.mark.browser
def test_94_a_closed_tab_ends_its_run(site: Any) -> None:
    _, host, loader = site
    loader.delay_s = 0.05
    with opened(site[0], reduced_motion="reduce") as page:
        set_number(page, "max-new-tokens", 512)
        page.click("#run")
        page.wait_for_function("document.querySelector('#view .headline').textContent.match(/in [0-9]+ step/)")
        assert host.is_busy
        page.close()
        wait_until(lambda: not host.is_busy, 10)
    loader.delay_s = 0.01


@pytest.mark.browser
def test_a_list_that_the_keyboard_leaves_is_closed(site: Any) -> None:
    with opened(site[0], reduced_motion="reduce") as page:
        page.wait_for_function(READY)
        page.locator("#pair input").focus()
        page.wait_for_selector(".options:visible")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.wait_for_function("document.activeElement.closest('#method')")
        page.wait_for_selector("[role=option]:has-text('Prompt lookup')")
        page.keyboard.press("Tab")
        page.wait_for_timeout(500)  # Gradio opens it again when the field is left
        assert page.locator(".options:visible").count() == 0


@pytest.mark.browser
def test_the_first_stop_of_the_keyboard_leads_past_the_settings(site: Any) -> None:
    """To Run where it is in view, else to the tab that is open; unseen until the keyboard comes to it."""
    with opened(site[0], reduced_motion="reduce") as page:
        page.wait_for_selector(".skiplink", state="attached")
        top = "document.querySelector('.skiplink').getBoundingClientRect().top"
        assert page.evaluate(top) < 0
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skiplink"
        assert page.evaluate(top) > 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "run"
        assert "#" not in page.url
        page.click("#tabs [role=tab]:has-text('Race')")
        page.wait_for_selector("#run", state="hidden")
        page.locator(".skiplink").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.textContent").strip() == "Race"


@pytest.mark.browser
def test_settings_fold_away_where_they_do_nothing(site: Any) -> None:
    """Issue 16: on Methods, Tour and Serving, and not against the visitor's own choice."""
    shut, open_ = "!document.querySelector('.sidebar.open')", "document.querySelector('.sidebar.open')"
    with opened(site[0], reduced_motion="reduce") as page:
        page.wait_for_function(READY)
        tab = "#tabs [role=tab]:has-text('{}')"
        page.click(tab.format("Tour"))
        page.wait_for_function(shut)
        page.click(tab.format("Serving"))
        page.click(tab.format("Lab"))
        page.wait_for_function(open_)
        page.click(tab.format("Methods"))
        page.wait_for_function(shut)
        page.click(".sidebar .toggle-button")
        page.wait_for_function(open_)
        page.click(tab.format("Watch"))
        page.click(".sidebar .toggle-button")
        page.click(tab.format("Tour"))
        page.click(tab.format("Watch"))
        page.wait_for_selector("#view .panel[data-panel=watch]:visible")
        assert page.evaluate(shut), "the visitor had folded them"


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_text_begins_in_the_upper_half_during_and_after_a_run(site: Any, width: int, height: int) -> None:
    """Issue 16: what people come for is not below the fold."""
    url, _, loader = site
    phone = {"has_touch": True, "is_mobile": True} if width < 768 else {}
    with opened(url, viewport={"width": width, "height": height}, reduced_motion="reduce", **phone) as page:
        page.wait_for_selector("#view .strip .st")
        page.wait_for_function(IDLE)
        top = "document.querySelector('#view .strip').getBoundingClientRect().top"
        assert page.evaluate(top) <= height / 2, "a recorded run"
        loader.delay_s = 0.02
        page.evaluate("document.querySelector('#run').click()")
        page.wait_for_function(f"!({IDLE}) && document.querySelectorAll('#view .strip .st').length > 2")
        during = page.evaluate(top)
        loader.delay_s = 0.0
        page.wait_for_function(f"{STATUS}.includes('Finished')", timeout=30_000)
        page.wait_for_function(IDLE)
        assert during <= height / 2 and page.evaluate(top) <= height / 2
        shown = ["#view .legend .entry.a", "#run"]
        assert all(page.locator(one).bounding_box()["y"] < height - 40 for one in shown), "and its key, and Run"


@pytest.mark.browser
def test_exactness_takes_one_line_and_the_rest_is_there_on_demand(site: Any) -> None:
    with opened(site[0], reduced_motion="reduce") as page:
        page.wait_for_function(READY)
        assert page.inner_text("#promise summary") == "Exact as a chain, lossless as a tree."
        assert page.locator("#promise summary").bounding_box()["height"] < 24
        assert not page.locator("#promise p").is_visible()
        page.focus("#promise summary")
        page.keyboard.press("Enter")
        assert "to the bit" in page.inner_text("#promise p")
        set_number(page, "temperature", 0.7)
        page.wait_for_function("document.querySelector('#promise summary').textContent.startsWith('Lossless')")


@pytest.mark.browser
def test_82_a_failed_run_says_why_on_the_page_and_keeps_the_last_one(site: Any) -> None:
    with opened(site[0], reduced_motion="reduce") as page:
        page.wait_for_selector("#view .strip .st")
        count = page.locator("#view .strip .tk").count()
        page.fill("#prompt textarea", "x" * 3000)
        page.click("#run")
        page.wait_for_selector("#view .page > .problem:visible")
        assert "Shorten the prompt." in page.inner_text("#view .page > .problem")
        page.wait_for_function(IDLE)
        assert page.locator("#view .strip .tk").count() == count
        page.click("#pair input")
        page.click("[role=option]:has-text('Broken')")
        page.fill("#prompt textarea", "abc")
        page.click("#run")
        problem = "document.querySelector('#view .page > .problem')"
        page.wait_for_function(f"{problem}.textContent.includes('weights are damaged')")
        page.wait_for_function(IDLE)
        assert "Ready · Tiny" in page.inner_text("#masthead")


@pytest.mark.browser
def test_a_link_restores_settings_and_ignores_what_is_bad(site: Any) -> None:
    with opened(site[0] + "?prompt=hello%20%3Cb%3E&gamma=6&temperature=0.5&max_new_tokens=99999&method=evil") as page:
        page.wait_for_function("document.querySelector('#prompt textarea').value === 'hello <b>'")
        assert page.input_value("#gamma input[type=number]") == "6"
        assert page.input_value("#temperature input[type=number]") == "0.5"
        assert page.input_value("#max-new-tokens input[type=number]") == str(DEFAULTS["max_new_tokens"])
        assert page.inner_text("#link-note") == "Ignored in the link: method, max_new_tokens"
        page.click("#copy")
        page.wait_for_function("location.search.includes('gamma=6')")
        again = page.url
        assert "evil" not in again
        assert "99999" not in again
    with opened(again) as page:
        page.wait_for_function("document.querySelector('#prompt textarea').value === 'hello <b>'")
        assert page.input_value("#temperature input[type=number]") == "0.5"
        assert page.inner_text("#link-note") == ""


@pytest.mark.browser
def test_presets_fill_the_prompt_and_the_keyboard_reaches_run(site: Any) -> None:
    with opened(site[0], reduced_motion="reduce") as page:
        shows = "text => document.querySelector('#prompt textarea').value === text"
        page.click("#presets label:has-text('Code')")
        page.wait_for_function(shows, arg=load_regimes()[2].prompts[0])
        page.focus("#prompt textarea")
        for key in ("Tab", "Tab", "Space"):  # to Gradio every option is a field of its own
            page.keyboard.press(key)
        page.wait_for_function(shows, arg=load_regimes()[1].prompts[0])
        page.locator("#prompt textarea").press_sequentially(" ok")
        page.wait_for_function("!document.querySelector('#presets input:checked')")
        set_number(page, "max-new-tokens", 16)
        page.focus("#run")
        page.keyboard.press("Enter")
        page.wait_for_function(f"{STATUS}.includes('Finished')", timeout=30_000)
        page.wait_for_function(IDLE)


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_no_sideways_scroll_and_nothing_for_axe(site: Any, theme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    url = f"{site[0]}?__theme={theme}"
    with opened(url, viewport={"width": width, "height": 844}, color_scheme=theme, reduced_motion="reduce") as page:
        page.wait_for_selector("#after .js-plotly-plot .main-svg")
        page.wait_for_timeout(700)  # Gradio's own transitions
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if width < 768:
            assert page.is_visible("#settings")
            assert page.evaluate("document.querySelector('.sidebar').getBoundingClientRect().right <= 1")
        found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
        assert [(v["id"], [node["html"][:160] for node in v["nodes"]][:3]) for v in found] == []
