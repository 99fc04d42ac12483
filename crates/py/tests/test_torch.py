"""Modules of PyTorch: the same numbers as PyTorch, and back. Needs PyTorch: `cargo xtask torch` runs it."""

import copy

import numpy as np
import phalanx as px
import pytest
from pages import blocks

torch = pytest.importorskip("torch")
from modules import Dropping, Tied, batch  # noqa: E402

nn = torch.nn


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Tied()


def close(ours, theirs, bound=1e-5):
    assert set(ours) == set(theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name].numpy(), theirs[name].numpy(), rtol=bound, atol=bound, err_msg=name)


def make(kind, module):
    if kind == "sgd":
        return torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)
    others = [p for name, p in module.named_parameters() if name != "hidden.weight"]
    groups = [{"params": [module.hidden.weight], "lr": 1e-3, "weight_decay": 0.0}, {"params": others}]
    return torch.optim.AdamW(groups, lr=1e-2, eps=1e-6)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_steps_are_those_of_pytorch(module, kind):
    theirs = copy.deepcopy(module)
    optimizer = make(kind, theirs)
    model = px.from_torch(module, batch())
    with px.Trainer(model, px.optimizer_from_torch(make(kind, module), module), plan="dp2") as run:
        close(run.state_dict(), module.state_dict(), 0)
        for seed in range(5):
            step = run.step(*batch(seed))
            loss = theirs(*batch(seed))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert step.loss == pytest.approx(loss.item(), rel=1e-5)
        state = run.state_dict()
        close(state, theirs.state_dict(), 1e-4)
        assert state["norm.num_batches_tracked"].item() == 5
        found = run.evaluate([batch(9)])["loss"]
    assert found == pytest.approx(theirs.eval()(*batch(9)).item(), rel=1e-4)
    module.load_state_dict(state)
    assert module.head.weight is module.table.weight
    close(module.state_dict(), state, 0)


def test_weights_go_in_and_files_are_read_without_pytorch(module, tmp_path):
    model = px.from_torch(module, batch())
    model.write(tmp_path / "model.json")
    loaded = px.load(tmp_path / "model.json")
    arrays = [tensor.numpy() for tensor in batch()]
    with px.Trainer(model) as first, px.Trainer(loaded) as second:
        first.step(*batch())
        second.step(*arrays)
        assert first.weights_hash == second.weights_hash
        state = first.state_dict()
        assert isinstance(second.state_dict()["hidden.bias"], np.ndarray)
        second.load_state_dict(state)
        state["norm.num_batches_tracked"] += 7
        second.load_state_dict(state)
        assert second.state_dict()["norm.num_batches_tracked"] == 8
        second.step(*arrays)
        assert second.state_dict()["norm.num_batches_tracked"] == 9


class OwnGradient(torch.autograd.Function):
    """A function whose backward is not that of its forward."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Scaled(nn.Module):
    """What a function makes of scaled inputs, as a loss."""

    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.function = function

    def forward(self, x):
        return self.function(x * self.scale)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: OwnGradient.apply(x).mean(), "`OwnGradient` is a torch.autograd.Function: its backward pass cannot be exported"),
        (lambda x: x[x > 0].mean(), "the shape of its result depends on data"),
        (lambda x: torch.unique(x).mean(), "the shape of its result depends on data"),
        (lambda x: x.mean() if x.sum() > 0 else x.sum(), "fixed shapes"),
        (lambda x: x, "not a scalar loss"),
        (lambda x: x.to_sparse().sum(), "use dense tensors"),
        (lambda x: torch.view_as_complex(x.reshape(4, 4, 2)).abs().mean(), "two tensors"),
    ],
)
def test_modules_that_cannot_be_taken_say_why(function, message):
    before = torch.autograd.Function.__dict__["apply"]
    with pytest.raises(px.Error, match=message):
        px.from_torch(Scaled(function), (torch.randn(4, 8),))
    assert torch.autograd.Function.__dict__["apply"] is before


def test_what_cannot_be_taken_is_named(module):
    with pytest.raises(px.UnsupportedError, match="aten._fft_r2c .*test_torch.py") as error:

        class Fft(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(8))

            def forward(self, x):
                return torch.fft.rfft(x * self.w).abs().mean()

        px.from_torch(Fft(), (torch.ones(4, 8),))
    assert any("fft" in name for name in error.value.operators)
    with pytest.raises(px.Error, match="module.float"):
        px.from_torch(copy.deepcopy(module).to(torch.bfloat16), batch())
    model = px.from_torch(module, batch())
    with px.Trainer(model) as run:
        with pytest.raises(px.DataError, match="other arguments"):
            run.step(batch()[0])
        with pytest.raises(px.DataError, match=r"input `tokens` has the shape \[4\], but it must be \[8\]"):
            run.step(batch()[0][:4], batch()[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.Adam(p, amsgrad=True), "`amsgrad` of the optimizer is True"),
        (lambda p: torch.optim.SGD(p, maximize=True), "`maximize`"),
        (lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.5), "`dampening`"),
        (lambda p: torch.optim.RMSprop(p), "there is no RMSprop"),
    ],
)
def test_optimizers_without_a_counterpart_are_named(module, make, message):
    with pytest.raises(px.Error, match=message):
        px.optimizer_from_torch(make(module.parameters()), module)


def test_the_chapter_of_the_book_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in blocks("from-pytorch.md"):
        exec(compile(program, "from-pytorch.md", "exec"), names)


def test_dropout_is_the_same_in_pytorch():
    torch.manual_seed(0)
    module = Dropping()
    tokens, targets = torch.randint(0, 16, (2, 8, 6))
    model = px.from_torch(module, (tokens, targets))
    theirs = copy.deepcopy(module)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    with px.Trainer(model, px.SGD(0.1), plan="dp2", seed=5) as run:
        for step in range(3):
            with px.same_dropout(model, seed=5, step=step):
                loss = theirs(tokens, targets)
            assert run.step(tokens, targets).loss == pytest.approx(loss.item(), rel=1e-5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        close(run.state_dict(), theirs.state_dict(), 1e-4)
    with pytest.raises(px.Error, match="the module has dropped 0 times, the model 5 times"):
        with px.same_dropout(model):
            pass
