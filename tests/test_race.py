"""The race: methods measured one after another beside plain decoding, and their replay in Chromium. A tiny random model
stands in for the pair, as under test are the order, the comparison, the words and the page."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio")

import gradio as gr
from browser import ChromiumPage, open_page, serve_view
from streams import STREAMS, drafted, emitted, started, step, stream
from test_app import Loader, make_host, served, wait_until

from specviz.errors import ConfigError
from specviz.events import Event, RunStarted, StepDone
from specviz.metrics import Baseline, fold
from specviz.ui.access.visits import Visit
from specviz.ui.race.lanes import Lane, lane_json, load_lanes, ranked, save_lanes, text_owner, to_csv
from specviz.ui.race.racing import RaceEncoder, RaceSettings, recorded_race, run_race
from specviz.ui.race.tab import RECORDED_RACE
from specviz.ui.race.words import race_verdict
from specviz.ui.view import make_view

PAIRS = ("tiny", "other")
GREEDY: dict[str, Any] = {"verify": "greedy", "exactness": "exact", "settings": {"gamma": 4, "temperature": 0.0}}


def asked(*racers: str, **values: Any) -> RaceSettings:
    return RaceSettings.read({"prompt": "abc abc abc", "max_new_tokens": 12} | values, list(racers), PAIRS)


def raced(*racers: str, loader: Loader | None = None, **values: Any) -> tuple[list[dict[str, Any]], RaceEncoder]:
    """The deltas of a whole race, and the encoder that made them."""
    encoder = RaceEncoder("r")
    sent = [json.loads(text) for text in run_race(make_host(loader), Visit(), asked(*racers, **values), encoder)]
    assert [delta["seq"] for delta in sent] == list(range(len(sent)))
    assert all(delta.keys() == {"run", "seq", "race"} for delta in sent)
    return sent, encoder


def of(sent: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return [delta["race"][key] for delta in sent if key in delta["race"]]


def written(method: str, words: str, *, each_s: float, kept: int = 0, **changes: Any) -> list[Event]:
    """A run that writes these letters, `kept` drafted ones and one of the target's own a step."""
    ids, steps = [ord(letter) for letter in words], []
    for i, at in enumerate(range(0, len(ids), kept + 1), start=1):
        *first, last = [(token, chr(token)) for token in ids[at : at + kept + 1]]
        drafts = [drafted(token, text, place - 1, "accepted") for place, (token, text) in enumerate(first)]
        own = emitted(*last, "bonus" if first else "target")
        out = [*(emitted(token, text, "accepted") for token, text in first), own]
        steps.append(step(i, drafts, out, 6 + at, draft_s=0.0, verify_s=each_s, other_s=0.0))
    return stream(started(method, draft=None, **(GREEDY | changes)), steps)


def lane(events: list[Event], plain: list[Event]) -> Lane:
    first = events[0]
    assert isinstance(first, RunStarted)
    return Lane(first.method, tuple(events), Baseline.of(plain, events))


WORDS = "abcdefghijklmnopqrst"
PLAIN = written("plain", WORDS, each_s=0.1)
FAST = written("prompt-lookup", WORDS, each_s=0.12, kept=3)
SLOW = written("quantized-copy", WORDS, each_s=0.3, kept=1)
OTHER = written("feature", WORDS[:12] + "XYZUVWTS", each_s=0.2, kept=3)
HAND_MADE = [Lane("plain", tuple(PLAIN)), lane(FAST, PLAIN), lane(SLOW, PLAIN), lane(OTHER, PLAIN)]


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("racers", "limit"),
    [
        ([], "1 to 3 methods"),
        (["plain"], "1 to 3 methods"),
        (["cascade", "medusa", "feature", "jacobi"], "4 are chosen"),
        ("cascade", "list of names"),
        ([7], "list of names"),
        (None, "list of names"),
    ],
)
def test_92_a_race_of_nobody_or_too_many_is_refused(racers: Any, limit: str) -> None:
    with pytest.raises(ConfigError, match=limit):
        RaceSettings.read({"prompt": "abc"}, racers, PAIRS)


