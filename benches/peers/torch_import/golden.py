"""Graph files of small modules with what PyTorch makes of them: losses, gradients, five steps of AdamW.

    python golden.py OUT [NAME ...]

writes for each module NAME.json.gz, NAME.safetensors.gz (constants and feeds) and NAME.expected.json.gz. Weights are not stored: both
worlds compute them from a name and an index (see `fill`). Gradients and weights are compared by projections on signs.
"""

import gzip
import json
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

import modules
from phalanx import _export

STEPS = 5
LR = 1e-3


def seed_of(name: str) -> int:
    """FNV-1a of a name."""
    value = 2166136261
    for byte in name.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


def uniform(name: str, count: int) -> np.ndarray:
    """Numbers in -0.5..0.5 from a name and an index: exact in single precision."""
    index = np.arange(count, dtype=np.uint64)
    mixed = (index * np.uint64(2654435761) + np.uint64(seed_of(name))) & np.uint64(0xFFFFFFFF)
    mixed ^= mixed >> np.uint64(15)
    mixed = (mixed * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    mixed ^= mixed >> np.uint64(13)
    return ((mixed >> np.uint64(8)).astype(np.float32) / np.float32(1 << 24)) - np.float32(0.5)


def fill(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Weights: matrices of a usual size, vectors around one or zero."""
    values = torch.from_numpy(uniform(name, tensor.numel()).copy()).reshape(tensor.shape)
    if tensor.dim() < 2:
        return 1 + 0.25 * values if name.endswith("weight") else 0.25 * values
    return values * np.float32(0.25)


def signs(name: str, count: int) -> np.ndarray:
    return np.where(uniform("sign of " + name, count) < 0, -1.0, 1.0)


def project(name: str, tensor: torch.Tensor) -> list[float]:
    values = tensor.detach().double().reshape(-1).numpy()
    return [float(values @ signs(name, values.size)), float(np.sqrt(values @ values))]


def without_dropout() -> None:
    F.dropout = lambda x, *args, **kwargs: x
    torch.nn.functional.dropout = F.dropout
    torch.dropout = lambda x, *args, **kwargs: x
    plain = F.scaled_dot_product_attention

    def attention(*args, **kwargs):
        kwargs.pop("dropout_p", None)
        return plain(*args[:4], **kwargs)

    F.scaled_dot_product_attention = attention


def expected(module: torch.nn.Module, args: tuple) -> dict:
    module.train()
    for name, tensor in module.named_parameters():
        tensor.data.copy_(fill(name, tensor))
    start = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    states = {n: b.detach().clone() for n, b in module.named_buffers() if b.is_floating_point()}
    loss = module(*args)
    loss.backward()
    gradients = {n: project(n, t.grad) for n, t in module.named_parameters() if t.grad is not None}
    module.zero_grad()
    for name, buffer in module.named_buffers():
        if name in states:
            buffer.data.copy_(states[name])
    optimizer = torch.optim.AdamW(module.parameters(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = module(*args)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    moved = {n: project(n, t.detach() - start[n]) for n, t in module.named_parameters() if t.grad is not None}
    kept = {n: project(n, b - states[n]) for n, b in module.named_buffers() if n in states and n in module.state_dict()}
    return {"losses": losses, "gradients": gradients, "moved": moved, "states": kept}


def write(name: str, out: str) -> None:
    torch.manual_seed(0)
    module, args = modules.MODULES[name]()
    for parameter, tensor in module.named_parameters():
        tensor.data.copy_(fill(parameter, tensor))
    exported = _export.export(module, args)
    feeds = exported.prologue(args)
    for node in [*exported.document["train"]["nodes"], *exported.document.get("eval", {}).get("nodes", [])]:
        node.pop("source"), node.pop("code")
    params = {leaf["name"] for leaf in exported.document["leaves"] if leaf["role"] == "param"}
    stored = {n: t for n, t in exported.stored.items() if n not in params}
    stored |= {f"feed:{n}": torch.from_numpy(a) for n, a in feeds.items()}
    # Before steps change what the tensors of the module hold.
    stored = _export.safetensors(stored)
    result = expected(module, args)
    save(out, name + ".json", json.dumps(exported.document, separators=(",", ":"), allow_nan=False).encode())
    save(out, name + ".safetensors", stored)
    save(out, name + ".expected.json", json.dumps(result).encode())
    print(name, result["losses"], flush=True)


def save(out: str, name: str, data: bytes) -> None:
    with open(os.path.join(out, name + ".gz"), "wb") as file:
        file.write(gzip.compress(data, 9, mtime=0))


if __name__ == "__main__":
    torch.set_num_threads(1)
    without_dropout()
    os.makedirs(sys.argv[1], exist_ok=True)
    for name in sys.argv[2:] or modules.MODULES:
        try:
            write(name, sys.argv[1])
        except Exception as error:  # the others are still of use
            print("failed:", name, str(error)[:300], flush=True)
