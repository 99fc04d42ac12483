"""Arrays: those of numpy, and tensors of PyTorch that share their memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ._phalanx import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The names of element types in numpy.
NUMPY_TYPES = {"f32": "float32", "i64": "int64", "i32": "int32", "bool": "bool"}


def is_tensor(value: object) -> bool:
    """Whether it is a tensor of PyTorch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(name: str, value: Any) -> Any:
    """What the buffer protocol reads: a tensor as an array on its memory, all else as it is."""
    if not is_tensor(value):
        return value
    if value.device.type != "cpu":
        raise DataError(f"`{name}` is on {value.device}, but it must be on the CPU: use `.cpu()`")
    tensor = value.detach()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in NUMPY_TYPES.values() and dtype != "float64":
        raise DataError(f"`{name}` is {dtype}, which is not fed: use `.to(torch.float32)`")
    return tensor.resolve_neg().resolve_conj().numpy()


def array_of(data: bytearray, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """An array on bytes."""
    import numpy

    return numpy.frombuffer(data, NUMPY_TYPES.get(dtype, dtype)).reshape(tuple(shape))


def tensors_of(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of PyTorch on the memory of arrays; arrays that are the same stay the same."""
    import torch

    made: dict[int, Any] = {}
    return {name: made.setdefault(id(array), torch.from_numpy(array)) for name, array in arrays.items()}


def named(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Arguments by the names of inputs."""
    if len(args) > len(names):
        raise DataError(f"{len(args)} arrays for the {len(names)} inputs {', '.join(names)}")
    feeds = dict(zip(names, args))
    for name, value in kwargs.items():
        if name in feeds:
            raise DataError(f"input `{name}` is given twice, by its place and by its name")
        feeds[name] = value
    return [(name, as_array(name, value)) for name, value in feeds.items()]
