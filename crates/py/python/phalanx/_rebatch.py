"""A graph for another batch, from graphs of two batches."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ._aten import Lowered


def rebatched(first: Lowered, second: Lowered, size: int, batch: int) -> Lowered:
    """The graph for ``batch`` samples, from those for ``size`` and ``size + 1``: every number grows evenly."""
    if [node["op"] for node in first.nodes] != [node["op"] for node in second.nodes]:
        raise _problem(f"the graph of this module is another one for {size + 1} samples: export it with batch={batch} examples")
    result = copy.copy(first)
    result.nodes = [_grown(a, b, size, batch, a) for a, b in zip(first.nodes, second.nodes)]
    result.constants = {}
    for (key, a), b in zip(first.constants.items(), second.constants.values()):
        result.constants[key] = _constant(a, b, batch)
    return result


def _grown(a: Any, b: Any, size: int, batch: int, node: dict[str, Any]) -> Any:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        if "v" in a:
            return a
        return {key: _grown(a[key], b[key], size, batch, node) for key in a}
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [_grown(x, y, size, batch, node) for x, y in zip(a, b)]
    if a == b or isinstance(a, str):
        return a
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
        return a + (batch - size) * (b - a)
    raise _problem(
        f"{node['source']} `{node['code']}`: {a} for {size} samples and {b} for {size + 1} do not tell what it is for "
        f"{batch}: export with an example of {batch} samples"
    )


def _constant(a: torch.Tensor, b: torch.Tensor, batch: int) -> torch.Tensor:
    if a.shape == b.shape:
        return a
    grown = [dim for dim in range(a.dim()) if a.shape[dim] != b.shape[dim]]
    if len(grown) == 1 and bool((b == b.narrow(grown[0], 0, 1)).all()):
        shape = list(b.shape)
        shape[grown[0]] = batch
        return b.narrow(grown[0], 0, 1).expand(shape).contiguous()
    if len(grown) == 1 and b.dim() == 1 and torch.equal(b, torch.arange(b.numel(), dtype=b.dtype)):
        return torch.arange(batch, dtype=b.dtype)
    raise _problem(f"a constant of shape {list(a.shape)} depends on the batch: export with an example of {batch} samples")


def _problem(text: str) -> Exception:
    from ._export import ExportError

    return ExportError(text)
