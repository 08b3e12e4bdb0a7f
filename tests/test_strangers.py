"""What strangers do to a shared page: no room, no address, no session, no patience. Tiny models, loopback only."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio")

import gradio as gr
import gradio.processing_utils
import httpx
from gradio.utils import get_upload_folder
from hosts import PAIRS, Loader, deltas, make_host, served, settings, take, wait_until

from specviz.errors import BusyError, ModelLoadError, sentence_for
from specviz.trace import load_trace
from specviz.ui.access import gate, host
from specviz.ui.access.downloads import MAX_FOLLOWERS
from specviz.ui.access.host import Notice
from specviz.ui.access.visits import ALREADY_RUNNING, MAX_RUNS, MAX_VISITS, LastRun, Visit, Visits
from specviz.ui.page import build_page, launch
from specviz.ui.watch.live import new_encoder, run_live
from specviz.ui.watch.tab import Watch

# --- the line ------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_line_tells_place_and_seconds_from_measured_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    one = make_host()
    first, _ = take(one)
    waiting = [one.turn("tiny") for _ in range(3)]
    reason = "Runs take turns, so that each is measured alone."
    assert [next(turn).text for turn in waiting[:2]] == [  # nothing has been measured yet
        f"You are next in line. {reason}",
        f"You are second in line. {reason}",
    ]
    clock.now += 20
    first.close()
    next(waiting[0])
    clock.now += 7
    assert next(waiting[1]).text == "You are next in line. About 15 seconds."
    assert next(waiting[2]).text == "You are second in line. About 35 seconds."
    clock.now += 100  # longer than any before: at any moment now, and no figure below the smallest that is told
    assert next(waiting[1]).text == "You are next in line. About 5 seconds."
    clock.now += 1000
    waiting[0].close()
    next(waiting[1])
    assert next(waiting[2]).text == "You are next in line. About 9 minutes."  # the median of 20 s and 1127 s
    for turn in waiting:
        turn.close()


def test_a_page_has_one_run_and_one_place_in_the_line() -> None:
    one, visit = make_host(), Visit()
    first, _ = take(one)
    waiting = run_live(one, visit, settings(), new_encoder())
    assert "next in line" in next(waiting)
    again = deltas(run_live(one, visit, settings(), new_encoder()))
    assert [delta["error"] for delta in again] == [ALREADY_RUNNING]
    assert one.num_waiting == 1
    first.close()
    assert deltas(waiting)[-1]["finish"]["reason"] == "length"
    assert deltas(run_live(one, visit, settings(), new_encoder()))[-1]["finish"]["reason"] == "length"


# --- visits --------------------------------------------------------------------------------------------------------


def test_visitors_without_a_session_never_meet() -> None:
    """Programs may leave the session hash out, or write anything there: each is then a visitor of their own."""
    known = Visits()
    for session in (None, "", "x" * 100_000):
        visit = known.of(session)
        visit.begin()
        assert known.of(session) is not visit
        assert known.known(session) is None
    assert known.of("abc") is known.of("abc") is known.known("abc")


def test_asking_about_a_page_leaves_nothing_behind_and_a_running_one_is_not_forgotten() -> None:
    known = Visits()
    running = known.of("running")
    stop = running.begin()
    for i in range(MAX_VISITS + 10):
        known.known(f"asked {i}")
        known.of(f"page {i}")
    assert known.known("asked 0") is None
    assert known.known("page 0") is None
    assert known.known("running") is running
    known.forget("running")
    assert stop.is_set()
    assert len(known._visits) <= MAX_VISITS


def test_the_runs_of_many_open_pages_are_bounded() -> None:
    """The events of a long run take megabytes; the oldest page's go first."""
    known = Visits()
    for i in range(MAX_RUNS + 5):
        known.of(f"page {i}").last = LastRun(settings(), new_encoder(), [])
    known.of("one more")
    kept = [i for i in range(MAX_RUNS + 5) if known.known(f"page {i}").last is not None]  # type: ignore[union-attr]
    assert kept == list(range(5, MAX_RUNS + 5))


# --- downloads -----------------------------------------------------------------------------------------------------


