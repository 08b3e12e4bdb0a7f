"""The guided tour: its stops say what the recorded runs say, and the page lets one guess, leave and resume."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from browser import open_page

from specviz.errors import TraceError
from specviz.ui.access.host import EngineHost
from specviz.ui.page import build_page, launch
from specviz.ui.tour.run import TourRun, choose_refusal
from specviz.ui.tour.stops import NEEDED, Stop, tour_stops
from specviz.ui.tour.tab import tour_delta
from specviz.ui.wire.recorded import load_gallery, recall


@pytest.fixture(scope="module")
def runs() -> dict[str, TourRun]:
    found = {}
    for name, run in load_gallery().items():
        recording = recall(name)
        assert recording is not None
        found[name] = TourRun(name, run.title, recording.trace)
    return found


@pytest.fixture(scope="module")
def stops(runs: dict[str, TourRun]) -> list[Stop]:
    return tour_stops(runs)


def text_of(blocks: object) -> str:
    return json.dumps(blocks, ensure_ascii=False)


def test_ten_stops_each_with_one_right_answer_among_different_ones(stops: list[Stop]) -> None:
    assert len(stops) == 10
    for stop in stops:
        assert 0 <= stop.answer < len(stop.options) == len(set(stop.options))
        assert stop.before and stop.after and stop.question.endswith("?")
        assert not re.search(r"\b(None|nan|inf)\b", text_of([stop.before, stop.options, stop.after]))


def test_numbers_are_those_of_the_runs(stops: list[Stop], runs: dict[str, TourRun]) -> None:
    refusal = choose_refusal(runs["copying"])
    cache = next(block["cache"] for block in stops[5].after if "cache" in block)
    assert cache["after"] == refusal.cache_len == cache["before"] + 1 + refusal.num_accepted
    assert stops[5].options[stops[5].answer] == str(refusal.cache_len)
    bonus = runs["copying"].steps[stops[4].see["step"] - 1]
    assert stops[4].options[stops[4].answer] == str(len(bonus.emitted)) and bonus.emitted[-1].origin == "bonus"
    sampled = runs["sampled"].counters
    assert f"{sampled.num_accepted}: α = {sampled.alpha:.2f}" in text_of(stops[6].before)
    slow = runs["early-exit"]
    assert f"{slow.counters.decode_tokens_per_s:.1f}" in text_of(stops[7].after)
    step = runs["sampled"].steps[stops[9].see["step"] - 1]
    coins = next(block["coins"] for block in stops[9].after if "coins" in block)
    assert (coins["kept"], coins["coin"]) in {
        (round(100 * token.accept_prob), int(100 * token.coin))
        for token in step.drafted
        if token.accept_prob is not None
    }


def test_a_tour_without_its_runs_says_which_is_missing(runs: dict[str, TourRun]) -> None:
    with pytest.raises(TraceError, match=NEEDED[0]):
        tour_stops({name: run for name, run in runs.items() if name != NEEDED[0]})


def test_every_entry_of_the_glossary_says_something_and_points_at_a_tab_or_nowhere() -> None:
    entries = json.loads(tour_delta())["tour"]["glossary"]
    assert len({entry["term"] for entry in entries}) == len(entries) >= 20
    assert {entry["tab"] for entry in entries} <= {"", "watch", "inspect", "race", "lab", "methods", "tour", "serving"}
    assert all(len(entry["words"]) > 30 for entry in entries)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    demo = build_page(EngineHost())  # nothing is loaded: the tour needs no model
    _, url, _ = launch(demo, prevent_thread_lock=True, server_port=None)
    yield url
    demo.close()


@pytest.mark.browser
def test_guess_see_the_answer_leave_and_resume(site: str, stops: list[Stop]) -> None:
    with open_page(f"{site}?tab=tour", viewport={"width": 390, "height": 844}) as chromium:
        page = chromium.page
        page.wait_for_selector("#view .tour .stop:not([hidden])")
        assert page.locator("#view .tour h2").inner_text() == stops[0].title
        assert page.locator("#view .tour .reveal").is_hidden()
        wrong = (stops[0].answer + 1) % len(stops[0].options)
        page.locator("#view .tour .opts button").nth(wrong).click()
        assert page.locator("#view .tour .right").inner_text().startswith(stops[0].options[stops[0].answer])
        assert page.locator("#view .tour .mine").count() == 1
        assert page.locator("#view .tour .reveal").is_visible()
        page.keyboard.press("Tab")
        for stop in stops[1:]:
            page.locator("#view .tour .next").click()
            assert page.locator("#view .tour h2").inner_text() == stop.title
            page.locator("#view .tour .opts button").nth(stop.answer).click()
            assert page.locator("#view .tour .reveal > *").count() == len(stop.after)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator("#view .tour .leave").click()
        page.wait_for_selector("#view .panel[data-panel=watch]")
        page.goto(f"{site}?tab=tour")
        page.wait_for_selector("#view .tour .stop:not([hidden])")
        assert page.locator("#view .tour h2").inner_text() == stops[-1].title
        assert page.locator("#view .tour .reveal").is_visible()
        page.locator("#view .tour .glossary summary").click()
        assert page.locator("#view .tour .glossary dt").count() >= 20
        assert not chromium.errors
        assert not chromium.outside


@pytest.mark.browser
def test_a_linked_tab_outlasts_gradios_own_choice_but_not_the_visitors(site: str) -> None:
    with open_page(f"{site}?tab=tour") as chromium:
        page = chromium.page
        shown = "#view .panel[data-panel={}]:not([hidden])"
        page.wait_for_selector(shown.format("tour"))
        page.evaluate("document.querySelector('#tab-watch-button').click()")  # as Gradio does when it has mounted
        page.wait_for_selector(shown.format("watch"))
        page.wait_for_selector(shown.format("tour"))
        assert "tab=tour" in page.url
        page.locator("#tab-watch-button").click()
        page.wait_for_selector(shown.format("watch"))
        page.wait_for_timeout(400)  # longer than it takes to press again
        assert page.locator(shown.format("watch")).count() == 1
        assert "tab=" not in page.url
