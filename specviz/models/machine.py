"""What this machine is: cores, memory, and which number format is fast on it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specviz.models.catalog import ModelPair

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = [
    "Machine",
    "fits",
    "keep_few_arenas",
    "leave_a_core",
    "memory_limit",
    "peak_resident_bytes",
    "probe",
    "quota_cores",
    "set_threads",
    "trim_memory",
    "versions",
]

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "bitsandbytes", "gguf", "gradio")
_M_ARENA_MAX = -8  # of malloc.h
UNLIMITED = 1 << 60
"""cgroup v1 writes 'no limit' as a number near 2**63."""

_num_spare = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """memory_total, memory_available, cuda_memory: bytes; 0 where unknown. num_cores: what this process may use."""

    processor: str
    num_cores: int
    memory_total: int
    memory_available: int
    amx_bf16: bool = False
    avx512_bf16: bool = False
    cuda: str = ""
    cuda_memory: int = 0

    def default_dtype(self) -> str:
        """The number format to run in: bfloat16 where the hardware multiplies it, for emulated it is slow."""
        return "bfloat16" if self.amx_bf16 or self.avx512_bf16 or self.cuda else "float32"

    def default_device(self) -> str:
        return "cuda" if self.cuda else "cpu"

    def to_json(self) -> dict[str, Any]:
        """Plain data for a run's header."""
        return asdict(self)


def probe() -> Machine:
    """Look at this machine. Reads a few small files; asks torch only for a GPU."""
    flags, name = _processor(_read("/proc/cpuinfo"))
    total, available = _memory()
    cuda, cuda_memory = _cuda()
    return Machine(
        processor=name or platform.processor() or platform.machine(),
        num_cores=usable_cores(),
        memory_total=total,
        memory_available=available,
        amx_bf16="amx_bf16" in flags,
        avx512_bf16="avx512_bf16" in flags,
        cuda=cuda,
        cuda_memory=cuda_memory,
    )


def quota_cores(
    visible: int, cpu_max: str | None = None, cfs_quota: str | None = None, cfs_period: str | None = None
) -> int:
    """Cores worth a thread each under a CPU quota, at least 1 (case 98).

    A started core is not counted: with 1.5 cores two threads would wait for each other, so 1.

    Args:
        visible: cores this process may be scheduled on.
        cpu_max: text of cgroup v2's cpu.max, "200000 100000" or "max 100000".
        cfs_quota, cfs_period: texts of cgroup v1's cpu.cfs_quota_us ("-1" is none) and cpu.cfs_period_us.
    """
    quota, period = [*cpu_max.split(), "100000"][:2] if cpu_max and cpu_max.split() else (cfs_quota, cfs_period)
    try:
        cores = int(quota or "") / int(period or "")
    except (ValueError, ZeroDivisionError):  # no such file, or "max"
        return max(1, visible)
    return max(1, visible) if cores <= 0 else max(1, min(visible, int(cores)))


def memory_limit(total: int, available: int, limit: str | None, usage: str | None) -> tuple[int, int]:
    """(total, available) bytes, cut to a cgroup's limit. limit, usage: the file texts, None where there is no file."""
    try:
        allowed, used = int(limit or ""), int(usage or "0")
    except ValueError:  # "max"
        return total, available
    if not 0 < allowed < UNLIMITED:
        return total, available
    return (min(total, allowed) if total else allowed), min(available or allowed, max(0, allowed - used))


