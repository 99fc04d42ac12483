"""Models: graphs with the values that their parameters begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from ._arrays import as_array, named
from ._phalanx import CompiledGraphs, Graph

Prologue = Callable[[Sequence[Any]], Mapping[str, Any]]


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
        self._prologue: Prologue | None = None

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
        return named([name for name, _, _ in graph.inputs], args, kwargs)


def load(path: str | Path) -> Model:
    """A model from a file: a graph as text."""
    return Model(Graph(Path(path).read_text()))
