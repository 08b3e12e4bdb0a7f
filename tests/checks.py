"""What must hold for every run, and models whose text hangs on all of its context, so that cache faults show in it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, RepetitionPenaltyLogitsProcessor

from specviz.config import RunConfig
from specviz.drafters.base import DraftContext, Outcome
from specviz.events import Event, PrefillDone, RunFinished, RunStarted, StepDone, event_from_json, event_to_json
from specviz.generator import SpeculativeGenerator
from specviz.metrics import fold
from specviz.models.loader import LoadedPair
from specviz.models.session import Session
from specviz.proposal import Proposal

__all__ = [
    "BadDrafter",
    "check_invariants",
    "ids_from",
    "log_of",
    "noisy",
    "play",
    "random_tree",
    "sequential",
    "steps_of",
    "wild_llama",
]

KNOWN = 260
"""Ids of the byte tokenizer; the tiny models have a few more rows, which must never show."""


def wild_llama(
    seed: int = 1, *, layers: int = 2, vocab: int = 264, positions: int = 512, **options: Any
) -> LlamaForCausalLM:
    """A random Llama in float64 with large weights: its greedy text wanders, and one other token in the context
    changes all that follows. The gap between the two best logits is above 1e-3 in the runs of these tests."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=256,
        eos_token_id=None,
        **options,
    )
    model = LlamaForCausalLM(config).double().eval().requires_grad_(False)
    for param in model.parameters():
        if param.dim() == 2:
            param.mul_(20.0)
    model.model.embed_tokens.weight.mul_(2.5)
    return model


def noisy(model: Any, amount: float, seed: int = 0) -> Any:
    """A copy that often agrees with the model: every weight moved by `amount` of its spread."""
    rng = torch.Generator().manual_seed(seed)
    twin = copy.deepcopy(model)
    for param in twin.parameters():
        if param.dim() == 2:
            param.add_(torch.randn(param.shape, generator=rng, dtype=param.dtype) * param.std() * amount)
    return twin


def sequential(
    model: Any,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    eos: Sequence[int] = (),
    penalty: float = 1.0,
    known: int = KNOWN,
) -> list[int]:
    """Greedy decoding by plain transformers calls: the whole text anew for every token, no cache, no code of ours."""
    ids = list(prompt)
    penalise = RepetitionPenaltyLogitsProcessor(penalty)
    with torch.inference_mode():
        while len(ids) < len(prompt) + num_tokens and not (len(ids) > len(prompt) and ids[-1] in eos):
            row = model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1, :known]
            ids.append(int(penalise(torch.tensor([ids]), row.clone()).argmax()))
    return ids[len(prompt) :]


