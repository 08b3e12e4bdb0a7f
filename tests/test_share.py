"""Recorded runs and what can be taken away: the gallery, a visitor's own file, links, files, words, and the page as a
slide. The page needs no model for any of it."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio")

from browser import open_page
from fakes import loaded_pair, tiny_llama
from streams import STREAMS, drafted, emitted, started, step, stream

from specviz.drafters.registry import METHODS
from specviz.errors import TraceError
from specviz.events import RunFinished
from specviz.metrics import fold
from specviz.trace import MAX_UPLOAD_BYTES, dump_trace, load_trace, parse_trace
from specviz.ui.access.host import EngineHost
from specviz.ui.charts import summarize
from specviz.ui.page import build_page, launch
from specviz.ui.settings import DEFAULTS
from specviz.ui.watch.share import _uploaded, steps_csv
from specviz.ui.wire.recorded import OPENING, load_gallery, open_upload, opening_run

MAX_FILE = 400_000
HOSTILE = "<img src=x onerror=alert(1)> ${1+1} \\u0041"


# --- gallery -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", load_gallery())
def test_a_run_of_the_gallery_is_real_whole_small_and_made_by_the_shown_command(name: str) -> None:
    run = load_gallery()[name]
    assert run.path.stat().st_size <= MAX_FILE
    trace = load_trace(run.path)
    assert (trace.damage, trace.is_whole) == ("", True)
    assert isinstance(trace.plain[-1], RunFinished)
    command = trace.started.command
    assert command.startswith("python -m specviz run ")
    assert run.prompt in shlex.split(command)
    for setting in shlex.join(run.flags).split(" --"):
        assert f"--{setting.removeprefix('--')}" in command
    assert trace.started.machine["processor"]


def test_the_page_opens_on_what_run_gives_on_an_untouched_page() -> None:
    assert next(iter(load_gallery())) == OPENING
    recording = opening_run()
    assert recording is not None
    assert recording.trace.started.method == DEFAULTS["method"]
    source = json.loads(recording.delta)["source"]
    assert source == {"gallery": OPENING, "title": load_gallery()[OPENING].title, "damage": ""}


# --- a visitor's file ----------------------------------------------------------------------------------------------


def write(folder: Path, data: str | bytes) -> Path:
    path = folder / "upload.jsonl"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_a_file_that_is_cut_off_opens_up_to_the_cut_and_says_so(tmp_path: Path) -> None:
    events = STREAMS["chain"]()
    recording = open_upload(write(tmp_path, dump_trace(events[:-1])))
    delta = json.loads(recording.delta)
    assert delta["source"]["gallery"] == ""
    assert "ends before the run does" in delta["source"]["damage"]
    assert isinstance(events[-1], RunFinished)
    assert delta["finish"]["text"] == events[-1].text
    assert "The recording ends here." in delta["status"]["text"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "no specviz trace"),
        (b"\x89PNG\r\n\x1a\n" * 40, "no specviz trace"),
        (b'{"type":"SpecvizTrace","schema_version":0}\n', "schema version 0"),
        (b'{"type":"SpecvizTrace","schema_version":1}\n', "holds no run"),
        (b" " * (MAX_UPLOAD_BYTES + 1), "at most 16 MB"),
    ],
    ids=["empty", "picture", "older", "no run", "large"],
)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, data: bytes, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        open_upload(write(tmp_path, data))


@pytest.mark.parametrize(
    "payload", [None, "x", [], {}, {"path": 1}, {"path": "/etc/passwd"}, {"path": "../../etc/passwd"}]
)
def test_only_an_upload_is_read(payload: Any) -> None:
    with pytest.raises(TraceError, match="No file arrived"):
        _uploaded(payload)


def test_each_opening_is_a_run_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, dump_trace(STREAMS["tree"]()))
    first, second = (json.loads(open_upload(path).delta)["run"] for _ in range(2))
    assert first != second


# --- tables and readings -------------------------------------------------------------------------------------------


def test_a_table_of_steps_runs_no_formula() -> None:
    events = stream(started("plain", draft=None), [step(1, [], [emitted(1, '=1+1,"x"', "target")], 7)])
    [row] = csv.DictReader(io.StringIO(steps_csv(events)))
    assert (row["index"], row["num_emitted"]) == ("1", "1")
    assert row["text"] == '\'=1+1,"x"'
    assert float(row["verify_s"]) > 0


def test_every_reading_comes_from_the_counters() -> None:
    c = fold(STREAMS["chain"]())
    assert c.accepted_per_pass == c.num_accepted / c.target_work
    assert c.mean_accepted == c.num_accepted / c.num_drafting_steps
    assert c.acceptance_length == 1 + c.mean_accepted
    assert c.rolling_acceptance_rate == c.acceptance_rate  # fewer steps than the window has
    assert c.s_per_step == c.decode_s / c.num_steps
    assert {"accepted_per_pass", "mean_accepted", "s_per_step"} <= c.to_json().keys()


def test_the_figure_of_places_holds_both_readings() -> None:
    tokens = [drafted(1, "a", -1, "accepted"), drafted(2, "b", 0, "rejected"), drafted(3, "c", 1, "discarded")]
    steps = [step(i, tokens, [emitted(1, "a", "accepted"), emitted(9, "x", "corrected")], 8 + i) for i in (1, 2)]
    refused = [drafted(4, "d", -1, "rejected"), drafted(5, "e", 0, "discarded")]
    figure = summarize(
        stream(started("draft-model"), [*steps, step(3, refused, [emitted(9, "x", "corrected")], 12)])
    ).places
    shown = {trace.meta: list(trace.y) for trace in figure.data if trace.type == "bar"}
    assert shown == {"conditional": [2 / 3, 0], "unconditional": [2 / 3, 0]}
    assert [list(trace.customdata[1]) for trace in figure.data if trace.type == "bar"] == [[0, 2], [0, 3]]
    assert [trace.visible for trace in figure.data] == [True, True, False, False]


def test_a_newcomer_sees_at_most_two_settings_of_a_method() -> None:
    for method in METHODS.values():
        assert sum(option.essential for option in method.options) <= 2


# --- in Chromium ---------------------------------------------------------------------------------------------------

TITLE = "document.querySelector('#view .origin .fact')?.textContent"
PROBLEM = "document.querySelector('#view .page > .problem').textContent"
UPLOAD = ".extras input[type=file]"


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The page around an engine that never loads anything."""
    tiny = loaded_pair(tiny_llama(), object()).pair
    host = EngineHost({"tiny": replace(tiny, title="Tiny")}, problem=lambda *_: None)
    demo = build_page(host)
    _, url, _ = launch(demo, prevent_thread_lock=True, server_name="127.0.0.1")
    try:
        yield url
    finally:
        demo.close()


