"""Trains neural networks on many devices, with the same bits for every plan.

>>> import phalanx as px
>>> model = px.from_torch(module, (x, y))
>>> trainer = px.Trainer(model, px.AdamW(3e-4), plan="dp2")
>>> trainer.fit(loader, steps=1000)
>>> module.load_state_dict(trainer.state_dict())
"""

from ._model import Model, from_torch, load
from ._optimizers import SGD, Adam, AdamW, Optimizer, optimizer_from_torch
from ._phalanx import (
    BudgetError,
    DataError,
    Error,
    Graph,
    Plan,
    PlanError,
    UnsupportedError,
    __version__,
)
from ._random import dropout_mask
from ._trainer import Report, Step, Trainer

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "BudgetError",
    "DataError",
    "Error",
    "Graph",
    "Model",
    "Optimizer",
    "Plan",
    "PlanError",
    "Report",
    "Step",
    "Trainer",
    "UnsupportedError",
    "__version__",
    "dropout_mask",
    "from_torch",
    "load",
    "optimizer_from_torch",
]