def test_what_concerns_all_lanes_is_refused_at_once_and_one_method_only_in_its_lane() -> None:
    with pytest.raises(ConfigError, match="between 0 and 15"):
        asked("cascade", gamma=99)
    settings = asked("cascade", "<img src=x>", "lookahead", window=10_000)
    kinds = {name: isinstance(config, str) for name, config in settings.racers}
    assert kinds == {"cascade": False, "<img src=x>": True, "lookahead": True}
    assert asked("cascade", "cascade", "plain").titles == ["Plain decoding", "Cascade"]


# --- a race as deltas ----------------------------------------------------------------------------------------------


def test_each_is_measured_alone_in_order_and_compared_with_plain() -> None:
    sent, encoder = raced("prompt-lookup", "draft-model", seed="7")
    lanes = [one for batch in of(sent, "lanes") for one in batch]
    assert [one["method"] for one in lanes] == ["plain", "prompt-lookup", "draft-model"]
    assert of(sent, "start")[0]["titles"] == ["Plain decoding", "Prompt lookup", "Draft model"]
    for one, kept in zip(lanes, encoder.lanes, strict=True):
        counters, end = fold(kept.events), kept.finished
        assert end is not None
        assert one["steps"][-1][:2] == [round(counters.decode_s, 6), 12]
        assert one["tokens_per_s"] == counters.decode_tokens_per_s
        assert "".join(token[0] for _, _, _, _, tokens in one["steps"] for token in tokens) == end.text
        assert one["whole"] and one["problem"] == ""
        assert one["text_of"] == "plain"
    seeds = {kept.started.settings["seed"] for kept in encoder.lanes if kept.started}
    assert seeds == {7}
    base = encoder.lanes[0].tokens_per_s
    assert base and lanes[1]["speed_up"] == pytest.approx(lanes[1]["tokens_per_s"] / base)
    result = of(sent, "result")[0]
    assert result["texts"] == "All three wrote the same 12 tokens at temperature 0, compared one by one."
    assert sorted(result["order"]) == ["draft-model", "plain", "prompt-lookup"]
    says = [status["text"] for status in of(sent, "status")]
    assert any(text.startswith("2 of 3: Prompt lookup, ") for text in says)
    fractions = [status["fraction"] for status in of(sent, "status") if " of 3: " in status["text"]]
    assert fractions == sorted(fractions)


def test_a_method_that_fails_has_its_sentence_and_the_rest_goes_on() -> None:
    sent, encoder = raced("lookahead", "draft-model", "prompt-lookup", window=10_000)
    lanes = [one for batch in of(sent, "lanes") for one in batch]
    assert [bool(one["problem"]) for one in lanes] == [False, True, False, False]
    assert "window" in lanes[1]["problem"] and lanes[1]["steps"] == []
    assert [lane.method for lane in ranked(encoder.lanes)].count("lookahead") == 0
    assert lanes[3]["speed_up"] > 0
    assert not of(sent, "problem")


def test_93_a_fault_within_one_lane_tells_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*_: Any) -> Any:
        raise RuntimeError("boom /home/somebody hf_secrettoken")

    monkeypatch.setattr("specviz.ui.race.racing.explain_difference", boom)
    monkeypatch.setattr("specviz.ui.race.racing.Baseline.of", boom)
    sent, _ = raced("prompt-lookup")
    lanes = [one for batch in of(sent, "lanes") for one in batch]
    assert "The log has the details" in lanes[1]["problem"]
    assert not any(secret in json.dumps(sent) for secret in ("boom", "/home", "hf_"))


def test_82_without_plain_decoding_there_is_no_race() -> None:
    sent, encoder = raced("prompt-lookup", prompt="x" * 3000)
    assert "Shorten the prompt." in of(sent, "problem")[0]
    assert encoder.lanes == [] and not of(sent, "start")


def test_94_stopped_in_the_middle_keeps_what_was_measured_and_frees_the_engine() -> None:
    loader = Loader(delay_s=0.02)
    host, visit, encoder = make_host(loader), Visit(), RaceEncoder()
    texts = []
    for text in run_race(host, visit, asked("lookahead", "draft-model", max_new_tokens=200), encoder):
        texts.append(json.loads(text))
        if "2 of 3: Lookahead, " in text and "tokens in" in text:
            visit.ask_to_stop()
    assert [lane.method for lane in encoder.lanes] == ["plain", "lookahead"]
    assert encoder.lanes[1].problem.startswith("Stopped after ")
    assert encoder.lanes[1].speed_up is None
    assert of(texts, "status")[-1]["text"] == "Stopped. Measured lanes are kept."
    assert of(texts, "result")[0]["headline"].startswith("Only plain decoding finished")
    assert not host.is_busy and visit.stop is None


