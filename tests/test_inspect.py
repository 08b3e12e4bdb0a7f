"""The inspector and the replay in Chromium, on hand-made streams and on the recorded opening run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr
import pytest
from browser import ChromiumPage, open_page, serve_view
from streams import STREAMS, drafted, emitted, started, step, stream
from test_view import handler, live

from specviz.events import Event, StepDone, TopToken
from specviz.metrics import Baseline, fold
from specviz.ui.view import make_view
from specviz.ui.wire.recorded import opening_run
from specviz.ui.wire.stream import DeltaEncoder, recorded_delta

browser = pytest.mark.browser

LONG_STEPS = 334
GREEDY = {"gamma": 4, "temperature": 0.0}
_TAB_JS = "() => { window.dispatchEvent(new CustomEvent('specviz:tab', { detail: '%s' })); }"


def likeliest(*pairs: tuple[str, float]) -> tuple[TopToken, ...]:
    return tuple(TopToken(200 + len(text), text, prob) for text, prob in pairs)


def detailed() -> list[Event]:
    """One refusal with everything that is recorded about it: q, p, what they share, what was left."""
    token = drafted(
        204, " air", 0, "rejected", draft_prob=0.52, target_prob=0.21, accept_prob=0.4, coin=0.71, overlap=0.58,
        draft_top=likeliest((" air", 0.52), ("gas!!", 0.13)),
        target_top=likeliest(("gas!!", 0.38), (" air", 0.21)),
        residual_top=likeliest(("gas!!", 0.6), ("dust..", 0.05)),
    )  # fmt: skip
    tokens = [drafted(11, " of", -1, "accepted", draft_prob=0.88, target_prob=0.83), token]
    out = [emitted(11, " of", "accepted"), emitted(205, "gas!!", "corrected", target_prob=0.6)]
    return stream(started("draft-model"), [step(1, tokens, out, 7)])


def chosen() -> list[Event]:
    """A guess that was chosen, not drawn: the rule takes q as 1."""
    one = {"draft_prob": 1.0, "target_prob": 0.83, "accept_prob": 0.83, "overlap": 0.83}
    tokens = [drafted(11, "The", -1, "accepted", coin=0.35, **one)]
    out = [emitted(11, "The", "accepted"), emitted(12, " sky", "bonus")]
    return stream(started("prompt-lookup", draft=None), [step(1, tokens, out, 7)])


def typical() -> list[Event]:
    """Typical acceptance keeps what the target finds likely enough; no coin is thrown."""
    tokens = [drafted(11, "The", -1, "accepted", accept_prob=None, coin=None, overlap=None)]
    out = [emitted(11, "The", "accepted"), emitted(12, " sky", "bonus")]
    return stream(started("draft-model", verify="typical acceptance"), [step(1, tokens, out, 7)])


def block() -> list[Event]:
    """A block of three: the first coin fails, the second keeps two, the third fails."""
    more = {"accept_prob": 0.5, "overlap": None}
    tokens = [
        drafted(11, " of", -1, "accepted", coin=0.8, prefix_prob=0.5, block_prob=0.17, **more),
        drafted(12, " air", 0, "accepted", coin=0.4, prefix_prob=0.9, block_prob=0.7, **more),
        drafted(13, " and", 1, "rejected", coin=0.6, prefix_prob=0.3, block_prob=0.3, **more),
    ]
    out = [emitted(11, " of", "accepted"), emitted(12, " air", "accepted"), emitted(14, " gas", "corrected")]
    return stream(started("draft-model", verify="block verification"), [step(1, tokens, out, 8)])


def greedy() -> list[Event]:
    known: dict[str, object] = {"accept_prob": None, "coin": None, "overlap": None}
    tokens = [drafted(11, "The", -1, "accepted", **known), drafted(21, " fog", 0, "rejected", **known)]
    out = [emitted(11, "The", "accepted"), emitted(12, " sky", "corrected")]
    return stream(started("draft-model", settings=GREEDY), [step(1, tokens, out, 7)])


def long_run() -> list[Event]:
    """1,002 tokens in 334 steps, each ended by a refusal; with five likeliest tokens of both models for every test."""
    top = likeliest(*((f" likely{'x' * i}", 0.123 / (i + 1)) for i in range(5)))
    tops: dict[str, object] = {"draft_top": top, "target_top": top}
    steps = []
    for i in range(1, LONG_STEPS + 1):
        tokens = [drafted(1, f" w{i}", -1, "accepted", **tops), drafted(2, f" x{i}", 0, "accepted", **tops)]
        tokens.append(drafted(4, " no", 1, "rejected", residual_top=top, **tops))
        tokens.append(drafted(5, " never", 2, "discarded"))
        out = [emitted(1, f" w{i}", "accepted"), emitted(2, f" x{i}", "accepted"), emitted(3, f" y{i}", "corrected")]
        steps.append(step(i, tokens, out, 5 + 3 * i))
    return stream(started("draft-model", run_id="long"), steps)


# --- what a step carries on the wire ------------------------------------------------------------------------------


def decode_s(delta: dict[str, Any]) -> list[float]:
    place = delta["names"]["counters"].index("decode_s")
    return [step["counters"][place] for step in delta["steps"]]


def test_a_step_carries_its_clock_and_its_cache() -> None:
    delta = json.loads(recorded_delta(STREAMS["chain"](), None, "chain"))
    steps = delta["steps"]
    assert [one["clock"] for one in steps[:2]] == [[0.0, 0.02, 0.07, 0.071], [0.071, 0.091, 0.141, 0.142]]
    assert [one["clock"][3] for one in steps] == pytest.approx(decode_s(delta), rel=1e-5)
    # 6 tokens of prompt leave 5 entries; the 6th and 4 drafted ones are written ahead, 3 rows of 8 are padding
    assert steps[0]["cache"] == {"before": 5, "checked": 10, "after": 8, "extra": 3}
    assert steps[1]["cache"] == {"before": 8, "checked": 11, "after": 11, "extra": 5}
    assert [one["s_per_token"] for one in steps[:3]] == pytest.approx([0.071 / 3, 0.071 / 3, 0.051], rel=1e-5)
    assert json.loads(recorded_delta(STREAMS["attached"](), None, "a"))["steps"][0]["cache"] is None


def test_counts_of_a_moment_are_values_in_the_order_of_their_names() -> None:
    events = STREAMS["chain"]()
    delta = json.loads(recorded_delta(events, None, "chain"))
    first = dict(zip(delta["names"]["counters"], delta["steps"][0]["counters"], strict=True))
    so_far = fold(events[:3])
    rolling = {name: getattr(so_far, name) for name in first if name.startswith("rolling_")}
    assert len(rolling) == 3
    assert first == pytest.approx(so_far.to_json() | rolling, rel=1e-5)
    assert dict(zip(delta["names"]["counters"], delta["steps"][-1]["counters"], strict=True)) == delta["counters"]


def test_tokens_travel_as_values_in_the_order_of_their_names() -> None:
    delta = json.loads(recorded_delta(detailed(), None, "detailed"))
    drafted_names, emitted_names = delta["names"]["drafted"], delta["names"]["emitted"]
    [sent] = delta["steps"]
    kept, refused = (dict(zip(drafted_names, values, strict=False)) for values in sent["drafted"])
    assert kept == {
        "token_id": 11, "text": " of", "parent": -1, "fate": "accepted", "label": None, "draft_prob": 0.88,
        "target_prob": 0.83, "accept_prob": 0.8, "coin": 0.2, "overlap": 0.7,
    }  # fmt: skip
    assert (refused["coin"], refused["residual_top"]) == (0.71, [[205, "gas!!", 0.6], [206, "dust..", 0.05]])
    assert dict(zip(emitted_names, sent["emitted"][1], strict=True)) == {
        "token_id": 205, "text": "gas!!", "origin": "corrected", "label": None, "special": None, "target_prob": 0.6,
    }  # fmt: skip


def test_1000_tokens_with_their_likeliest_ones_stay_under_a_megabyte() -> None:
    events = long_run()
    assert len(recorded_delta(events, None, "long")) < 1_000_000
    encoder = DeltaEncoder("long")
    quoted = [len(json.dumps(encoder.encode([event]))) for event in events]  # a delta a step, the most there can be
    assert sum(quoted) + 800 * len(quoted) < 1_000_000  # Gradio writes less than 800 bytes around each


# --- pages --------------------------------------------------------------------------------------------------------


def scenarios() -> dict[str, Any]:
    def recorded(name: str, events: list[Event], plain: Baseline | None = None) -> Iterator[str]:
        yield recorded_delta(events, plain, name)

    opening = opening_run()
    assert opening is not None
    plain = Baseline(9, 0.3)
    made = {"detailed": detailed, "chosen": chosen, "greedy": greedy, "long": long_run}
    made |= {"typical": typical, "block": block}
    return (
        {name: partial(lambda name, make: live(name, make()), name, make) for name, make in STREAMS.items()}
        | {name: partial(lambda name, make: recorded(name, make(), plain), name, make) for name, make in made.items()}
        | {"opening": lambda: iter([opening.delta])}
    )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with gr.Blocks(title="test") as demo:
        with gr.Tabs(selected="watch"):
            for name in ("watch", "inspect"):
                with gr.Tab(name.title(), id=name, elem_id=f"tab-{name}") as tab:
                    pass
                tab.select(None, None, None, js=_TAB_JS % name)
        view = make_view(recorded_delta(STREAMS["chain"](), None, "first"))
        for name, make in scenarios().items():
            gr.Button(name, elem_id=f"go-{name}").click(handler(make), None, view, show_progress="hidden")
    with serve_view(demo) as address:
        yield address


@pytest.fixture(scope="module")
def opened(url: str) -> Iterator[ChromiumPage]:
    with open_page(url, viewport={"width": 1280, "height": 1000}, reduced_motion="reduce") as chromium:
        wait_for_app(chromium)
        yield chromium


@pytest.fixture
def chromium(opened: ChromiumPage) -> Iterator[ChromiumPage]:
    yield opened
    assert opened.errors == []
    assert opened.outside == []


def wait_for_app(chromium: ChromiumPage) -> None:
    chromium.page.wait_for_selector("#view .st")
    chromium.page.wait_for_selector("#go-opening", state="attached")


def inspect(chromium: ChromiumPage, name: str, number: int = 1) -> Any:
    """The inspector on one step of a scenario's run."""
    page = chromium.page
    page.evaluate("document.querySelector('#tab-watch-button').click()")
    page.wait_for_selector("#view .panel[data-panel=watch]:visible")
    page.evaluate("document.querySelector('#view .strip').replaceChildren()")
    page.evaluate("name => document.getElementById('go-' + name).click()", name)
    page.wait_for_function("document.querySelectorAll('#view .st').length > 0")
    page.wait_for_function("!document.querySelector('#view .replay').hidden", timeout=15000)
    page.evaluate("document.querySelector('#tab-inspect-button').click()")
    page.wait_for_selector("#view .lead:visible")
    page.locator("#view .mapbox").focus()
    page.keyboard.press("Home")
    for _ in range(number):
        page.keyboard.press("ArrowRight")
    return page


