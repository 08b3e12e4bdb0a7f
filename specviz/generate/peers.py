"""transformers doing what one of specviz's methods does: the same weights, prompt and settings, through its own
`generate`, watched. An iterator of events like `SpeculativeGenerator.stream`, for a race against it."""

from __future__ import annotations

import copy
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import StoppingCriteria, StoppingCriteriaList

from specviz.config import RunConfig
from specviz.errors import ConfigError
from specviz.events import Event, ModelInfo, RunFinished, RunStarted
from specviz.generate.titles import PEERS
from specviz.generate.watch import watch
from specviz.generator import SpeculativeGenerator
from specviz.models.chat import clean_text, encode_prompt
from specviz.models.loader import LoadedPair

__all__ = ["assistant_of", "stream_peer"]


def stream_peer(engine: SpeculativeGenerator, peer: str, prompt: str, config: RunConfig) -> Iterator[Event]:
    """The events of one run of transformers on the engine's pair.

    It runs on a thread of its own, which waits while an event is looked at; closing the iterator ends it after the
    round it is in. Sampled runs seed torch's global random numbers, the only ones that `generate` draws, and put them
    back.

    Args:
        peer: a name in PEERS. config: gamma, sampling, length, stop texts, draft precision and time limit are used.
    Raises:
        ConfigError: settings that transformers has no counterpart of, or a prompt that leaves no room.
        ModelLoadError, TokenizerMismatchError: the draft cannot be loaded.
    """
    loaded = engine.loaded
    if config.draft_length != "fixed" or config.gamma < 1:
        raise ConfigError("transformers is raced at a fixed draft length of at least 1. Set draft length and γ so.")
    if config.is_approximate:
        raise ConfigError(f"transformers has no {config.verify} acceptance. Choose another rule to race against it.")
    ids, notes = encode_prompt(loaded.tokenizer, prompt, config.raw)
    room = loaded.max_context - len(ids)
    if room < 1:
        raise ConfigError(f"The prompt has {len(ids)} tokens and this model reads {loaded.max_context}. Shorten it.")
    ways, info = _ways(loaded, peer, config)
    seed = config.sampling.seed if config.sampling.seed is not None else secrets.randbelow(1 << 31)

    def finish(event: Event) -> Event:
        if isinstance(event, RunStarted):
            settings = event.settings | {"seed": seed, "gamma": config.gamma}
            return replace(
                event,
                prompt=clean_text(prompt)[0],
                target=loaded.target_info,
                draft=info,
                dtype=loaded.target_info.dtype,
                gamma=config.gamma,
                settings=settings,
                pair=loaded.pair.name,
                notes=(*notes, *event.notes),
            )
        if isinstance(event, RunFinished) and event.reason == "length" and room < config.max_new_tokens:
            return replace(event, reason="context")
        return event

    config = replace(config, sampling=replace(config.sampling, seed=seed))
    run = _Run(engine, ids, min(room, config.max_new_tokens), config)

    def events() -> Iterator[Event]:
        with closing(run.events(ways)) as source:
            yield from map(finish, source)

    return events()


def assistant_of(loaded: LoadedPair, gamma: int, quant: str = "auto") -> tuple[Any, ModelInfo]:
    """The pair's draft as an assistant for transformers, drafting `gamma` tokens each time.

    It shares the draft's weights and has generation settings of its own. A draft whose output layer was cut to some ids
    gets it widened again: q is zero elsewhere.

    Raises:
        ConfigError: the draft reads other tokens than the target.
    """
    model, info = loaded.draft_model(quant)
    loaded.refuse_other_tokens("transformers' assistant here")
    twin = copy.copy(model)
    twin._modules = dict(model._modules)
    twin._forward_hooks, twin._forward_pre_hooks = OrderedDict(), OrderedDict()
    output_ids = getattr(model, "output_ids", None)
    if output_ids is not None:
        rows = loaded.target.get_output_embeddings().weight.shape[0]
        twin.lm_head = _WideHead(model.lm_head, output_ids.to(loaded.device), rows)
    twin.generation_config = settings = copy.deepcopy(model.generation_config)
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = gamma, "constant"
    settings.assistant_confidence_threshold = 0.0
    return twin, info


