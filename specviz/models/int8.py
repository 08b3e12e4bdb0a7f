"""Linear layers held in 8 bits, for drafts on a CPU: torch's weight-only product behind one small module.

One scale an output row, weights symmetric around 0. Activations go in as bfloat16: torch's product for float32 ones
takes five to forty times as long. A pass reads half the bytes of bfloat16, and on few rows it is bytes that cost time.
bitsandbytes' LLM.int8 quantizes activations too and is three times slower on a CPU; on a GPU it is the better one and
is used there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["INPUT_BLOCK", "Int8Linear", "int8_pays", "quantize_int8"]

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


@lru_cache
def int8_pays(size: int, dtype: torch.dtype) -> bool:
    """Whether products of a few rows are faster with 8-bit weights than with weights of `dtype`, as this machine is.

    Weights of a small draft stay in the processor's cache, so not only bytes count: with bfloat16 instructions and
    packed weights 8 bits took twice as long. Takes some 20 ms, once.

    Args:
        size: inputs and outputs of a product.
    """
    if size % INPUT_BLOCK or dtype not in (torch.bfloat16, torch.float32):
        return False
    weight = torch.ones(4 * size, size, dtype=dtype)
    small = Int8Linear(weight, None)
    packed = None
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)

    def full(x: Tensor) -> Tensor:
        if packed is None:
            return linear(x, weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return product

    with torch.inference_mode():
        return _fastest_s(small, size, dtype) < _fastest_s(full, size, dtype)


def _fastest_s(product: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype) -> float:
    """Least seconds of a product of one row and one of five, which chains and trees ask for."""
    total = 0.0
    for rows in (1, 5):
        x = torch.ones(rows, size, dtype=dtype)
        times = []
        for _ in range(12):
            began = time.perf_counter()
            product(x)
            times.append(time.perf_counter() - began)
        total += min(times)
    return total
