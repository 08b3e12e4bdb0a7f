"""The n-gram table: counting, lookup, file, training from every kind of corpus, and drafting with it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import ids_from, play, sequential, steps_of, wild_llama
from checks_table import corpus_of, table_of, tiny_table
from fakes import byte_tokenizer, config, generator, ids_of, loaded_pair
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from specviz.cli import main
from specviz.config import SamplingParams
from specviz.drafters import registry
from specviz.drafters.base import DraftContext
from specviz.drafters.ngram_table import LONGEST_CONTEXT, Match, NgramTable, NgramTableDrafter, context_key, load_for
from specviz.errors import ConfigError, ModelLoadError, SpecvizError
from specviz.events import RunFinished, RunStarted
from specviz.models import stored
from specviz.models.catalog import default_pair_name
from specviz.proposal import Proposal
from specviz.sampling import uniform_generator
from specviz.train.corpus import read_corpus
from specviz.train.ngrams import build_table, measure, shrink, train_ngrams

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=4)
SHIPPED = stored.ASSETS / default_pair_name() / "ngram-table" / "table.safetensors"


def by_hand(texts: Sequence[Sequence[int]], context: Sequence[int], min_count: int = 1) -> Match | None:
    """The rule by its words: the longest suffix with a follower seen often enough; the most frequent, then smallest."""
    for n in range(min(LONGEST_CONTEXT, len(context)), 0, -1):
        after = Counter(
            ids[at + n] for ids in texts for at in range(len(ids) - n) if list(ids[at : at + n]) == list(context[-n:])
        )
        if after:
            token, count = min(after.items(), key=lambda pair: (-pair[1], pair[0]))
            if count >= min_count:
                return Match(n, token, count, after.total())
    return None


def draft(table: NgramTable, ids: Sequence[int], n: int = 4, **settings: Any) -> Proposal:
    drafter = NgramTableDrafter(table, **settings)
    drafter.reset(ids)
    return drafter.propose(DraftContext(list(ids), SamplingParams()), n, uniform_generator(0))


# --- lookup -------------------------------------------------------------------------------------------------------


@given(TEXTS, st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 3), st.sampled_from([5, 1 << 20]))
def test_lookup_equals_brute_force(texts, context, min_count, vocab):
    """Random texts over 4 ids, a context that may hold a fifth; 3 bits an id are packed, 20 bits make four too long."""
    if not any(texts):
        texts = [[0]]
    table = table_of(*texts, vocab=vocab)
    assert table.find(context, min_count) == by_hand(texts, context, min_count)
    pruned = table_of(*texts, vocab=vocab, min_count=min_count)
    assert pruned.find(context) == by_hand(texts, context, min_count)


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 8))
def test_a_draft_is_repeated_lookup(texts, context, n):
    ids = list(context)
    while len(ids) < len(context) + n and (match := by_hand(texts, ids)):
        ids.append(match.token_id)
    proposal = draft(table_of([0], *texts), context, n)
    assert proposal.token_ids.tolist() == ids[len(context) :]
    assert proposal.is_chain
    assert proposal.probs is None


def test_unknown_contexts_back_off_to_shorter_ones():
    table = table_of([1, 2, 3, 4, 5], [9, 4, 7], [8, 4, 7])
    assert table.find([1, 2, 3, 4]) == Match(4, 5, 1, 1)
    assert table.find([0, 2, 3, 4]) == Match(3, 5, 1, 1)
    assert table.find([0, 0, 3, 4]) == Match(2, 5, 1, 1)
    assert table.find([0, 0, 0, 4]) == Match(1, 7, 2, 3)
    assert table.find([1, 2, 3, 4], min_count=2) == Match(1, 7, 2, 3)
    assert table.find([0]) is None
    assert table.find([]) is None


def test_ids_that_the_vocabulary_lacks_match_nothing():
    """Packed in 3 bits, 8 + 1 would read as 1 with a bit of its neighbour's: contexts end where such an id stands."""
    table = table_of([1, 2, 3], [2, 4], [2, 4], vocab=8)
    for stranger in (9, 8, -1, -7, 1 << 40):
        assert table.find([stranger, 2]) == Match(1, 4, 2, 3)
        assert table.find([2, stranger]) is None


