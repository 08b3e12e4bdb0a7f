"""The Watch view in Chromium: what the page shows is what the events say (cases 75, 77, 79, 84, 86)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise

import gradio as gr
import pytest
from browser import ChromiumPage, open_page, serve_view
from streams import STREAMS, drafted, emitted, started, step, stream

from specviz.events import DraftedToken, Event, PrefillDone, StepDone
from specviz.metrics import Baseline, fold
from specviz.ui.theme import COLOURS
from specviz.ui.view import VIEW_CSS, make_view
from specviz.ui.wire.stream import DeltaEncoder, coalesce, recorded_delta

pytestmark = pytest.mark.browser

NUM_LONG = 200  # steps of three tokens
GREEDY = {"gamma": 4, "temperature": 0.0}
FINISHED = "document.querySelector('#view .status').textContent.startsWith('Finished')"
LONG_LOG: list[tuple[float, int]] = []  # when each delta of the long run left, and its size


def joined(events: list[Event]) -> str:
    return "".join(
        token.text for event in events if isinstance(event, PrefillDone | StepDone) for token in event.emitted
    )


def whitespace() -> list[Event]:
    """Case 75's tokens, each refused once and written once."""
    texts = ["a", " ", "\n", "\t", "   ", "word ", "", " b", "\n\n", "\u00a0", "\u200b", "\u202e", "end"]
    steps = [step(i + 1, [], [emitted(100 + i, text, "target")], 7 + i) for i, text in enumerate(texts)]
    return stream(started("plain", draft=None), steps)


def greedy() -> list[Event]:
    known: dict[str, object] = {"accept_prob": None, "coin": None}
    one = step(
        1,
        [drafted(11, "The", -1, "accepted", **known), drafted(21, " fog", 0, "rejected", **known)],
        [emitted(11, "The", "accepted"), emitted(12, " sky", "corrected")],
        8,
    )
    return stream(started("draft-model", settings=GREEDY), [one])


def refused_everywhere() -> list[Event]:
    """Issue 16: one refusal after another inside words, with drafts behind them that were never tested."""
    texts = [
        "G",
        "rim",
        "bold",
        "'s",
        " eyes",
        " sh",
        "one",
        " .",
        " b",
        "right",
        "ly",
        " in",
        " the",
        " d",
        "ark",
        "ness",
    ]
    steps = [
        step(
            i + 1,
            [
                drafted(21, " extraordinary", -1, "rejected"),
                *(drafted(22 + k, " no", k, "discarded") for k in range(i % 4)),
            ],
            [emitted(100 + i, text, "corrected")],
            7 + i,
        )
        for i, text in enumerate(texts * 4)
    ]
    return stream(started("draft-model"), steps)


def long_run(name: str = "long", verify_s: float = 0.009) -> list[Event]:
    """600 tokens in 200 steps, every second one ended by a refusal."""
    steps = []
    for i in range(1, NUM_LONG + 1):
        words = [f" w{i}", f" x{i}"]
        drafts: list[DraftedToken] = [drafted(1, words[0], -1, "accepted"), drafted(2, words[1], 0, "accepted")]
        last = emitted(3, f" bonus{i}", "bonus")
        if i % 2:
            drafts += [drafted(4, " no", 1, "rejected"), drafted(5, " never", 2, "discarded")]
            last = emitted(3, f" own{i}", "corrected")
        out = [emitted(1, words[0], "accepted"), emitted(2, words[1], "accepted"), last]
        steps.append(step(i, drafts, out, 6 + 3 * i, draft_s=0.005, verify_s=verify_s))
    return stream(started("draft-model", run_id=name), steps)


def live(name: str, events: list[Event]) -> Iterator[str]:
    encoder = DeltaEncoder(name)
    yield encoder.status("Loading the model: 61 of 93 MB", 0.66)
    yield from coalesce(encoder, iter(events))


def timed_long() -> Iterator[str]:
    def paced() -> Iterator[Event]:
        for event in long_run():
            time.sleep(0.015)  # 200 tokens a second
            yield event

    LONG_LOG.clear()
    for delta in coalesce(DeltaEncoder("long"), paced()):
        LONG_LOG.append((time.perf_counter(), len(delta)))
        yield delta
    LONG_LOG.append((time.perf_counter(), 0))


