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
import time
import zipfile
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specviz.config import MAX_NEW_TOKENS, SamplingParams, check_int
from specviz.errors import ConfigError
from specviz.models.chat import encode_prompt
from specviz.models.convert import Progress
from specviz.models.fetch import silent
from specviz.models.loader import LoadedPair, load_pair
from specviz.train.batched import answer_batch

__all__ = ["Prompt", "Written", "read_prompts", "read_temperatures", "write_answers"]

MAX_BATCH = 4096
MAX_FORM = (1 << 31) - 1
SETTINGS_FILE = "settings.json"
REPORT_EVERY_S = 5.0
_Array = NDArray[Any]
_Label = TypeVar("_Label", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Prompt:
    """topic: a name, None for a topic of its own. form: a number or a name, None where there is none."""

    text: str
    topic: str | None = None
    form: int | str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What was written. num_tokens: of answers, without prompts. num_skipped: prompts too long for the context.

    notes: what was done differently from what was asked, in sentences.
    """

    path: Path
    num_answers: int
    num_tokens: int
    num_skipped: int
    notes: tuple[str, ...] = ()


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
        raise ConfigError(f"temperatures must be different numbers, such as 0,0.7; got {levels}.")
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
    arrays, names = _corpus(requests, answers, loaded.vocab_size)
    num_tokens = sum(map(len, answers))
    about = {
        **settings,
        "files": [path.name for path in files],
        "num_prompts": len(requests) // len(levels),
        "num_skipped": num_skipped,
    }
    about |= {"num_answers": len(answers), "num_tokens": num_tokens, **names}
    _write_text(out.with_suffix(".json"), json.dumps(about, indent=1) + "\n")
    _write_arrays(out, arrays)
    shutil.rmtree(folder)
    report(f"{len(answers)} answers, {num_tokens} tokens", 1.0)
    return Written(out, len(answers), num_tokens, num_skipped, _notes(loaded, num_skipped, max_new_tokens))


# --- prompts ------------------------------------------------------------------------------------------------------


def read_temperatures(text: str) -> tuple[float, ...]:
    """ "0,0.7" as numbers. Raises ConfigError where one is none."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"temperatures must be numbers with commas between, such as 0,0.7; got {text[:40]!r}."
        ) from error


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
                as_text = suffix == ".txt"
                prompts.append(Prompt(line.strip()) if as_text else _prompt(line, f"Line {number} of {path.name}"))
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
            raise ConfigError(f'{where} has a "{name}" that is neither a text nor a whole number.')
    if isinstance(form, int) and not 0 <= form <= MAX_FORM:
        raise ConfigError(f'{where} has the "form" {form}; it must lie between 0 and {MAX_FORM}.')
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


def _notes(loaded: LoadedPair, num_skipped: int, max_new_tokens: int) -> tuple[str, ...]:
    if not num_skipped:
        return loaded.notes
    skipped = (
        f"{num_skipped} {'prompt was' if num_skipped == 1 else 'prompts were'} skipped, too long to leave "
        f"{max_new_tokens} of the context's {loaded.max_context} tokens for the answer."
    )
    return (*loaded.notes, skipped)


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
            other = [f"{name} {found.get(name)}" for name in settings if found.get(name) != settings[name]]
        except (OSError, ValueError, AttributeError):
            other = ["none that can be read"]
        if other:
            raise ConfigError(
                f"{folder} holds answers of an unfinished run with other settings: {', '.join(other)}. "
                "Repeat that run, choose another --out, or delete that folder to begin anew."
            )
    folder.mkdir(parents=True, exist_ok=True)
    _write_text(note, json.dumps(settings, indent=1) + "\n")


