"""The tab "Methods": each step drawn as its method sees it, from what drafters tell in their notes (cases 75, 86)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import gradio as gr
import pytest
import torch
from browser import ChromiumPage, open_page, serve_view
from checks import noisy, wild_llama
from fakes import byte_tokenizer, config, generator
from streams import METHOD_STREAMS, STREAMS, drafted, emitted, started, step, stream

from specviz.detokenize import token_names
from specviz.drafters.base import DraftContext, Outcome
from specviz.drafters.lookahead import LookaheadDrafter
from specviz.drafters.registry import METHODS
from specviz.events import DraftNote, Event, StepDone, event_to_json
from specviz.proposal import Verdict
from specviz.ui.view import make_view
from specviz.ui.wire.stream import recorded_delta

RUNS: dict[str, Callable[[], list[Event]]] = {**STREAMS, **METHOD_STREAMS}
NOTE_BYTES = 800
"""What a note may add to a step on the wire at a method's own default settings."""

READ_BY_THE_PAGE = {
    "copied": {"source_start", "match_len"},
    "table": {"match_lens", "counts", "totals"},
    "tree": {"levels"},
    "suffix": {"match_len", "source", "counts", "totals", "expected", "asked", "stop", "doubted", "least"},
    "layers": {"exit_layer", "num_layers"},
    "model": set(),
}


# --- notes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Any:
    model = wild_llama(1, layers=3)
    return generator(model, noisy(model, 0.03))


@pytest.mark.parametrize("method", METHODS)
def test_notes_are_small_and_hold_what_the_page_draws(engine, method):
    """The hand-made streams show the same kinds and keys, so what is tested on them holds for real runs."""
    prompt = list(b"the cat sat on the mat, the cat sat on the mat, the cat")
    events = list(engine.stream(prompt, config(method, gamma=4, max_new_tokens=24)))
    notes = [event.note for event in events if isinstance(event, StepDone) and event.note]
    assert bool(notes) == (method != "plain")
    like = [event.note for make in RUNS.values() for event in make() if isinstance(event, StepDone) and event.note]
    for note in notes:
        assert len(json.dumps(event_to_json(step(1, [], [], 1, note=note))["note"])) < NOTE_BYTES
        if not note.data:
            continue
        own = set(note.data) - {"from", "passed"}
        assert own >= READ_BY_THE_PAGE.get(note.kind, set()), note
        if note.kind != "cascade":
            assert any(own == set(made.data) - {"from", "passed"} for made in like if made.kind == note.kind), own


def test_lookahead_names_its_window_and_what_the_target_answered():
    names = {5: "five", 6: "six", 7: "seven", 50: "fifty", 60: "sixty"}
    drafter = LookaheadDrafter(
        window=2, ngram=3, guesses=2, pool="text", max_new_tokens=20, name_of=lambda token: names.get(token, "?")
    )
    drafter.reset([5, 6, 7])
    proposal = drafter.propose(DraftContext([5, 6, 7], config().sampling), 4, torch.Generator())
    window = proposal.note.data["window"]
    assert proposal.note.data["window_texts"] == [[names[token] for token in row] for row in window]
    assert window[0][0] == 7, "the last committed token heads the window"
    scored = sum(proposal.is_scored_only(node) for node in range(len(proposal)))
    logits = torch.zeros(scored, 100)
    logits[0, 50] = logits[2, 60] = 1.0  # the ends of both columns
    drafter.observe(Outcome(proposal, Verdict((), 9, "target"), (), (9,), logits))
    assert proposal.note.data["answers"] == ["fifty", "sixty"]


def test_token_names_are_texts_or_labels():
    name = token_names(byte_tokenizer())
    assert [name(token) for token in (byte_tokenizer().encode("a")[0], 258, 999)] == ["a", "<|im_end|>", "id 999"]
    half = byte_tokenizer().encode("é", add_special_tokens=False)[0]
    assert name(half) == name(half) == "C3"


# --- the page ---------------------------------------------------------------------------------------------------------

NASTY = ("<img src=x onerror=alert(1)>", "${1+1}", "\n", "", "שלום", "</script><b>", "{{value}}", "مرحبا", "   ")


