"""Pieces of text against `tokenizer.decode`, on small tokenizers of every family that are trained here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from fixtures_real import load_real
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specviz.detokenize import Detokenizer, Piece, StopScanner, split_text, visible_part, visible_text
from specviz.events import EmittedToken

SENTENCES = [
    "Hello world! The quick brown fox jumps over the lazy dog. It's a dog's life, isn't it?",
    "def add(a, b):\n    return a + b  # 'quoted' and \"quoted\"\n\n\tprint(add(1, 2))\n",
    "  two spaces in front, three   inside; prefix and after",
    "Crème brûlée 🔥 and 🔥🔥 in こんにちは世界, 한국어, नमस्ते",
]
EMOJI = "🔥👩‍👩‍👧‍👦🇳🇴"
SCRIPTS = ["こんにちは世界", "한국어", "नमस्ते", "e\u0301a", "שלום עולם", "العدد 123 (a)", "می\u200cروم क्\u200dष"]
CODE = "a , b ' c 's not ? do n't .\nif x :\n    y = [ 1 , 2 ]  # it 's\n"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKED = "<|end▁of|>"  # a control token whose name the Llama decoder rewrites
ADDED = ["<think>", "</think>", "ÿ", "  \t", "▁x"]  # not special; ÿ is a byte's sign in byte-level vocabularies
LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
)
GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
MIXED = decoders.Sequence(
    [decoders.Metaspace(replacement="▁", prepend_scheme="always"), decoders.ByteFallback(), decoders.Fuse()]
)
OTHERS = {
    "metaspace": decoders.Metaspace(replacement="▁", prepend_scheme="always"),
    "metaspace_bytes": MIXED,
    "wordpiece": decoders.WordPiece(prefix="##", cleanup=True),
    "bpe_suffix": decoders.BPEDecoder(suffix="</w>"),
    "byte_level_in_a_chain": decoders.Sequence([decoders.Replace("zzz", "z"), decoders.ByteLevel()]),
    "strip_both_ends": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left=1, right=1)]
    ),
    "none": None,
}


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's kind: ids 3 to 258 are the single bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 3, trainer)
    return wrap(backend)


def llama(decoder: decoders.Decoder | None = LLAMA) -> PreTrainedTokenizerFast:
    """Llama 2's kind: ids 3 to 258 are the byte tokens; with another decoder, a vocabulary for the window."""
    backend = Tokenizer.from_str(_llama_json())
    backend.decoder = decoder
    return wrap(backend)


@cache
def _llama_json() -> str:
    marked = [sentence.replace(" ", "▁") for sentence in SENTENCES[:3]] * 3
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    trained.train_from_iterator(marked, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    learnt = json.loads(trained.to_str())["model"]
    names = [
        *CONTROL,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *learnt["vocab"],
        "▁\ufffd",
        "世",
        "##x",
        "zzz",
        "dog</w>",
        "</w>",
        "<0x+F>",
    ]
    vocab = {name: index for index, name in enumerate(names)}
    merges = [tuple(pair) for pair in learnt["merges"]]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend.to_str()


def wrap(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """As transformers loads it; clean-up is switched on, so that a decode without the explicit flag shows."""
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in [*CONTROL, MARKED]])
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in ADDED])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", clean_up_tokenization_spaces=True)


FAMILIES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte_level": byte_level,
    "llama": llama,
    "gemma": lambda: llama(GEMMA),
}


@pytest.fixture(params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return FAMILIES[request.param]()


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], skip: bool = False) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=skip, clean_up_tokenization_spaces=False))


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def id_of(tokenizer: PreTrainedTokenizerFast, name: str) -> int:
    token_id = tokenizer.backend_tokenizer.token_to_id(name)
    assert token_id is not None, name
    return int(token_id)


def byte_ids(tokenizer: PreTrainedTokenizerFast, data: bytes) -> list[int]:
    """One id for each byte, so that every character is cut at every place."""
    if tokenizer.backend_tokenizer.id_to_token(3) == "<0x00>":
        return [3 + byte for byte in data]
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [id_of(tokenizer, chr(byte if byte in plain else 256 + others.index(byte))) for byte in data]


