"""A rehearsal of Hugging Face Spaces without one: the front matter, a forked worker in place of ZeroGPU's, and app.py
under a Space's environment: an empty cache, a home that cannot be written, no network, a folder of a larger site."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("gradio")

import gradio as gr
import yaml
from browser import open_page
from fakes import config, generator, loaded_pair, tiny_llama
from proxy import proxied

from specviz.events import RunFinished, event_to_json
from specviz.models.catalog import get_pair
from specviz.models.fetch import HUB_FILES
from specviz.ui.access import zerogpu
from specviz.ui.access.host import EngineHost
from specviz.ui.access.space import reach_loopback_directly, settle_in
from specviz.ui.access.visits import Visit
from specviz.ui.access.zerogpu import (
    DEFAULT_PAIR,
    LEAST_S,
    MOST_S,
    START_S,
    Errand,
    ZeroGpuHost,
    in_plain_words,
    seconds_asked,
)
from specviz.ui.page import build_page, launch
from specviz.ui.settings import WatchSettings
from specviz.ui.watch.live import new_encoder, run_live

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE = 9_000_000
ZERO_GPU_TORCH = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")
"""https://huggingface.co/docs/hub/spaces-zerogpu, with huggingface/hub-docs#2763 of September 2026."""

# --- the repository as it is pushed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def front() -> dict[str, Any]:
    """The YAML block at the top of README.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return yaml.safe_load(text.split("---\n")[1])


def requirements() -> dict[str, str]:
    """Version limits by package."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = (line.split(";")[0].strip() for line in lines if line and not line.startswith("#"))
    return dict(re.fullmatch(r"([\w-]+)(.*)", line).groups() for line in wanted)  # type: ignore[union-attr,misc]


def test_front_matter_makes_a_gradio_space(front: dict[str, Any]):
    assert front["sdk"] == "gradio" and (ROOT / front["app_file"]).name == "app.py"
    assert requirements()["gradio"] == f"=={front['sdk_version']}" == f"=={gr.__version__}"
    assert front["python_version"] in ("3.12.12",), "the only one of ZeroGPU's that specviz runs on"
    assert front["license"] == "apache-2.0" and front["title"] == "specviz" and len(front["short_description"]) <= 60
    assert {front["colorFrom"], front["colorTo"]} <= {
        "red",
        "yellow",
        "green",
        "blue",
        "indigo",
        "purple",
        "pink",
        "gray",
    }


def test_models_are_preloaded_by_name_and_commit_as_the_catalog_has_them(front: dict[str, Any]):
    entries = [entry.split(" ") for entry in front["preload_from_hub"]]
    parts = get_pair(DEFAULT_PAIR).parts().values()
    assert [(repo, commit) for repo, _, commit in entries] == [(part.repo, part.revision) for part in parts]
    assert front["models"] == [part.repo for part in parts]
    for _, files, _ in entries:
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files.split(","))
        assert all(any(Path(name).match(pattern) for pattern in HUB_FILES) for name in files.split(","))


def test_requirements_are_pinned_and_torch_is_one_that_zerogpu_runs():
    limits = requirements()
    low, high = re.fullmatch(r">=([\d.]+),<=([\d.]+)", limits.pop("torch")).groups()  # type: ignore[union-attr]
    assert high == ZERO_GPU_TORCH[-1] and ZERO_GPU_TORCH[0].startswith(low)
    assert all(re.fullmatch(r"==\d+(\.\d+)+", limit) for limit in limits.values()), limits
    assert "spaces" not in limits, "a Space brings it, in the version its servers speak"


def test_no_file_is_larger_than_a_space_takes_without_lfs():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert not {path.name: path.stat().st_size for path in files if path.exists() and path.stat().st_size > MAX_FILE}


# --- ZeroGPU ---------------------------------------------------------------------------------------------------------

TINY = loaded_pair(tiny_llama(), object()).pair


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in for the package `spaces`, as if newly imported."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "space"))
    monkeypatch.delitem(sys.modules, "spaces", raising=False)
    zerogpu._borrow.cache_clear()
    import spaces

    yield spaces
    zerogpu._borrow.cache_clear()
    sys.modules.pop("spaces", None)
    for pid in set(spaces.worker_pids):
        os.kill(pid, 15)


def no_problem(*_: Any) -> None:
    """Every pair fits."""


def tiny_host() -> ZeroGpuHost:
    """Pairs whose models are tiny, loaded here. They cannot be loaded from files, as a worker would have to."""

    def load(pair: Any, **_: Any) -> Any:
        loaded = loaded_pair(tiny_llama(positions=2048), tiny_llama(1, positions=2048))
        loaded.pair = pair
        return loaded

    host = ZeroGpuHost({"tiny": TINY}, load=load, problem=no_problem)
    host.start().join(20)
    return host


def tiny_local_host() -> EngineHost:
    """The same pair, computing here."""
    return EngineHost({"tiny": TINY}, load=lambda *_, **__: loaded_pair(tiny_llama(positions=2048)), problem=no_problem)