def test_94_a_closed_page_frees_the_engine_within_a_step() -> None:
    loader = Loader(delay_s=0.002)
    host = make_host(loader)
    run = run_race(host, Visit(), asked("prompt-lookup", max_new_tokens=1900), RaceEncoder())
    for text in run:
        if "tokens in" in text:
            break
    before = loader.num_passes
    closer = threading.Thread(target=run.close)  # type: ignore[attr-defined]
    closer.start()
    closer.join(5)
    assert loader.num_passes - before <= 1
    assert not host.is_busy


def test_racers_wait_in_the_line_of_all_visitors() -> None:
    host = make_host()
    turn = host.turn("tiny")
    wait_until(lambda: not hasattr(next(turn), "fraction"))
    visit = Visit()
    run = run_race(host, visit, asked("prompt-lookup"), RaceEncoder())
    assert "You are next in line." in next(run)
    visit.ask_to_stop()
    assert "Stopped before the race began" in list(run)[-1]
    turn.close()  # type: ignore[attr-defined]
    assert host.num_waiting == 0


def test_sampled_texts_are_not_compared() -> None:
    sent, _ = raced("prompt-lookup", temperature=0.8)
    lanes = [one for batch in of(sent, "lanes") for one in batch]
    assert lanes[1]["first_difference"] is None
    assert lanes[1]["speed_up"] > 0
    assert of(sent, "result")[0]["texts"] == (
        "Sampled at T = 0.8: each draws its own text. Texts differ, so compare tokens a second, not seconds."
    )


# --- words, table, files -------------------------------------------------------------------------------------------


def test_the_same_is_said_of_those_that_were_compared_only() -> None:
    said = race_verdict(HAND_MADE)
    assert said["headline"] == "Prompt lookup finishes first: 3.33 times as fast as plain decoding."
    assert said["texts"] == (
        "Prompt lookup, Quantized copy of the target and plain decoding wrote the same 20 tokens at temperature 0, "
        "compared one by one. Feature head differs from plain decoding at token 13."
    )
    base = HAND_MADE[3].plain
    assert base is not None
    explained = replace(HAND_MADE[3], plain=replace(base, gap=0.0123, width_same=True))
    twin = replace(explained, method="medusa")
    assert race_verdict([HAND_MADE[0], explained, twin])["texts"] == (
        "Feature head and Medusa heads differ from plain decoding in the same way at token 13, where the two best "
        "logits are 0.012 apart. So does plain decoding at 8 rows a pass."
    )
    fault = replace(explained, plain=replace(base, width_same=False))
    assert race_verdict([HAND_MADE[0], fault])["texts"].endswith("so this is a fault.")
    assert text_owner(twin, HAND_MADE) is HAND_MADE[3]


def test_slower_is_called_slower() -> None:
    assert race_verdict([HAND_MADE[0], HAND_MADE[2]])["headline"] == (
        "Plain decoding is faster: Quantized copy of the target has 0.67 of its speed."
    )
    slow = lane_json(HAND_MADE[2], HAND_MADE[:2])
    assert slow["verdict"]["kind"] == "slower" and slow["verdict"]["reason"]
    even = lane(written("jacobi", WORDS, each_s=0.0995), PLAIN)
    assert "as fast as plain decoding: 1.01 times" in race_verdict([HAND_MADE[0], even])["headline"]


def test_texts_of_unequal_length_have_no_line_to_be_first_at() -> None:
    short = lane(written("feature", WORDS[:6] + "X", each_s=0.05), PLAIN)
    said = race_verdict([HAND_MADE[0], short])
    assert said["headline"] == "Feature head is fastest: 2.00 times as fast as plain decoding."
    assert said["same_length"] is False
    assert said["texts"].endswith("compare tokens a second, not seconds.")


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_every_kind_of_step_makes_a_lane(make: Callable[[], list[Event]]) -> None:
    events = make()
    one = lane_json(Lane(events[0].method, tuple(events)), [])  # type: ignore[union-attr]
    counters = fold(events)
    assert one["steps"][-1][1] == counters.num_tokens == one["num_tokens"]
    assert sum(refused for _, _, _, refused, _ in one["steps"]) == counters.num_rejections
    origins = [token[1] for _, _, _, _, tokens in one["steps"] for token in tokens]
    assert origins.count("accepted") == counters.num_accepted
    json.dumps(one, allow_nan=False)


