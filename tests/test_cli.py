"""The command line: what goes to which stream, and how it fails."""

from __future__ import annotations

import io
import json
import os
import shlex
import time
from pathlib import Path

import pytest
from fakes import TapeModel, loaded_pair, tiny_llama

from specviz.cli import main
from specviz.config import DEFAULT_METHOD, RunConfig, SamplingParams
from specviz.generator import command_line
from specviz.trace import load_trace

FIELDS = {
    "id", "method", "gamma", "dtype", "width", "text", "token_ids", "finish_reason", "num_tokens", "num_steps",
    "num_drafted", "num_accepted", "acceptance_rate", "alpha", "acceptance_length", "block_efficiency", "coverage",
    "prefill_s", "first_token_s", "decode_s", "draft_s", "verify_s", "other_s", "decode_tokens_per_s", "exactness",
}  # fmt: skip


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    monkeypatch.setattr("specviz.models.loader.load_pair", lambda *args, **more: loaded_pair(model, model))
    monkeypatch.setattr("specviz.models.choice.get_pair", lambda name: loaded_pair(model, model).pair)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        status = main(["run", *words])
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "draft-model", "quantized-copy"])
def test_json_prints_one_object_a_prompt_and_nothing_else(capsys, tmp_path, method: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "one"}\n\n{"id": 2, "prompt": "two two two"}\n', encoding="utf-8")
    status, out, _ = run(capsys, "--prompts", str(prompts), "--method", method, "--max-new-tokens", "12", "--json")
    assert status == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["id"] for row in rows] == ["a", "2"]
    for row in rows:
        assert set(row) >= FIELDS
        assert row["num_tokens"] == len(row["token_ids"])
        assert row["decode_s"] == pytest.approx(row["draft_s"] + row["verify_s"] + row["other_s"])
        assert row["method"] == method


@pytest.mark.usefixtures("tiny")
def test_text_streams_and_figures_go_to_standard_error(capsys, tmp_path) -> None:
    trace = tmp_path / "run.jsonl"
    status, out, err = run(capsys, "hello hello", "--max-new-tokens", "10", "--trace", str(trace), "--measure-plain")
    assert status == 0
    assert "tokens/s" in err
    assert "plain decoding" in err
    assert "\x1b" not in out.replace("\x1b[", "")
    recorded = load_trace(trace)
    assert recorded.damage == ""
    assert recorded.started.method == DEFAULT_METHOD
    assert recorded.plain
    assert "--measure-plain" not in recorded.started.command


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (["x", "--gamma", "99"], "gamma"),
        (["x", "--method", "magic"], "Unknown method"),
        (["x", "--gamma", "9", "--exact"], "--width 16"),
        (["x", "--temperature", "nan"], "temperature"),
        (["x", "--top-p", "0"], "top-p"),
        ([], "either a prompt or --prompts"),
        (["x", "--prompts", "y"], "either a prompt or --prompts"),
        (["--prompts", "no-such-file.jsonl"], "cannot be read"),
        (["x", "--verify", "wishful"], "invalid choice"),
        (["x", "--trace", "/no/such/folder/t.jsonl"], "cannot be written"),
        (["x", "--draft-quant", "int3", "--method", "plain"], "draft"),
    ],
)
def test_errors_are_one_sentence_and_status_2(capsys, words: list[str], needle: str) -> None:
    status, out, err = run(capsys, *words)
    assert status == 2
    assert needle in err
    assert "Traceback" not in err
    assert out == ""


def test_prompt_files_that_are_not_prompts(capsys, tmp_path) -> None:
    for text in ("nonsense", '{"id": 1}', '{"id": 1, "prompt": 5}', "[1]", ""):
        path = tmp_path / "p.jsonl"
        path.write_text(text, encoding="utf-8")
        status, _, err = run(capsys, "--prompts", str(path))
        assert status == 2
        assert "specviz:" in err


@pytest.mark.usefixtures("tiny")
def test_lines_of_a_prompt_file_end_at_line_feeds_only(capsys, tmp_path) -> None:
    """JSON may hold U+2028, U+0085 and form feeds' kin as they stand; a byte order mark and CR LF are tolerated, and an
    id that is no valid Unicode does not fail the print of the result."""
    prompts = tmp_path / "p.jsonl"
    text = '\ufeff{"id": "a", "prompt": "one\u2028two\u0085three"}\r\n{"id": "\\ud800", "prompt": "x"}\r\n'
    prompts.write_bytes(text.encode())
    status, out, _ = run(capsys, "--prompts", str(prompts), "--max-new-tokens", "2", "--json")
    assert status == 0
    assert [json.loads(line)["id"] for line in out.split("\n") if line] == ["a", "\ufffd"]


def test_a_prompt_file_nested_too_deep_is_refused(capsys, tmp_path) -> None:
    (tmp_path / "p.jsonl").write_text("[" * 100_000, encoding="utf-8")
    status, _, err = run(capsys, "--prompts", str(tmp_path / "p.jsonl"))
    assert status == 2
    assert "Line 1" in err


@pytest.mark.usefixtures("tiny")
def test_a_stop_text_that_is_no_valid_unicode_does_not_fail_the_trace(capsys, tmp_path) -> None:
    trace = tmp_path / "run.jsonl"
    status, _, _ = run(capsys, "hi", "--max-new-tokens", "2", "--stop", "a\udcffb", "--trace", str(trace), "--json")
    assert status == 0
    assert load_trace(trace).started.settings["stop"] == ["a\ufffdb"]


