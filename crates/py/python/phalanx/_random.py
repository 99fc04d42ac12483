"""Random numbers as kernels draw them, to repeat a dropout elsewhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import _phalanx
from ._model import Model

if TYPE_CHECKING:
    from numpy.typing import NDArray


def dropout_mask(name: str, shape: Sequence[int], rate: float, seed: int, step: int) -> NDArray[Any]:
    """The elements that the dropout called `name` keeps in a step, as truth values.

    `shape` is that of the whole batch, `seed` that of the trainer, and `step` the number of steps done before.
    """
    import numpy

    kept = _phalanx.dropout_mask(name, list(shape), rate, seed, step)
    return numpy.frombuffer(kept, numpy.bool_).reshape(tuple(shape))


@contextmanager
def same_dropout(model: Model, seed: int = 0, step: int = 0) -> Iterator[None]:
    """Lets one forward pass of the module in PyTorch drop what a trainer of `model` with this seed drops in a step.

    `model` was made by `from_torch`; `step` is the number of steps done before. Inside, the module is called once.
    """
    from ._dropout import SameDropout

    layers = [layer for layer in model._graphs.random if layer[1] is not None]
    mode = SameDropout(layers, seed, step)
    with mode:
        yield
    mode.check()