def usable_cores() -> int:
    """Cores this process may use: the affinity mask and every CPU quota above it."""
    visible = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders("cpu"):
        texts = (_read(folder / name) for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
        visible = quota_cores(visible, *(text or None for text in texts))
    return visible


def leave_a_core() -> None:
    """From now on `set_threads` leaves one core to others, where there are two or more.

    For the dashboard: its server and a browser on the same machine need a core now and then, and threads of one product
    all wait for the one that was put aside. On two cores beside Chromium two threads decoded 17 to 21 tokens/s plainly
    and 24 to 38 with drafts, one thread 26 to 29 and 43 to 51.
    """
    global _num_spare
    _num_spare = 1


def set_threads(num_threads: int | None = None) -> int:
    """Give torch as many threads as there are usable cores, less one after `leave_a_core`, or as told, or as
    OMP_NUM_THREADS says. Returns the number.

    Left alone torch starts one per core of the host; under a quota these take turns and throughput collapses.
    """
    import torch

    count = num_threads or int(re.sub(r"\D.*", "", os.environ.get("OMP_NUM_THREADS", "")) or 0)
    count = count or max(1, usable_cores() - _num_spare)
    torch.set_num_threads(count)
    return count


def memory_needed(pair: ModelPair, dtype: str) -> int:
    """Bytes a run of `pair` needs: the catalog's figure for bfloat16, and two bytes more a weight in float32."""
    base = pair.memory_gb * 1e9 if pair.memory_gb else 1e9 + 3.0 * sum(s.num_params for s in pair.parts().values())
    extra = 2 * sum(source.num_params for source in pair.parts().values()) if dtype == "float32" else 0
    return int(base + extra)


def fits(pair: ModelPair, machine: Machine, dtype: str = "auto") -> str | None:
    """None if `pair` fits into this machine's memory, else a sentence that says why not.

    dtype: "auto", "bfloat16" or "float32".
    """
    name = machine.default_dtype() if dtype == "auto" else dtype
    need = memory_needed(pair, name)
    if machine.cuda:
        have, kind = machine.cuda_memory, "GPU memory"
    else:
        have, kind = machine.memory_available, "memory"
    if not have or need <= have:
        return None
    half = memory_needed(pair, "bfloat16")
    remedy = " It would fit in bfloat16." if name == "float32" and half <= have else ""
    return f"{pair.title} needs {need / 1e9:.1f} GB of {kind} in {name}, and {have / 1e9:.1f} GB are free here.{remedy}"


def peak_resident_bytes() -> int:
    """Highest resident memory of this process so far; 0 on Windows, which does not tell by this way."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts in bytes, Linux in KiB


def trim_memory() -> None:
    """Hand freed memory back to the system; glibc alone keeps it."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def keep_few_arenas() -> None:
    """To be called before there are threads. glibc gives each thread that asks for memory an arena of its own, up to
    eight a core, and what a run has freed in one does not serve the next run in another: a page that served eight
    visitors on two cores grew by 50 MB a minute."""
    limit = _glibc("mallopt")
    if limit is not None:
        limit(_M_ARENA_MAX, 2)


def _glibc(function: str) -> Any:
    """None where the C library is another one."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None


@cache
def versions() -> dict[str, str]:
    """Version of Python and of each library that can change a result. Nothing is imported to find out; it takes 15 ms,
    once. Not to be changed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor(cpuinfo: str) -> tuple[set[str], str]:
    """(flags, name) from the text of /proc/cpuinfo; empty on systems without one."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return set((fields.get("flags") or "").split()), fields.get("model name", "")


def _memory() -> tuple[int, int]:
    sizes = {
        m[1]: int(m[2]) * 1024 for m in re.finditer(r"(?m)^(MemTotal|MemAvailable):\s+(\d+) kB", _read("/proc/meminfo"))
    }
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    if not total and hasattr(os, "sysconf"):
        try:
            total = available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):
            total = available = 0
    for folder in _cgroup_folders("memory"):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            text = _read(folder / limit)
            if text:
                used = _without_page_cache(folder, _read(folder / usage))
                total, available = memory_limit(total, available, text, used)
    return total, available


def _without_page_cache(folder: Path, usage: str) -> str:
    """A cgroup's usage counts file pages that the kernel gives back on demand; take those out."""
    match = re.search(r"(?m)^(?:total_)?inactive_file (\d+)", _read(folder / "memory.stat"))
    return str(max(0, int(usage) - int(match[1]))) if match and usage.strip().isdigit() else usage


def _cgroup_folders(controller: str) -> list[Path]:
    """Folders of this process's control group and its parents, for cgroup v2 and for one controller of v1."""
    root, folders = Path("/sys/fs/cgroup"), []
    for line in _read("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            base = root
        elif controller in names.split(","):
            base = root / controller
        else:
            continue
        here = base / path.strip().lstrip("/")
        # Inside a container the path may be the host's and not exist here; the mount's root then is our own group.
        folders += [here, *[parent for parent in here.parents if parent == base or base in parent.parents]]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _cuda() -> tuple[str, int]:
    import torch

    if not torch.cuda.is_available():
        return "", 0
    return torch.cuda.get_device_name(0), int(torch.cuda.get_device_properties(0).total_memory)


def _read(path: str | Path, opener: Callable[..., Any] = open) -> str:
    """A small system file's text, "" where there is none or it is not ours to read."""
    try:
        with opener(path, encoding="utf-8", errors="replace") as file:
            return str(file.read())
    except OSError:
        return ""