@given(st.lists(st.lists(st.integers(0, 151_000), min_size=4, max_size=4), min_size=1, max_size=20))
def test_one_context_and_many_have_the_same_key(contexts):
    """152,000 ids of 18 bits: three are packed, four are hashed."""
    for n in range(1, 5):
        columns = [np.array([ids[place] for ids in contexts], dtype=np.uint64) for place in range(n)]
        keys = np.asarray(context_key(columns, 152_000)).tolist()
        assert keys == [context_key(ids[:n], 152_000) for ids in contexts]
        assert len(set(keys)) == len({tuple(ids[:n]) for ids in contexts})
        assert all(0 <= key < 1 << 64 for key in keys)


def test_the_note_tells_the_context_and_its_counts():
    proposal = draft(table_of([1, 2, 3, 1, 2, 3, 1, 2, 4]), [7, 1, 2], 2)
    assert proposal.token_ids.tolist() == [3, 1]
    assert proposal.note.kind == "table"
    assert "same 2 tokens" in proposal.note.text
    assert "2 of 3 times" in proposal.note.text
    assert proposal.note.data == {
        "match_len": 2, "context_ids": [1, 2], "count": 2, "total": 3,
        "match_lens": [2, 3], "counts": [2, 2], "totals": [3, 2],
    }  # fmt: skip
    assert proposal.confidence == pytest.approx([2 / 3, 1.0])
    assert draft(table_of([1, 2]), [5]).note.text


def test_drafting_stops_behind_an_unsure_token():
    """As with a model: the token under the limit is proposed, nothing behind it."""
    table = table_of([1, 2, 3, 1, 2, 3, 1, 2, 4])
    assert draft(table, [7, 1, 2], 4, stop_below=0.9).token_ids.tolist() == [3]
    assert draft(table, [7, 1, 2], 4, stop_below=0.5).token_ids.tolist() == [3, 1, 2, 3]


# --- counting -----------------------------------------------------------------------------------------------------


def test_prompts_are_context_and_nothing_reaches_across_texts():
    corpus = corpus_of([1, 2, 3], [4, 5, 6], prompt_len=2)
    table = build_table(corpus, corpus.learned, 10)
    assert table.find([1, 2]) == Match(2, 3, 1, 1)
    assert table.find([1]) is None
    assert table.find([2, 3]) is None
    assert len(table) == 4


def test_shrinking_takes_the_rarest_of_the_longest_contexts_first():
    table = tiny_table()
    small, floors = shrink(table, table.num_bytes - 1)
    assert floors == (1, 1, 1, 2)
    assert [len(a) == len(b) for a, b in zip(small.levels, table.levels, strict=True)] == [True, True, True, False]
    assert small.levels[3].counts.min() >= 2
    for limit in (8000, 2000, 0):
        small, floors = shrink(table, limit)
        assert small.num_bytes <= limit
        for level, whole, floor in zip(small.levels, table.levels, floors, strict=True):
            assert len(level) == (whole.counts >= floor).sum()
    assert shrink(table, 1 << 30)[1] == (1, 1, 1, 1)


def test_large_counts_and_ids_are_kept():
    table = table_of([70_000, 5] * 70_000, vocab=100_000)
    assert table.find([5]) == Match(1, 70_000, 69_999, 69_999)
    assert table.find([70_000]) == Match(1, 5, 70_000, 70_000)


@given(TEXTS, TEXTS)
def test_figures_equal_a_count_by_hand(texts, others):
    """Shares by context length, prediction by prediction."""
    table = table_of([0], *texts)
    corpus = corpus_of([0], *others)
    expected: Counter[tuple[int, bool]] = Counter()
    for ids in others:
        for at in range(1, len(ids)):
            match = table.find(ids[:at])
            if match:
                expected[match.match_len, match.token_id == ids[at]] += 1
    scores = measure(table, corpus, corpus.learned)
    assert [score.context for score in scores] == [4, 3, 2, 1]
    for score in scores:
        assert score.num_right == expected[score.context, True]
        assert score.num_tokens == expected[score.context, True] + expected[score.context, False]