@pytest.mark.usefixtures("tiny")
def test_the_recorded_command_makes_the_same_run_again(capsys, tmp_path) -> None:
    """A prompt or stop text that begins with a dash, digits beyond six, and settings that are not the default."""
    trace, again = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    words = ["--max-new-tokens", "4", "--temperature", "0.76543217", "--time-limit", "60", "--detail", "--stop=-q"]
    assert run(capsys, *words, "--trace", str(trace), "--", "-5 plus 3?")[0] == 0
    first = load_trace(trace)
    command = shlex.split(first.started.command)
    assert command[:4] == ["python", "-m", "specviz", "run"]
    status, _, err = run(capsys, "--trace", str(again), *command[4:])
    assert status == 0, err
    second = load_trace(again)
    assert second.started.settings == first.started.settings | {"exact": second.started.settings["exact"]}
    assert second.started.prompt_ids == first.started.prompt_ids
    assert second.events[-1].token_ids == first.events[-1].token_ids


def test_the_recorded_command_names_the_number_format() -> None:
    config = RunConfig(sampling=SamplingParams(seed=1))
    assert "--dtype float32" in command_line("x", ["--pair", "p"], config, dtype="float32")
    assert "--dtype" not in command_line("x", ["--pair", "p"], config, dtype="float16")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("words", [(), ("--json",), ("--trace", "t.jsonl")])
def test_a_reader_that_leaves_is_no_error(tmp_path, monkeypatch, words: tuple[str, ...]) -> None:
    """As `head` does; with a trace it is not the trace that could not be written."""
    monkeypatch.chdir(tmp_path)
    status, err = into_closed_pipe(monkeypatch, "run", "hi", "--max-new-tokens", "4", *words)
    assert status == 0
    assert "specviz:" not in err


@pytest.mark.usefixtures("tiny")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_full_disk_behind_the_output_is_one_sentence(monkeypatch, words: tuple[str, ...]) -> None:
    status, err = into(monkeypatch, os.open("/dev/full", os.O_WRONLY), "run", "hi", "--max-new-tokens", "4", *words)
    assert status == 2
    assert "specviz: reading or writing failed" in err


def into_closed_pipe(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    ours, theirs = os.pipe()
    os.close(ours)
    return into(monkeypatch, theirs, *words)


def into(monkeypatch: pytest.MonkeyPatch, descriptor: int, *words: str) -> tuple[int, str]:
    """Status and standard error of the command with standard output on this descriptor."""
    err = io.StringIO()
    with monkeypatch.context() as patch, open(descriptor, "w", encoding="utf-8") as out:
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        status = main(words)
    return status, err.getvalue()


def test_methods_lists_every_registered_method(capsys) -> None:
    from specviz.drafters.registry import names

    assert main(["methods", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == names()
    assert all(set(row) >= {"name", "summary", "exactness", "needs", "pairs"} for row in rows)
    assert main(["methods"]) == 0
    assert "plain" in capsys.readouterr().out


@pytest.mark.parametrize("first", ["plain", "prompt-lookup"])
def test_case_55_the_first_pass_of_a_process_is_charged_to_nobody(capsys, monkeypatch, first: str) -> None:
    """The first forward takes 0.5 s more, as a cold process has it; whichever method runs first, its figures are free
    of that, because `run` begins with a run that nobody counts.
    """
    model = SlowStart(tape=[65] * 400, prompt_len=1)
    monkeypatch.setattr("specviz.models.loader.load_pair", lambda *args, **more: loaded_pair(model))
    status, out, _ = run(capsys, "x", "--method", first, "--max-new-tokens", "8", "--no-exact", "--json")
    assert status == 0
    assert model.was_slow
    row = json.loads(out)
    assert row["prefill_s"] + row["decode_s"] < 0.5


class SlowStart(TapeModel):
    """Sleeps in its first pass only."""

    was_slow = False

    def forward(self, input_ids, position_ids, attention_mask, cache, use_cache):
        if not self.was_slow:
            self.was_slow = True
            time.sleep(0.5)
        return super().forward(input_ids, position_ids, attention_mask, cache, use_cache)


def test_importing_the_package_needs_no_gradio() -> None:
    """The engine, the traces and the command line work without a page."""
    import subprocess
    import sys

    code = "import sys, specviz, specviz.cli, specviz.generator, specviz.trace; assert 'gradio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.usefixtures("tiny")
def test_a_refused_run_leaves_an_old_trace_alone(capsys, tmp_path) -> None:
    trace = tmp_path / "old.jsonl"
    trace.write_text("kept", encoding="utf-8")
    status, _, err = run(capsys, "x", "--window", "3", "--trace", str(trace))
    assert status == 2
    assert "window" in err
    assert trace.read_text(encoding="utf-8") == "kept"


@pytest.mark.usefixtures("tiny")
def test_plain_decoding_is_never_called_approximate(capsys) -> None:
    status, out, _ = run(capsys, "x", "--method", "plain", "--verify", "typical", "--max-new-tokens", "4", "--json")
    assert status == 0
    assert json.loads(out)["exactness"] == "exact"
