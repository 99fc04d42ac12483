"""What is wrong is named, and trainers can be used on."""

import os
import signal
import threading

import numpy as np
import phalanx as px
import pytest
from graphs import TRAINING, batches
from test_training import trainer


@pytest.fixture(scope="module")
def run():
    with trainer() as run:
        yield run


(X, LABELS), *_ = batches(1)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X.astype("float64"), LABELS), {}, "input `x` has elements of format `d`, but it must be f32: use `.astype"),
        ((X, LABELS.astype("int32")), {}, "input `labels` is i32, but it must be i64"),
        ((X[:4], LABELS), {}, r"input `x` has the shape \[4, 12\], but it must be \[8, 12\]: .*drop_last"),
        ((np.asfortranarray(X), LABELS), {}, "input `x` is not contiguous: give `numpy.ascontiguousarray"),
        ((X[::-1], LABELS), {}, "input `x` is not contiguous"),
        ((X.tolist(), LABELS), {}, "input `x` is a list; give it an array"),
        ((X, LABELS, X), {}, "3 arrays for the 2 inputs x, labels"),
        ((X,), {"x": X}, "input `x` is given twice"),
        ((X,), {"y": LABELS}, "the model has no input `y`; it has `x`, `labels`"),
        ((X, LABELS + 100), {}, "labels"),
    ],
)
def test_wrong_arrays_are_named(run, args, kwargs, message):
    before = run.steps
    with pytest.raises(px.DataError, match=message):
        run.step(*args, **kwargs)
    assert run.steps == before
    assert run.step(X, LABELS).number == before + 1


def test_the_first_step_needs_all_inputs():
    with trainer() as run:
        with pytest.raises(px.DataError, match="`labels`, i64.8., has never been fed"):
            run.step(X)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"plan": "qq2"}, px.PlanError, "qq2"),
        ({"plan": "dp3"}, px.PlanError, "3"),
        ({"plan": "dp", "devices": 2, "memory": "1KiB"}, px.BudgetError, "memory"),
        ({"devices": 2}, px.PlanError, "choose one with plan"),
        ({"plam": "dp2"}, px.Error, "no option `plam`: did you mean `plan`"),
        ({"data": "x"}, px.Error, "no option `data`"),
        ({"precision": "fp8"}, px.Error, "precision"),
        ({"lr": 0.1}, px.Error, "`lr` belongs to the optimizer"),
        ({"batch": 4}, px.Error, "the batch of the graphs is 8, not 4"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        trainer(**options)


def test_wrong_graphs_and_weights_are_named():
    with pytest.raises(px.Error, match="line 7: unknown operator `linea`"):
        px.Graph(TRAINING.replace("= linear act", "= linea act"))
    with pytest.raises(px.DataError, match="the model has no parameter or state `fc3`; it has `fc1.weight`"):
        px.Model(TRAINING, weights={"fc3": X})
    with pytest.raises(px.DataError, match=r"weight `fc1.weight` has the shape \[8, 12\], but it must be \[16, 12\]"):
        px.Model(TRAINING, weights={"fc1.weight": X})
    with px.Trainer(px.Model(TRAINING)) as run, pytest.raises(px.Error, match="for training only"):
        run.evaluate(batches(1))
    assert issubclass(px.DataError, px.Error) and issubclass(px.Error, Exception)
    with pytest.raises(px.Error, match="the trainer is closed"):
        run.step(*batches(1)[0])


@pytest.mark.parametrize("fields", [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"clip": 0.0}, {"lr": float("nan")}])
def test_wrong_optimizers_are_named(fields):
    with pytest.raises(px.Error, match="must be finite and"):
        px.AdamW(**fields)


def test_an_exception_in_a_callback_leaves_the_trainer_usable():
    data = batches(10)

    def stop(step):
        if step.number == 3:
            raise ValueError("stop")

    with trainer() as run, trainer() as other:
        with pytest.raises(ValueError, match="stop"):
            run.fit(data, on_step=stop)
        done = run.steps
        assert 3 <= done <= 5
        other.fit(data[:done])
        run.fit(data[done:])
        other.fit(data[done:])
        assert run.weights_hash == other.weights_hash


def test_an_interrupt_leaves_the_trainer_usable(tmp_path):
    """Ctrl-C during `fit`: steps that were begun are done, and checkpoints are whole."""
    data = batches(20)

    def interrupt(step):
        if step.number == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with trainer(checkpoint=tmp_path / "ck", every=1) as run:
        with pytest.raises(KeyboardInterrupt):
            run.fit(data, steps=1_000_000, on_step=interrupt)
        done = run.steps
        assert done >= 5
        run.step(*data[0])
        expected = run.weights_hash
    with trainer() as again:
        again.resume(tmp_path / "ck")
        assert (again.steps, again.weights_hash) == (done + 1, expected)


def test_an_interrupt_ends_a_wait():
    """A signal that comes while the main thread waits for a step."""
    with trainer() as run:

        def interrupt():
            while run.steps < 20:
                pass
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run.fit(batches(4), steps=100_000_000)
        thread.join()
        assert run.step(X, LABELS).number == run.steps
