"""The examples of README.md, run as they stand there, so that they cannot rot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fakes import loaded_pair, tiny_llama
from fixtures_real import load_real
from tiny_models import make_model, make_tokenizer

from specviz.drafters import registry
from specviz.models import loader
from specviz.trace import load_trace

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def example(heading: str, number: int = 0) -> str:
    """A block of Python below a heading."""
    section = re.search(rf"(?ms)^## {heading}\n(.*?)(?=^## |\Z)", README)
    assert section, heading
    return re.findall(r"(?ms)^```python\n(.*?)^```", section[1])[number]


def play(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


@pytest.fixture
def one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair that other tests have loaded already."""
    monkeypatch.setattr(loader, "load_pair", lambda name: load_real())


@pytest.mark.real
@pytest.mark.usefixtures("one_load")
def test_program_of_ten_lines(capsys: pytest.CaptureFixture[str]):
    code = example("From a program")
    assert len(code.splitlines()) <= 11
    names = play(code)
    assert names["counts"].num_tokens == len(names["events"][-1].token_ids) > 0
    assert "num_accepted" in capsys.readouterr().out


@pytest.mark.real
@pytest.mark.usefixtures("one_load")
def test_walkthrough_of_a_drafter(monkeypatch: pytest.MonkeyPatch):
    code = example("Add your own drafter")
    assert len(code.splitlines()) < 40
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    monkeypatch.setattr("specviz.generator.METHODS", registry.METHODS)
    names = play(code)
    assert names["events"][0].method == "echo" and names["events"][0].exactness == "exact"
    assert any(step.drafted for step in names["events"][2:-1])


def test_a_watched_generate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """With tiny models in place of those named; the noise of the draft's weights makes it wrong at times."""
    target = make_model(265, layers=3).double()
    draft = make_model(265, layers=3).double()
    draft.model.layers[1].mlp.up_proj.weight.data *= 0.9
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: make_tokenizer())
    found = {"Qwen/Qwen2.5-1.5B-Instruct": target, "Qwen/Qwen2.5-0.5B-Instruct": draft}
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", found.__getitem__)
    monkeypatch.chdir(tmp_path)
    names = play(example("Watch your own `generate`"))
    assert names["run"].baseline.same_text and names["run"].counters.num_drafted
    assert load_trace("run.jsonl").plain


def test_program_over_the_network(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("gradio")
    from specviz.ui.access.host import EngineHost
    from specviz.ui.page import build_page, launch

    pair = loaded_pair(tiny_llama()).pair
    host = EngineHost({"tiny": pair}, load=lambda *_, **__: loaded_pair(tiny_llama(positions=2048)), problem=no_problem)
    demo = build_page(host)
    _, url, _ = launch(demo, prevent_thread_lock=True)
    try:
        names = play(example("From a program", 1).replace("http://127.0.0.1:7860", url))
    finally:
        demo.close()
    assert names["job"].outputs()[-1]["type"] == "Summary"
    assert capsys.readouterr().out


def no_problem(*_: Any) -> None:
    """Every pair fits."""