def run(host: EngineHost, visit: Visit | None = None, **values: Any) -> Iterator[dict[str, Any]]:
    values = {"prompt": "hello", "method": "prompt-lookup", "max_new_tokens": 24, "measure_plain": False} | values
    settings = WatchSettings.read(values, host.pairs)
    return map(json.loads, run_live(host, visit or Visit(), settings, new_encoder()))


def test_runs_are_made_in_a_worker_and_read_as_anywhere(space: Any):
    host = tiny_host()
    assert host.status.text == "Ready · Tiny, float64, a GPU for each run"
    deltas = list(run(host))
    finish = next(delta["finish"] for delta in deltas if "finish" in delta)
    here = list(generator(tiny_llama(positions=2048)).stream("hello", config("prompt-lookup", max_new_tokens=24)))
    assert finish["token_ids"] == event_to_json(here[-1])["token_ids"]
    assert not host.is_busy

    list(run(host, measure_plain=True, method="lookahead"))
    assert len(space.worker_pids) >= 3 and len(set(space.worker_pids)) == 1, "one worker is kept for later runs"
    assert space.worker_pids[0] != os.getpid()


def test_what_crosses_is_plain(space: Any):
    """Tensors or a key-value cache among the yields would tie the page to the worker's GPU memory."""
    loaded = tiny_host().engine.loaded  # type: ignore[union-attr]
    errand = Errand("stream", loaded.pair, loaded.target_info.dtype, "hello", config("plain", max_new_tokens=3))
    assert pickle.loads(pickle.dumps(errand)) == errand
    zerogpu._Worker.inherited = loaded
    try:
        answers = list(zerogpu.work(errand))
    finally:
        zerogpu._Worker.engine = None
    assert json.loads(json.dumps(answers)) == answers and answers[-1]["type"] == "RunFinished"


def test_a_stopped_run_frees_engine_and_worker(space: Any):
    host, visit = tiny_host(), Visit()
    deltas = run(host, visit, max_new_tokens=512, method="plain")
    for delta in deltas:
        if "steps" in delta:
            visit.ask_to_stop()
            break
    rest = list(deltas)
    assert rest[-1]["finish"]["reason"] == "cancelled"
    assert not host.is_busy
    assert any("finish" in delta for delta in run(host))
    assert len(set(space.worker_pids)) == 1


def test_failures_in_the_worker_are_told_as_anywhere(space: Any):
    host = tiny_host()
    said = list(run(host, method="feature", prompt="x" * 5000))[-1]
    assert "Shorten the prompt" in said["error"]

    host.engine.loaded.target.model.layers = None  # type: ignore[union-attr]  # a fault of ours, not foreseen
    space.worker_pids.clear()
    zerogpu._borrow.cache_clear()
    assert "failed" in list(run(host))[-1]["error"]
    assert not host.is_busy


@pytest.mark.parametrize(
    ("title", "message", "said"),
    [
        (
            "ZeroGPU quota exceeded",
            "You have exceeded your free ZeroGPU quota (60s requested vs. 12s left). Try again in 3:20:11. ",
            "Your GPU time of today is used up (this run asks for 60 s, 12 s are left). Try again in 3:20:11, log in",
        ),
        ("ZeroGPU quota exceeded", "Space app has reached its GPU limit. Try re-running", "Try again later"),
        ("ZeroGPU illegal duration", "The requested GPU duration (300s) is larger", "Choose fewer new tokens."),
        ("ZeroGPU queue timeout", "No GPU was available after 60s. Retry later", "No GPU was free within a minute"),
        ("ZeroGPU client error", "No GPU was available", "No GPU was free within a minute"),
        ("ZeroGPU worker error", "GPU task aborted", "taken back before the run was over"),
        ("ZeroGPU worker error", "RuntimeError", "Something failed on the GPU (RuntimeError)"),
        ("ZeroGPU client error", "Expired ZeroGPU proxy token", "Expired ZeroGPU proxy token"),
    ],
)
def test_quota_errors_are_told_in_plain_words(title: str, message: str, said: str):
    """Titles and messages of spaces 0.51.3."""
    assert said in in_plain_words(gr.Error(message, title=title))


def test_a_refused_gpu_is_content_of_the_page_and_the_engine_is_free(space: Any):
    host = tiny_host()
    space.refusals.append(gr.Error("No GPU was available", title="ZeroGPU client error"))
    assert "No GPU was free" in list(run(host))[-1]["error"]
    assert not host.is_busy
    assert any("finish" in delta for delta in run(host))


def test_seconds_are_asked_for_by_the_run(space: Any):
    def errand(**settings: Any) -> Errand:
        return Errand("stream", TINY, "bfloat16", "hello", config("plain", **settings))

    assert seconds_asked(errand(max_new_tokens=16)) < seconds_asked(errand(max_new_tokens=512)) < MOST_S
    assert seconds_asked(errand(max_new_tokens=4096)) == MOST_S
    assert seconds_asked(errand(max_new_tokens=512, time_limit_s=5.0)) == START_S + 5
    assert MOST_S * 1.5 < 120, "what half a card counts, against a visitor's day without an account"

    host = tiny_host()
    events = list(host.engine.stream("hello", config("plain", max_new_tokens=100)))  # type: ignore[union-attr]
    assert space.asked == [START_S + LEAST_S]
    assert events[0].settings["time_limit_s"] == LEAST_S, "the run ends by itself before the GPU is taken away"
    assert isinstance(events[-1], RunFinished)


