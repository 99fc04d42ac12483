"""PyTorch with the dropout of a trainer."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ._phalanx import Error
from ._random import dropout_mask

Layer = tuple[str, float | None, list[int], list[int]]


class SameDropout(TorchDispatchMode):
    """Gives masks to dropouts in the order of their calls. On the CPU they all draw their mask with one operator, those of
    attention, too."""

    def __init__(self, layers: Sequence[Layer], seed: int, step: int) -> None:
        super().__init__()
        self.layers = layers
        self.seed, self.step = seed, step
        self.used = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bernoulli_.float:
            drawn, kept = args[0], args[1]
            return drawn.copy_(self.mask(1 - kept, drawn.shape))
        return func(*args, **(kwargs or {}))

    def mask(self, rate: float, shape: torch.Size) -> torch.Tensor:
        """The elements that the next dropout keeps."""
        if self.used == len(self.layers):
            raise Error(f"the module drops more often than the model, which has {len(self.layers)} dropouts")
        name, known, extents, order = self.layers[self.used]
        if known is None or abs(known - rate) > 1e-6 or math.prod(extents) != shape.numel():
            raise Error(f"dropout `{name}` has rate {known} and shape {extents}, not {rate} and {list(shape)}")
        self.used += 1
        kept = dropout_mask(name, extents, known, self.seed, self.step).transpose(order)
        return torch.from_numpy(kept.copy()).reshape(shape)

    def check(self) -> None:
        """That the module has dropped as often as the model."""
        if self.used != len(self.layers):
            raise Error(f"the module has dropped {self.used} times, the model {len(self.layers)} times")