@contextmanager
def opened(url: str, **context: Any) -> Iterator[Any]:
    """A page that shows a recorded run whole; afterwards: no error on the console, no request to elsewhere."""
    context = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | context
    with open_page(url, **context) as watched:
        watched.page.wait_for_selector("#view .strip .st", state="attached", timeout=30_000)
        yield watched.page
        assert watched.errors == []
        assert watched.outside == []


def text_of(path: Path) -> str:
    end = load_trace(path).events[-1]
    assert isinstance(end, RunFinished)
    return end.text


def shown_text(page: Any) -> Any:
    return page.evaluate("document.querySelector('#view .answer').textContent")


@pytest.mark.browser
def test_a_visitors_trace_is_shown_and_what_is_none_is_refused_in_a_sentence(site: str, tmp_path: Path) -> None:
    """Case 75: nothing in a file becomes markup. The run that was there stays where a file cannot be read."""
    events = STREAMS["hostile"]()
    events[0] = replace(events[0], method=HOSTILE, pair=HOSTILE, machine={"processor": HOSTILE, "threads": 2})  # type: ignore[type-var]
    good = write(tmp_path, dump_trace(events))
    with opened(site) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.set_input_files(UPLOAD, good)
        page.wait_for_function("document.querySelector('#view .badge').textContent === 'Opened trace'")
        assert page.inner_text("#view .origin").count(HOSTILE) == 3
        assert shown_text(page) == text_of(good)
        assert page.locator("#view img, #after img").count() == 0
        page.wait_for_function("document.querySelectorAll('#after .js-plotly-plot').length === 3")
        count = page.locator("#view .strip .tk").count()

        (tmp_path / "bad.jsonl").write_text('{"type":"SpecvizTrace","schema_version":99}\n')
        page.set_input_files(UPLOAD, tmp_path / "bad.jsonl")
        page.wait_for_function(f"{PROBLEM}.includes('schema version 99')")
        (tmp_path / "large.jsonl").write_bytes(b" " * (MAX_UPLOAD_BYTES + 1))
        page.set_input_files(UPLOAD, tmp_path / "large.jsonl")
        page.wait_for_function(f"{PROBLEM}.includes('At most 9 MB')")
        assert page.locator("#view .strip .tk").count() == count
        page.click("#tab-inspect-button")
        assert page.is_visible("#open")