def test_the_table_has_a_row_a_lane() -> None:
    rows = list(csv.DictReader(to_csv([*HAND_MADE, Lane("medusa", problem="No, it cannot.")]).splitlines()))
    assert [row["method"] for row in rows] == ["plain", "prompt-lookup", "quantized-copy", "feature", "medusa"]
    assert float(rows[1]["speed_up"]) == pytest.approx(HAND_MADE[1].speed_up)
    assert (rows[1]["same_text"], rows[3]["same_text"], rows[3]["first_difference"]) == ("True", "False", "13")
    assert (rows[0]["speed_up"], rows[4]["tokens"], rows[4]["problem"]) == ("", "0", "No, it cannot.")


def test_a_stored_race_is_read_as_it_was_measured(tmp_path: Path) -> None:
    save_lanes(tmp_path, HAND_MADE)
    assert load_lanes(tmp_path) == HAND_MADE
    assert load_lanes(tmp_path / "missing") == []


def test_the_shipped_race_is_a_real_one_with_plain_first() -> None:
    lanes = load_lanes(RECORDED_RACE)
    assert lanes[0].method == "plain" and 3 <= len(lanes) <= 4
    assert all(lane.is_whole and lane.started and lane.started.command for lane in lanes)
    assert len({lane.started.prompt for lane in lanes if lane.started}) == 1
    race = json.loads(recorded_race(lanes))["race"]
    assert race["mode"] == "recorded" and race["origin"]["machine"]["processor"]
    assert "this machine" not in json.dumps(race)


# --- in Chromium ---------------------------------------------------------------------------------------------------


def hostile() -> list[Lane]:
    events = STREAMS["hostile"]()
    plain = [replace(event, method="plain") if isinstance(event, RunStarted) else event for event in events]
    return [Lane("plain", tuple(plain)), Lane("<b>x</b>${1+1}", tuple(events), problem="<img src=x onerror=alert(1)>")]


def live() -> Iterator[str]:
    encoder = RaceEncoder("live")
    yield encoder.start("Why?", ["Plain decoding", "Prompt lookup", "Medusa heads"])
    yield encoder.lane(HAND_MADE[0])
    yield encoder.status("2 of 3: Prompt lookup, 8 tokens in 2 steps", 0.5)
    yield encoder.lane(HAND_MADE[1])
    yield encoder.lane(Lane("medusa", problem="These heads do not fit. Choose another method."))
    yield encoder.result("Measured one after another: 3 runs.")


