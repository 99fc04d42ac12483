"""Random numbers as kernels draw them, to repeat a dropout elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from . import _phalanx

if TYPE_CHECKING:
    from numpy.typing import NDArray


def dropout_mask(name: str, shape: Sequence[int], rate: float, seed: int, step: int) -> NDArray[Any]:
    """The elements that the dropout called `name` keeps in a step, as truth values.

    `shape` is that of the whole batch, `seed` that of the trainer, and `step` the number of steps done before.
    """
    import numpy

    kept = _phalanx.dropout_mask(name, list(shape), rate, seed, step)
    return numpy.frombuffer(kept, numpy.bool_).reshape(tuple(shape))
