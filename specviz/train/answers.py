"""The target's own answers to a list of prompts, as a corpus to train drafts on.

    OUT.npz         a corpus as `specviz.train.corpus` reads it, with temperature [n] and perhaps form [n]
    OUT.json        how it was made
    OUT.npz.part/   while it is being made: the settings, and one file a finished batch

A batch is answered in one go and has a seed of its own, so an interrupted run goes on behind its last finished batch
and ends with the arrays of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specviz.config import MAX_NEW_TOKENS, SamplingParams, check_int
from specviz.errors import ConfigError
from specviz.models.chat import encode_prompt
from specviz.models.convert import Progress
from specviz.models.fetch import silent
from specviz.models.loader import LoadedPair, load_pair

__all__ = ["Prompt", "Written", "answer_batch", "choose_tokens", "read_prompts", "read_temperatures", "write_answers"]

MAX_BATCH = 4096
SETTINGS_FILE = "settings.json"
PREFILL_TOKENS = 4096
"""Prompt tokens a pass, padding included. Bounds the memory of many long prompts."""

FIRST_CANDIDATES = 256
"""Likeliest tokens among which top-p is looked for first: sorting a whole vocabulary costs as much as a pass."""

REPORT_EVERY_S = 5.0
_Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """topic: a name, None for a topic of its own. form: a number or a name, None where there is none."""

    text: str
    topic: str | None = None
    form: int | str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What was written. num_tokens: of answers, without prompts. num_skipped: prompts too long for the context."""

    path: Path
    num_answers: int
    num_tokens: int
    num_skipped: int
    max_context: int


@dataclass(frozen=True, slots=True)
class _Request:
    """One answer to be made. ids: of the prompt, chat template included."""

    ids: list[int]
    prompt: Prompt
    temperature: float


