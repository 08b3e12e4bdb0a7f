"""Attached servers on the page: a place in the line, the endpoint, the run in Chromium, and the tab "Serving"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("gradio")

from browser import open_page
from gradio_client import Client
from replay import ReplayServer, capture, serving

from specviz.errors import ConfigError
from specviz.remote import RemoteEngine, read_addresses
from specviz.remote.counters import ServerCounters
from specviz.remote.history import History, Sample
from specviz.remote.server import Identity
from specviz.ui.access.attached import AttachedServer, Notice, Session
from specviz.ui.access.host import EngineHost
from specviz.ui.access.visits import Visit
from specviz.ui.page import build_page, launch
from specviz.ui.serving.tab import groups_of, picture_of, replicas_of
from specviz.ui.settings import WatchSettings
from specviz.ui.watch.live import can_measure_later, new_encoder, run_live

NASTY = "<img src=x onerror=alert(1)>${1+1}"


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, EngineHost, ReplayServer]]:
    """A page attached to a replaying server and to an address where nothing listens."""
    with serving() as replay:
        host = EngineHost(
            servers=[AttachedServer(RemoteEngine(a)) for a in read_addresses([replay.url, "http://127.0.0.1:9"])]
        )
        demo = build_page(host)
        _, url, _ = launch(demo, prevent_thread_lock=True)
        yield url, host, replay
        for server in host.servers.values():
            server.sampler.close()
        demo.close()


@pytest.fixture
def replay(site: Any) -> Iterator[ReplayServer]:
    """The server as it was at first; runs ask for "copy"."""
    yield site[2]
    site[2].edit, site[2].status, site[2].metrics = (lambda lines: lines), 200, (lambda text: text)


def settings(host: EngineHost, **values: Any) -> WatchSettings:
    return WatchSettings.read({"prompt": capture("copy").prompt} | values, [*host.servers, *host.pairs])


def deltas(host: EngineHost, visit: Visit, **values: Any) -> list[dict[str, Any]]:
    return [json.loads(text) for text in run_live(host, visit, settings(host, **values), new_encoder())]


def test_the_first_server_is_what_runs_unless_a_pair_is_chosen(site: Any, replay: ReplayServer) -> None:
    _, host, _ = site
    assert settings(host).pair == next(iter(host.servers)) == host.first_choice
    visit = Visit()
    found = deltas(host, visit)
    last = next(delta for delta in reversed(found) if "finish" in delta)
    assert last["counters"]["num_drafted"] == 28
    assert last["verdict"]["kind"] == "none"
    assert not can_measure_later(visit.last)
    assert host.engine is None  # nothing was loaded here


@pytest.mark.parametrize("pair", ["http://evil:80", "127.0.0.1:1", "file:///etc/passwd", "//x"])
def test_no_visitor_can_name_a_server(site: Any, pair: str) -> None:
    with pytest.raises(ConfigError, match="must be one of"):
        settings(site[1], pair=pair)


def test_a_failure_is_a_sentence_and_the_last_run_stays(site: Any, replay: ReplayServer) -> None:
    _, host, _ = site
    visit = Visit()
    deltas(host, visit)
    before = visit.last
    replay.status = 503
    assert "cannot answer now (503)" in deltas(host, visit)[-1]["error"]
    assert "nothing listens there" in deltas(host, visit, pair="127.0.0.1:9")[-1]["error"]
    assert visit.last is before


def test_one_request_at_a_time_keeps_the_counters_exact(site: Any) -> None:
    _, host, _ = site
    server = next(iter(host.servers.values()))
    first = server.turn(lambda: False)
    assert isinstance(next(first), Session)
    second = server.turn(lambda: False)
    notice = next(second)
    assert isinstance(notice, Notice)
    assert "counters stay exact" in notice.text
    assert list(server.turn(lambda: True)) == []
    first.close()  # type: ignore[attr-defined]
    assert isinstance(next(second), Session)
    second.close()  # type: ignore[attr-defined]


def test_the_endpoint_for_programs_reaches_the_server(site: Any, replay: ReplayServer) -> None:
    url, host, _ = site
    client = Client(url, verbose=False)
    messages = list(client.submit(capture("copy").prompt, max_new_tokens=96, api_name="/spec_events"))
    assert [messages[0]["type"], messages[1]["type"]] == ["RunStarted", "PrefillDone"]
    assert messages[-1]["type"] == "Summary"
    assert messages[-1]["num_drafted"] == messages[-1]["num_accepted"] == 28
    assert messages[-1]["pair"] == host.first_choice


def test_a_server_as_the_tab_draws_it(site: Any) -> None:
    server = AttachedServer(RemoteEngine(read_addresses(["http://127.0.0.1:9"])[0]))
    sampler = server.sampler
    assert picture_of(sampler)["state"] == "new"
    history = History()
    for i in range(80):
        counters = ServerCounters(5 * i, 20 * i, 20 * i, (5 * i,) * 4, 30 * i, 3, 1, "vllm")
        history = history.add(Sample(sampler.clock() - 160 + 2 * i, counters))
    sampler.history = history
    found = picture_of(sampler)
    assert found["state"] == "answers"
    assert "perfect" in found["alarms"][0]
    assert found["positions"] == [1.0] * 4
    assert found["figures"]["acceptance_length"] == 5.0
    assert found["figures"]["num_running"] == 3
    assert len(found["ago_s"]) == len(found["series"]["tokens_per_s"]) <= 120
    sampler.sample()
    assert picture_of(sampler)["state"] == "silent"
    assert "nothing listens there" in picture_of(sampler)["said"]
    assert picture_of(sampler)["alarms"] == []


# --- in Chromium ---------------------------------------------------------------------------------------------------


def violations(page: Any) -> list[Any]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
    return [(v["id"], [node["html"][:160] for node in v["nodes"]][:3]) for v in found]


@pytest.mark.browser
def test_an_attached_run_on_the_page(site: Any, replay: ReplayServer) -> None:
    """Case 75 too: a server's texts are hostile, and reach the page as text."""
    url, _, _ = site
    replay.edit = lambda lines: [(at_s, line.replace(" boats", f" {NASTY}")) for at_s, line in lines]
    with open_page(url, viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as watched:
        page = watched.page
        page.wait_for_selector("#run", timeout=30_000)
        page.wait_for_function("!document.querySelector('#gamma')?.checkVisibility()")  # what a server would ignore
        page.fill("#prompt textarea", capture("copy").prompt)
        page.click("#run")
        page.wait_for_function(
            "document.querySelector('#view .status').textContent.includes('Finished')", timeout=30_000
        )
        page.wait_for_function("!document.querySelector('#run').disabled")
        answer = page.evaluate("document.querySelector('#view .answer').textContent")
        assert answer.startswith(f"There were seven {NASTY} in the harbour.")
        shown = page.evaluate("[...document.querySelectorAll('#view .strip .x')].map((x) => x._copy).join('')")
        assert shown.startswith(answer)
        assert not page.evaluate("document.querySelector('#view .strip img')")
        assert page.locator("#view .strip .st").count() == 9
        assert "28 of 28 drafted" in page.inner_text("#view .kpis")
        legend = page.inner_text("#view .legend").split()
        assert legend[legend.index("corrected") + 1] == "–"
        assert legend[legend.index("target") + 1] == "9"
        page.locator("#view .strip .st").nth(1).click()
        assert "before temperature" in page.inner_text("#view .card")
        assert "drafted: not told" in page.inner_text("#view .card")
        assert violations(page) == []
        assert watched.errors == []
        assert watched.outside == []


@pytest.mark.browser
def test_a_chart_that_has_not_loaded_is_not_announced(site: Any) -> None:
    """A finding that came and went with the machine's load: Gradio's placeholder has a name and no role."""
    with open_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce") as watched:
        page = watched.page
        page.route("**/PlotlyPlot-*.js", lambda route: None)  # never comes
        page.goto(site[0])
        page.wait_for_selector("#run", timeout=30_000)
        page.wait_for_selector("[aria-label='Empty value']", state="attached")
        assert violations(page) == []
        assert watched.errors == []


def grown(steps: int, running: int, source: str = "vllm") -> History:
    """A minute and a half of a server: each step takes 20 ms without drafts and 24 ms with 4, and keeps 2 of them."""
    found = History()
    for i in range(45):
        done, drafts = steps * i, 0 if source == "plain" else steps * i
        counters = ServerCounters(None, None, None, (), done, running, 0, "vllm", gaps_s=0.02 * done, num_gaps=done)
        if source != "plain":
            by_place = (drafts, drafts // 2, drafts // 2, 0)
            counters = replace(
                counters, num_drafts=drafts, num_drafted=4 * drafts, num_accepted=2 * drafts, accepted_at=by_place,
                num_generated=3 * done, gaps_s=0.024 * done,
            )  # fmt: skip
        found = found.add(Sample(2.0 * i, counters))
    return found


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[str, list[AttachedServer]]]:
    """Two replicas that draft, one that does not, all of one model; their histories are made, not sampled."""
    addresses = read_addresses(["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"])
    servers = [AttachedServer(RemoteEngine(address)) for address in addresses]
    for server, (steps, kind) in zip(servers, ((30, "vllm"), (20, "vllm"), (40, "plain")), strict=True):
        server.sampler.history = grown(steps, 2, kind)
        server.sampler.identity = server.sampler.seen = Identity("vLLM", "0.32.0", "Qwen/Qwen3-8B", 4096)
        server.sampler.start = lambda: None  # type: ignore[method-assign]
        server.sampler.clock = lambda: 88.0
    demo = build_page(EngineHost(servers=servers))
    _, url, _ = launch(demo, prevent_thread_lock=True)
    yield url, servers
    demo.close()


def test_replicas_are_one_server_with_a_row_for_each(fleet: tuple[str, list[AttachedServer]]) -> None:
    samplers = [server.sampler for server in fleet[1]]
    groups = groups_of(samplers)
    assert [[sampler.server.name for sampler in group] for group in groups] == [["10.0.0.1:8000", "10.0.0.2:8000"]]
    found = replicas_of(groups[0])
    assert found["name"] == "2 replicas of Qwen/Qwen3-8B"
    assert found["figures"]["num_running"] == 4
    assert found["figures"]["tokens_per_s"] == pytest.approx(75.0)
    assert [row["figures"]["tokens_per_s"] for row in found["replicas"]] == [pytest.approx(45.0), pytest.approx(30.0)]
    assert found["positions"] == pytest.approx([1.0, 0.5, 0.5, 0.0], abs=0.01)
    samplers[1].silent_since_s = 80.0
    assert "1 of 2 show no metrics now: 10.0.0.2:8000." in replicas_of(groups[0])["said"]
    samplers[1].silent_since_s = None


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_a_fleet_on_the_tab(fleet: tuple[str, list[AttachedServer]], theme: str, width: int) -> None:
    """Issue 19: several replicas as one, and the gamma that would pay with the line to copy."""
    with open_page(
        f"{fleet[0]}?__theme={theme}",
        viewport={"width": width, "height": 844},
        color_scheme=theme,
        reduced_motion="reduce",
    ) as watched:
        page = watched.page
        page.wait_for_selector("#run", timeout=30_000)
        page.click("[role=tab]:has-text('Serving')")
        page.wait_for_selector("#serving .server .advice", timeout=30_000)
        assert page.locator("#serving .server").count() == 4
        first = page.locator("#serving .server").first
        assert "2 replicas of" in first.inner_text()
        assert first.locator("tbody tr").count() == 2 + 4
        assert "With 2 requests at once γ = 3 pays best, 2.61 times plain decoding." in first.inner_text()
        assert '{"method": "...", "num_speculative_tokens": 3}' in first.locator("code").inner_text()
        first.locator("summary").click()
        assert "(24.0 / 20.0 − 1) / 4 = 0.050" in first.inner_text()
        page.wait_for_timeout(2500)  # news that change nothing leave it open
        assert first.locator("details").evaluate("node => node.open")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page) == []
        assert watched.errors == []
        assert watched.outside == []


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_tab_serving(site: Any, replay: ReplayServer, theme: str, width: int) -> None:
    url, host, _ = site
    with open_page(
        f"{url}?__theme={theme}", viewport={"width": width, "height": 844}, color_scheme=theme, reduced_motion="reduce"
    ) as watched:
        page = watched.page
        page.wait_for_selector("#run", timeout=30_000)
        page.click("[role=tab]:has-text('Serving')")
        page.wait_for_selector("#serving .server svg.fig", timeout=30_000)
        first, second = page.locator("#serving .server").all()
        assert host.first_choice in first.inner_text()
        assert "nothing listens there" in second.inner_text()
        assert not second.locator(".kpis").is_visible()
        replay.answered.append(capture("chat"))
        page.wait_for_function("document.querySelector('#serving .kpis').textContent.includes(' drafted')")
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert violations(page) == []
        assert watched.errors == []
        assert watched.outside == []