def text(page: Any, selector: str) -> str:
    return re.sub(r"\s+", " ", page.inner_text(f"#view .panel[data-panel=inspect] {selector}")).strip()


HEADLINES = {
    ("chain", 1): "The draft guessed “appears”. The target refused it and wrote “looks”.",
    ("chain", 2): "Both guesses were kept, and the target added “of”.",
    ("chain", 3): "Nothing was drafted. The target wrote “air”.",
    ("chain", 4): "Both guesses were kept, and the answer ended there.",
    ("tree", 1): "The draft guessed “scatters” and “bends”. The target refused both and wrote “splits”.",
    ("lookahead", 2): "A path of two guesses was kept to its end, and the target added “light”.",
    ("early-exit", 1): "The draft guessed “goes”. The target refused it and wrote “bends”.",
    ("attached", 1): "The server wrote “bright” and “sky”.",
    ("detailed", 1): "The draft guessed “air”. The target refused it and wrote “gas!!”.",
    ("chosen", 1): "The guess “The” was kept, and the target added “sky”.",
}


@browser
def test_a_block_shows_what_its_coins_had_to_fall_under(chromium: ChromiumPage) -> None:
    """Issue 18: p_i, h_i and the coin of each place, and what the token rule would have kept with the same coins."""
    page = inspect(chromium, "block")
    assert "judged as a block; token by token the same coins would have kept none." in text(page, ".gist")
    rows = [text(page, f".tokens tbody tr:nth-child({i})") for i in (1, 2, 3)]
    assert "0.17" in rows[0] and "Kept all the same: a later coin keeps the whole beginning." in rows[0]
    assert "0.70" in rows[1] and "Kept, with all before it." in rows[1]
    assert "0.30" in rows[2] and "Not kept: no coin from here on fell under its h." in rows[2]
    page.locator("#view .tokens tbody tr:nth-child(1) .pick").click()
    said = text(page, ".odds .say")
    assert "the draft is worth 0.50 (pi)" in said and "under 0.17 (hi). It fell at 0.80" in said
    assert "Token by token its chance would have been 0.50" in said
    labels = page.eval_on_selector_all(
        "#view .tokens .coin", "coins => coins.map((one) => one.getAttribute('aria-label'))"
    )
    assert labels[0] == "h 0.17, coin 0.80: over" and labels[1] == "h 0.70, coin 0.40: under"