def with_gap() -> Iterator[str]:
    deltas = list(live("gap", STREAMS["chain"]()))
    yield from [deltas[0], *deltas[2:]]


def twice() -> Iterator[str]:
    for delta in live("twice", STREAMS["chain"]()):
        yield delta
        yield delta + " "  # the same delta, but another value, so that Gradio passes it on


def judged(name: str, plain_s: float) -> Iterator[str]:
    encoder = DeltaEncoder(name)
    events = STREAMS["chain"]()
    yield from coalesce(encoder, iter(events))
    yield encoder.encode_plain(Baseline(num_tokens=9, decode_s=plain_s))


def failing() -> Iterator[str]:
    encoder = DeltaEncoder("failing")
    yield encoder.status("Loading")
    yield encoder.error('These models share no vocabulary. The draft reads token 3 as "<b>", the target as "${x}".')


SCENARIOS: dict[str, Callable[[], Iterator[str]]] = {
    **{name: partial(lambda name, make: live(name, make()), name, make) for name, make in STREAMS.items()},
    "whitespace": lambda: live("whitespace", whitespace()),
    "greedy": lambda: live("greedy", greedy()),
    "refused": lambda: live("refused", refused_everywhere()),
    "long": timed_long,
    "gap": with_gap,
    "twice": twice,
    "faster": lambda: judged("faster", 5.0),
    "slower": lambda: judged("slower", 0.05),
    "failing": failing,
    "recorded": lambda: iter([recorded_delta(long_run("recorded", verify_s=0.1), Baseline(600, 90.0), "recorded")]),
}