RACES: dict[str, Callable[[], Iterator[str]]] = {
    "race": lambda: iter([recorded_race(HAND_MADE, "race")]),
    "hostile": lambda: iter([recorded_race(hostile(), "hostile").replace('"mode":"recorded"', '"mode":"live"')]),
    "live": live,
    "refused": lambda: iter([RaceEncoder("refused").problem("Choose 1 to 3 methods. 4 are chosen.")]),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    def play(make: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
        def send() -> Iterator[str]:
            yield from make()

        return send

    tell = "() => window.dispatchEvent(new CustomEvent('specviz:tab', { detail: 'race' }))"
    with gr.Blocks(title="test") as demo:
        view = make_view()
        gr.Button("tab", elem_id="go-tab").click(None, None, None, js=tell)
        for name, make in RACES.items():
            gr.Button(name, elem_id=f"go-{name}").click(play(make), None, view, show_progress="hidden")
    with serve_view(demo) as address:
        yield address


def at_race(page: Any, name: str) -> None:
    """The tab is in view and the race has arrived."""
    page.wait_for_selector("#go-refused", state="attached")
    page.evaluate("document.getElementById('go-tab').click()")
    page.wait_for_function("document.body.dataset.tab === 'race'")
    page.evaluate("name => document.getElementById('go-' + name).click()", name)
    page.wait_for_selector("#view .race:not(.measuring) .lead:not(:empty)")


def seek(page: Any, clock: float) -> None:
    move = "(bar, clock) => { bar.value = clock; bar.dispatchEvent(new Event('input')); }"
    page.locator("#view .seek").evaluate(move, clock)


def results(page: Any) -> list[list[str]]:
    return [text.split("\n") for text in page.locator("#view .lane .res").all_inner_texts()]


def clean(chromium: ChromiumPage) -> None:
    assert chromium.errors == chromium.outside == []
    assert not [message for message in chromium.messages if "missed updates" in message]


@pytest.mark.browser
def test_the_replay_shows_python_s_numbers_at_every_moment(url: str) -> None:
    with open_page(url, viewport={"width": 1280, "height": 1000}, reduced_motion="reduce") as chromium:
        page = chromium.page
        at_race(page, "race")
        assert page.inner_text("#view .raceclock b") == "3.00\u00a0s"  # reduced motion: the end, and no playing
        assert page.locator("#view .race.playing").count() == 0
        assert [text[0] for text in results(page)] == ["20 of 20", "3.33×", "0.67× slower", "2.00×"]
        assert results(page)[1] == ["3.33×", "33.3 tokens/s", "line at 0.60\u00a0s"]
        seek(page, 0.61)
        done = {"plain": 6, "prompt-lookup": 20, "quantized-copy": 4, "feature": 12}
        for lane_, text in zip(HAND_MADE, results(page), strict=True):
            shown = [step for step in lane_json(lane_, [])["steps"] if step[0] <= 0.61]
            assert shown[-1][1] == done[lane_.method]
            assert f"{shown[-1][2]:.1f} tokens/s" in text
        assert results(page)[0][0] == "6 of 20"
        assert results(page)[1][0] == "3.33×"
        seek(page, 0)
        assert results(page)[0] == ["0 of 20", "– tokens/s"]
        assert page.locator("#view .lane .why").inner_text().startswith("Checking costs 3.00 plain steps")
        widths = page.locator("#view .lane .track svg svg").evaluate_all(
            "all => all.map(one => one.width.baseVal.value)"
        )
        assert widths == [0, 0, 0, 0]
        clean(chromium)


@pytest.mark.browser
def test_keys_walk_from_arrival_to_arrival(url: str) -> None:
    with open_page(url, viewport={"width": 1280, "height": 1000}, reduced_motion="reduce") as chromium:
        page = chromium.page
        at_race(page, "race")
        clock = "document.querySelector('#view .raceclock b').textContent"
        page.focus("#view .seek")
        for key, shown in (
            ("Home", "0.00"), ("ArrowRight", "0.10"), ("ArrowRight", "0.12"), ("ArrowRight", "0.20"),
            ("ArrowLeft", "0.12"), ("End", "3.00"), ("ArrowRight", "3.00"), ("ArrowLeft", "2.70"),
        ):  # fmt: skip
            page.keyboard.press(key)
            assert page.evaluate(clock) == f"{shown}\u00a0s", key
        page.keyboard.press("]")
        page.keyboard.press("]")
        assert page.inner_text("#view [data-panel=race] .pace") == "shown 4 times faster"
        page.keyboard.press("Home")
        page.keyboard.press("Space")
        page.wait_for_function(f"{clock} === '3.00\u00a0s'", timeout=10_000)
        page.wait_for_function("!document.querySelector('#view .race.playing')")
        says = page.locator("#view .lane .vh").all_inner_texts()
        assert says[1].startswith("20 of 20 tokens at 3.00 seconds, 33.3 tokens a second. 3.33× faster than plain")
        page.get_by_role("button", name="0.1×").click()
        page.get_by_role("button", name="Play").click()
        page.get_by_role("button", name="Pause").click()
        assert 0 <= float(page.evaluate(clock).split("\u00a0")[0]) < 1
        clean(chromium)


@pytest.mark.browser
def test_lanes_part_in_the_text_where_their_texts_do(url: str) -> None:
    with open_page(url, viewport={"width": 390, "height": 844}, reduced_motion="reduce") as chromium:
        page = chromium.page
        at_race(page, "race")
        assert page.locator("#view .places").count() == 2
        assert page.inner_text("#view .race-texts h3") == "Feature head another text from token 13 on"
        names = "#view .places:nth-of-type({}) .name:visible"
        assert page.locator(names.format(1)).all_inner_texts() == [
            "Plain decoding · Prompt lookup · Quantized copy of the target"
        ]
        assert page.locator(names.format(2)).all_inner_texts() == ["Feature head"]
        seek(page, 0.2)  # the feature head has 4 tokens, all of them plain decoding's too
        assert "Feature head" in page.locator(names.format(1)).all_inner_texts()[-1]
        assert page.locator(names.format(2)).count() == 0
        assert page.locator("#view .places:nth-of-type(1) .tocome").count() == 16
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        clean(chromium)


@pytest.mark.browser
def test_86_hostile_texts_are_shown_as_they_are(url: str) -> None:
    with open_page(url, viewport={"width": 1000, "height": 900}, reduced_motion="reduce") as chromium:
        page = chromium.page
        at_race(page, "hostile")
        assert page.locator("#view .race img, #view .race script, #view .race b b").count() == 0
        assert "<b>x</b>${1+1}" in page.inner_text("#view .lanes")
        assert page.inner_text("#view .lane .why") == "<img src=x onerror=alert(1)>"
        assert page.inner_text("#view .race .promptline span") == "<b>${x}</b>"
        joined = "".join(t.text for e in STREAMS["hostile"]() if isinstance(e, StepDone) for t in e.emitted)
        spans = "all => all.map(span => [...span.querySelectorAll('.x')].map(x => x._copy).join('')).join('')"
        assert page.locator("#view .places > span:not(.pole):not(.name)").evaluate_all(spans) == joined
        clean(chromium)


@pytest.mark.browser
def test_a_live_race_fills_lane_by_lane_and_a_problem_leaves_it(url: str) -> None:
    with open_page(url, viewport={"width": 1280, "height": 1000}) as chromium:
        page = chromium.page
        at_race(page, "live")
        page.wait_for_function("document.querySelector('#view .race.playing')")  # it plays by itself
        assert page.inner_text("#view .lane .why") == "These heads do not fit. Choose another method."
        assert page.inner_text("#view [data-panel=race] .lead").startswith("Prompt lookup finishes first")
        assert page.inner_text("#view .racesays") == "Measured one after another: 3 runs."
        page.evaluate("document.getElementById('go-race').click()")  # recorded: the visitor's own race stays
        page.evaluate("document.getElementById('go-refused').click()")
        page.wait_for_selector("#view .raceproblem:visible")
        assert page.inner_text("#view .raceproblem h2") == "Choose 1 to 3 methods."
        assert page.locator("#view .lane").count() == 3
        clean(chromium)


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_in_a_race(url: str, theme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    size = {"width": width, "height": 900}
    with open_page(f"{url}?__theme={theme}", viewport=size, reduced_motion="reduce") as chromium:
        page = chromium.page
        at_race(page, "race")
        page.get_by_role("button", name="Table: Tokens against time").click()
        assert page.locator("#view .race-chart tbody tr").count() == 4
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = axe.Axe().run(page, context="#view", options={"runOnly": ["wcag2a", "wcag2aa"]})
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found.response["violations"]] == []
        clean(chromium)


@pytest.mark.browser
def test_the_tab_of_the_app_opens_on_a_recorded_race_then_runs_its_own() -> None:
    with served(Loader()) as (address, host):
        wait_until(lambda: host.status.phase == "ready", 20)
        with open_page(
            f"{address}?tab=race", viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
        ) as chromium:
            page = chromium.page
            page.wait_for_selector("#view .racenote:visible", timeout=30_000)
            recorded = page.inner_text("#view [data-panel=race] .lead")
            page.fill("#prompt textarea", "abc abc <b>abc</b>")
            page.click("#race-start")
            page.wait_for_function("document.querySelector('#view .racesays').textContent.startsWith('Measured')")
            assert page.is_hidden("#view .racenote")
            assert page.inner_text("#view .race .promptline span") == "abc abc <b>abc</b>"
            assert page.inner_text("#view [data-panel=race] .lead") != recorded
            page.wait_for_function("!document.querySelector('#race-start').disabled")
            with page.expect_download() as download:
                page.click("#race-save")
            with page.expect_download() as race_page:
                page.click("#race-page")
            assert "\\u003cb\\u003eabc" in race_page.value.path().read_text("utf-8")
            rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
            assert [row["method"] for row in rows] == ["plain", "cascade", "prompt-lookup", "feature"]
            assert [row["tokens"] for row in rows] == [
                text.split(" ")[0] for text in page.locator("#view .lane .vh").all_inner_texts()
            ]
            assert page.inner_text("#view .status") == ""  # the run on Watch is another matter
            clean(chromium)