def test_a_worker_without_the_pair_loads_it_from_its_files(space: Any, monkeypatch: pytest.MonkeyPatch):
    """A worker that was forked before a visitor chose another pair."""
    other = replace(TINY, name="other")
    loads = []
    monkeypatch.setattr(zerogpu, "load_pair", lambda pair, **_: loads.append(pair.name) or loaded_pair(tiny_llama()))
    monkeypatch.setattr(zerogpu._Worker, "inherited", loaded_pair(tiny_llama()))
    monkeypatch.setattr(zerogpu._Worker, "engine", None)
    errand = Errand("stream", other, "float64", "hello", config("plain", max_new_tokens=3))
    assert list(zerogpu.work(errand))[-1]["type"] == "RunFinished"
    assert loads == ["other"]


# --- app.py as a Space starts it -------------------------------------------------------------------------------------


def test_a_home_that_cannot_be_written_is_replaced_on_a_space_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "home").touch()  # a file: nobody, root neither, can make a folder in it
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPECVIZ_CACHE", raising=False)
    monkeypatch.delenv("SPACE_ID", raising=False)
    settle_in()
    assert "SPECVIZ_CACHE" not in os.environ
    monkeypatch.setenv("SPACE_ID", "somebody/specviz")
    monkeypatch.setenv("SPECVIZ_CACHE", "")  # so that what is set here is taken back
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settle_in()
    assert os.environ["SPECVIZ_CACHE"] == str(tmp_path / "specviz")


def test_loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "intranet.example, localhost")
    reach_loopback_directly()
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "intranet.example,localhost,127.0.0.1,::1"
    monkeypatch.setenv("no_proxy", "*")
    reach_loopback_directly()
    assert os.environ["no_proxy"] == "*"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[str]:
    """The address of app.py in a Space's environment: 2 cores, an empty cache, a read-only home, no network."""
    home = tmp_path / "home"
    home.touch()
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(tmp_path),
        "SYSTEM": "spaces", "SPACE_ID": "somebody/specviz", "SPACE_HOST": "somebody-specviz.hf.space",
        "CPU_CORES": "2", "MEMORY": "16Gi", "ACCELERATOR": "zero", "SPACES_ZERO_GPU": "true",
        "GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": "7931", "GRADIO_ROOT_PATH": "/some/path",
        "GRADIO_SSR_MODE": "True", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "tests" / "space"), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    command = [sys.executable, "app.py"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")  # type: ignore[union-attr]
            ready = next(line for line in lines if "ready at" in line)
            yield re.search(r"http://\S+?:\d+", ready)[0].replace("0.0.0.0", "127.0.0.1")  # type: ignore[index]
        finally:
            process.kill()


@pytest.mark.browser
def test_app_is_alive_as_a_space(started: str):
    """The models cannot be fetched here: the page plays its recorded run all the same, and says so in one sentence."""
    with proxied(started, "/some/path") as url, open_page(f"{url}/") as page:
        page.page.wait_for_function("document.querySelectorAll('#view .strip .st').length > 3", timeout=60_000)
        page.page.wait_for_function("document.querySelector('#masthead .ready')?.dataset.phase === 'failed'")
        assert "SmolLM2-1.7B-Instruct is not on this machine yet" in page.page.inner_text("#masthead .ready")
        page.page.click("#run")
        problem = "document.querySelector('#view .page > .problem')"
        page.page.wait_for_function(f"{problem}.innerText.includes('offline mode is on')")
        hosts = {urlsplit(address).hostname for address in page.outside}
        assert hosts <= {"huggingface.co", "fonts.googleapis.com"}, "Gradio's own, which asks the Hub about its Space"


@pytest.mark.browser
def test_page_works_under_a_folder_of_a_larger_site(monkeypatch: pytest.MonkeyPatch):
    """Behind a proxy that takes the folder off, as JupyterHub and company portals do; and where another proxy is set
    for the world outside, which knows nothing of this machine."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "intranet.example")
    host = tiny_local_host()
    demo = build_page(host)
    _, here, _ = launch(demo, prevent_thread_lock=True, root_path="/some/path")
    try:
        with proxied(here.rstrip("/"), "/some/path") as url, open_page(f"{url}/") as page:
            page.page.wait_for_function("document.querySelectorAll('#view .strip .st').length > 3", timeout=60_000)
            page.page.click("#run")
            status = "document.querySelector('#view').innerText"
            page.page.wait_for_function(f"{status}.includes('Finished') || {status}.includes('Stopped')")
            assert not page.outside
            assert not [error for error in page.errors if "404" not in error], "a browser asks the root for an icon"
    finally:
        demo.close()
