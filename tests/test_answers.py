"""A target's answers to a list of prompts: equal to plain decoding, repeatable, resumable, refused in sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checks import ids_from, sequential, wild_llama
from fakes import byte_tokenizer, loaded_pair, tiny_gpt2

from specviz.cli import main
from specviz.config import SamplingParams
from specviz.errors import ConfigError
from specviz.models.chat import encode_prompt
from specviz.sampling import probabilities
from specviz.train import answers, batched
from specviz.train.answers import Prompt, Written, read_prompts, read_temperatures, write_answers
from specviz.train.batched import answer_batch, choose_tokens
from specviz.train.corpus import read_corpus

ENDS = tuple(range(0, 250, 20))
"""So many end tokens that some answers of a random model end early."""

PROMPTS = ("Hi", "Why is the sky blue?", "a", "Count to ten, please.", "Name a fruit", "What is rain?")


@pytest.fixture
def target(monkeypatch):
    """The model behind every pair's name, in float64 with a context of 512."""
    model = wild_llama(1)
    monkeypatch.setattr(answers, "load_pair", lambda name, **more: loaded_pair(model, eos=ENDS))
    return model


def prompt_file(folder: Path, prompts: Sequence[str] = PROMPTS) -> Path:
    path = folder / "prompts.txt"
    path.write_text("\n".join(prompts), encoding="utf-8")
    return path


def write(folder: Path, name: str = "out.npz", **settings: Any) -> dict[str, np.ndarray]:
    """The arrays of a run over PROMPTS: 12 answers in batches of 5, at most 10 tokens each."""
    settings = {"max_new_tokens": 10, "batch": 5} | settings
    written = write_answers([prompt_file(folder)], folder / name, **settings)
    assert written.num_answers == 12
    return load(written.path)


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as data:
        return dict(data)


