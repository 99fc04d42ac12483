"""Training a model."""

from __future__ import annotations

import atexit
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping

from ._arrays import array_of, as_array, tensors_of
from ._model import Model
from ._optimizers import AdamW, Optimizer
from ._phalanx import DataError, Error, Plan, Runner

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Options of `phalanx train` that optimizers have.
_OF_OPTIMIZER = {
    *("lr", "optimizer", "beta1", "beta2", "eps", "momentum", "nesterov"),
    *("weight_decay", "clip", "freeze"),
}

# While the devices do one step, the next one is fed.
_AHEAD = 2


@dataclass(frozen=True)
class Step:
    """What became of a step: its number from 1, the loss before the update, the learning rate, and the gradient norm
    before clipping if gradients are clipped."""

    number: int
    loss: float
    lr: float
    gradient_norm: float | None


@dataclass(frozen=True)
class Report:
    """The last step, as predicted and as measured: `html` is a page that needs nothing but a browser."""

    subtitle: str
    html: str

    def write(self, path: str | Path) -> None:
        """Writes the page."""
        Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" width="100%" height="600"></iframe>'

    def __repr__(self) -> str:
        return f"<Report {self.subtitle}>"


class Trainer:
    """A model being trained.

    `plan` is a preset such as "fsdp2-tp2", a file or the text of one; without it there is one device. `options` are all
    others of `phalanx train` that are not about its models and data, by name: `seed=1`, `precision="bf16"`,
    `checkpoint="out"`, `every=100`, `resume=True`, `accumulate=2`, `lr_schedule="cosine"` with `steps=1000`.

    Under `mpirun -n 4 python train.py` all ranks make the same calls with the same batches.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer | None = None,
        *,
        plan: str | Path | Plan | None = None,
        devices: int | None = None,
        memory: str | None = None,
        precision: str | None = None,
        **options: Any,
    ) -> None:
        text = plan.text if isinstance(plan, Plan) else plan
        given = {"plan": text, "devices": devices, "memory": memory, "precision": precision, **options}
        pairs = [(name, _option(value)) for name, value in given.items() if value is not None]
        for name in _OF_OPTIMIZER & options.keys():
            raise Error(f"`{name}` belongs to the optimizer: give it there")
        self._model = model
        # What counters have beyond the steps.
        self._counted: dict[str, int] = {}
        # Of the thread that steps or evaluates; its callbacks may do so, too.
        self._lock = threading.RLock()
        self._runner = Runner(model._graphs, _for_model(optimizer or AdamW(), model), pairs)
        self.rank, self.ranks = self._runner.rank()
        _trainers.add(self)
        if self.ranks > 1:
            _end_job_after_exceptions()
        self._warn()

    @property
    def model(self) -> Model:
        """What is trained."""
        return self._model

    @property
    def steps(self) -> int:
        """Steps done, also before the training was resumed."""
        return self._runner.steps()

    @property
    def plan(self) -> Plan:
        """How the model lies on its devices, what moves between them, and what they need."""
        return self._runner.plan()

    @property
    def weights_hash(self) -> str:
        """A fingerprint of all parameters and states, which does not depend on the plan."""
        return self._runner.weights_hash()

    def step(self, *args: Any, **kwargs: Any) -> Step:
        """Does one step on arrays, given in the order of the inputs or by their names."""
        feeds = self._model._feeds(self._model.training, args, kwargs)
        with self._lock:
            self._drain()
            self._runner.launch(feeds)
            return self._finish()

    def fit(
        self,
        batches: Iterable[Any],
        *,
        steps: int | None = None,
        on_step: Callable[[Step], object] | None = None,
    ) -> Step | None:
        """Does a step for every batch; the last one.

        A batch is an array, a tuple of arrays in the order of the inputs, or a dictionary by their names. With `steps`,
        batches are gone through again and again until so many steps are done. `on_step` is called after each step, while
        the next one is computed. After an exception, of it or of Ctrl-C, the trainer can be used on: the steps that
        were begun are done.
        """
        last = None
        with self._lock:
            self._drain()
            for batch in _cycle(batches, steps):
                self._runner.launch(self._batch(self._model.training, batch))
                if self._runner.pending() >= _AHEAD:
                    last = self._finish(on_step)
            while self._runner.pending() > 0:
                last = self._finish(on_step)
        return last

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """The mean loss over batches, with the model as it is without training."""
        graph = self._model.evaluation
        if graph is None:
            raise Error(f"the model {self._model.name} has a graph for training only: give it one for evaluation")
        sums: dict[str, float] = {}
        count = 0
        with self._lock:
            self._runner.begin_evaluation()
            for batch in batches:
                for name, value in self._runner.evaluate(self._batch(graph, batch)):
                    sums[name] = sums.get(name, 0.0) + value
                count += 1
        if count == 0:
            raise DataError("an evaluation needs at least one batch, and there was none")
        return {name: value / count for name, value in sums.items()}

    def read(self, name: str) -> NDArray[Any]:
        """An output of the last step, or its loss, by name."""
        outputs = {output: shape for output, _, shape in self._model.training.outputs}
        return array_of(self._runner.read(name), "f32", outputs.get(name, [] if name == "loss" else [-1]))

    def state_dict(self) -> dict[str, Any]:
        """All parameters and states by name, as they are now: arrays of numpy or, of a model made by `from_torch`, tensors
        that `load_state_dict` of the module takes. In a job all ranks call it together."""
        found: dict[str, Any] = {}
        for name, aliases, kind, dtype, shape in self._model._graphs.entries:
            array = array_of(self._bytes(name, kind), dtype, shape)
            if kind == "counter":
                array += self._counted.get(name, 0) + self.steps
            for known in (name, *aliases):
                found[known] = array
        return found if self._model._exported is None else tensors_of(found)

    def _bytes(self, name: str, kind: str) -> bytearray:
        if kind in ("trained", "state"):
            return self._runner.read_weight(name)
        return self._model._graphs.stored(name)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Sets parameters and states. Unless `strict` is false, all must be there, and no others."""
        entries = self._model._graphs.entries
        if strict:
            known = {name for entry in entries for name in (entry[0], *entry[1])}
            missing = [entry[0] for entry in entries if entry[0] not in state]
            unexpected = [name for name in state if name not in known]
            if missing or unexpected:
                raise DataError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
        given = [(name, kind, as_array(name, state[name])) for name, _, kind, _, _ in entries if name in state]
        for name, kind, array in given:
            if kind == "constant" and (array != array_of(self._bytes(name, kind), array.dtype.name, array.shape)).any():
                raise DataError(f"`{name}` is frozen and part of the compiled model: give the module this value first")
        self._runner.set_weights([(name, array) for name, kind, array in given if kind in ("trained", "state")])
        for name, kind, array in given:
            if kind == "counter":
                stored = array_of(self._bytes(name, kind), array.dtype.name, array.shape)
                self._counted[name] = int(array) - int(stored) - self.steps

    def save(self, directory: str | Path) -> None:
        """Writes weights, optimizer state and the number of steps below a directory, as `step-00000100`."""
        self._runner.save(Path(directory))

    def resume(self, directory: str | Path) -> None:
        """Goes on from the newest whole checkpoint below a directory, of any plan and number of devices."""
        self._runner.resume(Path(directory))
        self._warn()

    def load(self, path: str | Path) -> None:
        """Takes weights from a checkpoint or a `.safetensors` file. The optimizer stays as it is."""
        self._runner.load(Path(path))

    def export(self, path: str | Path) -> None:
        """Writes all weights to a `.safetensors` file."""
        self._runner.export(Path(path))

    def report(self) -> Report | None:
        """The last step as predicted and measured; only on the first rank of a job."""
        found = self._runner.report()
        return None if found is None else Report(*found)

    def close(self) -> None:
        """Ends the training: saves what the options ask for, frees its memory and leaves its job."""
        _trainers.discard(self)
        self._runner.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.ranks > 1:
            import traceback

            traceback.print_exception(error)
            self._abort(error)
        self.close()

    def _abort(self, error: BaseException) -> None:
        """Ends the job, and this process with it: what was printed must be out before."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._runner.fail(f"{type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<Trainer of {self._model.name}: {self._runner.plan()!r}>"

    def _batch(self, graph: Any, batch: Any) -> list[tuple[str, Any]]:
        if isinstance(batch, Mapping):
            return self._model._feeds(graph, (), batch)
        args = batch if isinstance(batch, (tuple, list)) else (batch,)
        return self._model._feeds(graph, args, {})

    def _finish(self, on_step: Callable[[Step], object] | None = None) -> Step:
        ended = self._runner.finish()
        if ended is None:
            raise Error("no step is in flight")
        step = Step(*ended)
        if on_step is not None:
            on_step(step)
        return step

    def _drain(self) -> None:
        """Forgets the steps that a `fit` has begun and not reported."""
        while self._runner.pending() > 0:
            self._runner.finish()

    def _warn(self) -> None:
        for is_warning, text in self._runner.notices():
            if is_warning:
                warnings.warn(text, stacklevel=3)


def _for_model(optimizer: Optimizer, model: Model) -> Optimizer:
    """The optimizer without tensors of the module that are constants in the model, since no step changes them."""
    constants = {name for name, _, kind, _, _ in model._graphs.entries if kind == "constant"}
    return replace(
        optimizer,
        frozen=[name for name in optimizer.frozen if name not in constants],
        groups=[group for group in optimizer.groups if group[0] not in constants],
    )


def _option(value: Any) -> str:
    """A value as a user writes it in a file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cycle(batches: Iterable[Any], steps: int | None) -> Iterator[Any]:
    """All batches once, or so many, beginning again if need be."""
    if steps is None:
        yield from batches
        return
    done = 0
    while done < steps:
        before = done
        for batch in batches:
            yield batch
            done += 1
            if done == steps:
                return
        if done == before or isinstance(batches, Iterator):
            raise DataError(f"there are {done} batches for {steps} steps: give a list, or a loader that begins again")


_trainers: weakref.WeakSet[Trainer] = weakref.WeakSet()
_hooked = False


def _end_job_after_exceptions() -> None:
    """Ends the job of this process after an exception that is not caught: its other ranks would wait for it."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        for trainer in list(_trainers):
            trainer._abort(error)

    sys.excepthook = hook


@atexit.register
def _close_all() -> None:
    for trainer in list(_trainers):
        trainer.close()