def ids_from(seed: int, length: int, below: int = 256) -> list[int]:
    """Random byte ids."""
    return torch.randint(below, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def random_tree(
    seed: int, truth: Sequence[int], num_nodes: int, depth: int, below: int = 250
) -> tuple[Proposal, list[int]]:
    """A tree of `num_nodes` nodes, mostly wrong, that holds `truth` as one root-to-node path at scattered places.

    Returns:
        The proposal and the nodes of the path.
    """
    rng = torch.Generator().manual_seed(seed)
    roll = lambda n: int(torch.randint(n, (), generator=rng))  # noqa: E731
    places = sorted(torch.randperm(num_nodes, generator=rng)[: len(truth)].tolist())
    tokens, parents, depths = [], [], []
    for node in range(num_nodes):
        if node in places:
            step = places.index(node)
            parent = places[step - 1] if step else -1
            token = truth[step]
        else:
            parent = roll(node + 1) - 1
            while parent >= 0 and depths[parent] >= depth:
                parent = parents[parent]
            token = roll(below)
            if parent == -1 or parent in places:  # no second copy of the right token beside the path
                level = 0 if parent == -1 else places.index(parent) + 1
                if level < len(truth) and token == truth[level]:
                    token = (token + 1) % below
        tokens.append(token)
        parents.append(parent)
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return Proposal(torch.tensor(tokens), tuple(parents)), places


class BadDrafter:
    """Guesses a fixed id, and raises in its nth call of one method."""

    name = "bad"
    needs: frozenset[Any] = frozenset()
    num_bytes = 0

    def __init__(self, where: str, at: int = 2, error: BaseException | None = None) -> None:
        self.where, self.at = where, at
        self.error = error or RuntimeError("secret path /home/somebody and hf_secrettoken")
        self.calls = 0

    def _enter(self, where: str) -> None:
        self.calls += where == self.where
        if where == self.where and self.calls == self.at:
            raise self.error

    def reset(self, prompt_ids: Sequence[int], target: Session | None = None) -> None:
        self._enter("reset")

    def propose(self, context: DraftContext, max_tokens: int, rng: torch.Generator) -> Proposal:
        self._enter("propose")
        return Proposal.chain([5] * max_tokens)

    def observe(self, outcome: Outcome) -> None:
        self._enter("observe")

    def close(self) -> None:
        self._enter("close")


# --- runs ---------------------------------------------------------------------------------------------------------


def play(
    engine: SpeculativeGenerator, prompt: str | Sequence[int], config: RunConfig, *, plain: Sequence[int] | None = None
) -> list[Event]:
    """A whole run, every invariant checked. plain: the ids it must give (I1)."""
    events = list(engine.stream(prompt, config))
    check_invariants(events, engine.loaded, config, plain=plain)
    return events


def steps_of(events: Sequence[Event]) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


def log_of(events: Sequence[Event]) -> list[Any]:
    """The events as plain data without what differs between equal runs: clocks, memory, machine, the run's id, date."""
    return [_without_clocks(event_to_json(event)) for event in events]


def _without_clocks(data: Any) -> Any:
    if isinstance(data, dict):
        hidden = ("run_id", "started_at", "memory", "machine")
        return {k: _without_clocks(v) for k, v in data.items() if k not in hidden and not k.endswith("_s")}
    return [_without_clocks(item) for item in data] if isinstance(data, list) else data


# --- invariants ---------------------------------------------------------------------------------------------------


def check_invariants(
    events: Sequence[Event], loaded: LoadedPair, config: RunConfig, *, plain: Sequence[int] | None = None
) -> None:
    """Section 3 of the design and I1 to I7 of the case file, on a run that came to its end.

    plain: ids of the plain loop, for greedy runs (I1). I8 (nothing left alive) needs eyes inside, see `watch_sessions`.
    """
    started, finished, steps = events[0], events[-1], steps_of(events)
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    _check_payloads(events)
    prefill = [event for event in events[1:-1] if isinstance(event, PrefillDone)]
    assert len(prefill) == 1 or (not prefill and not steps and finished.reason == "error")
    assert list(events[1:-1]) == [*prefill, *steps]
    if prefill:
        assert prefill[0].prompt_len == len(started.prompt_ids)
        assert finished.prefill_s == prefill[0].prefill_s >= 0

    prompt_len = len(started.prompt_ids)
    limit = min(config.max_new_tokens, loaded.max_context - prompt_len)
    ids: list[int] = []
    cache_len = prompt_len - 1
    for i, step in enumerate(steps):
        is_end = i == len(steps) - 1 and finished.reason not in ("error", "time")
        assert step.index == i + 1
        assert step.gamma == (min(config.gamma, limit - len(ids) - 1) if started.gamma else 0)
        _check_step(step, loaded, config, is_end=is_end)
        ids += [token.token_id for token in step.emitted]
        undone = step.emitted[-1].origin == "accepted"  # the run ended inside the draft: the last token is in the cache
        assert step.cache_len == prompt_len + len(ids) - 1 + undone, "I5: cache length"
        assert step.cache_len > cache_len
        cache_len = step.cache_len
        assert step.rows >= step.num_drafted + 1
        assert step.rows - step.num_padding >= step.num_drafted + 1
        assert not step.num_padding or step.rows == started.min_rows
    _check_end(finished, steps, ids, started, loaded, config, limit)
    if plain is not None:
        assert ids == list(plain), "I1: not the text of plain decoding"
    counters = fold(events)
    assert counters.num_tokens == len(ids)
    assert counters.num_accepted <= counters.num_drafted
    assert counters.acceptance_rate is None or 0 <= counters.acceptance_rate <= 1


def _check_step(step: StepDone, loaded: LoadedPair, config: RunConfig, *, is_end: bool) -> None:
    drafted, emitted = step.drafted, step.emitted
    greedy = config.sampling.is_greedy
    assert emitted
    share = _drafting_share(step)
    passes = 2.0 if step.num_again else 1.0  # a recurrent state was brought back and read again
    assert passes <= step.target_work <= passes + step.gamma * share + 1e-12
    assert step.num_again in (0, step.num_accepted + 1)
    assert min(step.draft_s, step.verify_s, step.other_s) >= 0, "I6"
    assert step.num_drafted == len(drafted)
    depths: list[int] = []
    for i, token in enumerate(drafted):
        assert -1 <= token.parent < i
        depths.append(1 + (depths[token.parent] if token.parent >= 0 else 0))
        if token.parent >= 0:
            assert drafted[token.parent].token_id not in loaded.eos_ids, "drafted behind an end token"
    assert max(depths, default=0) <= step.gamma
    path = [i for i, token in enumerate(drafted) if token.fate == "accepted"]
    assert step.num_accepted == len(path) <= step.gamma, "I3"
    assert [drafted[i].parent for i in path] == [-1, *path[:-1]][: len(path)], "the accepted tokens are one path"
    assert [drafted[i].token_id for i in path] == [token.token_id for token in emitted[: len(path)]]
    origins = [token.origin for token in emitted]
    assert origins[: len(path)] == ["accepted"] * len(path)
    walked = {-1, *path}
    last = path[-1] if path else -1
    for i, token in enumerate(drafted):
        if token.fate == "rejected":
            assert token.parent in walked
        if token.fate == "discarded":
            assert token.overlap is None
            if token.block_prob is None:
                assert token.target_prob is token.accept_prob is token.coin is None
            else:
                assert token.coin >= token.block_prob, "a block keeps the longest prefix whose coin falls"
            behind_kept = token.parent in walked and any(drafted[k].parent == token.parent and k < i for k in path)
            assert token.parent not in walked or behind_kept, "a token whose turn came was not tried"
        elif greedy:
            assert token.accept_prob is token.coin is None
            assert 0 <= token.target_prob <= 1
        else:
            assert 0 <= token.accept_prob <= 1
            assert 0 <= token.coin < 1
            if token.block_prob is None:
                assert (token.coin < token.accept_prob) == (token.fate == "accepted")
            elif token.fate == "rejected" or (i == last and not is_end):
                assert (token.coin < token.block_prob) == (token.fate == "accepted")
            assert token.target_prob > 0 or token.fate == "rejected"
    if origins[-1] == "accepted":
        assert is_end, "a step without a token of the target's own that does not end the run"
        assert not any(token.parent == last for token in drafted), "drafts behind the end are counted"
    else:
        assert len(emitted) == step.num_accepted + 1
        refused = any(token.parent == last for token in drafted)
        assert origins[-1] == ("target" if not drafted else "corrected" if refused else "bonus")
        assert all(token.fate == "rejected" for token in drafted if token.parent == last)
    assert all(0 <= token.token_id < loaded.vocab_size for token in emitted), "an id that is padding (case 110)"
    assert not any(token.token_id in loaded.eos_ids for token in emitted[:-1]), "emitted behind an end token (case 1)"
    if emitted[-1].token_id in loaded.eos_ids:
        assert is_end


def _drafting_share(step: StepDone) -> float:
    """Of the target's layers, those that draft."""
    if step.note is None or step.note.kind != "layers":
        return 0.0
    share: float = step.note.data["exit_layer"] / step.note.data["num_layers"]
    return share


def _check_end(
    finished: RunFinished,
    steps: Sequence[StepDone],
    ids: list[int],
    started: RunStarted,
    loaded: LoadedPair,
    config: RunConfig,
    limit: int,
) -> None:
    tokens = [token for step in steps for token in step.emitted]
    assert list(finished.token_ids) == ids, "I2"
    assert finished.num_tokens == len(ids) <= limit
    assert finished.num_steps == len(steps)
    seconds = [step.draft_s + step.verify_s + step.other_s for step in steps]
    assert abs(finished.decode_s - sum(seconds)) <= 1e-9
    assert finished.first_token_s == (finished.prefill_s + seconds[0] if steps else None)
    ended = bool(ids) and ids[-1] in loaded.eos_ids
    assert ended == (finished.reason == "eos")
    if finished.reason == "length":
        assert len(ids) == config.max_new_tokens
    if finished.reason == "context":
        assert (
            len(started.prompt_ids) + len(ids) == loaded.max_context < len(started.prompt_ids) + config.max_new_tokens
        )
    if finished.reason in ("length", "eos", "stop"):
        assert not finished.message
    else:
        assert finished.message.endswith(".")

    joined = "".join(token.text for token in tokens)
    decode = loaded.tokenizer.decode
    whole = decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    visible = _visible(ids, loaded)
    assert joined == whole or (finished.reason == "error" and whole.startswith(joined)), "I4"
    hits = [(at + len(stop), at) for stop in config.stop if (at := visible.find(stop)) >= 0]
    assert not hits or finished.reason in ("stop", "eos", "error")
    if finished.reason == "stop":
        before = "".join(token.text for token in tokens[:-1] if not token.special)
        assert finished.text == visible[: min(hits)[1]]
        assert not any(stop in before for stop in config.stop), "the run went on behind a stop text"
    elif finished.reason != "error":
        assert finished.text == (visible[: min(hits)[1]] if hits else visible)


def _check_payloads(events: Sequence[Event]) -> None:
    """I7: plain data, strict JSON both ways in UTF-8, and picklable."""
    for event in events:
        data = event_to_json(event)
        _check_plain(data)
        wire = json.dumps(data, allow_nan=False, ensure_ascii=False).encode("utf-8")
        assert event_from_json(json.loads(wire)) == event
        assert pickle.loads(pickle.dumps(event)) == event


def _check_plain(data: Any) -> None:
    if isinstance(data, dict):
        assert all(type(key) is str for key in data)
        data = list(data.values())
    if type(data) is list:
        for item in data:
            _check_plain(item)
    else:
        assert data is None or type(data) in (str, int, float, bool), type(data)


def _visible(ids: Sequence[int], loaded: LoadedPair) -> str:
    """The decoded text without control tokens, which end an unfinished character wherever they stand."""
    special = {key for key, token in loaded.tokenizer.added_tokens_decoder.items() if token.special}
    parts: list[list[int]] = [[]]
    for token_id in ids:
        if token_id in special:
            parts.append([])
        else:
            parts[-1].append(token_id)
    return "".join(loaded.tokenizer.decode(part, clean_up_tokenization_spaces=False) for part in parts)
