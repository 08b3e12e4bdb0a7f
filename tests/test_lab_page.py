"""The tab Lab in Chromium, on the recorded findings and on a live experiment of a tiny pair."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("gradio")

from test_app import READY, Loader, opened, served, wait_until

from specviz.errors import ConfigError
from specviz.lab.experiments import EXPERIMENTS
from specviz.lab.record import load_findings
from specviz.lab.words import answer
from specviz.ui.access.host import EngineHost
from specviz.ui.lab.charts import NUM_FIGURES, figures
from specviz.ui.lab.parts import facts_value
from specviz.ui.lab.tab import Lab
from specviz.ui.lab.tables import heads, table
from specviz.ui.settings import DEFAULTS

DRAWN = "document.querySelectorAll('#lab .js-plotly-plot .main-svg').length >= %d"
NUM_DRAWN = 2 * sum(NUM_FIGURES.values())  # Plotly stacks more than one sheet


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, EngineHost, Loader]]:
    loader = Loader()
    with served(loader) as (url, host):
        wait_until(lambda: host.status.phase == "ready", 20)
        yield url, host, loader


def test_every_recorded_finding_has_its_figures_and_table() -> None:
    for name, finding in load_findings().items():
        drawn = figures(finding)
        assert len(drawn) == NUM_FIGURES[name]
        assert all(figure is not None for figure in drawn)
        frame = table(finding)
        assert list(frame.columns) == heads(name)
        assert len(frame) == len(finding.rows)
        for figure in drawn:
            assert "nan" not in figure.to_json().lower().replace("annotation", "")


def test_92_amounts_are_checked_in_the_handler() -> None:
    class Page:
        fields = dict.fromkeys(DEFAULTS)

        def offered(self) -> list[str]:
            return ["tiny"]

    class Part:
        amount = object()

    lab = Lab(Page())  # type: ignore[arg-type]
    for amount in (0, 1e9, "3", None, float("nan")):
        with pytest.raises(ConfigError, match="rounds"):
            lab._ask(Part(), (*DEFAULTS.values(), amount), "gamma")  # type: ignore[arg-type]
    values = (DEFAULTS | {"gamma": 99}).values()
    with pytest.raises(ConfigError, match="gamma"):
        lab._ask(Part(), (*values, 3), "gamma")  # type: ignore[arg-type]
    _, ask = lab._ask(Part(), (*DEFAULTS.values(), 2), "gamma")  # type: ignore[arg-type]
    assert ask.repeat == 2


def test_the_facts_beside_the_curve_are_figures_with_words() -> None:
    assert "not fitted" in facts_value(load_findings()["gamma"])


@pytest.mark.browser
def test_the_recorded_lab_is_loaded_when_the_tab_is_opened_first_and_says_so(site: Any) -> None:
    recorded = load_findings()
    with opened(site[0], reduced_motion="reduce") as page:
        assert page.locator("#lab .js-plotly-plot").count() == 0
        page.click("#tab-lab-button")
        page.wait_for_function(DRAWN % NUM_DRAWN, timeout=60_000)
        for name in EXPERIMENTS:
            section = page.locator(f"#lab-{name}")
            assert section.locator(".headline").inner_text() == answer(recorded[name])[0]
            assert section.locator(".where").inner_text().startswith("Recorded on")
            for picture in section.locator(".picture").all():
                assert answer(recorded[name])[0] in picture.get_attribute("aria-label")
        with page.expect_download() as download:
            page.click("#csv-gamma")
        rows = list(csv.DictReader(io.StringIO(download.value.path().read_text(encoding="utf-8"))))
        assert [float(row["gamma"]) for row in rows] == [row["gamma"] for row in recorded["gamma"].rows]
        for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
            with page.expect_download() as download:
                page.click(f"#{kind}-passes")
            assert download.value.path().read_bytes().startswith(start)


@pytest.mark.browser
def test_an_experiment_is_measured_stopped_and_resized_when_its_tab_is_shown_again(site: Any) -> None:
    _, host, loader = site
    with opened(f"{site[0]}?method=draft-model&max_new_tokens=16&exact=off", reduced_motion="reduce") as page:
        page.click("#tab-lab-button")
        page.wait_for_function(DRAWN % NUM_DRAWN, timeout=60_000)
        page.locator("#measure-gamma").focus()
        page.keyboard.press("Enter")
        page.click("#tab-watch-button")  # the figures arrive while nobody looks
        done = "document.querySelector('#lab-gamma .doing')?.textContent"
        page.click("#tab-lab-button")
        page.wait_for_function(f"{done}?.startsWith('Measured in')", timeout=60_000)
        assert page.inner_text("#lab-gamma .where").startswith("Measured here: Tiny")
        page.wait_for_function(
            "[...document.querySelectorAll('#lab-gamma .js-plotly-plot')].every("
            "p => Math.abs(p.querySelector('.main-svg').clientWidth - p.parentElement.clientWidth) < 4)"
        )
        loader.delay_s = 0.05
        page.click("#measure-sampling")
        said = "document.querySelector('#lab-sampling .doing').textContent"
        page.wait_for_function(f"/^Sample/.test({said})", timeout=30_000)
        page.click("#stop-sampling")
        page.wait_for_function(f"/^Stopped/.test({said})")
        loader.delay_s = 0.0
        wait_until(lambda: not host.is_busy)
        page.wait_for_function("!document.querySelector('#measure-sampling').disabled")
        page.wait_for_selector("#stop-sampling", state="hidden")


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 1280)])
def test_no_sideways_scroll_and_nothing_for_axe(site: Any, theme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    with opened(f"{site[0]}?__theme={theme}", viewport={"width": width, "height": 844}) as page:
        page.wait_for_function(READY)
        page.click("#tab-lab-button")
        page.wait_for_function(DRAWN % NUM_DRAWN, timeout=60_000)
        for name in ("passes", "greedy"):
            page.locator(f"#lab-{name} .label-wrap").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(page, context="#lab", options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []


def test_labels_of_the_surface_keep_off_the_break_even_line() -> None:
    """Issue 16: the recorded run's label and "slower than plain" lie where speculation loses, apart from each other."""
    figure = figures(load_findings()["gamma"], recorded=True)[1]
    assert figure is not None
    line = next(trace for trace in figure.data if trace.name == "break-even")
    even = dict(zip(line.y, line.x, strict=True))
    named = {note.text: note for note in figure.layout.annotations}
    here, slower = named["<b>the recorded run</b>"], named["slower than plain"]
    assert here.x < even[here.y] and here.xanchor == "right" and here.x > 0.36
    assert slower.xanchor == "left" and slower.x + 0.36 < even[slower.y]
    assert abs(slower.y - here.y) > 1