# --- file ---------------------------------------------------------------------------------------------------------


def test_a_file_gives_the_same_table_and_a_table_the_same_bytes(tmp_path):
    table = replace(table_of([1, 2, 3, 4, 5] * 3, ids_from(0, 500), sha256="ab" * 32), about={"corpus": "x", "n": [1]})
    table.save(tmp_path / "a" / "table.safetensors")
    back = NgramTable.load(tmp_path / "a" / "table.safetensors")
    assert (back.vocab_size, back.target_sha256, back.about) == (260, "ab" * 32, {"corpus": "x", "n": [1]})
    for mine, theirs in zip(table.levels, back.levels, strict=True):
        for name in ("keys", "next_ids", "counts", "totals"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name))
    for ids in (ids_from(0, 9), ids_from(1, 9), [3, 4]):
        assert back.find(ids) == table.find(ids)
    back.save(tmp_path / "b" / "table.safetensors")
    assert (tmp_path / "a" / "table.safetensors").read_bytes() == (tmp_path / "b" / "table.safetensors").read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["table.safetensors"]


def _swap(arrays: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return arrays | {name: value}


@pytest.mark.parametrize(
    "harm",
    [
        lambda a: _swap(a, "keys_2", a["keys_2"][::-1].copy()),
        lambda a: _swap(a, "keys_1", a["keys_1"].astype(np.int64)),
        lambda a: _swap(a, "next_ids_1", np.full_like(a["next_ids_1"], 260)),
        lambda a: _swap(a, "counts_1", np.zeros_like(a["counts_1"])),
        lambda a: _swap(a, "counts_3", a["totals_3"] + np.uint16(1)),
        lambda a: _swap(a, "totals_4", a["totals_4"][:-1]),
        lambda a: {name: array for name, array in a.items() if name != "keys_1"},
        lambda a: {},
    ],
    ids=["order", "signed", "id", "count 0", "count above total", "length", "missing", "empty"],
)
def test_impossible_contents_are_refused(tmp_path, harm):
    path = tmp_path / "tiny" / "ngram-table" / "table.safetensors"
    tiny_table().save(path)
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        head = file.metadata()
    save_file(harm(load_file(path)), path, metadata=head)
    with pytest.raises(ModelLoadError, match=r"table\.safetensors in the folder tiny/ngram-table .* train ngrams"):
        NgramTable.load(path)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 100, b"\xff" * 64, None, "cut", "plain"])
def test_damaged_files_are_refused_by_name_before_the_run(monkeypatch, tmp_path, content):
    """Empty, nonsense, a folder in its place, cut short, safetensors of another kind."""
    path = tmp_path / "tiny" / "ngram-table" / "table.safetensors"
    tiny_table().save(path)
    if content is None:
        path.unlink()
        path.mkdir()
    elif content == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif content == "plain":
        save_file({"weight": np.zeros(3)}, path)
    else:
        path.write_bytes(content)
    monkeypatch.setattr(stored, "ASSETS", tmp_path)
    for method, options in (("ngram-table", {}), ("cascade", {"fallback": "none"})):
        with pytest.raises(ModelLoadError, match=r"table\.safetensors .* cannot be used .*train ngrams"):
            generator(wild_llama(1)).stream([1, 2], config(method, options=options))


def test_a_pair_without_a_table_is_refused_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(stored, "ASSETS", tmp_path)
    loaded = loaded_pair(wild_llama(1))
    method = registry.get_method("ngram-table")
    assert not method.is_offered(loaded.pair)
    with pytest.raises(ConfigError, match="train"):
        generator(wild_llama(1)).stream([1, 2], config("ngram-table"))
    with pytest.raises(ConfigError, match=r"train ngrams --pair tiny"):
        load_for(loaded)


def test_a_table_of_another_vocabulary_is_refused(monkeypatch, tmp_path):
    tiny_table(200).save(tmp_path / "tiny" / "ngram-table" / "table.safetensors")
    monkeypatch.setattr(stored, "ASSETS", tmp_path)
    with pytest.raises(ConfigError, match=r"200 tokens.* 260: .*train ngrams --pair tiny"):
        generator(wild_llama(1)).stream([1, 2], config("ngram-table"))