def write_answers(
    files: Sequence[Path],
    out: Path,
    *,
    pair: str = "smollm2-135m",
    temperatures: Sequence[float] = (0.0, 0.7),
    max_new_tokens: int = 256,
    top_p: float = 0.95,
    batch: int = 64,
    seed: int = 0,
    dtype: str = "auto",
    device: str = "auto",
    progress: Progress | None = None,
) -> Written:
    """Answer every prompt once at each temperature. The same settings on the same machine give the same arrays.

    Each prompt is the user's only turn in the target's chat template. The answers of a prompt lie side by side, in the
    order of the prompts and then of the temperatures, each cut behind its end token.

    Args:
        files: the prompts, see `read_prompts`.
        out: the .npz to write.
        temperatures: 0 is greedy, and no two may be the same.
        max_new_tokens: tokens an answer may have; prompts that leave less of the context are skipped.
        top_p: of the answers at temperatures above 0.
        batch: answers made at once. It is part of the result: rounding depends on it, and so does the seed.
        dtype, device: as in `load_pair`.
        progress: told about tokens a second and the minutes left.
    Raises:
        ConfigError: a setting out of range, an unknown pair, prompts that cannot be read or are all too long, or
            a part folder with answers made with other settings.
        ModelLoadError: the pair cannot be fetched or loaded.
        CacheNotCroppableError: the target has no plain cache of keys and values.
    """
    if out.suffix.lower() != ".npz":
        raise ConfigError(f"The answers are written as .npz, and {out.name!r} ends otherwise: give --out FILE.npz.")
    max_new_tokens = check_int("max-new-tokens", max_new_tokens, 1, MAX_NEW_TOKENS)
    batch = check_int("batch", batch, 1, MAX_BATCH)
    sampling = [SamplingParams(temperature=value, top_p=top_p, seed=seed) for value in temperatures]
    levels = [params.temperature for params in sampling]
    if not levels or len(set(levels)) < len(levels):
        raise ConfigError(f"temperatures must be one or more different numbers; got {levels}. Write --temperatures 0,0.7.")
    prompts = read_prompts(files)
    report = progress or silent
    loaded = load_pair(pair, dtype=dtype, device=device, progress=report)
    requests, num_skipped = _requests(loaded, prompts, levels, max_new_tokens)
    settings = {
        "pair": loaded.pair.name,
        "target_sha256": loaded.target_info.sha256,
        "dtype": loaded.target_info.dtype,
        "device": loaded.device.type,
        "temperatures": levels,
        "top_p": sampling[0].top_p,
        "max_new_tokens": max_new_tokens,
        "batch": batch,
        "seed": sampling[0].seed,
        "prompts_sha256": _digest(requests),
    }
    folder = out.with_name(out.name + ".part")
    _open_folder(folder, settings)
    answers = _all_answers(loaded, requests, settings, folder, report)
    arrays, names = _arrays(requests, answers, loaded.vocab_size)
    num_tokens = sum(map(len, answers))
    about = {**settings, "num_prompts": len(requests) // len(levels), "num_skipped": num_skipped}
    about |= {"num_answers": len(answers), "num_tokens": num_tokens, **names}
    _write_text(out.with_suffix(".json"), json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    _write_arrays(out, arrays)
    shutil.rmtree(folder)
    report(f"{len(answers)} answers, {num_tokens} tokens", 1.0)
    return Written(out, len(answers), num_tokens, num_skipped, loaded.max_context)


# --- prompts ------------------------------------------------------------------------------------------------------


def read_temperatures(text: str) -> tuple[float, ...]:
    """ "0,0.7" as numbers. Raises ConfigError where one is none."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"temperatures must be numbers with commas between, such as 0,0.7; got {text[:40]!r}.") from error


def read_prompts(files: Sequence[Path]) -> list[Prompt]:
    """The prompts of all files, in order: .txt with one a line, or .jsonl with "prompt" and perhaps "topic" and "form".

    Blank lines are left out.
    Raises:
        ConfigError: a file that is missing or of another kind, a line without a prompt, or no prompt at all.
    """
    prompts: list[Prompt] = []
    for path in files:
        suffix = path.suffix.lower()
        if suffix not in (".txt", ".jsonl"):
            raise ConfigError(f"{path.name} is no list of prompts: give files that end in .txt or .jsonl.")
        try:
            # Not splitlines: JSON may hold U+2028 as it stands.
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The prompts {path.name} cannot be read: {error}.") from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                prompts.append(_prompt(line, f"Line {number} of {path.name}") if suffix == ".jsonl" else Prompt(line.strip()))
    if not prompts:
        raise ConfigError("There are no prompts: write one a line into the files named with --prompts.")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
        text, topic, form = entry.get("prompt"), entry.get("topic"), entry.get("form")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f'{where} is not a JSON object; write {{"prompt": "..."}}.') from error
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f'{where} has no text under "prompt".')
    for name, value in (("topic", topic), ("form", form)):
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise ConfigError(f'"{name}" in {where[0].lower()}{where[1:]} must be a text or a whole number.')
    if isinstance(form, int) and not 0 <= form < 1 << 31:
        raise ConfigError(f'"form" in {where[0].lower()}{where[1:]} must lie between 0 and {(1 << 31) - 1}; got {form}.')
    return Prompt(text, None if topic is None else str(topic), form)


def _requests(
    loaded: LoadedPair, prompts: Sequence[Prompt], temperatures: Sequence[float], max_new_tokens: int
) -> tuple[list[_Request], int]:
    """What is to be answered, and how many prompts are too long for the context."""
    requests = []
    for prompt in prompts:
        ids, _ = encode_prompt(loaded.tokenizer, prompt.text, raw=False)
        if len(ids) + max_new_tokens <= loaded.max_context:
            requests += [_Request(ids, prompt, temperature) for temperature in temperatures]
    if not requests:
        raise ConfigError(
            f"No prompt leaves {max_new_tokens} of the context's {loaded.max_context} tokens for its answer. "
            "Shorten the prompts, or lower --max-new-tokens."
        )
    return requests, len(prompts) - len(requests) // len(temperatures)


def _digest(requests: Sequence[_Request]) -> str:
    text = json.dumps([(r.ids, r.prompt.topic, r.prompt.form) for r in requests])
    return hashlib.sha256(text.encode()).hexdigest()


# --- the part folder ----------------------------------------------------------------------------------------------


def _open_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder, or take up the one that is there. Raises ConfigError where its answers are of other settings."""
    note = folder / SETTINGS_FILE
    if any(folder.glob("batch-*.npz")):
        try:
            found = json.loads(note.read_text(encoding="utf-8"))
            differ = [name for name in settings if found.get(name) != settings[name]]
        except (OSError, ValueError, AttributeError):
            differ = ["unknown"]
        if differ:
            raise ConfigError(
                f"{folder} holds unfinished answers made with other settings ({', '.join(differ)}). "
                "Repeat those settings, choose another --out, or delete that folder to begin anew."
            )
    folder.mkdir(parents=True, exist_ok=True)
    _write_text(note, json.dumps(settings, indent=1) + "\n")


def _all_answers(
    loaded: LoadedPair, requests: Sequence[_Request], settings: dict[str, Any], folder: Path, report: Progress
) -> list[list[int]]:
    """An answer to every request, in their order. Batches that the folder has are not made again."""
    # Prompts of nearly equal length share a batch, so that there is little padding.
    order = sorted(range(len(requests)), key=lambda i: len(requests[i].ids))
    batches = [order[start : start + settings["batch"]] for start in range(0, len(order), settings["batch"])]
    files = [folder / f"batch-{number:04d}.npz" for number in range(1, len(batches) + 1)]
    stored = [_read_batch(path) for path in files]
    clock = _Clock(report, [len(numbers) for numbers, found in zip(batches, stored, strict=True) if found is None])
    answers: list[list[int]] = [[] for _ in requests]
    for index, numbers in enumerate(batches):
        found = stored[index]
        if found is None:
            chosen = [requests[i] for i in numbers]
            clock.open(f"Batch {index + 1} of {len(batches)}", len(chosen) * settings["max_new_tokens"])
            found = answer_batch(
                loaded,
                [request.ids for request in chosen],
                [request.temperature for request in chosen],
                max_new_tokens=settings["max_new_tokens"],
                top_p=settings["top_p"],
                rng=np.random.default_rng([settings["seed"], index]),
                tick=clock,
            )
            _write_arrays(
                files[index],
                {"tokens": np.array([t for ids in found for t in ids], np.int64), "lengths": np.array(list(map(len, found)))},
            )
            clock.close()
        for i, ids in zip(numbers, found, strict=True):
            answers[i] = ids
    return answers