def _all_answers(
    loaded: LoadedPair, requests: Sequence[_Request], settings: dict[str, Any], folder: Path, report: Progress
) -> list[list[int]]:
    """An answer to every request, in their order. Batches that the folder has are not made again."""
    # Prompts of nearly equal length share a batch, so that there is little padding.
    order = sorted(range(len(requests)), key=lambda i: len(requests[i].ids))
    groups = [order[start : start + settings["batch"]] for start in range(0, len(order), settings["batch"])]
    files = [folder / f"batch-{number:04d}.npz" for number in range(1, len(groups) + 1)]
    stored = [_read_batch(path, len(group)) for path, group in zip(files, groups, strict=True)]
    clock = _Clock(report, len(groups), sum(found is not None for found in stored), settings["max_new_tokens"])
    answers: list[list[int]] = [[] for _ in requests]
    for number, (group, found, path) in enumerate(zip(groups, stored, files, strict=True)):
        if found is None:
            try:
                found = answer_batch(
                    loaded,
                    [requests[i].ids for i in group],
                    [requests[i].temperature for i in group],
                    max_new_tokens=settings["max_new_tokens"],
                    top_p=settings["top_p"],
                    rng=np.random.default_rng([settings["seed"], number]),
                    tick=clock.step,
                )
            except (MemoryError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
                    raise
                raise ConfigError(
                    f"This machine ran out of memory with {len(group)} answers at once. Delete {folder} and begin anew "
                    "with a smaller --batch."
                ) from error
            _write_arrays(path, _joined(found))
            clock.close_batch()
        for i, ids in zip(group, found, strict=True):
            answers[i] = ids
    return answers


class _Clock:
    """Tells every few seconds how far the work is. Batches count as equally long."""

    def __init__(self, report: Progress, num_batches: int, num_done: int, max_steps: int) -> None:
        self._report = report
        self._num_batches, self._num_found, self._num_done = num_batches, num_done, num_done
        self._max_steps = max_steps
        self._steps = self._tokens = 0
        self._began = self._told = time.perf_counter()

    def step(self, num_tokens: int) -> None:
        self._steps += 1
        self._tokens += num_tokens
        if time.perf_counter() - self._told >= REPORT_EVERY_S:
            self._tell(f"Batch {self._num_done + 1} of {self._num_batches}")

    def close_batch(self) -> None:
        self._num_done += 1
        self._steps = 0
        self._tell(f"{self._num_done} of {self._num_batches} batches")

    def _tell(self, what: str) -> None:
        self._told = time.perf_counter()
        taken = max(self._told - self._began, 1e-9)
        done = self._num_done + self._steps / self._max_steps
        left = taken / (done - self._num_found) * (self._num_batches - done)
        self._report(f"{what}, {self._tokens / taken:.0f} tokens/s, {left / 60:.0f} min left", done / self._num_batches)


# --- files --------------------------------------------------------------------------------------------------------


def _corpus(
    requests: Sequence[_Request], answers: Sequence[list[int]], vocab_size: int
) -> tuple[dict[str, _Array], dict[str, dict[str, int]]]:
    """The arrays, every prompt with its answer, end to end; and the numbers of named topics and forms."""
    joined = _joined([request.ids + answer for request, answer in zip(requests, answers, strict=True)])
    # Equal prompts are one topic: else one of them could be kept from training and the other not.
    topics = [("topic", r.prompt.topic) if r.prompt.topic is not None else ("prompt", r.prompt.text) for r in requests]
    topic, topic_numbers = _numbered(topics)
    arrays = {
        "tokens": joined["tokens"].astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32),
        "offsets": np.concatenate([[0], np.cumsum(joined["lengths"])]).astype(np.int64),
        "prompt_len": np.array([len(request.ids) for request in requests], np.int32),
        "temperature": np.array([request.temperature for request in requests], np.float32),
        "topic": np.array(topic, np.int32),
    }
    names = {"topics": {name: number for (kind, name), number in topic_numbers.items() if kind == "topic"}}
    forms = [request.prompt.form for request in requests]
    if any(isinstance(form, str) for form in forms):
        _, names["forms"] = _numbered([str(form) for form in forms if form is not None])
        forms = [None if form is None else names["forms"][str(form)] for form in forms]
    if any(form is not None for form in forms):
        arrays["form"] = np.array([-1 if form is None else form for form in forms], np.int32)
    return arrays, names


def _numbered(labels: Sequence[_Label]) -> tuple[list[int], dict[_Label, int]]:
    """The number of each label, and of each different one, in order of first appearance."""
    known: dict[_Label, int] = {}
    return [known.setdefault(label, len(known)) for label in labels], known


def _joined(sequences: Sequence[Sequence[int]]) -> dict[str, _Array]:
    return {
        "tokens": np.array([token for ids in sequences for token in ids], np.int64),
        "lengths": np.array([len(ids) for ids in sequences], np.int64),
    }


def _read_batch(path: Path, num_answers: int) -> list[list[int]] | None:
    """The answers in a batch file; None where it is missing, or damaged as after a power cut."""
    try:
        with np.load(path, allow_pickle=False) as data:
            tokens, lengths = data["tokens"], data["lengths"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None
    if len(lengths) != num_answers or int(lengths.sum()) != len(tokens):
        return None
    return [ids.tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])]


def _write_arrays(path: Path, arrays: dict[str, _Array]) -> None:
    """All of the file or nothing."""
    part = path.with_name(path.name + ".tmp")
    with part.open("wb") as file:  # given a name, numpy would append .npz to it
        np.savez_compressed(file, allow_pickle=False, **arrays)
    part.replace(path)


def _write_text(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".tmp")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
