"""Writes the files of `data`, with PyTorch: a module as a graph file, and what PyTorch makes of it in five steps.

`python crates/py/tests/golden.py`, with the package and PyTorch installed.
"""

import json
from pathlib import Path

import phalanx as px
import torch
from modules import Tied, batch

DATA = Path(__file__).with_name("data")
STEPS = 5


def write() -> None:
    torch.manual_seed(0)
    module = Tied()
    px.from_torch(module, batch(0)).write(DATA / "tied.json")
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2, eps=1e-6)
    losses = []
    for seed in range(STEPS):
        loss = module(*batch(seed))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        evaluated = module.eval()(*batch(STEPS)).item()
    expected = {
        "batches": [[tensor.tolist() for tensor in batch(seed)] for seed in range(STEPS + 1)],
        "losses": losses,
        "evaluated": evaluated,
        "state": {name: tensor.tolist() for name, tensor in module.state_dict().items()},
    }
    (DATA / "tied.expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    write()
