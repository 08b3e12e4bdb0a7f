"""`python app.py --install`: what requirements.txt names goes into a virtual environment beside app.py, once.

Needs nothing but Python itself, so that it can be the first command anybody runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from specviz.errors import SpecvizError

__all__ = ["CPU_INDEX", "InstallError", "install", "missing_packages", "run_inside"]

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements.txt"
FOLDER = ROOT / ".venv"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""torch without CUDA, for Linux. Everywhere else PyPI's own build is that already."""

DISK_GB = {"cpu": 2.5, "cuda": 9.0}
"""What the packages take while they are unpacked: 1.6 GB and 0.4 GB of downloads measured; with CUDA estimated."""


class InstallError(SpecvizError):
    """The packages could not be installed."""


def missing_packages() -> list[str]:
    """Packages of requirements.txt that this Python does not have; those for some systems only are left out."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    names = [re.split(r"[^\w-]", line)[0] for line in lines if line and not line.startswith("#") and ";" not in line]
    return [name for name in names if importlib.util.find_spec(name.replace("-", "_")) is None]


def install(folder: Path = FOLDER) -> Path:
    """Make the environment and fill it, each step told on standard error. Nothing is done where that was done before.

    Returns:
        The environment's Python.
    Raises:
        InstallError: too little disk, no way to make environments, or pip failed.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    done = folder / "specviz-installed"
    mark = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if python.exists() and done.is_file() and done.read_text(encoding="ascii") == mark:
        return python
    began = time.perf_counter()
    kind = "cpu" if sys.platform != "linux" or shutil.which("nvidia-smi") is None else "cuda"
    _check_disk(folder, DISK_GB[kind])
    _say(f"1 of 3: a virtual environment in {folder}")
    _run([sys.executable, "-m", "venv", str(folder)], _NO_VENV)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    torch = next(line for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if line.startswith("torch"))
    if sys.platform == "linux" and kind == "cpu":
        _say("2 of 3: torch for processors, about 200 MB")
        if subprocess.call([*pip, "--timeout", "10", "--retries", "1", "--index-url", CPU_INDEX, torch]):
            _say(f"{CPU_INDEX} does not answer; pip's own index has a larger build of the same")
    _say("3 of 3: everything else")
    _run([*pip, "-r", str(REQUIREMENTS)], _PIP_FAILED)
    done.write_text(mark, encoding="ascii")
    _say(f"installed in {time.perf_counter() - began:.0f} s")
    return python


def run_inside(python: Path, arguments: Sequence[str]) -> int:
    """app.py by the environment's Python, in place of this process; on Windows, which cannot do that, as its child.

    Returns the child's exit status.
    """
    command = [str(python), str(ROOT / "app.py"), *arguments]
    if os.name != "nt":
        sys.stdout.flush()
        os.execv(python, command)
    try:
        return subprocess.call(command)
    except KeyboardInterrupt:  # the child got it too
        return 0


_NO_VENV = (
    "this Python cannot make virtual environments; the lines above say why. On Debian and Ubuntu: "
    "sudo apt install python3-venv. Then try the same command again."
)
_PIP_FAILED = (
    "pip could not install the packages; its last lines above say why. Check network and disk, then try the same "
    "command again: what was downloaded is kept."
)


def _check_disk(folder: Path, need_gb: float) -> None:
    free_gb = shutil.disk_usage(folder.parent).free / 1e9
    if free_gb < need_gb:
        raise InstallError(
            f"the packages take {need_gb:.1f} GB of disk, and {free_gb:.1f} GB are free in {folder.parent}. "
            "Free some space and try again."
        )


def _run(command: list[str], failure: str) -> None:
    """A command whose output goes to the terminal as it comes."""
    try:
        status = subprocess.call(command)
    except OSError as error:
        raise InstallError(f"{command[0]} cannot be started: {error.strerror}.") from error
    if status:
        raise InstallError(failure)


def _say(text: str) -> None:
    print(f"specviz: {text}", file=sys.stderr, flush=True)