def nasty_everywhere() -> list[Event]:
    """Every drawing with texts that could be mistaken for markup, in one run."""
    kinds = [event for make in RUNS.values() for event in make() if isinstance(event, StepDone) and event.note]
    turn = count()
    text = lambda: NASTY[next(turn) % len(NASTY)]  # noqa: E731
    steps = []
    for index, real in enumerate(kinds, start=1):
        note = real.note
        assert note is not None
        data = dict(note.data)
        if "window_texts" in data:
            data |= {"window_texts": [[text() for _ in row] for row in data["window_texts"]], "answers": [text()]}
        if data.get("from"):
            data["from"] = "<b>${x}"
        if data.get("passed"):
            data["passed"] = [[text(), 1, 2]]
        steps.append(
            replace(
                real,
                index=index,
                drafted=tuple(replace(token, text=text(), label="") for token in real.drafted),
                emitted=tuple(replace(token, text=text(), label="") for token in real.emitted),
                note=DraftNote(note.kind, "<b>${x}</b>", data),
            )
        )
    return stream(started("<i>${x}", prompt_texts=NASTY, prompt_ids=tuple(range(len(NASTY)))), steps)


BROKEN: tuple[Any, ...] = (
    {},
    {"source_start": -1, "match_len": 2},
    {"source_start": 10**9, "match_len": "2"},
    {"source_start": 1, "match_len": 3},
    {"match_lens": [1], "counts": [1], "totals": "x"},
    {"match_lens": [10**12], "counts": [3], "totals": [0]},
    {"match_len": 2, "source": "run", "counts": [3, 1, 1], "totals": [0, 1, 1], "asked": [["<b>", 10**9, "x"], 7]},
    {"match_len": 2, "source": "run", "counts": [3, 1, 1], "totals": [4, 1, 1], "stop": "doubt", "doubted": [{}, "x"]},
    {"window_texts": [["a"], ["b", "c"]], "guesses": {"a": 1}},
    {"window_texts": [[1, 2]], "num_start": None},
    {"window_texts": [], "guesses": [None, [[]], "ab"], "answers": 3, "pool_size": "<b>"},
    {"window_texts": [["a"] * 30] * 30},
    {"num_start": 10**9},
    {"exit_layer": 5, "num_layers": 5},
    {"exit_layer": 1.5, "num_layers": None},
    {"levels": None, "taps": ["<b>"], "num_heads": "x", "trained": 1},
    {"from": 7, "passed": [[1], None, ["a", "b", "c"]]},
)


def broken() -> list[Event]:
    """A file that somebody wrote by hand: every kind of note with data of no use, whatever it holds."""
    steps = []
    for kind in (
        "copied",
        "table",
        "suffix",
        "lookahead",
        "layers",
        "tree",
        "model",
        "cascade",
        "constructor",
        "__proto__",
    ):
        for data in BROKEN:
            index = len(steps) + 1
            tokens = [drafted(1, "a", -1, "accepted"), drafted(2, "b", 0, "rejected"), drafted(3, "c", 1, "discarded")]
            out = [emitted(1, "a", "accepted"), emitted(4, "d", "corrected")]
            steps.append(step(index, tokens, out, 7, note=DraftNote(kind, "", data)))
    return stream(started("__proto__"), steps)


def wide() -> list[Event]:
    """A tree that no phone is wide enough for, with more nodes than are drawn."""
    tokens = [drafted(i, f" candidate{i}", i - 1 if i < 15 else -1, "discarded") for i in range(100)]
    return stream(started("medusa"), [step(1, tokens, [emitted(1, " own", "corrected")], 7, note=DraftNote("tree"))])


SCENARIOS = {**RUNS, "nasty": nasty_everywhere, "broken": broken, "wide": wide}
REDUCED: dict[str, Any] = {"reduced_motion": "reduce"}  # recorded runs stand at once


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with gr.Blocks(title="test") as demo:
        view = make_view()
        presses = count()
        for name, make in SCENARIOS.items():
            send = partial(lambda make: recorded_delta(make(), None, f"run-{next(presses)}"), make)
            gr.Button(name, elem_id=f"go-{name}").click(send, None, view, show_progress="hidden")
    with serve_view(demo) as address:
        yield address


def enter(chromium: ChromiumPage) -> None:
    chromium.page.wait_for_selector("#view .kpis .term")
    chromium.page.wait_for_selector("#go-wide", state="attached")
    chromium.page.evaluate("window.dispatchEvent(new CustomEvent('specviz:tab', { detail: 'methods' }))")


@pytest.fixture(scope="module")
def opened(url: str) -> Iterator[ChromiumPage]:
    with open_page(url, viewport={"width": 1280, "height": 900}, **REDUCED) as chromium:
        enter(chromium)
        yield chromium


@pytest.fixture
def chromium(opened: ChromiumPage) -> Iterator[ChromiumPage]:
    yield opened
    assert opened.errors == opened.outside == []


