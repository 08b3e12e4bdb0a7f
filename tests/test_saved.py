"""Issue 19, a run that travels: saved pages from the disk in Chromium, and players in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio")

from browser import open_page
from fixtures_real import load_real
from PIL import Image
from streams import STREAMS

import specviz
from specviz.cli import main
from specviz.errors import TraceError
from specviz.events import Event, RunFinished, RunStarted, StepDone
from specviz.metrics import fold
from specviz.trace import Trace, dump_trace, load_trace
from specviz.ui.saved import notebook, picture
from specviz.ui.saved.page import saved_page, trace_of

TRACES = Path(__file__).resolve().parents[1] / "assets" / "traces"
RACE = sorted((TRACES / "race").glob("*.jsonl"))
NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "notebook.ipynb"
MAX_PLAYER = 400_000  # beside the run itself
HOSTILE = (
    "</script><script>alert(1)</script><!--\u2028\u2029 ]]> {runs} ${x} `${1}` %s & 'x\" <img src=x onerror=alert(2)>"
)


def hostile() -> list[Event]:
    events = STREAMS["hostile"]()
    first = events[0]
    assert isinstance(first, RunStarted)
    events[0] = replace(first, prompt=HOSTILE, method=HOSTILE, pair=HOSTILE, command=HOSTILE, exactness_reason=HOSTILE)
    return events


def text_of(events: Any) -> str:
    end = events[-1]
    assert isinstance(end, RunFinished)
    return end.text


@contextmanager
def opened(path: Path, **context: Any) -> Iterator[Any]:
    """The file in Chromium; afterwards: the console is empty, and nothing but the file was asked for.

    (`wait_for_function` evaluates strings, which the page's own policy forbids.)
    """
    context = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | context
    with open_page(**context) as watched:
        asked: list[str] = []
        watched.page.on("request", lambda request: asked.append(request.url))
        watched.page.goto(path.as_uri())
        watched.page.wait_for_selector("#view .strip .st", state="attached")
        yield watched.page
        assert watched.errors + watched.messages == []
        assert [url for url in asked if not url.startswith("blob:")] == [path.as_uri()]


def answer(page: Any) -> Any:
    return page.evaluate("document.querySelector('#view .answer').textContent")


def saved(folder: Path, *paths: Path) -> Path:
    out = folder / "run.html"
    assert main(["page", *map(str, paths), "-o", str(out)]) == 0
    return out


# --- one run ---------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_a_saved_page_is_the_whole_player(tmp_path: Path, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    run = load_trace(TRACES / "opening.jsonl")
    page_file = saved(tmp_path, TRACES / "opening.jsonl")
    with opened(page_file, color_scheme=scheme, viewport={"width": width, "height": 900}) as page:
        assert answer(page) == text_of(run.events)
        assert page.locator("#view .strip .st").count() == fold(run.events).num_steps
        assert "faster" in page.inner_text("#view .headline")
        for part in (".legend", ".mapbox svg", ".chart.speed svg", ".kpis"):
            assert page.is_visible(f"#view {part} >> nth=0"), part
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(19, 19, 22)")
        found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
        assert [(v["id"], [node["html"][:160] for node in v["nodes"]][:3]) for v in found] == []
        page.focus("#tab-watch-button")
        page.keyboard.press("ArrowRight")
        assert page.is_visible("#view [data-panel=inspect] .transport")
        assert page.evaluate("document.activeElement.id") == "tab-inspect-button"
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#view [data-panel=methods] .drawing .image")
        page.keyboard.press("ArrowRight")
        page.focus("#view .strip")
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        assert page.inner_text("#view .runclock").startswith("run clock")
        assert page.get_attribute("#tab-inspect-button", "aria-selected") == "true"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_a_saved_run_plays_again_at_its_own_speed(tmp_path: Path) -> None:
    run = load_trace(TRACES / "opening.jsonl")
    with opened(saved(tmp_path, TRACES / "opening.jsonl"), reduced_motion="no-preference") as page:
        page.locator("#view .replay", has_text="Play again").wait_for()
        page.click("#view .replay")
        page.locator("#view .clock", has_text="shown at its real speed").wait_for()
        assert page.locator("#view .strip .st").count() < len(run.events)
        page.locator("#view .replay", has_text="Play again").wait_for()
        assert answer(page) == text_of(run.events)


@pytest.mark.browser
@pytest.mark.parametrize("format_name", ["svg", "png"])
def test_a_figure_is_saved_from_a_file_too(tmp_path: Path, format_name: str) -> None:
    with opened(saved(tmp_path, TRACES / "opening.jsonl")) as page:
        with page.expect_download() as download:
            page.evaluate(f"document.querySelector('#view [data-save=\"text:{format_name}\"]').click()")
        first = download.value.path().read_bytes()[:4]
        assert first == {"svg": b"<svg", "png": b"\x89PNG"}[format_name]


@pytest.mark.browser
def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Also what would end a script or a line of JavaScript, in every field that a trace's author chooses."""
    events = hostile()
    path = tmp_path / "hostile.jsonl"
    path.write_text(dump_trace(events), encoding="utf-8")
    with opened(saved(tmp_path, path)) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        assert answer(page) == text_of(events)
        assert page.evaluate("document.querySelector('#view .promptline span').textContent") == HOSTILE
        assert page.title().startswith("specviz: </script><script>alert(1)</script><!--")
        assert page.locator("script").count() == 2
        assert page.locator("#view img").count() == 0


def test_a_file_holds_the_run_and_little_more(tmp_path: Path) -> None:
    """At most 400 kB beside the run; no address of anything to load."""
    html = saved(tmp_path, TRACES / "opening.jsonl").read_text(encoding="utf-8")
    start = html.index('id="saved-runs">')
    data = html[start : html.index("</script>", start)]
    assert len(html.encode()) - len(data.encode()) <= MAX_PLAYER
    assert [part for part in ("<link", 'src="http', "@import", "url(http") if part in html] == []
    assert "default-src 'none'" in html


def test_a_run_that_was_cut_off_says_so() -> None:
    html = saved_page([Trace(tuple(STREAMS["chain"]()[:-1]), damage="The file ends before the run does.")])
    assert "The recording ends here." in html and "The file ends before the run does." in html


# --- a race ----------------------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_several_runs_are_a_race_and_each_can_be_looked_at(tmp_path: Path) -> None:
    runs = [load_trace(path) for path in RACE]
    with opened(saved(tmp_path, *RACE)) as page:
        assert "times as fast as plain decoding" in page.inner_text("#view [data-panel=race] .lead")
        assert page.locator("#view .lane").count() == len(runs)
        page.click("#tab-watch-button")
        assert answer(page) == text_of(runs[1].events)
        page.select_option(".which select", label="Plain decoding")
        page.locator("#view .origin", has_text="· plain").wait_for()
        assert answer(page) == text_of(runs[0].events)


def test_two_runs_of_one_method_keep_apart() -> None:
    run = load_trace(TRACES / "opening.jsonl")
    assert run.plain
    html = saved_page([run, run])
    assert '"method":"cascade"' in html and '"method":"cascade (2)"' in html and '"method":"plain"' in html


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": "Another"}, "the prompt is not the same"),
        ({"pair": "another"}, "the pair is not the same"),
        ({"machine": {"processor": "Z80"}}, "the processor is not the same"),
        ({}, "needs plain decoding"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    one = STREAMS["chain"]()
    first = one[0]
    assert isinstance(first, RunStarted)
    with pytest.raises(TraceError, match=sentence):
        saved_page([trace_of(one), trace_of([replace(first, **change), *one[1:]])])


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", str(tmp_path / "none.jsonl")]) == 2
    assert main(["page", *[str(RACE[0])] * 5]) == 2
    assert "cannot be read" in (said := capsys.readouterr().err) and "1 to 4 runs" in said


# --- notebooks -------------------------------------------------------------------------------------------------------


def test_show_takes_a_file_a_list_a_stream_and_a_trace() -> None:
    path = TRACES / "opening.jsonl"
    trace = load_trace(path)
    players = [specviz.show(path), specviz.show(str(path)), specviz.show(trace)]
    players += [specviz.show(events, plain=trace.plain) for events in (list(trace.events), iter(trace.events))]
    assert len({player.html for player in players}) == 1
    with pytest.raises(TraceError, match="not the events of a run"):
        specviz.show([])


@pytest.mark.browser
def test_a_player_runs_in_a_notebooks_frame(tmp_path: Path) -> None:
    """As a notebook shows it: markup set into a page that is no trusted origin of the run's."""
    player = specviz.show(hostile(), height=500)
    with open_page(viewport={"width": 1000, "height": 700}, reduced_motion="reduce") as watched:
        watched.page.set_content(f"<!doctype html><main>{player._repr_html_()}</main>")
        frame = watched.page.frame_locator("iframe")
        frame.locator("#view .strip .st").first.wait_for()
        assert frame.locator("#view .answer").evaluate("node => node.textContent") == text_of(hostile())
        frame.locator("#tab-inspect-button").click()
        frame.locator("#view [data-panel=inspect] .transport").wait_for()
        assert watched.page.locator("iframe").bounding_box()["height"] == 500
        assert watched.errors == [] and watched.outside == []


class FrontEnd:
    """A notebook's kernel and its front end, as far as `show` needs one: every output and update, in order."""

    kernel = object()
    execution_count = 1

    def __init__(self) -> None:
        self.sent: list[tuple[int, str]] = []
        self.outputs = 0

    def display(self, bundle: dict[str, str]) -> Callable[[dict[str, str]], None]:
        place = self.outputs
        self.outputs += 1
        self.sent.append((place, bundle["text/html"]))
        return lambda later: self.sent.append((place, later["text/html"]))


@pytest.fixture
def front_end(monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    fake = FrontEnd()
    monkeypatch.setattr(notebook, "_shell", lambda: fake)
    monkeypatch.setattr(notebook, "_display", fake.display)
    monkeypatch.setattr(notebook, "_UPDATES_PER_S", 1e9)
    return fake


TAKE_OUTPUT = """([place, html]) => {
  const main = document.querySelector('main');
  const out = main.children[place] ?? main.appendChild(document.createElement('div'));
  out.innerHTML = html;
  for (const script of out.querySelectorAll('script')) {
    const again = document.createElement('script');
    again.textContent = script.textContent;
    script.replaceWith(again);
  }
}"""


@pytest.mark.browser
def test_a_stream_is_shown_while_it_goes_on(front_end: FrontEnd) -> None:
    """Also where the front end leaves out updates, as one does that draws slower than they come."""
    events = hostile()
    player = specviz.show(iter(events))
    assert front_end.outputs == 2
    feeds = [html for place, html in front_end.sent if place == 1]
    assert len(feeds) == len(events) + 2 and feeds[-1] == ""
    with open_page(viewport={"width": 1000, "height": 700}, reduced_motion="reduce") as watched:
        page = watched.page
        page.set_content("<!doctype html><html data-jp-theme-light=false><main></main>")
        page.evaluate(TAKE_OUTPUT, front_end.sent[0])
        page.evaluate(TAKE_OUTPUT, front_end.sent[1])
        frame = page.frame_locator("iframe")
        for html in feeds[1 : len(events) - 1 : 3]:
            page.evaluate(TAKE_OUTPUT, [1, html])
        frame.locator("#view .strip .st").first.wait_for()
        assert frame.locator("#view .strip .st").count() < fold(events).num_steps
        assert frame.locator("body.dark").count() == 1
        page.evaluate(TAKE_OUTPUT, [1, feeds[-2]])
        frame.locator(f"#view .strip .st >> nth={fold(events).num_steps - 1}").wait_for()
        assert frame.locator("#view .answer").evaluate("node => node.textContent") == text_of(events)
        page.evaluate(TAKE_OUTPUT, front_end.sent[-1])
        frame.locator("#view .recorded:visible, #view .origin:visible").first.wait_for()
        assert page.locator("iframe").count() == 1 and watched.errors == [] and watched.outside == []
    player._ipython_display_()
    assert front_end.outputs == 2, "it is there already"
    front_end.execution_count += 1
    player._ipython_display_()
    assert front_end.sent[-1] == (2, player._repr_html_())


def test_an_interrupted_cell_keeps_what_there_is(front_end: FrontEnd) -> None:
    events = STREAMS["chain"]()

    def stream() -> Iterator[Event]:
        yield from events[:-2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        specviz.show(stream())
    assert "The recording ends here." in front_end.sent[-1][1]
    with pytest.raises(TraceError, match="not the events of a run"):
        specviz.show(iter([]))


@pytest.mark.real
def test_the_example_notebook_runs_from_the_first_cell_to_the_last() -> None:
    """In a kernel of its own, as a notebook does."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    load_real()  # fetched, if need be, with this process's patience
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert all(cell.outputs == [] for cell in book.cells if cell.cell_type == "code")
    here = {"metadata": {"path": str(NOTEBOOK.parents[1])}}
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3", resources=here).execute()
    shown = [
        [dict(output.get("data", {})) for output in cell.outputs] for cell in book.cells if cell.cell_type == "code"
    ]
    frames = [
        [data["text/html"] for data in outputs if "<iframe srcdoc=" in data.get("text/html", "")] for outputs in shown
    ]
    assert [len(found) for found in frames] == [1, 1, 1], "the run is shown once, live, and not again by its cell"
    assert "&quot;still&quot;:true" in frames[2][0] and "boat" in frames[2][0]


# --- pictures that move ----------------------------------------------------------------------------------------------


def moving(data: bytes) -> tuple[Image.Image, list[int]]:
    """The last frame, and for how many milliseconds each one stands."""
    picture = Image.open(BytesIO(data))
    lasts = []
    for i in range(getattr(picture, "n_frames", 1)):
        picture.seek(i)
        picture.load()
        lasts.append(picture.info["duration"])
    return picture.convert("RGB"), lasts


@pytest.mark.parametrize(("format_name", "dark"), [("gif", False), ("webp", True)])
def test_a_picture_moves_at_the_speed_of_the_run(tmp_path: Path, format_name: str, dark: bool) -> None:
    out = tmp_path / f"run.{format_name}"
    assert main(["picture", str(TRACES / "opening.jsonl"), "-o", str(out), *(["--dark"] if dark else [])]) == 0
    data = out.read_bytes()
    last, lasts = moving(data)
    decode_s = fold(load_trace(TRACES / "opening.jsonl").events).decode_s
    assert len(lasts) > 10 and abs(sum(lasts[:-1]) - decode_s * 1000) <= 10 and lasts[-1] == 3000
    assert last.getpixel((2, 2)) == ((19, 19, 22) if dark else (255, 255, 255))
    assert len(data) < 1_000_000
    inks = {colour for _, colour in last.getcolors(1 << 20)}
    assert len(inks) > 50


def test_a_long_run_is_shown_so_far_and_says_so() -> None:
    """One of two minutes and 3,000 steps: bounded in frames, height and bytes."""
    start, prefill, *steps, end = STREAMS["chain"]()
    step = next(event for event in steps if isinstance(event, StepDone))
    many = [replace(step, index=i + 1, draft_s=0.01, verify_s=0.02, other_s=0.01) for i in range(3000)]
    data = picture.draw_run(trace_of([start, prefill, *many, end]))
    last, lasts = moving(data)
    assert len(lasts) <= 300 and 29_000 <= sum(lasts[:-1]) <= 30_000
    assert last.height < 600 and len(data) < 8_000_000


def test_any_text_can_be_drawn_and_none_is_markup() -> None:
    for name in STREAMS:
        assert draw_of(STREAMS[name]()).startswith(b"GIF89a"), name
    assert draw_of(hostile()).startswith(b"GIF89a")
    with pytest.raises(TraceError, match="no step"):
        draw_of(STREAMS["chain"]()[:1])
    assert main(["picture", str(TRACES / "opening.jsonl"), "-o", "run.mp4"]) == 2


def draw_of(events: list[Event]) -> bytes:
    return picture.draw_run(trace_of(events), speed=4.0)
