"""Trained drafts on tiny models: a lesson and its drafter compute the same, training learns, goes on after a break to
the same weights, and cards hold what the shipped files give."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.config import SamplingParams
from specviz.drafters.base import DraftContext
from specviz.drafters.feature import FeatureDrafter
from specviz.drafters.tree import parse_tree
from specviz.models.decoder import LeanDecoder
from specviz.models.session import Session
from specviz.train.batches import Batch
from specviz.train.feature import FeatureLesson

TAPS = (1, 2)


def tiny_target(dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)


def states_of(target: LlamaForCausalLM, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    found = target.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    return found[-1], torch.stack([found[tap] for tap in TAPS], 2)


def test_a_feature_head_drafts_as_it_was_trained() -> None:
    """The unrolled training pass and the drafter's passes with a cache give the same state at every depth."""
    target = tiny_target()
    lesson = FeatureLesson(
        target, (4,), torch.arange(3, 60, 2), num_taps=2, depth=4, hard=0.5, rng=torch.Generator().manual_seed(1)
    ).double()
    ids = [3, 17, 5, 9, 33, 8, 21, 4]
    session = Session(target, capacity=64, taps=TAPS)
    session.extend(ids[:-1])
    trunk = lesson.trunk.eval().requires_grad_(False)
    drafter = FeatureDrafter(
        LeanDecoder.of(trunk), lesson.parts.requires_grad_(False), trunk.output_ids, TAPS, parse_tree("chain"),
        vocab_size=60, max_new_tokens=30,
    )
    drafter.reset(ids, session)
    proposal = drafter.propose(
        DraftContext(ids, SamplingParams(), None, session), 4, torch.Generator().manual_seed(0)
    )
    drafted = proposal.token_ids.tolist()
    text = ids + drafted
    last, taps = states_of(target, text)
    spoken: list[torch.Tensor] = []
    root = len(ids) - 2  # the last token with a state of the target
    lesson.listen = lambda states: spoken.append(states[0, root])
    lesson.loss(Batch(torch.tensor([text]), torch.ones(1, len(text), dtype=torch.bool), last, taps))
    for depth, state in enumerate(spoken):
        logits = trunk.lm_head(trunk.model.norm(state))
        assert int(trunk.output_ids[int(logits.argmax())]) == drafted[depth]
        assert abs(float(torch.softmax(logits, -1).max()) - proposal.confidence[depth]) < 1e-6
    assert len(spoken) == 4
