"""What stands before the layer of a feature head: the target's states and a token's embedding, put together.

At position t it combines what the target knew behind token t (its states behind a middle layer or two and behind the
last one) with the embedding of token t + 1; the layer makes of it what predicts token t + 2. For the next drafted token
the layer's own output takes the place of the target's states. Heads that others trained do so in their own way.

Source: Li et al. (2024), EAGLE, arXiv 2401.15077, section 4; states of several layers and training on the head's own
outputs from EAGLE-3, arXiv 2503.01840, section 3. EagleParts as in SafeAILab/EAGLE, eagle/model/cnets1.py; Eagle3Parts
as in its cnets.py and in vllm-project/speculators, src/speculators/models/eagle3/core.py, commit c05b95b3.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm

__all__ = ["Eagle3Parts", "EagleParts", "FeatureParts", "FusedParts", "fresh_parts"]

_EPS = 1e-5


class FeatureParts(torch.nn.Module):
    """One way to make the layer's input."""

    def begin(self, states: Tensor) -> Tensor:
        """[..., k + 1, d_model] states of the target, its k taps and its last, to [..., d_model]."""
        raise NotImplementedError

    def enter(self, embedding: Tensor, state: Tensor) -> Tensor:
        """[..., d_model] embedding of a token and state behind its predecessor to [..., d_model], the layer's input.
        That state is from `begin` or `follow`."""
        raise NotImplementedError

    def follow(self, state: Tensor) -> Tensor:
        """[..., d_model] the layer's own output, to what the next drafted token is read with."""
        return state


class FusedParts(FeatureParts):
    """What `specviz train feature` learns: every input is normalised.

    fuse: [d_model, (k + 1) d_model] over the target's states. mix: [d_model, 2 d_model] over embedding and state.
    """

    fuse: Tensor
    mix: Tensor

    def __init__(self, fuse: Tensor, mix: Tensor) -> None:
        super().__init__()
        self.fuse = torch.nn.Parameter(fuse, requires_grad=fuse.dtype == torch.float32)
        self.mix = torch.nn.Parameter(mix, requires_grad=mix.dtype == torch.float32)

    def begin(self, states: Tensor) -> Tensor:
        return linear(_normed(states).flatten(-2), self.fuse)

    def enter(self, embedding: Tensor, state: Tensor) -> Tensor:
        return linear(torch.cat((_normed(embedding), _normed(state)), -1), self.mix)


class EagleParts(FeatureParts):
    """EAGLE-1 and EAGLE-2 (their weights are alike): the target's last state as it is, no norms, no taps.

    mix: [d_model, 2 d_model] over embedding and state. bias: [d_model], or None.

    The authors' `topK_genrate` counts places as our drafter does: state t with token t + 1 stands at t, and the first
    token that is drafted at the place behind. A constant shift would change nothing, as RoPE sees differences only.
    """

    mix: Tensor
    bias: Tensor | None

    def __init__(self, mix: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mix", mix)
        self.register_buffer("bias", bias)

    def begin(self, states: Tensor) -> Tensor:
        return states[..., -1, :]

    def enter(self, embedding: Tensor, state: Tensor) -> Tensor:
        return linear(torch.cat((embedding, state), -1), self.mix, self.bias)


class Eagle3Parts(FeatureParts):
    """EAGLE-3: the target's states behind k of its layers fused into one; the last is not read. The layer takes a pair.

    fuse: [d_model, k d_model]. norm: over the states before they are fused, [k d_model] over all of them or
    [k, d_model] over each, or None. output_norm: [d_model], over what the layer hands back to itself (speculators call
    it EAGLE 3.1), or None. eps: of these norms.
    """

    fuse: Tensor
    norm: Tensor | None
    output_norm: Tensor | None

    def __init__(self, fuse: Tensor, norm: Tensor | None, output_norm: Tensor | None, eps: float) -> None:
        super().__init__()
        self.register_buffer("fuse", fuse)
        self.register_buffer("norm", norm)
        self.register_buffer("output_norm", output_norm)
        self.eps = eps

    def begin(self, states: Tensor) -> Tensor:
        x = states[..., :-1, :]
        if self.norm is not None:
            x = x.reshape(*x.shape[:-2], *self.norm.shape)
            x = rms_norm(x, x.shape[-1:], eps=self.eps) * self.norm
        return linear(x.reshape(*states.shape[:-2], -1), self.fuse)

    def enter(self, embedding: Tensor, state: Tensor) -> Tensor:
        return torch.cat((embedding, state), -1)

    def follow(self, state: Tensor) -> Tensor:
        if self.output_norm is None:
            return state
        return rms_norm(state, state.shape[-1:], self.output_norm, eps=self.eps)


def _normed(x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:], eps=_EPS)


def fresh_parts(hidden_size: int, num_taps: int, rng: torch.Generator) -> FusedParts:
    """Parts to start training from, float32: the layer reads the sum of embedding and last state."""
    eye = torch.eye(hidden_size)
    fuse = torch.empty(hidden_size, (num_taps + 1) * hidden_size).normal_(0, 0.2 / hidden_size**0.5, generator=rng)
    fuse[:, -hidden_size:] += eye
    return FusedParts(fuse, torch.cat((eye, eye), 1))