def handler(make: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
    """As a generator function, which is what Gradio takes for a stream; every press is a run of its own."""
    presses = count()

    def play() -> Iterator[str]:
        press = next(presses)
        for delta in make():
            yield delta.replace('"run":"', f'"run":"{press}-', 1)

    return play


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with gr.Blocks(title="test") as demo:
        view = make_view(recorded_delta(STREAMS["hostile"](), Baseline(36, 2.0), "first"))
        for name, make in SCENARIOS.items():
            gr.Button(name, elem_id=f"go-{name}").click(handler(make), None, view, show_progress="hidden")
    with serve_view(demo) as address:
        yield address


def wait_for_app(chromium: ChromiumPage) -> None:
    chromium.page.wait_for_selector("#view .kpis .term")
    chromium.page.wait_for_selector("#go-recorded", state="attached")


@pytest.fixture(scope="module")
def opened(url: str) -> Iterator[ChromiumPage]:
    with open_page(url, viewport={"width": 1280, "height": 1000}) as chromium:
        wait_for_app(chromium)
        yield chromium


@pytest.fixture
def chromium(opened: ChromiumPage) -> Iterator[ChromiumPage]:
    """The shared page; whatever a test does, it logs no error and asks no other machine for anything."""
    opened.messages.clear()
    opened.page.keyboard.press("Escape")
    opened.page.mouse.move(1, 1)
    yield opened
    assert opened.errors == []
    assert opened.outside == []


def play(chromium: ChromiumPage, name: str, ready: str = FINISHED) -> None:
    """Press the scenario's button and wait until the page says that it is there."""
    page = chromium.page
    page.evaluate("document.querySelector('#view .status').textContent = ''")
    page.evaluate("name => document.getElementById('go-' + name).click()", name)
    page.wait_for_function(ready, timeout=15000)


def copied(chromium: ChromiumPage) -> str:
    """What lands on the clipboard when the whole strip is marked and copied with the keyboard."""
    page = chromium.page
    listener = "e => { window._copied = e.clipboardData.getData('text/plain') }"
    page.evaluate(f"document.addEventListener('copy', {listener}, {{once: true}})")
    page.locator("#view .strip").focus()
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    text: str = page.evaluate("window._copied")
    page.evaluate("getSelection().removeAllRanges()")
    return text


def counts(chromium: ChromiumPage) -> dict[str, int]:
    return {key: chromium.page.locator(f"#view .strip .tk.{key}").count() for key in "acbtrd"}


def expected_counts(events: list[Event]) -> dict[str, int]:
    c = fold(events)
    return {
        "a": c.num_accepted,
        "c": c.num_corrected,
        "b": c.num_bonus,
        "t": c.num_target + c.num_prefill_tokens,
        "r": c.num_rejected,
        "d": c.num_discarded,
    }


# --- what the strip holds -------------------------------------------------------------------------------------


def test_first_run_is_a_recording_that_says_so(url: str) -> None:
    """Case 86 too: a hostile recording is the value that Gradio writes into the page."""
    with open_page(url, viewport={"width": 1000, "height": 900}, reduced_motion="reduce") as chromium:
        page = chromium.page
        page.wait_for_function("document.querySelectorAll('#view .st').length === 18", timeout=15000)
        note = page.inner_text("#view .recording")
        assert [part for part in ("Recorded run", "1 January 2026", "tiny", "2 threads") if part not in note] == []
        assert copied(chromium) == joined(STREAMS["hostile"]())
        assert chromium.errors == chromium.outside == []


@pytest.mark.parametrize("name", STREAMS)
def test_the_strip_is_the_text_and_its_chips_are_the_counters(chromium: ChromiumPage, name: str) -> None:
    """Cases 77 and 86: dollar signs, markup, template and script texts are shown as they are, and run nothing."""
    events = STREAMS[name]()
    play(chromium, name)
    assert copied(chromium) == joined(events)
    assert counts(chromium) == expected_counts(events)
    shown = chromium.page.locator("#view .legend .entry b").all_inner_texts()
    told = fold(events).to_json()
    names = ("num_accepted", "num_corrected", "num_bonus", "num_rejected", "num_discarded")
    assert shown[:5] == ["–" if told[name] is None else str(told[name]) for name in names]
    assert chromium.page.locator("#view .strip img, #view .strip script, #view .card b b").count() == 0
    assert not [message for message in chromium.messages if message.startswith("warning: specviz")]


def test_every_white_space_can_be_seen_and_counted(chromium: ChromiumPage) -> None:
    """Case 75: spaces, line ends, tabs and empty tokens each leave something on the page, and copy back exactly."""
    events = whitespace()
    play(chromium, "whitespace")
    assert copied(chromium) == joined(events)
    chips = chromium.page.locator("#view .strip .tk.t")
    assert chips.count() == sum(len(event.emitted) for event in events if isinstance(event, StepDone))
    widths = chips.evaluate_all("all => all.map(chip => Math.max(...[...chip.getClientRects()].map(r => r.width)))")
    assert min(widths) >= 3
    page = chromium.page
    assert page.locator("#view .strip .ws.nl").count() == 3
    assert page.locator("#view .strip .ws.tab").count() == 1
    assert page.locator("#view .strip .ws.dot").count() >= 6
    assert page.locator("#view .strip .ctl").all_inner_texts() == ["no text", "U+200B", "U+202E"]


def test_special_tokens_are_boxes_and_right_to_left_text_is_isolated(chromium: ChromiumPage) -> None:
    """Case 84: right-to-left words stand in <bdi>, in the order of the tokens."""
    play(chromium, "chain")
    assert chromium.page.locator("#view .strip .ctl").all_inner_texts() == ["<|end|>"]
    play(chromium, "hostile")
    script = "all => all.filter(chip => /[\\u0590-\\u08ff]/.test(chip.textContent)).map(chip => !!chip.closest('bdi'))"
    isolated = chromium.page.locator("#view .strip .tk.a").evaluate_all(script)
    assert isolated == [True, True]


def test_marks_leave_the_text_its_spacing(chromium: ChromiumPage) -> None:
    """Issue 16: notes push no letters apart, cover no other note and stay within the box."""
    play(chromium, "refused")
    page = chromium.page
    places = {}
    for depth in ("text", "marks"):
        page.click(f"#view .depth [data-depth={depth}]")
        places[depth] = page.evaluate(
            """[...document.querySelectorAll('#view .strip .st > .tk')].map((tk) => {
              const range = document.createRange(); range.selectNode(tk.firstChild);
              return Math.round(range.getBoundingClientRect().left);
            })"""
        )
    assert places["text"] == places["marks"] and len(places["text"]) == 64
    notes = page.evaluate(
        """[...document.querySelectorAll('#view .lift')].map((lift) => lift.getBoundingClientRect())
          .map(({ left, right, top }) => [left, right, Math.round(top)])"""
    )
    right = page.evaluate("document.querySelector('#view .viewport').getBoundingClientRect().right")
    assert all(end <= right for _, end, _ in notes)
    assert not [(one, two) for one, two in pairwise(notes) if one[2] == two[2] and one[1] > two[0] + 3]
    assert page.locator("#view .lift.tight").count() and page.locator("#view .lift:not(.tight)").count()


def test_part_of_a_word_can_be_copied(chromium: ChromiumPage) -> None:
    play(chromium, "chain")
    text = chromium.page.evaluate(
        """() => {
          const [first, , third] = document.querySelectorAll('#view .strip .st .tk:not(.alt *)');
          const range = document.createRange();
          range.setStart(first.firstChild, 1); range.setEnd(third.firstChild, 2);
          getSelection().removeAllRanges(); getSelection().addRange(range);
          let got;
          document.addEventListener('copy', e => { got = e.clipboardData.getData('text/plain') }, {once: true});
          document.execCommand('copy'); getSelection().removeAllRanges(); return got;
        }"""
    )
    assert text == "he sky lo"


def test_a_delta_that_comes_twice_counts_once(chromium: ChromiumPage) -> None:
    play(chromium, "twice")
    assert copied(chromium) == joined(STREAMS["chain"]())
    assert counts(chromium) == expected_counts(STREAMS["chain"]())
    assert chromium.page.locator("#view .strip .st").count() == 4


def test_a_gap_in_the_sequence_warns(chromium: ChromiumPage) -> None:
    play(chromium, "gap", "document.querySelector('#view .status').textContent !== ''")
    chromium.page.wait_for_timeout(200)
    assert [message for message in chromium.messages if "specviz: missed updates" in message]


def test_600_tokens_arrive_complete_and_in_time(chromium: ChromiumPage) -> None:
    """Case 79: at most about 15 updates a second, bytes about linear, the last state whole and not late."""
    events = long_run()
    play(chromium, "long")
    late = time.perf_counter() - LONG_LOG[-1][0]
    assert late < 1.0
    assert copied(chromium) == joined(events)
    assert counts(chromium) == expected_counts(events)
    sent = LONG_LOG[:-1]
    assert len(sent) / (sent[-1][0] - sent[0][0]) < 16
    half = len(sent) // 2
    assert sum(size for _, size in sent[half:]) < 1.5 * sum(size for _, size in sent[:half])
    page = chromium.page
    # A finished text is read from its first word.
    assert page.locator("#view .viewport").evaluate("box => box.scrollTop") == 0
    assert page.locator("#view .mapbox .frame").is_visible()


def test_recorded_runs_play_again_and_can_be_cut_short(chromium: ChromiumPage) -> None:
    play(chromium, "recorded", "document.querySelector('#view .clock').textContent.includes('run clock')")
    chromium.page.wait_for_function("document.querySelector('#view .headline').textContent.includes('tokens in')")
    page = chromium.page
    assert page.locator("#view .strip .st").count() < NUM_LONG
    assert re.fullmatch(r"\d+ tokens in \d+ steps?", page.inner_text("#view .headline"))
    page.get_by_role("button", name="Show all").click()
    assert copied(chromium) == joined(long_run())
    assert page.inner_text("#view .headline") != ""
    page.get_by_role("button", name="Play again").click()
    page.wait_for_function("document.querySelectorAll('#view .st').length < 100")
    page.get_by_role("button", name="Show all").click()
    assert page.locator("#view .strip .st").count() == NUM_LONG


# --- verdict, figures, errors ---------------------------------------------------------------------------------


def test_verdict_bars_and_reason(chromium: ChromiumPage) -> None:
    play(chromium, "slower", "document.querySelector('#view .headline').textContent.includes('slower')")
    page = chromium.page
    assert page.inner_text("#view .reason") != ""
    assert "this run" in page.locator("#view .versus").text_content()
    play(chromium, "faster", "document.querySelector('#view .headline').textContent.includes('faster')")
    assert page.locator("#view .reason").is_hidden()
    labels = page.locator("#view .charts svg").evaluate_all("all => all.map(svg => svg.getAttribute('aria-label'))")
    assert "plain decoding" in labels[1]


def test_an_error_is_content_and_leaves_the_last_run(chromium: ChromiumPage) -> None:
    play(chromium, "chain")
    play(chromium, "failing", "!document.querySelector('#view .page > .problem').hidden")
    page = chromium.page
    assert page.inner_text("#view .page > .problem h2") == "These models share no vocabulary."
    assert '"<b>"' in page.inner_text("#view .page > .problem p")
    assert page.locator("#view .strip .st").count() == 4
    play(chromium, "chain")
    assert page.locator("#view .page > .problem").is_hidden()


def test_definitions_open_on_hover_focus_and_close_on_escape(chromium: ChromiumPage) -> None:
    play(chromium, "chain")
    page = chromium.page
    term = page.get_by_role("button", name="Per-token acceptance")
    term.hover()
    page.wait_for_selector("#view .tip.defn")
    assert "accepted / (accepted + steps with a refusal)" in page.inner_text("#view .tip")
    assert "= 6 / (6 + 1) = 0.857" in page.inner_text("#view .tip")
    page.keyboard.press("Escape")
    assert page.locator("#view .tip").is_hidden()
    page.mouse.move(1, 1)
    term.focus()
    assert page.locator("#view .tip.defn").is_visible()
    page.keyboard.press("Tab")
    assert "target passes" in page.inner_text("#view .tip")
    page.keyboard.press("Escape")


# --- looking into a step --------------------------------------------------------------------------------------


def test_tooltip_by_mouse(chromium: ChromiumPage) -> None:
    """Case 86: text in a tooltip is text."""
    play(chromium, "chain")
    page = chromium.page
    page.locator("#view .strip .tk.a").first.hover()
    page.wait_for_selector("#view .tip.token")
    text = page.inner_text("#view .tip")
    assert "The draft gave it 0.50, the target 0.40: kept with chance 0.80. The coin fell at 0.20." in text
    page.mouse.move(1, 1)
    page.wait_for_selector("#view .tip", state="hidden")
    page.locator("#view .strip .lift").first.hover()
    page.wait_for_selector("#view .tip.token")
    assert re.search("appears.*refused", page.inner_text("#view .tip"), re.S)
    play(chromium, "hostile")
    page.locator("#view .strip .tk.a").first.hover()
    page.wait_for_selector("#view .tip.token")
    assert "<img src=x onerror=alert(1)>" in page.inner_text("#view .tip h4")
    box, tip = page.locator("#view .sv").bounding_box(), page.locator("#view .tip").bounding_box()
    assert box["x"] - 1 <= tip["x"] <= box["x"] + box["width"] + 1 - tip["width"]


def test_greedy_runs_have_no_coins(chromium: ChromiumPage) -> None:
    play(chromium, "greedy")
    page = chromium.page
    page.locator("#view .st").first.click()
    card = page.inner_text("#view .card")
    assert re.search("first choice.*not first choice", card, re.S)
    assert "coin" not in card
    assert page.locator("#view .card .coin").count() == 0


def test_keyboard_walks_steps_and_tokens(chromium: ChromiumPage) -> None:
    play(chromium, "chain")
    page = chromium.page
    strip = page.locator("#view .strip")
    strip.focus()
    page.keyboard.press("ArrowRight")
    assert strip.get_attribute("aria-activedescendant") == "sv-step-1"
    assert page.inner_text("#view .card h3").startswith("Step 1")
    assert page.locator("#sv-step-1").get_attribute("aria-label") == (
        "Step 1. Kept: The sky. Refused: appears. Written instead: looks."
    )
    assert "step=1" in page.url
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert "sky" in page.inner_text("#view .tip h4")
    page.keyboard.press("ArrowUp")
    assert "The" in page.inner_text("#view .tip h4")
    page.keyboard.press("Escape")
    assert page.locator("#view .tip").is_hidden()
    page.keyboard.press("End")
    assert page.inner_text("#view .card h3").startswith("Step 4")
    page.keyboard.press("Home")
    assert page.inner_text("#view .card h3").startswith("Step 1")
    for key, depth in zip("1342", ("text", "all", "steps", "marks"), strict=True):
        page.keyboard.press(key)
        assert page.locator("#view .sv").get_attribute("data-depth") == depth
        (page.locator("#view .ledgerbox") if depth == "steps" else strip).focus()
    page.locator("#view .mapbox").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#view .mapbox").get_attribute("aria-valuenow") == "2"
    assert page.locator("#view .st.sel").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#view .st.sel").count() == 0
    assert "step=" not in page.url


def test_map_click_legend_and_table(chromium: ChromiumPage) -> None:
    play(chromium, "chain")
    page = chromium.page
    page.locator("#view .mapbox").click(position={"x": 40, "y": 30})
    assert page.inner_text("#view .card h3").startswith("Step 2")
    entry = page.get_by_role("button", name=re.compile("bonus"))
    entry.first.click()
    assert page.locator("#view .sv").get_attribute("data-only") == "b"
    dimmed = "getComputedStyle(document.querySelector('#view .strip .tk.a')).opacity < 1"
    page.wait_for_function(dimmed)
    entry.first.click()
    page.get_by_role("button", name="Table: Acceptance").click()
    assert page.locator("#view .acceptance tbody tr").count() == 4
    page.get_by_role("button", name="Table: Acceptance").click()
    assert page.locator("#view .acceptance table").count() == 0
    page.get_by_role("button", name="Steps", exact=True).click()
    assert page.locator("#view .ledger tbody tr").count() == 4
    page.get_by_role("button", name="Marks", exact=True).click()


def test_phone_has_a_card_for_a_tap_and_no_sideways_scroll(url: str) -> None:
    """A tap within 12 px takes the nearest word; its step stands under the strip."""
    with open_page(url, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as chromium:
        page = chromium.page
        wait_for_app(chromium)
        play(chromium, "hostile")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        play(chromium, "chain")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#view .strip").scroll_into_view_if_needed()
        box = page.locator("#view .strip .tk.c").first.bounding_box()
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] + 8)
        assert page.inner_text("#view .card h3").startswith("Step 1")
        assert re.search("chance 0.80.*coin 0.90", page.inner_text("#view .card"), re.S)
        assert page.locator("#view .tip").is_hidden()
        card, strip = page.locator("#view .card").bounding_box(), page.locator("#view .viewport").bounding_box()
        assert card["y"] >= strip["y"] + strip["height"]
        assert page.locator("#view .depth button").first.bounding_box()["height"] >= 44
        page.locator("#view .term").first.tap()
        assert page.locator("#view .tip.defn").is_visible()
        assert chromium.errors == chromium.outside == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(url: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    size = {"width": 1280, "height": 1000}
    with open_page(f"{url}?__theme={theme}", viewport=size, reduced_motion="reduce") as chromium:
        page = chromium.page
        wait_for_app(chromium)
        for name, depth in (("tree", "steps"), ("hostile", "all"), ("chain", "marks")):
            play(chromium, name)
            page.locator(f"#view .depth button[data-depth={depth}]").click()
            page.locator("#view .st, #view .ledger tbody tr").locator("visible=true").first.click()
            page.get_by_role("button", name="Table: Acceptance").click()
            if depth != "steps":
                page.locator("#view .strip .tk.a").last.hover()
                page.wait_for_selector("#view .tip.token")
            found = axe.Axe().run(page, context="#view", options={"runOnly": ["wcag2a", "wcag2aa"]})
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found.response["violations"]] == []
        assert chromium.errors == []


# --- style ----------------------------------------------------------------------------------------------------


def test_theme_repeats_the_tokens() -> None:
    light, dark = VIEW_CSS.split(".dark {")
    for name, pair in COLOURS.items():
        for sheet, colour in zip((light, dark), pair, strict=True):
            found = re.search(rf"--sv-{name}:\s*(#[0-9A-Fa-f]+);", sheet)
            assert found is not None, name
            assert found[1].upper() == colour.upper(), name


def test_gradio_can_evaluate_the_template() -> None:
    """Gradio runs the template through Handlebars and then as a JavaScript template literal."""
    template = make_view().html_template
    assert not re.search(r"\{\{|\$\{|`|\\", template)
    assert "http" not in template.replace("http://www.w3.org/2000/svg", "")


def test_tokens_are_plain_rules() -> None:
    """`launch(css=...)` drops or breaks at-rules, and splits selectors at every comma."""
    bare = re.sub(r"/\*.*?\*/", "", VIEW_CSS, flags=re.S)
    assert "@" not in bare
    assert re.findall(r"^(\S.*?) \{", bare, flags=re.M) == [":root", ".dark"]