@browser
@pytest.mark.parametrize(("name", "number"), HEADLINES)
def test_every_kind_of_step_reads_as_a_sentence(chromium: ChromiumPage, name: str, number: int) -> None:
    page = inspect(chromium, name, number=number)
    assert text(page, ".lead") == HEADLINES[name, number]
    assert text(page, ".gist").startswith(f"Step {number} ")
    made = STREAMS.get(name, {"detailed": detailed, "chosen": chosen}.get(name))
    assert made is not None
    one = [event for event in made() if isinstance(event, StepDone)][number - 1]
    words = text(page, ".ctx")
    assert [token.text.strip() for token in one.emitted if (token.label or token.text).strip() not in words] == []
    untold = [token for token in one.emitted if token.origin != "accepted" or not one.drafted]
    assert page.locator("#view .tokens tbody tr").count() == len(one.drafted) + len(untold)


@browser
def test_a_refusal_with_all_that_is_known(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "detailed")
    assert text(page, ".tokens tr.on") == "2 air 0.52 0.21 0.40 Refused. The coin 0.71 is over 0.40."
    said = text(page, ".odds .say")
    assert "share 0.58 of their probability here: of 100 tokens drafted at this place, 58 would be kept" in said
    assert "“air” alone had a chance of 0.40, and its coin fell at 0.71." in said
    assert text(page, ".odds .cap").endswith("The draw fell on “gas!!”, which had a chance of 0.60.")
    picture = page.locator("#view .odds figure svg")
    assert "air q 0.52 p 0.21" in picture.get_attribute("aria-label")
    areas = {name: picture.locator(f".B-{name}").count() for name in ("both", "eager", "more")}
    assert areas == {"both": 2, "eager": 1, "more": 3}  # two tokens are shared; gas is wanted more, and both are left
    # q of air over p of gas, as wide as the numbers say
    widths = picture.locator("rect.B-both, rect.B-eager").evaluate_all("all => all.map(r => +r.getAttribute('width'))")
    assert (widths[0] + widths[1]) / widths[2] == pytest.approx(0.52 / 0.13, rel=0.02)
    page.locator("#view .tokens .pick").first.click()
    assert text(page, ".odds h2") == "Place 1: luck or match?"
    assert "Record likeliest tokens" in text(page, ".odds .say")
    assert "3 × 33.3" not in text(page, ".cost figure") and "2 × 33.3 ms" in text(page, ".cost figure")
    assert "on average" in text(page, ".cost .say")
    assert text(page, ".ruler h2") == "The cache: written ahead, then rolled back by one"
    assert page.locator("#view .ruler svg").get_attribute("aria-label").endswith("5 before, 8 checked, 7 after")
    assert "Five rows of the eight are padding" in text(page, ".ruler .cap")