def show(chromium: ChromiumPage, name: str, number: int | None = None) -> Any:
    """The panel with this run, and with this step of it chosen."""
    page = chromium.page
    page.evaluate("document.querySelector('#view .strip').append(document.createElement('hr'))")  # till the run begins
    page.evaluate("name => document.getElementById('go-' + name).click()", name)
    page.wait_for_selector("#view .strip hr", state="detached")
    if number is not None:
        page.locator("#view .pick button").locator("visible=true").first.focus()
        choose(page, number)
    return page.locator("#view .panel[data-panel=methods]")


def choose(page: Any, number: int) -> None:
    page.evaluate(
        """number => {
          const press = key => document.querySelector('#view .pick').dispatchEvent(
            new KeyboardEvent('keydown', { key, bubbles: true }));
          press('Home');
          for (let i = 1; i < number; i++) press('ArrowRight');
        }""",
        number,
    )
    place = "document.querySelector('#view .panel[data-panel=methods] .place').textContent"
    page.wait_for_function(f"{place}.startsWith('Step {number} ')")  # it is drawn in the next frame


def each_step(panel: Any) -> Iterator[int]:
    """The numbers of all steps, each chosen when its turn comes; the first one is chosen already."""
    number = 1
    yield number
    while panel.locator(".next").is_enabled():
        panel.locator(".next").click()
        number += 1
        yield number


def marks(scope: Any) -> list[str]:
    """Fates of the words in a part of the page, by the letters of their classes."""
    return [one.split()[1] for one in scope.locator(".mw").evaluate_all("nodes => nodes.map(node => node.className)")]


@pytest.mark.browser
def test_before_any_run_it_says_so_and_lists_all_methods(url: str) -> None:
    with open_page(url, **REDUCED) as chromium:
        enter(chromium)
        panel = chromium.page.locator("#view .panel[data-panel=methods]")
        assert panel.locator(".found").inner_text() == "No run yet"
        assert panel.locator(".method").is_hidden() and panel.locator(".pick").is_hidden()
        ways = panel.locator(".ways dl > div:not([hidden])")
        assert ways.locator("dt").all_inner_texts() == [way.title for way in METHODS.values()]
        assert ways.locator("dd").all_inner_texts() == [way.summary for way in METHODS.values()]
        assert chromium.errors == []


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "number", "found", "fates"),
    [
        ("copied", 1, "Three tokens copied from the prompt: two kept, one refused.", "aarc"),
        ("copied", 4, "Two tokens copied from its own answer: one kept, one refused.", "arc"),
        ("copied", 2, "No draft in this step: the target wrote one token alone.", "t"),
        ("table", 1, "After “blue?” the corpus went on with “The” 34 of 51 times. Three tokens looked up: two kept, "
                     "one refused.", "aarc"),
        ("lookahead", 1, "Nothing in the pool follows “?”: no draft. The window guesses on meanwhile.", "t"),
        ("lookahead", 2, "The pool knew two phrases that followed “red”: two kept, two not tested.", "aaddb"),
        ("jacobi", 2, "Two places guessed at once: one kept, one refused. The last is a mere start value.", "arac"),
        ("tree", 1, "Six candidates in a tree, all checked in one pass: the path “air” was kept.", "raddrrc"),
        ("tree", 2, "Two guesses in a row: both kept.", "aab"),
        ("feature", 1, "Three candidates in a tree, all checked in one pass: the path “The sky” was kept.", "adab"),
        ("early-exit", 1, "The first 2 of 4 layers guessed two tokens: one kept, one refused.", "arc"),
        ("chain", 1, "The draft wrote “The sky appears blue”: two kept, one refused, one not tested. The two hardly "
                     "differ here.", "aardc"),
        ("chain", 4, "The draft wrote “.<|end|>”: both kept. The two differ most at “.”: 0.90 against 0.40.", "aa"),
        ("cascade", 2, "One token copied from the prompt: kept.", "ab"),
        ("cascade", 3, "No draft in this step: the target wrote one token alone.", "t"),
        ("plain", 3, "One pass of the whole target, one token: “is”.", "ttt"),
        ("attached", 1, "Two tokens came at once, so all but the last were drafted.", "at"),
    ],
)  # fmt: skip
def test_each_kind_of_step_has_its_drawing(chromium, name, number, found, fates):
    """The sentence says what the marks show, and is the picture's label as well."""
    panel = show(chromium, name, number)
    assert panel.locator(".found").inner_text().translate({0x2068: None, 0x2069: None}) == found
    drawing = panel.locator(".drawing")
    assert marks(drawing) == list(fates)
    label = drawing.locator("[role=img]").first.get_attribute("aria-label").translate({0x2068: None, 0x2069: None})
    assert label.startswith(f"{found} Step {number}.")
    assert f"Step {number} of" in panel.locator(".place").inner_text()


