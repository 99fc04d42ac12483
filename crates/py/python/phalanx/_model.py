"""Models: graphs with the values that their parameters begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from ._arrays import as_array, named
from ._phalanx import CompiledGraphs, DataError, Error, Graph

if TYPE_CHECKING:
    import torch

    from ._export import ExportedModule


class Model:
    """A model: a graph whose first output is the loss and, perhaps, one for evaluation.

    `weights` are arrays for parameters and states by name; those that are absent get what the graph and the seed of
    the trainer say. `frozen` are names of parameters that stay as they are.
    """

    def __init__(
        self,
        training: Graph | str,
        evaluation: Graph | str | None = None,
        *,
        weights: Mapping[str, Any] | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        def graph(given: Graph | str) -> Graph:
            return Graph(given) if isinstance(given, str) else given

        arrays = {name: as_array(name, array) for name, array in (weights or {}).items()}
        evaluated = None if evaluation is None else graph(evaluation)
        self._graphs = CompiledGraphs(graph(training), evaluated, arrays, list(frozen))
        self._exported: ExportedModule | None = None

    @classmethod
    def _of(cls, graphs: CompiledGraphs, exported: ExportedModule | None = None) -> Model:
        model = cls.__new__(cls)
        model._graphs = graphs
        model._exported = exported
        return model

    @property
    def name(self) -> str:
        """What it is called."""
        return self.training.name

    @property
    def training(self) -> Graph:
        """The graph of a step."""
        return self._graphs.training

    @property
    def evaluation(self) -> Graph | None:
        """The graph of the same model without training."""
        return self._graphs.evaluation

    @property
    def inputs(self) -> list[tuple[str, str, list[int]]]:
        """What a step is fed with: name, element type and shape of each, in the order of arguments."""
        return self.training.inputs

    def __repr__(self) -> str:
        return repr(self.training).replace("<Graph", "<Model", 1)

    def _feeds(self, graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The arrays of a step by the names of inputs."""
        inputs = [name for name, _, _ in graph.inputs]
        if self._exported is None:
            return named(inputs, args, kwargs)
        try:
            feeds = self._exported.prologue(args, kwargs)
        except (ValueError, TypeError) as error:
            raise DataError(str(error)) from None
        return [(name, feeds[name]) for name in inputs if name in feeds]

    def write(self, path: str | Path) -> None:
        """Writes a module that was taken by `from_torch` to a file, and its tensors beside it, as `.safetensors`: `load`
        and `phalanx train --graph` read them, without PyTorch."""
        if self._exported is None:
            raise Error("only a model made by `from_torch` is written: keep the text of its graphs instead")
        self._exported.write(str(path))

    def write_feeds(self, path: str | Path, batches: Sequence[Sequence[Any]]) -> None:
        """Writes the arguments of several steps, and what the host makes of them, for `phalanx train --feeds`."""
        if self._exported is None:
            raise Error("only a model made by `from_torch` knows its arguments: save arrays by the names of inputs instead")
        self._exported.write_feeds(str(path), batches)


def load(path: str | Path) -> Model:
    """A model from a file: a graph as text, or one that `Model.write` wrote.

    What a module computes on the host from its arguments is not in the file: the names of the inputs of the model tell
    what is fed.
    """
    path = Path(path)
    if path.suffix == ".json":
        return Model._of(CompiledGraphs.read(path.read_bytes(), path.with_suffix(".safetensors").read_bytes()))
    return Model(Graph(path.read_text()))


def from_torch(
    module: torch.nn.Module,
    example: Sequence[Any] | Mapping[str, Any],
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    batch: int | None = None,
    host: str = "allow",
    eval: bool = True,
) -> Model:
    """A model that computes what a module of PyTorch does, with the weights that it has now.

    The module is called with `example`, a sequence of arguments or a mapping of keyword arguments, and returns its
    scalar loss, alone, first or as `loss`; or `loss(result, *targets)` is one. The batch is that of the example, or
    `batch`. `host="forbid"` refuses modules that compute integers on the host before each step, and `eval=False` leaves
    the evaluation out.
    """
    from ._export import ExportError, export

    try:
        exported = export(module, example, loss=loss, targets=targets, batch=batch, host=host, eval=eval)
    except ExportError as error:
        raise Error(str(error)) from error.__cause__
    except Exception as error:  # PyTorch raises many kinds.
        first = next(iter(str(error).splitlines()), "")
        raise Error(
            f"{type(module).__name__} cannot be exported: {type(error).__name__}: {first}; shapes and branches must not "
            "depend on data: use torch.where and fixed shapes"
        ) from error
    return Model._of(CompiledGraphs.read(exported.json, exported.tensors), exported)