@pytest.mark.browser
def test_the_gallery_is_chosen_by_key_kept_in_the_address_and_taken_away(site: str, tmp_path: Path) -> None:
    run = [run for run in load_gallery().values() if run.path.is_file()][1]
    with opened(site) as page:
        assert "trace=" not in page.url
        page.focus("#gallery input")
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        page.wait_for_function(f"{TITLE} === {json.dumps(run.title)}")
        assert f"trace={run.name}" in page.url
        assert shown_text(page) == text_of(run.path)
        with page.expect_download() as download:
            page.click("#save")
        assert parse_trace(download.value.path().read_bytes()) == load_trace(run.path)
        with page.expect_download() as download:
            page.click("#csv")
        rows = list(csv.DictReader(io.StringIO(download.value.path().read_text(encoding="utf-8"))))
        assert len(rows) == fold(load_trace(run.path).events).num_steps
        with page.expect_download() as download:
            page.click("#save-page")
        assert download.value.suggested_filename.endswith(".html")
        download.value.save_as(tmp_path / "run.html")
    with opened((tmp_path / "run.html").as_uri()) as page:
        assert shown_text(page) == text_of(run.path)


@pytest.mark.browser
def test_a_link_opens_a_run_of_the_gallery_and_says_what_is_none(site: str) -> None:
    run = list(load_gallery().values())[-1]
    with opened(f"{site}?trace={run.name}") as page:
        page.wait_for_function(f"{TITLE} === {json.dumps(run.title)}")
        page.wait_for_selector("#view .headline:visible")
        assert shown_text(page) == text_of(run.path)
    with opened(f"{site}?trace=%3Cb%3Enope") as page:
        page.wait_for_function(f"{PROBLEM}.includes('<b>nope')")
        assert page.is_visible("#view .headline")