def pieces(arrays: dict[str, np.ndarray]) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of every sequence."""
    spans = zip(arrays["offsets"][:-1], arrays["offsets"][1:], arrays["prompt_len"], strict=True)
    tokens = arrays["tokens"].tolist()
    return [(tokens[start : start + size], tokens[start + size : end]) for start, end, size in spans]


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# --- many at once -------------------------------------------------------------------------------------------------


def many(model: Any, prompts: Sequence[Sequence[int]], num: int, heat: float = 0.0, **more: Any) -> list[list[int]]:
    loaded = loaded_pair(model, **more)
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {"max_new_tokens": num, "top_p": 0.95, "rng": rng, "tick": lambda n: None}
    return answer_batch(loaded, prompts, [heat] * len(prompts), **options)


@pytest.mark.parametrize("prefill", [4096, 16])
def test_greedy_answers_equal_plain_decoding(monkeypatch, prefill):
    """Prompts of 1 to 40 ids side by side, filled in one pass and in many; rows leave at their end token."""
    monkeypatch.setattr(batched, "PREFILL_TOKENS", prefill)
    model = wild_llama(1)
    prompts = [ids_from(seed, length) for seed, length in enumerate((1, 7, 40, 2, 19, 33, 8, 1))]
    made = many(model, prompts, 16, eos=ENDS)
    assert made == [sequential(model, prompt, 16, eos=ENDS) for prompt in prompts]
    assert len({len(answer) for answer in made}) > 2


@pytest.mark.parametrize("model", [tiny_gpt2(), wild_llama(2, attn_implementation="eager")], ids=["gpt2", "eager"])
def test_other_kinds_of_models(model):
    prompts = [ids_from(seed, length) for seed, length in enumerate((3, 20, 1))]
    assert many(model, prompts, 8, eos=()) == [sequential(model, prompt, 8) for prompt in prompts]


def test_prompts_of_one_token_need_no_prefill():
    model = wild_llama(1)
    assert many(model, [[5], [77]], 6, eos=()) == [sequential(model, [5], 6), sequential(model, [77], 6)]


@pytest.mark.parametrize("top_p", [0.3, 0.95, 1.0])
def test_tokens_are_drawn_from_the_one_distribution(monkeypatch, top_p):
    """Coins at 1,000 even places: the share of every token is its probability, to within one place at either end.

    The candidates are looked for among 4, then 64, then all 300 tokens.
    """
    monkeypatch.setattr(batched, "FIRST_CANDIDATES", 4)
    num = 1000
    coins = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    for seed, spread in enumerate((0.1, 1.0, 6.0)):
        logits = torch.randn(300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread
        for heat in (0.7, 1.3, 0.0):
            tokens = choose_tokens(logits.expand(num, -1), torch.full((num,), heat, dtype=torch.float64), top_p, coins)
            shares = torch.bincount(tokens, minlength=300).double() / num
            expected = probabilities(logits, SamplingParams(temperature=heat, top_p=top_p))
            assert (shares - expected).abs().max() <= 1.001 / num
            assert not shares[expected == 0].any()


def test_rows_of_several_temperatures_are_chosen_apart():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    heat = torch.tensor([0.0, 0.7, 0.0, 5.0], dtype=torch.float64)
    tokens = choose_tokens(logits, heat, 1.0, torch.tensor([0.9, 0.0, 0.9, 1 - 1e-16], dtype=torch.float64))
    order = logits.argsort(-1, descending=True)
    assert tokens.tolist() == [order[0, 0], order[1, 0], order[2, 0], order[3, -1]]


# --- the file -----------------------------------------------------------------------------------------------------


def test_arrays_of_a_run(target, tmp_path):
    arrays = write(tmp_path)
    kinds = {name: array.dtype for name, array in arrays.items()}
    assert kinds == {
        "tokens": np.uint16,
        "offsets": np.int64,
        "prompt_len": np.int32,
        "temperature": np.float32,
        "topic": np.int32,
    }
    assert arrays["temperature"].tolist() == [0.0, np.float32(0.7)] * 6
    assert arrays["topic"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    found = pieces(arrays)
    for number, text in enumerate(PROMPTS):
        ids, _ = encode_prompt(byte_tokenizer(), text, raw=False)
        (prompt, greedy), (again, drawn) = found[2 * number : 2 * number + 2]
        assert prompt == again == ids
        assert greedy == sequential(target, ids, 10, eos=ENDS)
        assert drawn[-1] in ENDS or len(drawn) == 10
        assert not set(drawn[:-1]) & set(ENDS)
    corpus = read_corpus([tmp_path / "out.npz"], lambda text: [], 260, lambda *_: None)
    assert int(corpus.learned.sum()) == sum(len(answer) for _, answer in found)
    about = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert about["pair"] == "tiny"
    assert about["dtype"] == "float64"
    assert about["temperatures"] == [0.0, 0.7]
    assert (about["top_p"], about["seed"], about["num_answers"], about["num_prompts"]) == (0.95, 0, 12, 6)
    assert about["num_tokens"] == int(corpus.learned.sum())
    assert about["topics"] == {}
    assert "target_sha256" in about
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.npz", "prompts.txt"]


def test_topics_and_forms(target, tmp_path):
    """Topics by name in order of appearance, equal prompts without one together; forms as numbers or as names."""
    lines = [
        {"prompt": "a", "topic": "tea", "form": 3},
        {"prompt": "b"},
        {"prompt": "c", "topic": 7, "form": 0},
        {"prompt": "d", "topic": "tea"},
        {"prompt": "b", "topic": None},
        {"prompt": "b2", "topic": "7"},
    ]
    settings: dict[str, Any] = {"temperatures": [0.0], "max_new_tokens": 1}
    path = tmp_path / "p.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    arrays = load(write_answers([path], tmp_path / "a.npz", **settings).path)
    assert arrays["topic"].tolist() == [0, 1, 2, 0, 1, 2]
    assert arrays["form"].tolist() == [3, -1, 0, -1, -1, -1]
    assert arrays["form"].dtype == np.int32
    assert json.loads((tmp_path / "a.json").read_text())["topics"] == {"tea": 0, "7": 2}
    path.write_text(json.dumps({"prompt": "a", "form": "list"}) + "\n" + json.dumps({"prompt": "a", "form": 2}))
    assert load(write_answers([path], tmp_path / "b.npz", **settings).path)["form"].tolist() == [0, 1]
    assert json.loads((tmp_path / "b.json").read_text())["forms"] == {"list": 0, "2": 1}


def test_prompts_are_read_in_order(tmp_path):
    """A byte order mark, CR LF and blank lines are tolerated; lines end at line feeds only."""
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\r\n two \r\n".encode())
    (tmp_path / "b.JSONL").write_text('{"prompt": " x\u2028y ", "topic": 0}\n', encoding="utf-8")
    expected = [Prompt("one"), Prompt("two"), Prompt(" x\u2028y ", "0")]
    assert read_prompts([tmp_path / "a.txt", tmp_path / "b.JSONL"]) == expected


# --- repeating and resuming ---------------------------------------------------------------------------------------


def test_seeds_repeat(target, tmp_path):
    first = write(tmp_path, "a.npz")
    assert same(first, write(tmp_path, "b.npz"))
    other = write(tmp_path, "c.npz", seed=1)
    assert not same(first, other)
    assert pieces(first)[::2] == pieces(other)[::2], "the greedy ones"


class Interrupted:
    """`answer_batch`, stopped by the user in one of its calls."""

    def __init__(self, at: int = 0) -> None:
        self.calls, self.at = 0, at

    def __call__(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return answer_batch(*args, **kwargs)


def test_an_interrupted_run_goes_on_and_ends_the_same(target, tmp_path, monkeypatch):
    """Three batches of 5, 5 and 2: stopped in the third, and the second file damaged as by a power cut."""
    whole = write(tmp_path, "whole.npz")
    monkeypatch.setattr(answers, "answer_batch", Interrupted(at=3))
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    folder = tmp_path / "out.npz.part"
    assert sorted(path.name for path in folder.iterdir()) == ["batch-0001.npz", "batch-0002.npz", "settings.json"]
    assert not (tmp_path / "out.npz").exists()
    path = folder / "batch-0002.npz"
    path.write_bytes(path.read_bytes()[:40])
    counter = Interrupted()
    monkeypatch.setattr(answers, "answer_batch", counter)
    told: list[tuple[str, float | None]] = []
    assert same(whole, write(tmp_path, progress=lambda *line: told.append(line)))
    assert counter.calls == 2
    assert not folder.exists()
    assert told[0][0].startswith("2 of 3 batches, ")
    assert "tokens/s" in told[0][0] and "min left" in told[0][0]
    assert [part for _, part in told] == [pytest.approx(2 / 3), 1.0, 1.0]


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"temperatures": [0.0, 0.8]}, {"top_p": 0.9}, {"batch": 4}, {"max_new_tokens": 9}]
)
def test_a_part_folder_of_other_settings_is_refused(target, tmp_path, monkeypatch, change):
    monkeypatch.setattr(answers, "answer_batch", Interrupted(at=2))
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    with pytest.raises(ConfigError, match=rf"other settings: {next(iter(change))} .*delete that folder"):
        write(tmp_path, **change)
    (tmp_path / "out.npz.part" / "settings.json").unlink()
    with pytest.raises(ConfigError, match="other settings"):
        write(tmp_path)


def test_a_part_folder_without_answers_binds_nobody(target, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "answer_batch", Interrupted(at=1))
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    monkeypatch.setattr(answers, "answer_batch", answer_batch)
    write(tmp_path, seed=1)


def test_running_out_of_memory_is_said_in_a_sentence(target, tmp_path, monkeypatch):
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(answers, "answer_batch", fail)
    with pytest.raises(ConfigError, match=r"with 5 answers at once.*smaller --batch"):
        write(tmp_path)


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command(target, tmp_path, capsys):
    """A prompt that leaves no room for its answer is left out, and counted."""
    path = prompt_file(tmp_path, ["Hi", "x" * 600])
    more = ["--temperatures", "0,1", "--max-new-tokens", "4", "--out", str(tmp_path / "new" / "a.npz")]
    assert main(["train", "corpus", "--prompts", str(path), *more]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == str(tmp_path / "new" / "a.npz")
    assert "1 prompt was skipped" in told.err
    assert load(tmp_path / "new" / "a.npz")["temperature"].tolist() == [0.0, 1.0]
    assert json.loads((tmp_path / "new" / "a.json").read_text())["num_skipped"] == 1


def test_what_was_written_is_counted(target, tmp_path):
    written = write_answers([prompt_file(tmp_path)], tmp_path / "a.npz", temperatures=[0.0], max_new_tokens=1)
    assert written == Written(tmp_path / "a.npz", 6, 6, 0)


@pytest.mark.parametrize(
    ("name", "content", "needle"),
    [
        ("no.txt", None, "cannot be read"),
        ("x.csv", "a", "no list of prompts"),
        ("x.txt", "\n \n", "no prompts"),
        ("x.jsonl", "\n", "no prompts"),
        ("x.jsonl", "[1]", "Line 1 of x.jsonl is not a JSON object"),
        ("x.jsonl", '{"prompt": "a"}\n{"text": "a"}', "Line 2 of x.jsonl has no text"),
        ("x.jsonl", '{"prompt": " "}', "has no text"),
        ("x.jsonl", '{"prompt": "a", "topic": 1.5}', '"topic" that is neither'),
        ("x.jsonl", '{"prompt": "a", "form": true}', '"form" that is neither'),
        ("x.jsonl", '{"prompt": "a", "form": -1}', "between 0 and"),
        ("x.txt", "y" * 600, "No prompt leaves 256"),
    ],
)
def test_prompts_that_are_none_are_refused_by_name(target, tmp_path, capsys, name, content, needle):
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    out = tmp_path / "out.npz"
    assert main(["train", "corpus", "--prompts", str(tmp_path / name), "--out", str(out)]) == 2
    assert needle in capsys.readouterr().err
    assert not out.exists()
    assert not out.with_name("out.npz.part").exists()


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        (["--temperatures", "0,hot"], "temperatures"),
        (["--temperatures", ""], "temperatures"),
        (["--temperatures", "0,0"], "different"),
        (["--temperatures", "9"], "temperature must lie"),
        (["--temperatures", "nan"], "temperature must be"),
        (["--top-p", "0"], "top-p"),
        (["--batch", "0"], "batch"),
        (["--seed", "-1"], "seed"),
        (["--max-new-tokens", "0"], "max-new-tokens"),
        (["--out", "x.json"], "FILE.npz"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(target, tmp_path, capsys, change, needle):
    words = ["train", "corpus", "--prompts", str(prompt_file(tmp_path)), "--out", str(tmp_path / "out.npz"), *change]
    assert main(words) == 2
    assert needle in capsys.readouterr().err


def test_temperatures_are_numbers_with_commas():
    assert read_temperatures("0, 0.7,1") == (0.0, 0.7, 1.0)
    with pytest.raises(ConfigError, match="temperatures"):
        write_answers([], Path("a.npz"), temperatures=[])


def test_an_unknown_pair_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no model pair"):
        write_answers([prompt_file(tmp_path)], tmp_path / "a.npz", pair="nobody")
