"""The training loop that all drafts share: steps, checkpoints, progress. The same seed gives the same weights, whether
or not the run was interrupted."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specviz.errors import ConfigError
from specviz.models.convert import Progress
from specviz.train.batches import Batch, Batches

__all__ = ["Said", "Schedule", "fast_products", "fit", "imitation_loss"]

CHECKPOINT = "checkpoint.pt"
_FRESH = 0.02
"""Weight of the newest loss in the one that is shown."""

_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast. steps: batches. lr: highest learning rate, reached after `warm_up` of the steps and let
    down to a twentieth along a cosine. save_every: steps between checkpoints."""

    steps: int
    lr: float
    warm_up: float = 0.03
    save_every: int = 100

    def lr_at(self, step: int) -> float:
        ramp = max(1, round(self.warm_up * self.steps))
        if step < ramp:
            return self.lr * (step + 1) / ramp
        part = (step - ramp) / max(1, self.steps - ramp)
        return self.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * part)))


def fit(
    module: torch.nn.Module,
    loss_of: Callable[[Batch], Tensor],
    batches: Batches,
    schedule: Schedule,
    folder: Path,
    report: Progress,
    *,
    key: str,
) -> float:
    """Train the parameters of `module` that ask for gradients, from the checkpoint in `folder` if there is one.

    Args:
        loss_of: a batch to a scalar.
        folder: for the checkpoint.
        key: what the run is; a checkpoint of another run is refused.
    Returns:
        Seconds of training, those before an interruption included.
    Raises:
        ConfigError: the checkpoint belongs to other settings; the loss is no longer a number.
    """
    _keep_freed_memory()
    params = [param for param in module.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=schedule.lr, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CHECKPOINT
    step, seconds, smooth = 0, 0.0, float("nan")
    if path.exists():
        found = torch.load(path, weights_only=True)
        if found["key"] != key:
            raise ConfigError(
                f"{path} belongs to a training with other settings. Repeat those, or delete it to begin anew."
            )
        with torch.no_grad():
            for param, value in zip(params, found["params"], strict=True):
                param.copy_(value)
        optimizer.load_state_dict(found["optimizer"])
        step, seconds, smooth = found["step"], found["seconds"], found["smooth"]
    begun, tokens = time.perf_counter(), 0

    def save() -> None:
        state = {
            "key": key,
            "params": [param.detach() for param in params],
            "optimizer": optimizer.state_dict(),
            "step": step,
            "seconds": seconds + time.perf_counter() - begun,
            "smooth": smooth,
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    first = step
    while step < schedule.steps:
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr_at(step)
        batch = batches[step]
        loss = loss_of(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ConfigError(f"The loss stopped being a number at step {step + 1}. Try a lower --lr.")
        fresh = max(_FRESH, 1 / (step + 1))
        smooth = value if step == 0 else (1 - fresh) * smooth + fresh * value
        step += 1
        tokens += batch.num_tokens
        taken = time.perf_counter() - begun
        left = taken / (step - first) * (schedule.steps - step)
        report(
            f"Step {step} of {schedule.steps}, loss {smooth:.3f}, {tokens / taken:.0f} tokens/s, "
            f"{left / 60:.0f} min left",
            step / schedule.steps,
        )
        if step % schedule.save_every == 0 and step < schedule.steps:
            save()
    save()
    return seconds + time.perf_counter() - begun


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed: given back and asked for again with every step, large tensors cost half the time
    in page faults. Other C libraries go without."""
    try:
        tune = ctypes.CDLL(None).mallopt
        tune(-3, 1 << 30)  # M_MMAP_THRESHOLD
        tune(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):
        pass


def fast_products(param: Tensor) -> torch.autocast:
    """Matrix products in bfloat16 where the parameters are float32; other number formats are left alone, for tests."""
    return torch.autocast(param.device.type, torch.bfloat16, enabled=param.dtype == torch.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """What a draft says at one place, counted in its own tokens, over m places of a text.

    states: [m, d_model], whose products with rows of the output layer are logits. at: [m] int64, ascending, the
    number of the target's state that each is to say the same as.
    """

    states: Tensor
    at: Tensor


def imitation_loss(
    places: Sequence[Said], target: Tensor, head: Tensor, hard: float, weights: Sequence[float] = (1.0,)
) -> Tensor:
    """Weighted mean over places of the mean cross-entropy of the draft's distributions against what they imitate.

    That is a mixture: the target's own distribution, and with weight `hard` its most likely token, which is what
    greedy verification asks for. Both distributions are over the rows of `head`.

    Args:
        places: each with states of one number format. target: [n, d_model] states. head: [v, d_model]. hard: 0 to 1.
        weights: of the places.
    Returns:
        A scalar, nats a token; gradients reach the states of `places` alone.
    """
    ats = [place.at for place in places]
    states = [place.states for place in places]
    loss: Tensor = _Imitation.apply(target, head, hard, weights, ats, *states)  # type: ignore[no-untyped-call]
    return loss


class _Imitation(torch.autograd.Function):
    """The loss and its gradient by blocks of the target's states: no [m, v] table is ever in memory, as moving such
    tables took longer than computing them, and what the target says is computed once for all places."""

    @staticmethod
    def forward(
        ctx: Any,
        target: Tensor,
        head: Tensor,
        hard: float,
        weights: Sequence[float],
        ats: Sequence[Tensor],
        *states: Tensor,
    ) -> Tensor:
        gradients = [torch.empty_like(rows) for rows in states]
        shares = [weight / (sum(weights) * max(1, len(at))) for weight, at in zip(weights, ats, strict=True)]
        total = 0.0
        asked = torch.unique(torch.cat(list(ats)))
        for start in range(0, len(asked), _BLOCK):
            block = asked[start : start + _BLOCK]
            wanted = (target[block].to(head.dtype) @ head.mT).float()
            best = wanted.argmax(-1, keepdim=True)
            wanted = torch.softmax(wanted, -1).mul_(1 - hard)
            wanted.scatter_add_(-1, best, torch.full_like(best, hard, dtype=wanted.dtype))
            ends = block[[0, -1]] + torch.tensor([0, 1], device=block.device)
            for at, rows, gradient, share in zip(ats, states, gradients, shares, strict=True):
                own = slice(*torch.searchsorted(at, ends).tolist())
                if own.start == own.stop:
                    continue
                here = wanted if own.stop - own.start == len(block) else wanted[torch.searchsorted(block, at[own])]
                logits = (rows[own].to(head.dtype) @ head.mT).float()
                highest = logits.amax(-1)
                found = torch.softmax(logits, -1)
                scale = highest - found.amax(-1).log()  # logsumexp without a second pass of exponentials
                total += share * (float(scale.sum()) - float(torch.dot(here.flatten(), logits.flatten())))
                gradient[own] = (found.sub_(here).to(head.dtype) @ head).mul_(share).to(gradient.dtype)
        ctx.save_for_backward(*gradients)
        return target.new_tensor(total, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        return (None,) * 5 + tuple(gradient * outputs[0].to(gradient.dtype) for gradient in ctx.saved_tensors)