class _WideHead(nn.Module):
    """Logits over the whole vocabulary from a head for some of its ids: minus infinity for the others."""

    def __init__(self, head: nn.Module, ids: Tensor, size: int) -> None:
        super().__init__()
        self.head, self.ids, self.size = head, ids, size

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        wide = logits.new_full((*logits.shape[:-1], self.size), -torch.inf)
        wide[..., self.ids] = logits
        return wide


def _ways(loaded: LoadedPair, peer: str, config: RunConfig) -> tuple[dict[str, Any], ModelInfo | None]:
    """What makes `generate` draft, and the draft's weights."""
    if peer == "transformers-assisted":
        model, info = assistant_of(loaded, config.gamma, config.draft_quant)
        return {"assistant_model": model}, info
    if peer == "transformers-lookup":
        return {"prompt_lookup_num_tokens": config.gamma}, None
    raise ConfigError(f"transformers does not run as {peer[:40]!r}. Known are {', '.join(PEERS)}.")


class _Run:
    """One call of `generate` on a thread, handing its events over one by one."""

    def __init__(self, engine: SpeculativeGenerator, ids: Sequence[int], limit: int, config: RunConfig) -> None:
        self.loaded, self.ids, self.limit, self.config = engine.loaded, list(ids), limit, config
        self.handed: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self.go_on = threading.Semaphore(0)
        self.is_closed = threading.Event()
        self.end = _End(self.is_closed.is_set, config.time_limit_s)

    def events(self, ways: dict[str, Any]) -> Generator[Event, None, None]:
        thread = threading.Thread(target=self._work, args=(ways,), name="specviz-transformers", daemon=True)
        thread.start()
        try:
            while (item := self.handed.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
                self.go_on.release()
        finally:
            self.is_closed.set()
            self.go_on.release()
            thread.join()

    def _work(self, ways: dict[str, Any]) -> None:
        try:
            with torch.inference_mode(), _seeded(self.config, self.loaded.device):
                self._generate(ways)
        except BaseException as error:
            self.handed.put(error)
        else:
            self.handed.put(None)

    def _generate(self, ways: dict[str, Any]) -> None:
        loaded, sampling = self.loaded, self.config.sampling
        chosen: dict[str, Any] = {"do_sample": False}
        if not sampling.is_greedy:
            chosen = {"do_sample": True} | {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
        if sampling.repetition_penalty != 1.0:
            chosen["repetition_penalty"] = sampling.repetition_penalty
        if self.config.stop:
            chosen |= {"stop_strings": list(self.config.stop), "tokenizer": loaded.tokenizer}
        prompt = torch.tensor([self.ids], device=loaded.device)
        with watch(loaded.target, loaded.tokenizer, detail=self.config.detail, on_event=self._hand):
            loaded.target.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=self.limit,
                eos_token_id=sorted(loaded.eos_ids) or None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([self.end]),
                **chosen,
                **ways,
            )

    def _hand(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            if event.reason == "error":
                return  # the error itself follows
            if self.end.is_late and event.reason == "stop":
                event = replace(event, reason="time", message="")
        if not self.is_closed.is_set():
            self.handed.put(event)
            self.go_on.acquire()


class _End(StoppingCriteria):
    """Ends the answer when nobody listens any more, or the time is up."""

    def __init__(self, is_closed: Callable[[], bool], limit_s: float) -> None:
        self.is_closed, self.limit_s = is_closed, limit_s
        self.began = time.perf_counter()
        self.is_late = False

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        self.is_late = 0 < self.limit_s < time.perf_counter() - self.began
        done = self.is_late or self.is_closed()
        return torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)


@contextmanager
def _seeded(config: RunConfig, device: torch.device) -> Iterator[None]:
    if config.sampling.is_greedy:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(config.sampling.seed or 0)
        yield
