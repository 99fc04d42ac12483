"""Training graphs from Python, without PyTorch."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import phalanx as px
import pytest
from graphs import EVALUATION, TRAINING, batches


def trainer(**options):
    options = {"cores_per_device": 1, "no_cache": True, **options}
    return px.Trainer(px.Model(TRAINING, EVALUATION), px.AdamW(1e-2), **options)


def test_a_classifier_learns():
    with trainer() as run:
        before = run.evaluate(batches(4, seed=1))
        seen = []
        last = run.fit(batches(40), steps=200, on_step=seen.append)
        after = run.evaluate(batches(4, seed=1))
    assert [step.number for step in seen] == list(range(1, 201))
    assert last == seen[-1] and last.gradient_norm is None
    assert after["loss"] < 0.5 * before["loss"]


@pytest.mark.parametrize("options", [{"plan": "dp2"}, {"plan": "fsdp", "devices": 2}, {"accumulate": 2}])
def test_plans_have_the_bits_of_one_device(options):
    def trained(**options):
        with trainer(**options) as run:
            losses = [run.step(*batch).loss for batch in batches(3)]
            run.fit(batches(3, seed=1))
            return losses, run.weights_hash

    assert trained(**options) == trained()


def test_a_step_is_the_one_of_numpy():
    """Loss and weights after a step of gradient descent, computed by hand."""
    text = """graph @line {
  %x = input f32[4, 1]
  %y = input f32[4, 1]
  %w = param init=ones f32[1, 1]
  %p = linear %x, %w : f32[4, 1]
  %e = sub %p, %y : f32[4, 1]
  %s = mul %e, %e : f32[4, 1]
  %loss = reduce kind=mean axes=[0, 1] %s : f32[]
  return %loss
}
"""
    x = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    y = 3 * x
    with px.Trainer(px.Model(text, weights={"w": np.array([[2.0]], np.float32)}), px.SGD(0.01)) as run:
        step = run.step(x, y=y)
        found = run.state_dict()["w"]
    assert step.loss == pytest.approx(np.mean((2 * x - y) ** 2))
    assert found[0, 0] == pytest.approx(2.0 - 0.01 * np.mean(2 * (2 * x - y) * x))


def test_weights_come_back_and_go_in(tmp_path):
    with trainer() as run:
        run.fit(batches(5))
        state, found = run.state_dict(), run.weights_hash
        assert state["fc1.weight"].shape == (16, 12) and state["fc1.weight"].flags.writeable
        run.export(tmp_path / "weights.safetensors")
        run.fit(batches(1))
        assert run.weights_hash != found
        run.load_state_dict(state)
        assert run.weights_hash == found
    with px.Trainer(px.Model(TRAINING, weights=state)) as run:
        assert run.weights_hash == found
    with trainer(seed=3) as run:
        run.load(tmp_path / "weights.safetensors")
        assert run.weights_hash == found
        with pytest.raises(px.DataError, match="missing .'fc1.bias'"):
            run.load_state_dict({name: state[name] for name in state if name != "fc1.bias"})
        run.load_state_dict({"fc1.bias": state["fc1.bias"]}, strict=False)


def test_checkpoints_resume_with_the_same_bits(tmp_path):
    data = batches(6)
    with trainer() as whole:
        whole.fit(data)
        expected = whole.weights_hash
    with trainer() as first:
        first.fit(data[:3])
        first.save(tmp_path / "ck")
    with trainer(plan="dp2") as second:
        second.resume(tmp_path / "ck")
        assert second.steps == 3
        second.fit(data[3:])
        assert second.weights_hash == expected
    # The same by options, with steps in flight when a checkpoint is due.
    options = {"checkpoint": tmp_path / "auto", "every": 2}
    with trainer(**options) as run:
        run.fit(data[:4])
    assert sorted(path.name for path in (tmp_path / "auto").glob("step-*")) == ["step-00000002", "step-00000004"]
    with trainer(resume=True, **options) as run:
        assert run.steps == 4
        run.fit(data[4:])
        assert run.weights_hash == expected


def test_dropout_masks_are_those_of_kernels():
    """The logits of a step are those of numpy with the mask."""
    (x, labels), *_ = batches(1)
    with trainer(seed=7) as run:
        state = run.state_dict()
        run.step(x, labels)
        logits = run.read("logits")
    from math import erf

    h = x @ state["fc1.weight"].T + state["fc1.bias"]
    a = 0.5 * h * (1 + np.vectorize(erf)(h / np.sqrt(2)))
    kept = px.dropout_mask("d", (8, 16), 0.1, seed=7, step=0)
    assert 0 < kept.sum() < kept.size
    np.testing.assert_allclose(logits, (a * kept / 0.9) @ state["fc2.weight"].T, rtol=1e-5, atol=1e-5)


def test_learning_rates_follow_a_schedule():
    with trainer(lr_schedule="linear", lr_floor=0.0, steps=4) as run:
        rates = [run.step(*batch).lr for batch in batches(4)]
    assert rates == pytest.approx([1e-2, 2e-2 / 3, 1e-2 / 3, 0.0])


def test_gradients_are_clipped_and_parameters_frozen():
    optimizer = px.SGD(0.1, clip=0.5, frozen=["fc1.*"], groups=[("fc2.*", 0.5, None)])
    with px.Trainer(px.Model(TRAINING), optimizer) as run:
        before = run.state_dict()
        step = run.step(*batches(1)[0])
        after = run.state_dict()
    assert step.gradient_norm > 0.5
    assert (before["fc1.weight"] == after["fc1.weight"]).all()
    moved = np.linalg.norm(after["fc2.weight"] - before["fc2.weight"])
    assert moved == pytest.approx(0.5 * 0.1 * 0.5, rel=1e-4)


def test_plans_and_reports_are_shown():
    model = px.Model(TRAINING)
    plan = px.Plan("dp2", model.training)
    assert plan.devices == 2 and "dp" in plan.text and "2 devices" in repr(plan)
    assert len(plan.memory()) == 2 and sum(row[3] for row in plan.movements()) > 0
    with trainer(plan=plan.text) as run:
        run.step(*batches(1)[0])
        assert run.plan.text == plan.text
        assert "fc1.weight" in run.plan._repr_html_()
        report = run.report()
    assert "measured" in report.html and report._repr_html_().startswith("<iframe")


def test_threads_share_a_trainer():
    """Steps of several threads are all done, and other threads run meanwhile."""
    data = batches(4)
    with trainer() as run:
        threads = [threading.Thread(target=lambda: [run.step(*batch) for batch in data]) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert run.steps == 12
        losses = []
        run.fit(data, on_step=lambda step: losses.append(run.evaluate(data)["loss"]))
        assert len(losses) == 4


def test_importing_is_light():
    code = "import sys, phalanx; print('torch' in sys.modules, 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
    assert Path(px.__file__).with_name("py.typed").exists()