@browser
def test_runs_without_a_coin_say_what_decided(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "greedy")
    assert text(page, ".tokens tr.on").endswith("not first choice Refused. The target’s first choice is “sky”.")
    assert page.locator("#view .tokens .coin").count() == 0
    assert "throws no coin" in text(page, ".odds .say")
    page = inspect(chromium, "typical")
    assert "The target finds it likely enough" in text(page, ".tokens")
    page = inspect(chromium, "chosen")
    assert "chosen" in text(page, ".tokens tr.on")
    assert "was chosen, not drawn, so it has no q" in text(page, ".odds .say")
    page = inspect(chromium, "attached")
    assert page.locator("#view .ruler").is_hidden()
    assert "which tells what it kept and not what it refused" in text(page, ".gist")
    page = inspect(chromium, "opening")
    assert "recorded without the likeliest tokens" in text(page, ".odds .say")


@browser
def test_the_columns_say_what_they_are(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "detailed")
    page.get_by_role("button", name="chance to keep").focus()
    words = page.inner_text("#view .tip.defn")
    assert "min(1, p / q)" in words
    assert "= 0.400" in words
    page.keyboard.press("Shift+Tab")
    assert "= 0.210" in page.inner_text("#view .tip.defn")
    page.keyboard.press("Escape")
    assert page.locator("#view .tip").is_hidden()
    assert page.locator("#view .panel[data-panel=inspect] .lead").is_visible()  # the next Escape leads back to the text


