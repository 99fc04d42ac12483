"""PyTorch with the dropout of a trainer."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ._phalanx import Error
from ._random import dropout_mask

Layer = tuple[str, float | None, list[int], list[int]]


class SameDropout(TorchFunctionMode):
    """Replaces dropouts, in the order of their calls."""

    def __init__(self, layers: Sequence[Layer], seed: int, step: int) -> None:
        super().__init__()
        self.layers = layers
        self.seed, self.step = seed, step
        self.used = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (functional.dropout, torch.dropout):
            return self.dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention and _rate(*args, **kwargs) > 0:
            return self.attention(*args, **kwargs)
        return func(*args, **kwargs)

    def dropout(
        self, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any
    ) -> torch.Tensor:
        if not training or p == 0:
            return input
        dropped = input * self.scaled_mask(p, input.shape)
        return input.copy_(dropped) if inplace else dropped

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril().logical_not(), -math.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = torch.softmax(scores, -1)
        return weights * self.scaled_mask(dropout_p, weights.shape) @ value

    def scaled_mask(self, rate: float, shape: torch.Size) -> torch.Tensor:
        """What the next dropout multiplies its elements by."""
        if self.used == len(self.layers):
            raise Error(f"the module drops more often than the model, which has {len(self.layers)} dropouts")
        name, known, extents, order = self.layers[self.used]
        if known is None or abs(known - rate) > 1e-6 or math.prod(extents) != shape.numel():
            raise Error(f"dropout `{name}` has rate {known} and shape {extents}, not {rate} and {list(shape)}")
        self.used += 1
        kept = dropout_mask(name, extents, rate, self.seed, self.step).transpose(order)
        return torch.from_numpy(kept.astype("float32")).reshape(shape) / (1 - rate)

    def check(self) -> None:
        """That the module has dropped as often as the model."""
        if self.used != len(self.layers):
            raise Error(f"the module has dropped {self.used} times, the model {len(self.layers)} times")


def _rate(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *_: Any, **__: Any
) -> float:
    return dropout_p
