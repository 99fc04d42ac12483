"""Optimizers, with the names and defaults of PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Sequence

from ._phalanx import Error


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An update rule with its constants; `SGD`, `Adam` and `AdamW` make one.

    `clip` is the largest gradient norm let through. `frozen` are patterns for the names of parameters that stay as
    they are, `groups` patterns with a factor of the learning rate and a weight decay (`None`: that of the others); the
    last pattern that matches counts. `decay_vectors` says whether biases and weights of norms decay, too.
    """

    kind: str
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decay_vectors: bool = True
    clip: float | None = None
    frozen: Sequence[str] = ()
    groups: Sequence[tuple[str, float, float | None]] = ()

    def __post_init__(self) -> None:
        rules = {
            "lr": (self.lr, self.lr >= 0, "not below 0"),
            "beta1": (self.betas[0], 0 <= self.betas[0] < 1, "at least 0 and below 1"),
            "beta2": (self.betas[1], 0 <= self.betas[1] < 1, "at least 0 and below 1"),
            "eps": (self.eps, self.eps >= 0, "not below 0"),
            "momentum": (self.momentum, 0 <= self.momentum < 1, "at least 0 and below 1"),
            "weight_decay": (self.weight_decay, self.weight_decay >= 0, "not below 0"),
            "clip": (self.clip, self.clip is None or self.clip > 0, "above 0, or None"),
        }
        for name, (value, holds, rule) in rules.items():
            if not holds or (value is not None and not math.isfinite(value)):
                raise Error(f"`{name}` is {value}; it must be finite and {rule}")
        if self.kind not in ("sgd", "adam", "adamw"):
            raise Error(f"`kind` is {self.kind!r}; it must be sgd, adam or adamw")
        if self.nesterov and self.momentum == 0:
            raise Error("`nesterov` needs a `momentum` above 0")


def SGD(lr: float, momentum: float = 0.0, *, nesterov: bool = False, weight_decay: float = 0.0, **more: Any) -> Optimizer:
    """Stochastic gradient descent. `more` are further fields of `Optimizer`."""
    return Optimizer(
        kind="sgd", lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, **more
    )


def Adam(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **more: Any,
) -> Optimizer:
    """Adam; its weight decay is added to the gradient. `more` are further fields of `Optimizer`."""
    return Optimizer(kind="adam", lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **more)


def AdamW(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    **more: Any,
) -> Optimizer:
    """Adam with decoupled weight decay. `more` are further fields of `Optimizer`."""
    return Optimizer(kind="adamw", lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **more)


# What a group of PyTorch may say without an effect on the numbers.
_HARMLESS = {"params", "lr", "foreach", "fused", "capturable", "differentiable", "initial_lr", "param_names"}
# What each rule takes.
_TAKEN = {
    "sgd": {"momentum", "nesterov", "weight_decay"},
    "adam": {"betas", "eps", "weight_decay"},
    "adamw": {"betas", "eps", "weight_decay"},
}


def optimizer_from_torch(optimizer: Any, module: Any) -> Optimizer:
    """What an optimizer of PyTorch says, with its groups; `module` has the names of the parameters.

    Parameters that the optimizer does not have are frozen.
    """
    kind = type(optimizer).__name__.lower()
    if kind not in _TAKEN:
        raise Error(f"there is no {type(optimizer).__name__}: use SGD, Adam or AdamW")
    groups = optimizer.param_groups
    for group in groups:
        _check_group(kind, group)
    names = {id(parameter): name for name, parameter in reversed(list(module.named_parameters()))}
    base = groups[0]
    lr = max(float(group["lr"]) for group in groups)
    made = Optimizer(
        kind=kind,
        lr=lr,
        betas=tuple(map(float, base.get("betas", (0.9, 0.999)))),  # type: ignore[arg-type]
        eps=float(base.get("eps", 1e-8)),
        momentum=float(base.get("momentum", 0.0)),
        nesterov=bool(base.get("nesterov", False)),
        weight_decay=float(base["weight_decay"]),
    )
    return replace(made, frozen=_frozen(groups, module), groups=_groups(groups, base, lr, names))


def _check_group(kind: str, group: dict[str, Any]) -> None:
    decoupled = {"decoupled_weight_decay": kind == "adamw"}
    for key, value in group.items():
        usual = decoupled.get(key, False)
        is_set = not (value is None or value == usual or (not value and not usual))
        if key not in _HARMLESS | _TAKEN[kind] and is_set:
            raise Error(f"`{key}` of the optimizer is {value!r}, which has no counterpart: leave it out")


def _frozen(groups: Sequence[dict[str, Any]], module: Any) -> list[str]:
    trained = {id(parameter) for group in groups for parameter in group["params"] if parameter.requires_grad}
    parameters = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    return [name for name, parameter in parameters if id(parameter) not in trained]


def _groups(
    groups: Sequence[dict[str, Any]], base: dict[str, Any], lr: float, names: dict[int, str]
) -> list[tuple[str, float, float | None]]:
    made: list[tuple[str, float, float | None]] = []
    for index, group in enumerate(groups):
        for key in ("betas", "eps", "momentum", "nesterov"):
            if group.get(key) != base.get(key):
                raise Error(
                    f"`{key}` of group {index} is {group.get(key)}, that of group 0 is {base.get(key)}: "
                    "groups may differ in lr and weight_decay only"
                )
        rate = float(group["lr"]) / lr if lr > 0 else 1.0
        decay = float(group["weight_decay"])
        if rate == 1.0 and decay == float(base["weight_decay"]):
            continue
        for parameter in group["params"]:
            name = names.get(id(parameter))
            if name is None:
                raise Error(f"a parameter of group {index}, {tuple(parameter.shape)}, is none of the module's")
            made.append((name, rate, decay))
    return made