@browser
def test_siblings_are_tried_in_turn(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "tree")
    places = page.locator("#view .tokens tbody td:first-child").all_inner_texts()
    assert places == ["1", "1", "1", "2", "2", "2", "2"]
    assert "bends" in text(page, ".tokens tr.on")  # the last refusal: the correction came after it
    assert "One guess for this place had been refused before" in text(page, ".odds .say")
    page.keyboard.press("ArrowDown")
    assert "splits" in text(page, ".tokens tr.on")
    assert page.evaluate("document.activeElement.textContent") == "splits"
    page.keyboard.press("ArrowUp")
    assert "bends" in text(page, ".tokens tr.on")
    assert "another guess was kept first" in text(page, ".tokens tr:nth-child(3)")


# --- replay -------------------------------------------------------------------------------------------------------


def clocks(page: Any) -> str:
    return text(page, ".runclock")


@browser
def test_keys_walk_steps_and_phases_and_name_both_clocks(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "chain")
    assert clocks(page) == "run clock 0.07 s of 0.26 s"
    assert text(page, ".pace") == "shown at its real speed"
    page.keyboard.press("[")
    page.keyboard.press("[")
    assert text(page, ".pace") == "shown 10 times slower"
    page.keyboard.press("Shift+ArrowRight")
    assert text(page, ".lead") == "The draft offers “blue” and “because”."
    assert clocks(page) == "run clock 0.09 s of 0.26 s"
    assert page.locator("#view .gist").is_hidden()  # what became of it is not told yet
    page.keyboard.press("Shift+ArrowRight")
    assert text(page, ".lead") == "The target checks both in one go."
    assert text(page, ".phases .here") == "verify"
    page.keyboard.press("Shift+ArrowRight")
    assert "the target added “of”" in text(page, ".lead")
    page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert text(page, ".lead").startswith("The draft guessed “appears”")
    page.keyboard.press("Home")
    assert text(page, ".lead") == "Before the first step"
    assert clocks(page) == "run clock 0.00 s of 0.26 s"
    page.keyboard.press("End")
    assert clocks(page) == "run clock 0.26 s of 0.26 s"
    for _ in range(8):
        page.keyboard.press("]")
    assert text(page, ".pace") == "shown 10 times faster"
    page.get_by_role("button", name="1×", exact=True).click()