@pytest.mark.browser
def test_an_embedded_page_is_the_run_alone(site: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with opened(f"{site}?embed=1&trace={OPENING}", viewport={"width": 960, "height": 540}) as page:
        for part in (".headline", ".strip", ".mapbox", ".chart.speed", ".badge"):
            assert page.is_visible(f"#view {part}"), part
        for part in ("#masthead", "#tabs", ".toolbar", ".sidebar", "#after", "footer", "#view .kpis", "#view .card"):
            assert not page.locator(part).first.is_visible(), part
        assert page.evaluate("document.querySelector('#view').getBoundingClientRect().left") < 40
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
        assert [(v["id"], [node["html"][:160] for node in v["nodes"]][:3]) for v in found] == []


@pytest.mark.browser
def test_slides_show_one_thing_at_a_time_and_follow_a_remote(site: str) -> None:
    """Issue 16: large type, next and back by the keys that a presenter's remote sends, a visible way out."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    parts = {
        "prompt": ".promptline", "text": ".strip", "step": ".tokens", "glance": ".mapbox", "charts": ".chart.speed",
        "result": ".headline",
    }  # fmt: skip
    with opened(f"{site}?present=1", viewport={"width": 1280, "height": 720}, reduced_motion="reduce") as page:
        page.wait_for_selector("#view .strip .st", state="attached")

        def shows(number: int, name: str) -> None:
            assert page.inner_text(".slide-name").startswith(f"{number} / 8 ")
            assert [one for one, part in parts.items() if page.is_visible(f"#view {part}")] == [name]
            for part in ("#masthead", "#tabs", ".toolbar", ".sidebar", "#after", "footer"):
                assert not page.locator(part).first.is_visible(), part
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

        shows(1, "prompt")
        order = ["text", "step", "step", "step", "glance", "charts", "result"]
        keys = ["ArrowRight", "PageDown", "Space", "ArrowRight", "PageDown", "Space", "PageDown"]
        for number, (name, key) in enumerate(zip(order, keys, strict=True), 2):
            page.keyboard.press(key)
            shows(number, name)
            if name == "text":
                letter = "parseFloat(getComputedStyle(document.querySelector('#view .strip')).fontSize)"
                assert page.evaluate(f"{letter} * document.querySelector('#view .panel').currentCSSZoom") > 26
                found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
                assert [(v["id"], [node["html"][:160] for node in v["nodes"]][:3]) for v in found] == []
            if number == 3:
                assert page.inner_text("#view .lead").startswith("The draft offers")
        page.keyboard.press("PageDown")
        shows(8, "result")
        for key in ("PageUp", "ArrowLeft", "Shift+Space"):
            page.keyboard.press(key)
        shows(5, "step")
        page.reload()
        page.wait_for_selector("#view .tokens tbody tr:visible")
        shows(5, "step")
        page.get_by_role("button", name="Back", exact=True).click()
        shows(4, "step")
        page.get_by_role("button", name="Leave").click()
        assert page.is_visible("#masthead") and page.is_visible("#view .strip") and "present" not in page.url
        assert page.locator("#view .strip .st").count() == len(opening_run().trace.events) - 3  # type: ignore[union-attr]


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_are_saved_with_their_colours_and_their_origin(site: str, theme: str) -> None:
    def saved(page: Any, name: str, form: str) -> bytes:
        button = page.locator(f'[data-save="{name}:{form}"]').first
        button.focus()
        with page.expect_download(timeout=20_000) as download:
            page.keyboard.press("Enter")
        assert download.value.suggested_filename.endswith(f".{form}")
        return bytes(download.value.path().read_bytes())

    with opened(f"{site}?__theme={theme}", color_scheme=theme) as page:
        page.wait_for_function("document.querySelectorAll('#after .js-plotly-plot .main-svg').length >= 3")
        ground = page.evaluate("getComputedStyle(document.querySelector('.sv')).getPropertyValue('--sv-bg').trim()")
        for name in ("text", "map", "acceptance", "speed", "kept", "plot"):
            root = ET.fromstring(saved(page, name, "svg"))
            assert root.find("{*}rect").get("fill") == ground  # type: ignore[union-attr]
            words = " ".join(node.text or "" for node in root.findall(".//{*}text"))
            assert "specviz · recorded run · smollm2-135m" in words
            if name == "text":
                answer = shown_text(page)
                assert all(word in words for word in re.findall(r"\w{4,}", answer))
        assert saved(page, "text", "png").startswith(b"\x89PNG")
        assert saved(page, "plot", "png").startswith(b"\x89PNG")


@pytest.mark.browser
def test_every_number_is_explained_and_readings_switch(site: str) -> None:
    with opened(site) as page:
        page.wait_for_function("document.querySelectorAll('#after .js-plotly-plot').length === 3")
        page.focus("#view .strip")
        page.keyboard.press("End")
        terms = page.locator("#view [data-define]:visible, #after [data-define]:visible")
        assert terms.count() > 16
        for i in range(terms.count()):
            terms.nth(i).focus()
            assert page.is_visible("#view .tip.defn"), terms.nth(i).inner_text()
            assert page.inner_text("#view .tip h4")
            assert terms.nth(i).get_attribute("aria-describedby") == "sv-tip"
            assert "undefined" not in page.inner_text("#view .tip")
            assert "NaN" not in page.inner_text("#view .tip")
        page.keyboard.press("Escape")
        assert not page.is_visible("#view .tip")

        recording = opening_run()
        assert recording is not None
        counters = fold(recording.trace.events)
        page.click("[data-choose='pass:out']")
        assert f"{counters.accepted_per_pass:.2f}" in page.inner_text("#view .kpis")
        assert "Kept drafts per pass" in page.inner_text("#view .kpis")
        page.click("[data-choose='acceptance:drafted']")
        assert f"{counters.acceptance_rate:.3f} so far" in page.inner_text("#view .chart.acceptance")
        page.click("[data-choose='step:in']")
        assert "Tokens per step" in page.inner_text("#view .chart.kept")
        page.click("[data-choose='places:unconditional']")
        shown = (
            "document.querySelector('#after .places .js-plotly-plot').data.filter((t) => t.visible).map((t) => t.meta)"
        )
        page.wait_for_function(f"new Set({shown}).has('unconditional') && new Set({shown}).size === 1")


@pytest.mark.browser
def test_on_a_phone_run_stays_in_reach_and_the_panel_is_short(site: str) -> None:
    with opened(site, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as page:
        page.wait_for_function("document.querySelector('.sidebar').getBoundingClientRect().right <= 1")
        page.tap("#settings")
        page.wait_for_function("document.querySelector('.sidebar').getBoundingClientRect().left === 0")
        page.wait_for_function(
            """() => { const box = document.querySelector('#run').getBoundingClientRect();
            return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)?.closest('#run') }"""
        )
        fields = ("prompt", "pair", "method", "gamma", "temperature", "max-new-tokens", "measure")
        assert all(page.locator(f"#{name}").is_visible() for name in fields)
        assert not page.locator("[id^=own-]:visible").count()