@pytest.mark.parametrize(("method", "options"), [("ngram-table", {}), ("cascade", {"fallback": "none"})])
def test_a_table_of_another_target_runs_and_says_so(monkeypatch, tmp_path, method, options):
    """The hash differs, the vocabulary does not: a sentence in the run, and plain decoding's text."""
    replace(tiny_table(), target_sha256="a" * 64).save(tmp_path / "tiny" / "ngram-table" / "table.safetensors")
    monkeypatch.setattr(stored, "ASSETS", tmp_path)
    engine = generator(wild_llama(1), eos=())
    for sha256, foreign in (("b" * 64, True), ("a" * 64, False), ("", False)):
        engine.loaded.target_info = replace(engine.loaded.target_info, sha256=sha256)
        settings = config(method, max_new_tokens=20, options=options)
        events = play(engine, [1, 2], settings, plain=sequential(wild_llama(1), [1, 2], 20))
        started = events[0]
        assert isinstance(started, RunStarted)
        assert any("other weights (aaaaaaaa" in note for note in started.notes) == foreign
        notes = [step.note for step in steps_of(events) if step.note]
        assert {"another target" in note.text for note in notes if note.kind == "table"} == {foreign}
        assert started.draft is not None
        assert len(started.draft.sha256) == 64


def test_a_users_own_table_comes_before_the_one_that_ships(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path))
    assert stored.draft_folder("tiny", "ngram-table") == stored.ASSETS / "tiny" / "ngram-table"
    stored.own_folder("tiny", "ngram-table").mkdir(parents=True)
    assert stored.draft_folder("tiny", "ngram-table") == stored.ASSETS / "tiny" / "ngram-table", "an empty folder"
    table_of([1, 2, 1, 2]).save(stored.own_folder("tiny", "ngram-table") / "table.safetensors")
    assert stored.draft_folder("tiny", "ngram-table") == tmp_path / "tiny" / "drafts" / "ngram-table"
    assert load_for(loaded_pair(wild_llama(1)))[0].find([1]) == Match(1, 2, 2, 2)
    # A table written anew is read anew.
    table_of([1, 3, 1, 3, 1, 3]).save(stored.own_folder("tiny", "ngram-table") / "table.safetensors")
    assert load_for(loaded_pair(wild_llama(1)))[0].find([1]) == Match(1, 3, 3, 3)


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 4, 7])
@pytest.mark.parametrize("min_count", [1, 3])
def test_greedy_runs_equal_plain_decoding(gamma, min_count):
    """I1 in float64, on prompts that the table knows and prompts that it does not."""
    engine = generator(wild_llama(1), eos=())
    for prompt in (ids_of("abcabcab"), ids_from(5, 20), [259]):
        settings = config("ngram-table", gamma=gamma, max_new_tokens=40, options={"min_count": min_count})
        play(engine, prompt, settings, plain=sequential(wild_llama(1), prompt, 40))


def test_a_table_of_the_targets_own_text_is_accepted(monkeypatch, tmp_path):
    """Counted on exactly what the target writes, every context of 4 being unique there: nearly nothing is refused."""
    prompt = ids_from(5, 20)
    answer = sequential(wild_llama(1), prompt, 60)
    table_of([*prompt, *answer]).save(tmp_path / "tiny" / "ngram-table" / "table.safetensors")
    monkeypatch.setattr(stored, "ASSETS", tmp_path)
    events = play(generator(wild_llama(1), eos=()), prompt, config("ngram-table", max_new_tokens=60), plain=answer)
    assert len(steps_of(events)) < 25


def test_settings_out_of_range_are_refused_by_name():
    for value in (0, 1.5, "2"):
        with pytest.raises(ConfigError, match="min-count"):
            generator(wild_llama(1)).stream([1, 2], config("ngram-table", options={"min_count": value}))