@browser
def test_watch_shows_the_moment_of_the_replay(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "opening", number=4)
    opening = opening_run()
    assert opening is not None
    moment = fold(opening.trace.events[:6])
    page.keyboard.press("Escape")
    page.wait_for_selector("#view .panel[data-panel=watch]:visible")
    assert page.locator("#view .strip .st").count() == 4
    assert page.inner_text("#view .headline") == f"{moment.num_tokens} tokens in 4 steps"
    assert page.locator("#view .kpis dd").first.inner_text().startswith(f"{moment.alpha:.3f}")
    clock = page.inner_text("#view .clock")
    assert re.fullmatch(r"run clock \d\.\d\d\ss of \d\.\d\d\ss, shown at its real speed", clock)
    assert page.inner_text("#view .replay") == "Play on"
    assert page.locator("#view .mapbox .veil").is_visible()
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function(f"document.querySelectorAll('#view .st').length === {len(opening.trace.events) - 3}")
    assert "faster" in page.inner_text("#view .headline")
    assert page.locator("#view .mapbox .veil").is_hidden()


@browser
def test_the_strip_is_at_the_step_that_was_chosen_on_another_tab(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "long", number=0)
    page.keyboard.press("Escape")
    page.wait_for_selector("#view .panel[data-panel=watch]:visible")
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function("document.querySelectorAll('#view .st').length === 334")
    for key, number in (("Home", 1), ("End", 334)):
        page.evaluate("window.dispatchEvent(new CustomEvent('specviz:tab', { detail: 'methods' }))")
        pick = page.locator("#view [data-panel=methods] .pick")
        pick.evaluate("(pick, key) => pick.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))", key)
        page.evaluate("window.dispatchEvent(new CustomEvent('specviz:tab', { detail: 'watch' }))")
        box, step = (page.locator(f"#view {one}").bounding_box() for one in (".viewport", f"#sv-step-{number}"))
        assert box["y"] <= step["y"] and step["y"] + step["height"] <= box["y"] + box["height"]


@browser
def test_a_live_run_is_replayed_with_the_counts_of_each_step(chromium: ChromiumPage) -> None:
    """All four steps come in one update; each still has counts of its own."""
    page = inspect(chromium, "chain", number=1)
    page.keyboard.press("Escape")
    page.wait_for_selector("#view .panel[data-panel=watch]:visible")
    assert page.locator("#view .strip .st").count() == 1
    assert page.inner_text("#view .headline") == "3 tokens in 1 step"
    assert "2 of 3 tested kept" in page.locator("#view .kpis dd").first.inner_text()
    page.get_by_role("button", name="Show all").click()
    assert page.locator("#view .strip .st").count() == 4
    assert "6 of 7 tested kept" in page.locator("#view .kpis dd").first.inner_text()


@browser
def test_the_strip_leads_to_the_token_and_the_map_scrubs(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "chain")
    page.keyboard.press("End")
    page.keyboard.press("Escape")
    page.wait_for_selector("#view .strip:visible")  # a hidden strip takes no focus
    page.locator("#view .strip").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#view .lead:visible")
    assert text(page, ".tokens tr.on").startswith("1 The")
    box = page.locator("#view .mapbox").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 40, box["y"] + 20)
    assert text(page, ".gist").startswith("Step 2 ")
    page.mouse.move(box["x"] + 68, box["y"] + 20)
    page.mouse.up()
    assert text(page, ".gist").startswith("Step 3 ")
    assert page.locator("#view .mapbox").get_attribute("aria-valuenow") == "3"
    page.wait_for_function("location.search.includes('step=3')")


@browser
def test_reduced_motion_plays_nothing_by_itself(chromium: ChromiumPage) -> None:
    page = inspect(chromium, "chain")
    page.get_by_role("button", name="slow motion").click()
    assert "one a key press" in text(page, ".pace")
    page.locator("#view .mapbox").focus()
    page.keyboard.press("Space")
    assert text(page, ".phases .here") == "draft"
    page.wait_for_timeout(700)
    assert text(page, ".phases .here") == "draft"
    page.keyboard.press("Space")
    assert text(page, ".phases .here") == "verify"
    page.get_by_role("button", name="1×", exact=True).click()


