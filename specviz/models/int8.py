"""Linear layers held in 8 bits, for drafts on a CPU: torch's weight-only product behind one small module.

One scale an output row, weights symmetric around 0. Activations go in as bfloat16: torch's product for float32 ones
takes five to forty times as long. A pass reads half the bytes of bfloat16, and on few rows it is bytes that cost time.
bitsandbytes' LLM.int8 quantizes activations too and is three times slower on a CPU; on a GPU it is the better one and
is used there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["INPUT_BLOCK", "Int8Linear", "quantize_int8"]

INPUT_BLOCK = 16
"""torch's product reads this many inputs at once and past the end of others: a crash, not an error."""


class Int8Linear(torch.nn.Module):
    """y = x (w * scale)^T + bias in the number format of x, with w [out, in] int8 and scale [out] bfloat16."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """
        Args:
            weight: [out, in] of any float type. bias: [out] or None.
        """
        super().__init__()
        if weight.shape[1] % INPUT_BLOCK:
            raise ValueError(f"8-bit layers need inputs by {INPUT_BLOCK}; got {weight.shape[1]}.")
        wide = weight.detach().float()
        scale = wide.abs().amax(-1).clamp(min=1e-12) / 127.0
        quantized = torch.round(wide / scale[:, None]).clamp(-127, 127).to(torch.int8)
        self.register_buffer("weight", quantized)
        self.register_buffer("scale", scale.to(torch.bfloat16))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        flat = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        out = flat.view(*x.shape[:-1], self.out_features).to(x.dtype)
        return out if self.bias is None else out + self.bias

    def dequantized(self) -> Tensor:
        """[out, in] the weight that the product stands for."""
        return self.weight.to(self.scale.dtype) * self.scale[:, None]

    @classmethod
    def fused(cls, modules: list[Int8Linear]) -> Int8Linear:
        """One module that gives the outputs of several side by side."""
        out = cls.__new__(cls)
        torch.nn.Module.__init__(out)
        out.register_buffer("weight", torch.cat([m.weight for m in modules]))
        out.register_buffer("scale", torch.cat([m.scale for m in modules]))
        biases = [m.bias for m in modules if m.bias is not None]
        out.register_buffer("bias", torch.cat(biases) if biases else None)
        out.out_features, out.in_features = out.weight.shape
        return out


def quantize_int8(model: Any) -> Any:
    """Replace the linear layers of a causal LM, the output head included; embeddings stay as they are. In place.

    Layers whose inputs are no multiple of INPUT_BLOCK stay too.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and child.in_features % INPUT_BLOCK == 0:
                setattr(parent, name, Int8Linear(child.weight, child.bias))
    return model