# --- training -----------------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(monkeypatch):
    """The command without a download: the byte tokenizer and the hash of no file."""
    reader = lambda pair, report: (byte_tokenizer(), 260, "c" * 64)  # noqa: E731
    monkeypatch.setattr("specviz.train.ngrams.target_reader", reader)


def corpus_file(path: Path, num: int = 320, **more: Any) -> Path:
    """Sequences laid out as stored answers are: prompt 3 ids, answer 20; 16 topics with habits of their own."""
    rng = np.random.default_rng(3)
    topic = np.arange(num) % 16
    rows = [[1, 2, 3, *(rng.integers(0, 6, 20) * (1 + t % 4)).tolist()] for t in topic]
    arrays = {
        "tokens": np.array(rows, dtype=np.uint16).ravel(),
        "offsets": np.arange(num + 1) * 23,
        "prompt_len": np.full(num, 3, np.int32),
        "topic": topic.astype(np.int16),
    }
    np.savez(path, **{name: array for name, array in (arrays | more).items() if array is not None})
    return path


@pytest.mark.usefixtures("trainer")
def test_training_from_stored_answers(tmp_path, capsys):
    """Held out by topic: every eighth; the card and the file tell the same figures; the same bytes twice."""
    data = corpus_file(tmp_path / "answers.npz")
    for out in ("a", "b"):
        assert main(["train", "ngrams", "--corpus", str(data), "--out", str(tmp_path / out)]) == 0
    told = capsys.readouterr()
    assert told.out.split() == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert "Counting 5600 tokens" in told.err
    assert (tmp_path / "a/table.safetensors").read_bytes() == (tmp_path / "b/table.safetensors").read_bytes()
    card = (tmp_path / "a/card.md").read_text(encoding="utf-8")
    assert card == (tmp_path / "b/card.md").read_text(encoding="utf-8")
    table = NgramTable.load(tmp_path / "a/table.safetensors")
    assert table.about["held_topics"] == [7, 15]
    assert table.about["num_tokens"] == 5600
    assert table.about["num_held_tokens"] == 800
    assert table.target_sha256 == "c" * 64
    right = sum(score["num_right"] for score in table.about["scores"])
    assert f"{100 * right / 800:.1f} % are predicted right" in card
    assert str(tmp_path) not in card


@pytest.mark.usefixtures("trainer")
def test_training_from_texts(tmp_path, monkeypatch, capsys):
    """.txt and .jsonl, together, into the folder where runs look first; no topics, so no figures."""
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("abab", encoding="utf-8")
    lines = [{"text": "abac"}, {"prompt": "aé"}, {"text": "x", "prompt": "never read"}]
    (tmp_path / "b.JSONL").write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    files = ["--corpus", str(tmp_path / "a.txt"), str(tmp_path / "b.JSONL")]
    assert main(["train", "ngrams", *files, "--pair", "smollm2-135m", "--min-count", "2"]) == 0
    folder = stored.own_folder("smollm2-135m", "ngram-table")
    assert capsys.readouterr().out.strip() == str(folder)
    a, b = ids_of("ab")
    table = NgramTable.load(folder / "table.safetensors")
    assert table.find([a]) == Match(1, b, 3, 5)
    assert table.find([b]) == Match(1, a, 2, 2)
    assert "no figures" in (folder / "card.md").read_text(encoding="utf-8")


def test_lines_of_a_corpus_end_at_line_feeds_only(tmp_path):
    """JSON may hold U+2028 and U+0085 as they stand; a byte order mark and CR LF are tolerated."""
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"text": "a\u2028b\u0085c"}\r\n{"text": "d"}\r\n'.encode())
    corpus = read_corpus([path], lambda text: [len(text)], 260, lambda *_: None)
    assert corpus.tokens.tolist() == [5, 1]