@browser
def test_playing_moves_by_itself_and_stops_at_a_key(url: str) -> None:
    """With motion: slow motion goes through the phases, a clock speed through the steps, to the end of the run."""
    with open_page(url, viewport={"width": 1280, "height": 1000}) as chromium:
        wait_for_app(chromium)
        page = inspect(chromium, "opening")
        opening = opening_run()
        assert opening is not None
        last = len(opening.trace.events) - 3
        page.get_by_role("button", name="slow motion").click()
        page.locator("#view .mapbox").focus()
        page.keyboard.press("Space")
        page.wait_for_function("document.querySelector('#view .phases .here').textContent === 'verify'")
        page.wait_for_function("document.querySelector('#view .phases .here').textContent === 'commit'")
        page.keyboard.press("Space")
        assert page.get_by_role("button", name="Play", exact=True).is_visible()
        page.get_by_role("button", name="0.1×").click()
        page.keyboard.press("Home")
        page.get_by_role("button", name="Play", exact=True).click()
        page.wait_for_function("/^Step [2-9] /.test(document.querySelector('#view .gist').textContent)")
        page.get_by_role("button", name="10×", exact=True).click()
        page.wait_for_function(
            f"/^Step {last} /.test(document.querySelector('#view .gist').textContent)", timeout=15000
        )
        assert page.get_by_role("button", name="Play", exact=True).is_visible()
        assert chromium.errors == chromium.outside == []


@browser
def test_scrubbing_1000_tokens_keeps_up(chromium: ChromiumPage) -> None:
    """30 moves a second are wanted. Counted in the page's own processor time, which a busy machine does not stretch."""
    page = inspect(chromium, "long")
    box = page.locator("#view .mapbox").bounding_box()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    page.mouse.move(box["x"] + 5, box["y"] + 20)
    page.mouse.down()
    began, moves = busy_s(), 40
    for i in range(moves):
        page.mouse.move(box["x"] + 5 + (box["width"] - 10) * i / moves, box["y"] + 20)
        page.evaluate("() => new Promise(requestAnimationFrame)")
    a_move = (busy_s() - began) / moves
    page.mouse.up()
    session.detach()
    print(f"{1000 * a_move:.1f} ms a move")
    assert re.search(r"Step 3\d\d ", text(page, ".gist"))
    assert a_move < 1 / 30


# --- for everybody ------------------------------------------------------------------------------------------------


@browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(url: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    size = {"width": 1280, "height": 1000}
    with open_page(f"{url}?__theme={theme}", viewport=size, reduced_motion="reduce") as chromium:
        wait_for_app(chromium)
        for name, key in (("detailed", ""), ("tree", ""), ("chain", "Shift+ArrowRight")):
            page = inspect(chromium, name)
            if key:
                page.keyboard.press(key)
            found = axe.Axe().run(page, context="#view", options={"runOnly": ["wcag2a", "wcag2aa"]})
            assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found.response["violations"]] == []
        assert chromium.errors == []


@browser
def test_a_phone_has_it_all_without_sideways_scroll(url: str) -> None:
    size = {"width": 390, "height": 844}
    with open_page(url, viewport=size, has_touch=True, is_mobile=True, reduced_motion="reduce") as chromium:
        wait_for_app(chromium)
        for name in ("detailed", "tree", "hostile", "long"):
            page = inspect(chromium, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page = inspect(chromium, "detailed")
        page.locator("#view .tokens tr").nth(1).tap()
        assert text(page, ".odds h2").startswith("Place 1")
        assert page.locator("#view .transport .play").bounding_box()["height"] >= 44
        assert page.locator("#view .tokens tbody tr").first.bounding_box()["height"] >= 44
        assert chromium.errors == chromium.outside == []