@pytest.mark.browser
def test_the_copied_span_stands_over_its_copy(chromium):
    panel = show(chromium, "copied", 1)
    middles = """nodes => nodes.map(node => {
      const { left, right } = node.getBoundingClientRect();
      return [node.innerText, (left + right) / 2];
    })"""
    sources = panel.locator(".lanes .source").evaluate_all(middles)
    drafts = panel.locator(".lanes .draft").evaluate_all(middles)
    assert [text for text, _ in sources] == ["the", "mill", "."]
    assert [text for text, _ in drafts] == ["the", "mill", "."]
    assert [x for _, x in sources] == pytest.approx([x for _, x in drafts], abs=1)
    assert panel.locator(".lanes .match").all_inner_texts() == ["runs", "runs", "past", "past"]
    assert panel.locator(".copymap .arc").count() == 1
    assert panel.locator(".badge").inner_text() == "exact"
    assert panel.locator(".summary").inner_text() == METHODS["prompt-lookup"].summary


@pytest.mark.browser
def test_the_table_tells_contexts_and_counts(chromium):
    rows = show(chromium, "table", 1).locator(".table li")
    assert rows.locator(".context").all_inner_texts() == ["after blue?", "after blue? The", "after sky"]
    assert rows.locator(".count").all_inner_texts() == ["34 of 51 times", "5 of 5 times", "1 of 8 times"]
    width = rows.locator(".bar i").first.evaluate("node => node.clientWidth / node.parentNode.clientWidth")
    assert width == pytest.approx(34 / 51, abs=0.02)


@pytest.mark.browser
def test_window_and_pool_are_apart(chromium):
    panel = show(chromium, "lookahead", 2)
    assert panel.locator(".stair .guess").all_inner_texts() == ["red", "e", "and", "e", "f", "light", "f", "g", "sky"]
    assert panel.locator(".stair .answer").all_inner_texts() == ["and", "light", "sky"]
    assert panel.locator(".pool li small").all_inner_texts() == ["both kept", "both not tested"]
    assert "9 phrases in the pool" in panel.inner_text()


@pytest.mark.browser
def test_wires_join_parents_and_children(chromium):
    """Seven curves; the kept one ends where its word stands."""
    panel = show(chromium, "tree", 1)
    assert panel.locator(".wire").count() == 7
    assert panel.locator(".level").all_inner_texts() == ["head 1", "head 2"]
    end = panel.locator(".wire.a").evaluate(
        """path => {
          const frame = path.getScreenCTM(), tip = path.getPointAtLength(path.getTotalLength());
          return [frame.e + tip.x, frame.f + tip.y];
        }"""
    )
    box = panel.locator(".node.a").bounding_box()
    assert end == pytest.approx([box["x"] - 4, box["y"] + box["height"] / 2], abs=2)


@pytest.mark.browser
def test_early_exit_areas_are_its_layers(chromium):
    panel = show(chromium, "early-exit", 1)
    heights = panel.locator(".block").evaluate_all("nodes => nodes.map(node => node.clientHeight)")
    assert len(heights) == 4, "two guesses, the last one's first layers at the check, and the check"
    assert heights[0] < heights[-1] <= heights[0] + 4, "two layers of four each"
    assert "2.00 full passes" in panel.inner_text()


@pytest.mark.browser
def test_q_against_p(chromium):
    panel = show(chromium, "chain", 1)
    bar = panel.locator(".model li").nth(0).locator(".bar i")
    parts = bar.evaluate_all("nodes => nodes.map(node => [node.className, node.style.width])")
    assert [name for name, _ in parts] == ["both", "more"]
    assert [float(width[:-1]) for _, width in parts] == pytest.approx([40, 10])
    assert panel.locator(".model .count").all_inner_texts()[3] == "draft 0.50 · target not asked"
    assert panel.locator(".model .shared").all_inner_texts()[:3] == ["shared 0.70"] * 3


