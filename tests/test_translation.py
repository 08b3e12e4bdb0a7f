"""Drafts with another tokenizer: what is shared, how the rest is read, and that the text stays the target's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from fakes import TableModel, config, generator
from tiny_models import make_tokenizer
from torch import Tensor

from specviz.config import SamplingParams
from specviz.detokenize import token_bytes
from specviz.drafters.base import DraftContext
from specviz.drafters.model import ModelDrafter
from specviz.drafters.translation import Translation
from specviz.errors import ConfigError, TokenizerMismatchError

OURS = make_tokenizer(extra=("Ġred", "Ġgreen", "Ġblueberry"))
THEIRS = make_tokenizer(control=("<|im_end|>", "<|end|>"), bos=None, extra=("Ġblue", "Ġgreen", "Ġred", "berry"))


def ours(text: str) -> int:
    return int(OURS.convert_tokens_to_ids(text))


def theirs(*texts: str) -> tuple[int, ...]:
    return tuple(int(THEIRS.convert_tokens_to_ids(text)) for text in texts)


def translation(vocab_size: int = 10_000, num_rows: int = 10_000) -> Translation:
    return Translation(OURS, THEIRS, vocab_size=vocab_size, num_rows=num_rows)


def test_shared_tokens_stand_for_the_same_bytes_and_the_rest_is_spelled():
    """Other ids, same bytes; a word that only the target knows is read as the draft's longest pieces; a control token
    that the draft lacks is not read at all, and never as the letters of its name."""
    found = translation()
    pairs = dict(zip(found.target_ids.tolist(), found.draft_ids.tolist(), strict=True))
    mine, other = token_bytes(OURS), token_bytes(THEIRS)
    assert pairs == {a: b for a, b in itertools.product(mine, other) if mine[a] == other[b]}
    assert (pairs[ours("Ġred")],) == theirs("Ġred")
    assert (pairs[ours("<|im_end|>")],) == theirs("<|im_end|>")
    assert found.read(ours("Ġblueberry")) == theirs("Ġblue", "berry")
    assert found.read(ours("<|im_start|>")) == ()
    assert found.read(9_999) == ()
    assert found.share == len(pairs) / len(mine)
    few = translation(vocab_size=ours("Ġred"), num_rows=theirs("berry")[0])
    assert int(few.target_ids.max()) < ours("Ġred")
    assert int(few.draft_ids.max()) < theirs("berry")[0]


def test_too_little_in_common_is_refused_with_the_share():
    """Rows for ten ids of the draft, which leaves 10 or fewer of some 270 tokens."""
    share = len({"<|im_end|>"} | set()) + 8
    with pytest.raises(
        TokenizerMismatchError, match=rf"knows {share / len(token_bytes(OURS)):.0%} of the target's"
    ) as e:
        translation(num_rows=10)
    assert "25% at least are needed" in str(e.value)
    assert "prompt lookup" in str(e.value)


class _Words:
    """A translation of a small made-up vocabulary: the target's 0, 1, 2 are the draft's 2, 0, 3; 3 is read as 1, 1."""

    share = 0.75
    target_ids, draft_ids = torch.tensor([0, 1, 2]), torch.tensor([2, 0, 3])

    def read(self, token_id: int) -> tuple[int, ...]:
        return {0: (2,), 1: (0,), 2: (3,), 3: (1, 1)}[token_id]


P = torch.tensor(
    [[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.2, 0.3], [0.25, 0.25, 0.4, 0.1], [0.6, 0.2, 0.1, 0.1]], dtype=torch.float64
)
Q = torch.tensor(
    [[0.1, 0.5, 0.2, 0.2], [0.3, 0.3, 0.1, 0.3], [0.2, 0.4, 0.3, 0.1], [0.3, 0.3, 0.3, 0.1]], dtype=torch.float64
)


def drafter() -> ModelDrafter:
    words: Any = _Words()
    return ModelDrafter("draft-model", TableModel(Q.log()), vocab_size=4, max_new_tokens=50, translation=words)


def q_behind(token: int) -> Tensor:
    """[4] over the target's ids: the draft's own distribution behind its last token, without what is not shared."""
    row = Q[_Words().read(token)[-1]][_Words.draft_ids]
    return torch.cat((row / row.sum(), torch.zeros(1).double()))


@pytest.mark.parametrize("last", range(4))
def test_q_is_the_drafts_over_the_shared_tokens_and_speculation_gives_p(last):
    """By enumeration of every drafted token: accepted mass plus the residual is the target's own distribution, though
    the draft can never say token 3. The easy mistake, q with what is not shared left in, breaks it."""
    made = drafter()
    made.reset([0, last])
    context = DraftContext([0, last], SamplingParams(temperature=1.0))
    q = made.propose(context, 1, torch.Generator().manual_seed(1)).probs[0].double()
    assert torch.allclose(q, q_behind(last), rtol=0, atol=1e-12)

    def emitted(drawn_from: Tensor, believed: Tensor, p: Tensor) -> Tensor:
        kept = drawn_from * torch.clamp(p / believed.clamp(min=1e-300), max=1.0)
        rest = torch.clamp(p - believed, min=0.0)
        return kept + (1 - kept.sum()) * rest / rest.sum()

    assert torch.allclose(emitted(q, q, P[last]), P[last], rtol=0, atol=1e-12)
    raw = torch.cat((Q[_Words().read(last)[-1]][_Words.draft_ids], torch.zeros(1).double()))
    assert not torch.allclose(emitted(q, raw, P[last]), P[last], rtol=0, atol=1e-3)


def test_a_chain_reads_its_own_tokens_and_those_it_cannot_say():
    """Rolled back and fed anew as the text grows: every proposal is that of a fresh drafter."""
    made = drafter()
    text = [3]
    made.reset(text)
    for token in (0, 3, 3, 2, 1, 3, 0, 0, 2):
        context = DraftContext(text, SamplingParams())
        proposal = made.propose(context, 3, torch.Generator())
        wanted, last = [], text[-1]
        for _ in range(3):
            last = int(q_behind(last).argmax())
            wanted.append(last)
        assert proposal.token_ids.tolist() == wanted
        assert proposal.confidence == pytest.approx([float(q_behind(a).max()) for a in (text[-1], *wanted[:-1])])
        text.append(token)
    made.close()


def test_a_text_that_the_draft_cannot_read_or_hold_is_left_to_the_target():
    class Silent(_Words):
        def read(self, token_id: int) -> tuple[int, ...]:
            return () if token_id == 3 else super().read(token_id)

    words: Any = Silent()
    made = ModelDrafter("draft-model", TableModel(Q.log()), vocab_size=4, max_new_tokens=1, translation=words)
    made.reset([3, 3])
    assert len(made.propose(DraftContext([3, 3], SamplingParams()), 2, torch.Generator()).token_ids) == 0
    assert len(made.propose(DraftContext([3, 0], SamplingParams()), 2, torch.Generator()).token_ids) == 2
    assert len(made.propose(DraftContext([0] * 9, SamplingParams()), 2, torch.Generator()).token_ids) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_with_two_tokenizers(temperature):
    """Through the engine: greedy text is the target's own, drawn text repeats with its seed, the share is told, and
    what needs the target's tokens is refused."""
    torch.manual_seed(5)
    size, other = len(OURS), len(THEIRS)
    table = 4 * torch.randn(size, size).double()
    engine = generator(TableModel(table), TableModel(4 * torch.randn(other, other).double()), eos=())
    loaded = engine.loaded
    loaded.tokenizer, loaded.vocab_size, loaded.draft_tokenizer = OURS, size, THEIRS
    prompt = [ours("Ġred"), ours("<|im_start|>"), ours("Ġblueberry")]
    settings = {"max_new_tokens": 30, "temperature": temperature, "seed": 4, "gamma": 3}
    first, *steps, mine = engine.stream(prompt, config("draft-model", **settings))
    assert any("knows 99% of the target's tokens" in note for note in first.notes)
    assert sum(len(getattr(step, "drafted", ())) for step in steps) > 20
    *_, again = engine.stream(prompt, config("draft-model", **settings))
    *_, plain = engine.stream(prompt, config("plain", **settings))
    assert mine.token_ids == (again if temperature else plain).token_ids
    with pytest.raises(ConfigError, match="reads the target's tokens"):
        loaded.refuse_other_tokens("Comparing")