@pytest.mark.usefixtures("trainer")
@pytest.mark.parametrize(
    ("name", "content", "needle"),
    [
        ("no.txt", None, "cannot be read"),
        ("x.csv", "a", "is no corpus"),
        ("x.txt", b"\xff\xfe\xfa", "cannot be read"),
        ("x.txt", "", "empty"),
        ("x.jsonl", "[1]", "Line 1 of x.jsonl is not"),
        ("x.jsonl", '{"text": "a"}\n{"text": 5}', "Line 2 of x.jsonl has no text"),
        ("x.jsonl", "{", "Line 1"),
        ("x.npz", b"nonsense", "damaged"),
        ("x.npz", {"prompt_len": None}, "no array 'prompt_len'"),
        ("x.npz", {"offsets": np.arange(320)}, "do not fit"),
        ("x.npz", {"offsets": np.arange(321)[::-1]}, "do not fit"),
        ("x.npz", {"topic": np.zeros(3, int)}, "do not fit"),
        ("x.npz", {"prompt_len": np.full(320, 3.5)}, "do not fit"),
        ("x.npz", {"tokens": np.full(320 * 23, 999)}, "id 999"),
        ("x.npz", {"prompt_len": np.full(320, 23)}, "empty"),
    ],
)
def test_corpora_that_are_none_are_refused_by_name(tmp_path, capsys, name, content, needle):
    path = tmp_path / name
    if isinstance(content, dict):
        corpus_file(path, **content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["train", "ngrams", "--corpus", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert needle in told.err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("trainer")
def test_pickled_arrays_are_refused(tmp_path):
    """Case 90: an object array would run code when read."""
    np.savez(tmp_path / "x.npz", tokens=np.array([{}], dtype=object), offsets=[0, 1], prompt_len=[0])
    with pytest.raises(ConfigError, match="damaged"):
        train_ngrams([tmp_path / "x.npz"], "smollm2-135m", tmp_path)


@pytest.mark.usefixtures("trainer")
def test_settings_of_training_are_refused_by_name(tmp_path):
    data = corpus_file(tmp_path / "answers.npz")
    for settings, name in (({"min_count": 0}, "min-count"), ({"max_mb": 9.5}, "max-mb"), ({"max_mb": 0}, "max-mb")):
        with pytest.raises(ConfigError, match=name):
            train_ngrams([data], "smollm2-135m", tmp_path, **settings)
    with pytest.raises(SpecvizError, match="no model pair"):
        train_ngrams([data], "nobody", tmp_path)


# --- the table that ships -----------------------------------------------------------------------------------------


def test_the_shipped_table_is_small_loads_fast_and_names_its_target():
    from specviz.models.catalog import get_pair

    began = time.perf_counter()
    table = NgramTable.load(SHIPPED)
    assert time.perf_counter() - began < 1.0
    assert SHIPPED.stat().st_size <= 4_000_000
    wheel = get_pair(default_pair_name()).target.wheel
    assert wheel is not None
    assert table.target_sha256 == wheel.gguf_sha256
    assert table.vocab_size == 49152
    assert len(table) == sum(table.about["num_entries"]) == 198_779
    card = (SHIPPED.parent / "card.md").read_text(encoding="utf-8")
    predicted = sum(score["num_tokens"] for score in table.about["scores"])
    assert f"| any (coverage) | {100 * predicted / table.about['num_held_tokens']:.1f} %" in card


@pytest.mark.real
def test_the_shipped_table_on_the_real_pair():
    """Four prompts of 32 tokens: plain decoding's ids (exact where the self-test passes), and some drafts accepted."""
    from fixtures_real import load_real

    from specviz.generator import SpeculativeGenerator

    engine = SpeculativeGenerator(load_real())
    accepted = 0
    for prompt in ("Why is the sky blue?", "Write a list of five fruits.", "Tell me about Rome.", "What is a cat?"):
        plain = list(engine.stream(prompt, config("plain", max_new_tokens=32, exact=True)))[-1]
        assert isinstance(plain, RunFinished)
        play(engine, prompt, config("ngram-table", max_new_tokens=32, exact=True), plain=plain.token_ids)
        settings = config("cascade", max_new_tokens=32, exact=True, options={"fallback": "none"})
        events = play(engine, prompt, settings, plain=plain.token_ids)
        started = events[0]
        assert isinstance(started, RunStarted)
        assert started.notes == ()
        accepted += sum(step.num_accepted for step in steps_of(events))
    assert accepted > 10