@pytest.mark.browser
def test_a_cascade_tells_who_was_asked(chromium):
    panel = show(chromium, "cascade", 1)
    told = lambda: panel.locator(".asked li").all_inner_texts()  # noqa: E731
    expected = "0.5\xa0tokens expected, 1.2\xa0tokens needed"
    assert told() == [f"N-gram table\n{expected}", "Suffix decoding\nin the same tree", "Feature head\ndrafted"]
    assert "after layers 1, 2 and the last" in panel.inner_text()
    choose(chromium.page, 2)
    assert told() == ["Prompt lookup\ndrafted"]
    choose(chromium.page, 3)
    assert told() == ["Prompt lookup\nnothing to offer", "Feature head\nnothing to offer"]


@pytest.mark.browser
def test_steps_without_a_draft_say_why(chromium):
    assert "Why: the last token has not occurred before." in show(chromium, "copied", 2).inner_text()
    assert "Why: no draft was asked for in this step." in show(chromium, "chain", 3).inner_text()
    assert "It does not report" in show(chromium, "attached", 2).inner_text()


@pytest.mark.browser
def test_steps_are_picked_by_button_and_key_and_kept_in_the_address(chromium):
    panel = show(chromium, "chain")
    page = chromium.page
    assert panel.locator(".place").inner_text().split("\n") == ["Step 1 of 4", "as an example"]
    panel.get_by_role("button", name="Next").click()
    assert panel.locator(".place").inner_text() == "Step 2 of 4"
    assert "step=2" in page.url
    assert page.locator("#view .st.sel").get_attribute("id") == "sv-step-2"
    page.keyboard.press("End")
    assert panel.locator(".place").inner_text() == "Step 4 of 4"
    assert panel.get_by_role("button", name="Next").is_disabled()
    panel.get_by_role("button", name="Previous").focus()
    page.keyboard.press("ArrowLeft")
    assert "step=3" in page.url
    page.keyboard.press("Home")
    assert panel.get_by_role("button", name="Previous").is_disabled()
    assert "step=1" in page.url


@pytest.mark.browser
def test_case_86_texts_are_texts_in_every_drawing(chromium):
    panel = show(chromium, "nasty", 1)
    assert panel.locator(".title").inner_text() == "<i>${x}"
    names = set()
    for _ in each_step(panel):
        assert panel.locator(".drawing [role=img]").count() == 1
        assert panel.locator(".drawing img, .drawing b, .drawing script, .asked b b").count() == 0
        names.update(text for text in NASTY if text.strip() and text in panel.locator(".drawing").inner_text())
    assert names == {text for text in NASTY if text.strip()}


@pytest.mark.browser
def test_notes_of_no_use_still_give_a_drawing(chromium):
    """What a note does not tell is left out: the draft is drawn as the tokens hang together."""
    panel = show(chromium, "broken", 1)
    steps = panel.evaluate(
        """panel => {
          const next = panel.querySelector('.next');
          const seen = () => [panel.querySelector('.found').innerText, panel.querySelectorAll('.drawing .mw').length];
          const steps = [seen()];
          while (!next.disabled) { next.click(); steps.push(seen()); }
          return steps;
        }"""
    )
    assert len(steps) == len(broken()) - 3, "header, prompt and end are no steps"
    assert [number for number, (found, words) in enumerate(steps, 1) if not found or words < 2] == []


@pytest.mark.browser
def test_phone_scrolls_only_the_drawing(url: str) -> None:
    size = {"width": 390, "height": 844}
    with open_page(url, viewport=size, has_touch=True, is_mobile=True, **REDUCED) as chromium:
        enter(chromium)
        page = chromium.page
        for name in SCENARIOS:
            panel = show(chromium, name, 1)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        scroller = panel.locator(".scroller")
        assert "The first 80 of 100 candidates are drawn." in panel.inner_text()
        scroller.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.querySelector('#view .scroller').scrollLeft > 0")
        assert panel.locator(".pick button").first.bounding_box()["height"] >= 44
        panel = show(chromium, "copied", 1)
        source, draft = (panel.locator(f".lanes .{lane}").first.bounding_box() for lane in ("source", "draft"))
        assert draft["x"] > source["x"] and draft["y"] == pytest.approx(source["y"], abs=3)
        assert chromium.errors == []


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(url: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with open_page(f"{url}?__theme={theme}", viewport={"width": 500, "height": 900}, **REDUCED) as chromium:
        enter(chromium)
        for name in ("copied", "lookahead", "chain", "cascade", "early-exit", "attached", "wide"):
            show(chromium, name, 1)
            options = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"]}
            found = axe.Axe().run(chromium.page, context="#view", options=options)
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found.response["violations"]] == []
        assert chromium.errors == []