class SlowHub:
    """Fetches when told to; `fail` is raised then."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.num_fetches = 0
        self.fail: Exception | None = None

    def __call__(self, pair: Any, progress: Any) -> None:
        if pair.name == "tiny":
            return
        self.num_fetches += 1
        progress(f"Downloading {pair.title}, 1 of 2 MB", 0.5)
        assert self.gate.wait(20)
        if self.fail is not None:
            raise self.fail


def test_a_hanging_hub_holds_up_only_who_waits_for_it() -> None:
    hub = SlowHub()
    one = make_host(fetch=hub)
    first, engine = take(one)
    first.close()
    follower, other = one.turn("other"), one.turn("other")
    assert next(follower) == next(other) == Notice("Downloading Other, 1 of 2 MB", 0.5)
    visit = Visit()
    assert deltas(run_live(one, visit, settings(), new_encoder()))[-1]["finish"]["reason"] == "length"
    assert one.engine is engine
    assert one.num_waiting == 0
    stopped = Visit()
    leaving = run_live(one, stopped, settings(pair="other"), new_encoder())
    next(leaving)
    stopped.ask_to_stop()
    assert "Stopped before the run began" in list(leaving)[-1]
    hub.gate.set()
    assert next(item for item in follower if not isinstance(item, Notice)).loaded.pair.name == "other"
    follower.close()
    other.close()
    assert hub.num_fetches == 1
    assert not one.is_busy


def test_a_failed_download_is_told_and_can_be_tried_again() -> None:
    hub = SlowHub()
    hub.gate.set()
    one = make_host(fetch=hub)
    first, _ = take(one)
    first.close()
    for fail, sentence in ((ModelLoadError("The Hub did not answer."), "did not answer"), (OSError(28, "x"), "full")):
        hub.fail = fail
        assert sentence in deltas(run_live(one, Visit(), settings(pair="other"), new_encoder()))[-1]["error"]
        assert one.serves("tiny", "auto")
    hub.fail = None
    turn, _ = take(one, "other")
    turn.close()


def test_few_may_wait_for_downloads_and_too_large_a_pair_is_never_fetched() -> None:
    hub = SlowHub()
    one = make_host(fetch=hub)
    followers = [one.turn("other") for _ in range(MAX_FOLLOWERS)]
    for turn in followers:
        next(turn)
    with pytest.raises(BusyError, match="waiting for downloads"):
        next(one.turn("third"))
    with pytest.raises(ModelLoadError, match=r"900\.0 GB"):
        next(one.turn("huge"))
    for turn in followers:
        turn.close()
    hub.gate.set()
    turn, _ = take(one, "third")
    turn.close()
    assert hub.num_fetches == 2


# --- a full disk ---------------------------------------------------------------------------------------------------


def test_a_full_disk_is_told_in_words_and_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make_host()
    watch = Watch(one, None)
    request = gr.Request(session_hash="stranger")
    visit = watch.visits.of("stranger")
    with gr.Blocks():
        watch.sidebar()
        watch.toolbar()
        watch.main()
    list(run_live(one, visit, settings(), new_encoder()))
    assert visit.last is not None

    def write(path: Path, text: str, encoding: str, errors: str = "strict") -> None:
        path.write_bytes(text.encode()[:100])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write)
        shown = watch._results(request)
    said = json.loads(shown[watch.view])["error"]
    assert said == "The disk of this machine is full. Your last run is still here."
    assert not [path for path in watch.share._outbox.folder.rglob("*") if path.is_file()]
    trace, *_ = watch.share._write(visit.last.events, [])
    assert load_trace(trace).damage == ""


def test_no_message_of_a_full_disk_holds_a_path() -> None:
    sentence = sentence_for(OSError(errno.ENOSPC, "No space left on device", "/home/somebody/x"), stays="It stays.")
    assert sentence == "The disk of this machine is full. It stays."


def test_case_103_the_page_is_built_without_touching_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU may be used only inside a job, the main process must not initialise it. The torch of the tests has no
    CUDA, so an import that touched it would fail everywhere; building the page may not either."""
    import torch

    def touched(*args: object) -> None:
        raise AssertionError("CUDA was initialised")

    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    assert build_page(host.EngineHost(default_pair="smollm2-135m")).fns


# --- the gate: what the web server lets in -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[str, Any, Loader]]:
    loader = Loader()
    with served(loader) as (url, one):
        wait_until(lambda: one.status.phase == "ready", 60)
        yield url.rstrip("/"), one, loader


def test_gradio_lets_go_of_old_pages() -> None:
    """It keeps the components of every page that ever opened, up to a number that is ours to set."""
    with gr.Blocks() as demo:
        gr.Textbox()
    launch(demo, prevent_thread_lock=True, server_name="127.0.0.1")
    try:
        for i in range(MAX_VISITS + 20):
            demo.state_holder[f"page{i}"].get(1)
        assert list(demo.state_holder.session_data)[-1] == f"page{MAX_VISITS + 19}"
        assert len(demo.state_holder.session_data) <= MAX_VISITS + 1
    finally:
        demo.close()


def upload(url: str, size: int) -> httpx.Response:
    return httpx.post(f"{url}/gradio_api/upload", files={"files": ("run.jsonl", b"x" * size)}, timeout=30)


def test_large_bodies_and_bodies_without_a_length_are_refused(site: Any) -> None:
    url, _, _ = site
    answer = upload(url, gate.MAX_BODY + 1)
    assert (answer.status_code, "at most 16 MB" in answer.text) == (413, True)
    answer = httpx.post(f"{url}/gradio_api/queue/join", content=iter([b"{}"]))
    assert (answer.status_code, answer.text) == (411, "Send the request with its length.")
    assert httpx.post(f"{url}/gradio_api/queue/join", content=b"{}").status_code == 422


