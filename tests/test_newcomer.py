"""From nothing to a page: every way there ends in success or in one clear sentence, on every system."""

from __future__ import annotations

import argparse
import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specviz import install as installer
from specviz.errors import ConfigError, ModelLoadError
from specviz.install import InstallError, install, missing_packages
from specviz.models import machine
from specviz.models.choice import add_pair_flags, chosen_pair
from specviz.models.fetch import fetch_pair, with_sizes

ROOT = Path(__file__).resolve().parents[1]
POSIX_ONLY = {"resource", "fcntl", "pwd", "grp", "termios", "tty", "pty"}


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, timeout=120
    )


# --- the first command


def test_an_old_python_can_read_app_py_and_is_told_first():
    """Python 3.6 and later. Their sentence comes before anything is imported that they would stumble over."""
    tree = ast.parse((ROOT / "app.py").read_text(encoding="utf-8"), feature_version=(3, 6))
    first, second, third = tree.body[:3]
    assert isinstance(first, ast.Expr), "the docstring"
    assert isinstance(second, ast.Import) and second.names[0].name == "sys"
    assert isinstance(third, ast.If) and "sys.version_info < (3, 11)" in ast.unparse(third.test)
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


def test_missing_packages_are_named_with_the_command_that_helps():
    found = python("-S", "-s", "app.py", PYTHONPATH="")  # -S: a Python without packages
    assert found.returncode == 2
    said = found.stderr.decode()
    assert "lacks torch" in said and "app.py --install" in said and len(said.splitlines()) == 1
    assert missing_packages() == [], "here everything is installed"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run; every command succeeds, and makes the file of a Python where one is expected."""
    ran: list[list[str]] = []

    def call(command: list[str]) -> int:
        ran.append(command)
        if command[1:3] == ["-m", "venv"]:
            target = Path(command[3]) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        return 0

    monkeypatch.setattr(installer.subprocess, "call", call)
    monkeypatch.setattr(installer.shutil, "which", lambda name: None)
    monkeypatch.setattr(installer.shutil, "disk_usage", lambda path: SimpleNamespace(free=50e9))
    return ran


def test_install_once_and_nothing_the_second_time(commands: list[list[str]], tmp_path: Path):
    first = install(tmp_path / "venv")
    assert first.exists() and str(installer.REQUIREMENTS) in commands[-1]
    if sys.platform == "linux":
        assert installer.CPU_INDEX in commands[1] and commands[1][-1].startswith("torch>=")
    count = len(commands)
    assert install(tmp_path / "venv") == first and len(commands) == count
    (tmp_path / "venv" / "specviz-installed").write_text("of an older requirements.txt")
    install(tmp_path / "venv")
    assert len(commands) > count


def test_install_takes_cuda_where_there_is_a_gpu(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(installer.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    install(tmp_path / "venv")
    assert not any(installer.CPU_INDEX in command for command in commands)


def test_install_says_what_failed(commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(installer.shutil, "disk_usage", lambda path: SimpleNamespace(free=1e9))
    with pytest.raises(InstallError, match=r"GB of disk, and 1\.0 GB are free"):
        install(tmp_path / "venv")
    monkeypatch.setattr(installer.shutil, "disk_usage", lambda path: SimpleNamespace(free=50e9))
    monkeypatch.setattr(installer.subprocess, "call", lambda command: 1)
    with pytest.raises(InstallError, match="python3-venv"):
        install(tmp_path / "venv")
    assert not (tmp_path / "venv" / "specviz-installed").exists()


@pytest.mark.parametrize("taken", [True, False])
def test_a_port_that_cannot_be_had_is_told_in_one_sentence(taken: bool, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("gradio")
    import app

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1] if taken else 99999
        assert app.main(["--no-load", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 is in use" in said and "--port" in said


# --- every system


def test_nothing_is_imported_that_windows_lacks():
    def imported(tree: ast.Module) -> set[str]:
        """Names imported at the top of a module; within `try` an import may fail."""
        names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
        return {*names, *(node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom))}

    for path in [ROOT / "app.py", *(ROOT / "specviz").rglob("*.py")]:
        assert not imported(ast.parse(path.read_text(encoding="utf-8"))) & POSIX_ONLY, path


def test_peak_memory_is_zero_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch):
    assert machine.peak_resident_bytes() > 1e7
    monkeypatch.setattr(machine, "resource", None)
    assert machine.peak_resident_bytes() == 0


def test_a_pipe_of_another_code_page_gets_utf8():
    """Windows writes cp1252 into pipes, which has no α."""
    code = "from specviz.console import speak_utf8; speak_utf8(); print('α')"
    found = python("-c", code, PYTHONIOENCODING="cp1252")
    assert found.stdout.decode().strip() == "α" and not found.returncode


# --- models of one's own


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_pair_flags(parser)
    return parser.parse_args(words)


def test_which_pair_is_meant(tmp_path: Path):
    assert chosen_pair(options()).name == "smollm2-135m"
    assert chosen_pair(options(), "smollm2-1.7b").name == "smollm2-1.7b"
    named = chosen_pair(options("--pair", "smollm2-360m"), "smollm2-1.7b", "nf4")
    assert (named.name, named.draft_quant) == ("smollm2-360m", "nf4")
    own = chosen_pair(options("--target", "owner/name@v1", "--draft", str(tmp_path)))
    assert own.words() == ["--target", "owner/name@v1", "--draft", tmp_path.name], "a trace tells no path"
    assert named.words() == ["--pair", "smollm2-360m"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draft", "owner/name"], "Name the target too"),
        (["--pair", "smollm2-135m", "--target", "owner/name"], "not both"),
        (["--target", "./no/such/folder"], "There is no folder './no/such/folder'"),
        (["--target", "~/no/such/folder"], "There is no folder"),
        (["--target", "https://host/owner/name"], "owner/name"),
        (["--pair", "nothing"], "smollm2-135m"),
    ],
)
def test_words_that_name_no_models_are_refused(words: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        chosen_pair(options(*words))


def test_a_folder_is_looked_at_before_it_is_loaded(tmp_path: Path):
    from tiny_models import make_model

    pair = chosen_pair(options("--target", str(tmp_path)))
    with pytest.raises(ModelLoadError, match=r"needs config\.json, a tokenizer"):
        fetch_pair(pair)
    model: Any = make_model()
    model.save_pretrained(tmp_path)
    assert with_sizes(pair).target.num_params == sum(param.numel() for param in model.parameters())


def test_a_folder_with_sliding_windows_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Issue 18: a tiny Gemma 3, a prompt longer than its window; drafted and plain runs write the same tokens."""
    import torch
    from tiny_models import make_tokenizer
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    from specviz.cli import main

    torch.manual_seed(0)
    sizes = Gemma3TextConfig(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, sliding_window=8, initializer_range=0.2,
        layer_types=["sliding_attention", "full_attention"], bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    Gemma3ForCausalLM(sizes).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    words = ["run", "one two three one two three one two", "--raw", "--target", str(tmp_path), "--dtype", "float32"]
    tokens = []
    for method in ("plain", "prompt-lookup"):
        assert main([*words, "--max-new-tokens", "12", "--method", method, "--json"]) == 0
        tokens.append(json.loads(capsys.readouterr().out.splitlines()[-1])["token_ids"])
    assert tokens[0] == tokens[1] and len(tokens[0]) == 12


def test_case_113_a_gated_pair_says_how_to_get_it():
    """Case 113: the page names every repository whose licence is asked for, and the words that log in."""
    from specviz.models.catalog import custom_pair, get_pair
    from specviz.ui.watch.tab import _pair_info

    said = _pair_info(get_pair("gemma-3-1b"))
    assert "google/gemma-3-1b-it and google/gemma-3-270m-it" in said and "hf auth login" in said
    assert "hf auth login" not in _pair_info(get_pair("smollm3-3b"))
    assert _pair_info(custom_pair("owner/name")) == "", "no memory is told where none is known"


def test_a_run_on_folders_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from tiny_models import make_model, make_tokenizer

    from specviz.cli import main

    for name, layers in (("big", 3), ("small", 1)):
        make_model(layers=layers).save_pretrained(tmp_path / name)
        make_tokenizer().save_pretrained(tmp_path / name)
    words = ["--target", str(tmp_path / "big"), "--draft", str(tmp_path / "small"), "--draft-quant", "int8"]
    words += ["--method", "draft-model", "--max-new-tokens", "4", "--trace", str(tmp_path / "run.jsonl")]
    assert main(["run", "hello", *words, "--json"]) == 0
    assert '"num_tokens": 4' in capsys.readouterr().out
    started = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()[1]
    assert "--target big --draft small" in started and str(tmp_path) not in started
    assert main(["run", "hello", "--draft", "small"]) == 2
    assert "Name the target too" in capsys.readouterr().err