def run(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[Piece]:
    """Push all, and flush into the last as the generator does."""
    return split_text(tokenizer, ids)


def joined(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


# --- exactness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_case_66_random_ids_in_random_blocks_join_to_decode(tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Case 66: 5,000 random ids, drafted in blocks of 1 to 8; half of them bytes, most of those invalid."""
    rng = random.Random(seed)
    size = len(tokenizer) + 5  # some ids beyond the vocabulary, as of a padded output layer
    ids = [rng.randrange(3, 259) if rng.random() < 0.5 else rng.randrange(size) for _ in range(5000)]
    detokenizer = Detokenizer(tokenizer)
    pieces: list[Piece] = []
    while len(pieces) < len(ids):
        block = ids[len(pieces) : len(pieces) + rng.randint(1, 8)]
        drafted = detokenizer.peek(block)
        emitted = [detokenizer.push(token_id) for token_id in block]
        assert emitted == drafted
        pieces += emitted
        if len(pieces) < 300:  # quadratic, so only at the start
            assert decode(tokenizer, ids).startswith(joined(pieces))
    pieces[-1] = pieces[-1].plus(detokenizer.finish())
    assert joined(pieces) == decode(tokenizer, ids)
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_case_66_any_ids_join_to_decode(family: str, data: st.DataObject) -> None:
    """Case 66: what Hypothesis likes best, among the bytes that begin, continue and break characters."""
    tokenizer = _shared(family)
    awkward = byte_ids(tokenizer, bytes([0x41, 0x20, 0x80, 0x9F, 0xA5, 0xBF, 0xC0, 0xC3, 0xE2, 0xED, 0xEF, 0xF0, 0xF4]))
    ids = data.draw(st.lists(st.sampled_from(awkward) | st.integers(-2, len(tokenizer) + 2), max_size=40))
    known = [token_id for token_id in ids if token_id >= 0]
    assert joined(run(tokenizer, ids)) == decode(tokenizer, known)


@cache
def _shared(family: str) -> PreTrainedTokenizerFast:
    return FAMILIES[family]()


def test_case_66_each_single_id(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 66: every id alone; a piece without text has a label, so that no chip is empty (case 75)."""
    for token_id in range(len(tokenizer)):
        piece = Detokenizer(tokenizer).push(token_id)
        assert piece.text or piece.label
        assert joined(run(tokenizer, [token_id])) == decode(tokenizer, [token_id])


def test_case_66_text_after_invalid_bytes_appears(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 66: bytes that can become no character hold back nothing behind them."""
    ids = byte_ids(tokenizer, b"\xf0\x9f\xff\xc3")
    after = id_of(tokenizer, "after" if tokenizer.backend_tokenizer.token_to_id("after") else "a")
    detokenizer = Detokenizer(tokenizer)
    for token_id in ids:
        detokenizer.push(token_id)
    text = detokenizer.push(after).text
    assert text.startswith("\ufffd")
    assert text.endswith(decode(tokenizer, [after]))


# --- characters over several tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*SCRIPTS, EMOJI])
def test_case_62_emoji_over_several_tokens(text: str) -> None:
    """Case 62: after each byte exactly the finished characters are shown, the others are labelled by their bytes."""
    tokenizer = byte_level()
    data = text.encode()
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for count, token_id in enumerate(byte_ids(tokenizer, data), start=1):
        piece = detokenizer.push(token_id)
        shown += piece.text
        assert shown == data[:count].decode(errors="ignore")  # valid text: only the unfinished end is left out
        assert piece.label == ("" if piece.text else f"{data[count - 1]:02X}")
    assert shown == text
    assert detokenizer.finish() == ""


def test_case_62_rejection_inside_one_glyph(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 62: drafts inside a glyph, looked at and refused, leave no mark; the true bytes complete it."""
    data = "🔥!".encode()
    detokenizer = Detokenizer(tokenizer)
    wrong = byte_ids(tokenizer, b"\x41\xff")
    pieces = []
    for token_id in byte_ids(tokenizer, data):
        detokenizer.peek([*wrong, token_id])
        fork = detokenizer.fork()
        fork.push(wrong[0])
        fork.finish()
        pieces.append(detokenizer.push(token_id))
    pieces[-1] = pieces[-1].plus(detokenizer.finish())
    assert joined(pieces) == "🔥!"
    assert [piece.label for piece in pieces[:3]] == ["F0", "9F", "94"]


def test_case_62_label_of_a_token_with_two_bytes() -> None:
    """Case 62: a merge of two bytes is labelled by both."""
    tokenizer = byte_level()
    token_id = id_of(tokenizer, "ðŁ")  # F0 9F, learnt from the emoji
    assert Detokenizer(tokenizer).push(token_id) == Piece("", "F0 9F")


def test_unfinished_end_goes_into_the_last_piece(tokenizer: PreTrainedTokenizerFast) -> None:
    """A run that is cut inside a character: the join is still what decode gives, U+FFFD included."""
    ids = encode(tokenizer, "Hello") + byte_ids(tokenizer, "🔥".encode()[:3])
    pieces = run(tokenizer, ids)
    detokenizer = Detokenizer(tokenizer)
    pushed = [detokenizer.push(token_id) for token_id in ids]
    assert joined(pushed) == decode(tokenizer, encode(tokenizer, "Hello"))
    assert detokenizer.finish() == joined(pieces)[len(joined(pushed)) :]
    assert detokenizer.finish() == ""
    assert joined(pieces) == decode(tokenizer, ids)
    assert pieces[-1].text.endswith("\ufffd")
    assert pieces[-1].label == ""
    assert pieces[-2].text == ""


def test_a_row_of_byte_tokens_waits_for_its_end() -> None:
    """Llama 2's decoder turns a whole row into U+FFFD if one byte is wrong, so a good character in it must wait."""
    tokenizer = llama()
    fire = byte_ids(tokenizer, "🔥".encode())
    a = id_of(tokenizer, "a")
    good, bad = [*fire, a], [*fire, fire[0], a]
    assert decode(tokenizer, bad) == "\ufffd" * 5 + "a"  # the decoder's rule that forces this
    assert [piece.text for piece in run(tokenizer, good)] == ["", "", "", "", "🔥a"]
    assert joined(run(tokenizer, bad)) == "\ufffd" * 5 + "a"
    assert [piece.text for piece in run(tokenizer, fire)] == ["", "", "", "🔥"]


def test_case_64_real_replacement_character(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 64: a U+FFFD that the model wrote is text like any other; `after` appears with its own token."""
    prefix, after = encode(tokenizer, "prefix"), encode(tokenizer, "after")
    in_bytes = byte_ids(tokenizer, b"\xef\xbf\xbd")
    own_id = tokenizer.backend_tokenizer.token_to_id("▁\ufffd")
    rows_wait = tokenizer.backend_tokenizer.id_to_token(3) == "<0x00>"
    for literal in [in_bytes] if own_id is None else [in_bytes, [own_id]]:
        detokenizer = Detokenizer(tokenizer)
        shown = joined([detokenizer.push(token_id) for token_id in [*prefix, *literal]])
        if not (rows_wait and literal is in_bytes):
            assert shown == decode(tokenizer, [*prefix, *literal])  # at once
        shown += detokenizer.push(after[0]).text
        assert shown == decode(tokenizer, [*prefix, *literal, after[0]])
        assert "\ufffd" in shown[:-1]


@pytest.mark.parametrize("text", [*SCRIPTS, EMOJI])
def test_case_73_what_was_shown_never_changes(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """Case 73: at each token what is shown begins both the text so far and the whole; at the end it is the whole."""
    ids = encode(tokenizer, f"{text} {text}")
    whole = decode(tokenizer, ids)
    assert whole.strip() == f"{text} {text}"
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for count, token_id in enumerate(ids, start=1):
        shown += detokenizer.push(token_id).text
        assert whole.startswith(shown)
        assert decode(tokenizer, ids[:count]).startswith(shown)
        assert "\ufffd" not in shown
    assert shown + detokenizer.finish() == whole


# --- spaces ----------------------------------------------------------------------------------------------------------


def test_case_67_leading_spaces(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 67: 500 strings with spaces in all places: the chips join to exactly the decoded text."""
    rng = random.Random(67)
    words = ["Hello", "world", "!", " ", "  ", "\n", "\t", "dog's", "é", "🔥", "世", "(", "'"]
    for _ in range(500):
        ids = encode(tokenizer, " " * rng.randint(0, 3) + "".join(rng.choices(words, k=rng.randint(0, 8))))
        assert joined(run(tokenizer, ids)) == decode(tokenizer, ids)


def test_case_67_words_are_not_glued() -> None:
    """Case 67: only the first space of the whole text is the decoder's own; two in front leave one."""
    tokenizer = llama()
    ids = [id_of(tokenizer, name) for name in ("▁", "▁", "▁quick", "▁brown", "!")]
    pieces = run(tokenizer, ids)
    assert [piece.text for piece in pieces] == ["", " ", " quick", " brown", "!"]
    assert joined(pieces) == decode(tokenizer, ids)
    assert pieces[0].label == "▁"  # a chip without text is still drawn


@pytest.mark.parametrize("text", [CODE, "a , b ' c 's not ?", *SENTENCES])
def test_case_68_no_space_clean_up(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """Case 68: spaces before punctuation stay, though these tokenizers ask for clean-up by default."""
    assert tokenizer.clean_up_tokenization_spaces
    got = joined(run(tokenizer, encode(tokenizer, text)))
    assert got in (text, f" {text}")  # Gemma's decoder keeps the space that this normalizer puts in front


def test_case_68_every_decode_call_has_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 68: the window's decode switches clean-up off and keeps control tokens, by name."""
    tokenizer = llama(OTHERS["wordpiece"])
    calls: list[dict[str, bool]] = []
    original = tokenizer.decode

    def spy(ids: list[int], **flags: bool) -> str:
        calls.append(flags)
        return str(original(ids, **flags))

    monkeypatch.setattr(tokenizer, "decode", spy)
    run(tokenizer, encode(tokenizer, CODE))
    assert len(calls) > 10
    assert all(flags == {"skip_special_tokens": False, "clean_up_tokenization_spaces": False} for flags in calls)


def test_case_69_steps_of_several_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 69: 200 logs cut into blocks of 1 to 6; after each step the text shown is that of all ids so far."""
    rng = random.Random(69)
    parts = ['"quoted"', "it's", "isn't", "'", '"', "\n", "\n\n", " the", " dog", "fox", ",", "?", "  "]
    # every character is in the vocabularies, so there are no byte tokens and nothing has to wait
    for _ in range(200):
        ids = encode(tokenizer, "".join(rng.choices(parts, k=rng.randint(1, 12))))
        detokenizer = Detokenizer(tokenizer)
        shown, done = "", 0
        while done < len(ids):
            block = ids[done : done + rng.randint(1, 6)]
            shown += joined([detokenizer.push(token_id) for token_id in block])
            done += len(block)
            assert shown == decode(tokenizer, ids[:done])
        assert shown == decode(tokenizer, ids)


# --- control tokens --------------------------------------------------------------------------------------------------


def test_case_71_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 71: hiding takes away the control tokens and nothing else, not even an added <think>."""
    names = ["<|im_start|>", "<think>", "</think>", "<|endoftext|>", "<|im_end|>"]
    start, think, unthink, eot, eos = (id_of(tokenizer, name) for name in names)
    dog = encode(tokenizer, "the dog")
    ids = [start, *dog, think, *dog, unthink, eot, *dog, eos]
    pieces = run(tokenizer, ids)
    assert len(pieces) == len(ids)
    assert {token_id for token_id, piece in zip(ids, pieces, strict=True) if piece.special} == {start, eot, eos}
    assert pieces[0] == Piece("<|im_start|>", "<|im_start|>", special=True)
    assert pieces[ids.index(think)] == Piece("<think>")
    assert joined(pieces) == decode(tokenizer, ids)
    hidden = visible_text(pieces)
    assert hidden == joined(pieces).replace("<|im_start|>", "").replace("<|endoftext|>", "").replace("<|im_end|>", "")
    assert hidden.count("<think>") == 1
    emitted = [EmittedToken(7, piece.text, "target", piece.label, piece.special) for piece in pieces]
    assert visible_text(emitted) == hidden


def test_case_71_hidden_ids_are_special_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    """Case 71: exactly the ids that decode itself hides."""
    for token_id in range(len(tokenizer)):
        hides = decode(tokenizer, [token_id], skip=True) == "" != tokenizer.backend_tokenizer.id_to_token(token_id)
        special = Detokenizer(tokenizer).push(token_id).special
        assert special <= hides
        assert special == (tokenizer.backend_tokenizer.id_to_token(token_id) in [*CONTROL, MARKED])


@pytest.mark.parametrize("name", ["<|im_end|>", MARKED])
def test_case_71_control_token_in_the_middle_of_a_character(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    """Case 71: what a control token ends belongs to the visible text, the token itself does not."""
    eos = id_of(tokenizer, name)
    detokenizer = Detokenizer(tokenizer)
    for token_id in [*encode(tokenizer, "a"), *byte_ids(tokenizer, b"\xf0\x9f")]:
        detokenizer.push(token_id)
    piece = detokenizer.push(eos)
    assert piece.special
    assert piece.label == decode(tokenizer, [eos])
    assert visible_part(piece) in ("\ufffd", "\ufffd\ufffd")  # one for the two bytes, with byte fallback one each
    assert piece.text == visible_part(piece) + piece.label
    assert detokenizer.finish() == ""


def test_a_control_token_of_another_writer_is_hidden_whole() -> None:
    """A trace may label a control token in its own words; then nothing of it is shown, rather than a part of it."""
    assert visible_part(EmittedToken(2, "<|im_end|>", "target", label="end", special=True)) == ""
    assert visible_part(EmittedToken(2, "<|im_end|>", "target", special=True)) == ""
    assert visible_part(EmittedToken(2, "<think>", "target", label="think")) == "<think>"


@pytest.mark.parametrize("token_id", [10_000, 2**40, -1])
def test_ids_outside_the_vocabulary(tokenizer: PreTrainedTokenizerFast, token_id: int) -> None:
    """A padded output layer can name ids that mean nothing: they add nothing, even inside a character."""
    first, *others = byte_ids(tokenizer, "🔥".encode())
    pieces = run(tokenizer, [first, token_id, *others])
    assert pieces[1] == Piece("", f"id {token_id}")
    assert joined(pieces) == "🔥"
    assert run(tokenizer, [token_id]) == [Piece("", f"id {token_id}")]


# --- drafts ----------------------------------------------------------------------------------------------------------


def test_peek_at_a_tree(tokenizer: PreTrainedTokenizerFast) -> None:
    """Every node's piece is what pushing its path gives, and looking changes nothing."""
    rng = random.Random(5)
    detokenizer = Detokenizer(tokenizer)
    context = byte_ids(tokenizer, b"ab\xf0")
    for token_id in context:
        detokenizer.push(token_id)
    ids = [*byte_ids(tokenizer, b"\x9f\x94\xa5!\x9f\xff"), *(rng.randrange(len(tokenizer)) for _ in range(20))]
    parents = [rng.randrange(-1, index) if index else -1 for index in range(len(ids))]
    pieces = detokenizer.peek(ids, parents)
    for index in range(len(ids)):
        path, node = [], index
        while node >= 0:
            path.append(ids[node])
            node = parents[node]
        fresh = Detokenizer(tokenizer)
        assert pieces[index] == [fresh.push(token_id) for token_id in [*context, *reversed(path)]][-1]
    assert detokenizer.peek(ids, parents) == pieces
    assert detokenizer.peek([]) == []


# --- other decoders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("seed", range(3))
def test_other_decoders_go_through_the_window(kind: str, seed: int) -> None:
    """Random ids without bytes, and then some byte tokens in short rows, join to decode for every other decoder."""
    rng = random.Random(seed)
    tokenizer = llama(OTHERS[kind])
    ids = [rng.choice([0, *range(259, len(tokenizer))]) for _ in range(400)]
    if kind == "metaspace_bytes":
        for place in range(20, 380, 20):
            ids[place : place + 4] = byte_ids(tokenizer, rng.choice(["🔥".encode(), b"a\xffbc"]))
    ids[200] = ids[-1] = id_of(tokenizer, "▁")  # a space that some decoders drop at an end, but not within
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for token_id in ids:
        assert detokenizer.peek([token_id])[0] == detokenizer.fork().push(token_id)
        shown += detokenizer.push(token_id).text
    shown += detokenizer.finish()
    assert shown == decode(tokenizer, ids)
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("text", [*SCRIPTS, EMOJI])
def test_window_waits_for_the_rest_of_a_character(text: str) -> None:
    """Cases 62, 73: bytes in a chain of decoders of no known form: no U+FFFD is shown that would have to change."""
    backend = Tokenizer.from_str(byte_level().backend_tokenizer.to_str())
    backend.decoder = OTHERS["byte_level_in_a_chain"]
    tokenizer = wrap(backend)
    ids = byte_ids(tokenizer, f"{text} a".encode())
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for token_id in ids:
        shown += detokenizer.push(token_id).text
        assert f"{text} a".startswith(shown)
    assert shown == f"{text} a"


def test_window_is_bounded_and_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases 64, 66: an endless row of U+FFFD or of byte tokens still comes out, and no decode call grows."""
    tokenizer = llama(OTHERS["metaspace_bytes"])
    longest = 0
    original = tokenizer.decode

    def spy(ids: list[int], **flags: bool) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return str(original(ids, **flags))

    monkeypatch.setattr(tokenizer, "decode", spy)
    for row in (id_of(tokenizer, "▁\ufffd"), 3 + 0xF0, 3 + 0x41, 300):
        detokenizer = Detokenizer(tokenizer)
        shown = joined([detokenizer.push(row) for _ in range(500)])
        assert len(shown) > 400
    assert 8 <= longest <= 40


# --- stop texts ------------------------------------------------------------------------------------------------------


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Character by character: where the first completed stop text begins, the longest if several end together."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if stop and text[:end].endswith(stop)]
        if starts:
            return min(starts)
    return None


@given(
    pieces=st.lists(st.text("ab\n", max_size=6), max_size=12),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4),
)
@settings(max_examples=500, deadline=None)
def test_stop_scanner_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(stops)
    text = ""
    for piece in pieces:
        text += piece
        assert scanner.feed(piece) == first_stop(text, stops) == scanner.found


def test_stop_scanner_across_pieces_and_inside_one() -> None:
    scanner = StopScanner(["\n\n", "STOP"])
    assert [scanner.feed(piece) for piece in ["ab", "cS", "T", "", "OP, more\n\n"]] == [None, None, None, None, 3]
    assert scanner.feed("STOP") == 3
    assert StopScanner(["\n\n"]).feed("a\n\nb\n\n") == 1
    assert StopScanner([]).feed("anything") is None
    assert StopScanner(["", "x"]).feed("ax") == 1


def test_stop_scanner_keeps_a_bounded_tail() -> None:
    scanner = StopScanner(["#" * 200])
    for _ in range(1000):
        assert scanner.feed("#" * 199 + "-") is None
    assert len(scanner._tail) == 199
    assert scanner.feed("#" * 200) == 200_000


# --- the real thing --------------------------------------------------------------------------------------------------


@pytest.mark.real
def test_real_tokenizer() -> None:
    """Cases 62, 66, 68, 71 on SmolLM2's own tokenizer."""
    tokenizer = load_real().tokenizer
    rng = random.Random(0)
    ids = [rng.randrange(len(tokenizer) + 100) for _ in range(5000)]
    assert joined(run(tokenizer, ids)) == decode(tokenizer, ids)
    for text in [*SENTENCES, *SCRIPTS, EMOJI, CODE]:
        assert joined(run(tokenizer, encode(tokenizer, text))) == text
    eos = id_of(tokenizer, "<|im_end|>")
    assert Detokenizer(tokenizer).push(eos) == Piece("<|im_end|>", "<|im_end|>", special=True)