def test_uploads_share_a_part_of_the_disk_and_lie_in_a_private_folder(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, _ = site
    stored = upload(url, 1000)
    assert stored.status_code == 200
    folder = Path(get_upload_folder())
    assert Path(stored.json()[0]).is_relative_to(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(gate, "MAX_STORED", 1500)
    answer = upload(url, 1000)
    assert (answer.status_code, "no room for uploads" in answer.text) == (507, True)


@pytest.mark.parametrize(
    "path",
    [
        "deep_link?session_hash=abc",
        "runs",
        "run-history/buckets",
        "proxy=http://127.0.0.1/",
        "stream/x/y/1/playlist.m3u8",
    ],
)
def test_routes_without_a_use_are_closed(site: Any, path: str) -> None:
    """No run history, and nothing that writes a file or reads another visitor's fields for whoever asks."""
    assert httpx.get(f"{site[0]}/gradio_api/{path}").status_code == 404


def test_no_monitoring_and_no_file_of_the_disk(site: Any) -> None:
    assert httpx.get(f"{site[0]}/monitoring").status_code == 403
    for path in ("/etc/passwd", "README.md", str(Path(__file__).resolve())):
        answer = httpx.get(f"{site[0]}/gradio_api/file={path}")
        assert answer.status_code in (403, 404)
        assert "def test" not in answer.text


def test_an_address_in_a_field_is_not_fetched(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio downloads what looks like a file with an address, for every kind of input (case 86's neighbour)."""
    asked: list[str] = []

    async def spy(url: str, cache_dir: str = "") -> Any:
        asked.append(url)
        return await gate._fetch_nothing(url)

    assert gradio.processing_utils.async_ssrf_protected_get is gate._fetch_nothing
    monkeypatch.setattr(gradio.processing_utils, "async_ssrf_protected_download", spy)
    url = site[0]
    file = {"path": "http://192.0.2.1/large", "meta": {"_type": "gradio.FileData"}}
    info = httpx.get(f"{url}/gradio_api/info").json()["named_endpoints"]["/spec_events"]["parameters"]
    values = [file, *(parameter["parameter_default"] for parameter in info[1:])]
    assert "error" in call(url, values)
    assert asked == ["http://192.0.2.1/large"]
    assert '"Summary"' in call(url, ["ab", "plain", 0, 2, *values[4:]])


def call(url: str, values: list[Any]) -> str:
    event = httpx.post(f"{url}/gradio_api/call/spec_events", json={"data": values}).json()["event_id"]
    return httpx.get(f"{url}/gradio_api/call/spec_events/{event}", timeout=30).text


def test_private_endpoints_check_what_they_get(site: Any) -> None:
    """The page's own handlers run for whoever knows their number: bad values are content or nothing, never a trace of
    the program, and the next run is right."""
    url, one, _ = site
    config = httpx.get(f"{url}/config").json()
    run = next(entry for entry in config["dependencies"] if entry["api_name"] == "_run")
    fields = {item["id"]: item["props"].get("value") for item in config["components"]}
    good = [fields[i] for i in run["inputs"]]
    for i, bad in ((0, None), (0, {"a": 1}), (1, "/etc/passwd"), (2, [[]]), (6, "x" * 300), (-1, 10**300), (7, True)):
        values = list(good)
        values[i] = bad
        said = page_run(url, run["id"], values)
        assert r"\"error\":" in said and r"\"start\":" not in said, (i, bad)
        assert "Traceback" not in said
        assert ".py" not in said
    for i, bad in ((3, "x" * 300), (4, True)):  # window and tree, which the method chosen does not have
        said = page_run(url, run["id"], [*good[:i], bad, *good[i + 1 :]])
        assert r"\"finish\":" in said and r"\"error\":" not in said, (i, bad)
        assert "Traceback" not in said
        assert ".py" not in said
    assert "20,000 characters; got 10,000,000" in page_run(url, run["id"], ["x" * 10**7, *good[1:]])
    assert page_run(url, run["id"], [])  # refused by Gradio, without a word
    shape = httpx.post(f"{url}/gradio_api/run/_shape", json={"data": [{}, [], "x", None, 10**30]})
    assert "Traceback" not in shape.text
    good[0] = "ab"
    assert "finish" in page_run(url, run["id"], good)
    assert not one.is_busy


def page_run(url: str, number: int, values: list[Any]) -> str:
    """Everything that the server sends for one press of Run."""
    session = f"test{os.urandom(4).hex()}"
    body = {"fn_index": number, "data": values, "session_hash": session}
    assert httpx.post(f"{url}/gradio_api/queue/join", json=body).status_code == 200
    sent = []
    with httpx.stream("GET", f"{url}/gradio_api/queue/data", params={"session_hash": session}, timeout=60) as lines:
        for line in lines.iter_lines():
            sent.append(line)
            if '"process_completed"' in line:
                break
    return "\n".join(sent)


def test_the_pairs_of_the_page_are_the_catalogs(site: Any) -> None:
    """No id, path or address from a visitor reaches a loader."""
    for pair in ("../../etc", "/etc/passwd", "http://example.org/x", "owner/name"):
        with pytest.raises(ModelLoadError, match="no model pair"):
            next(site[1].turn(pair))
        assert pair not in PAIRS
