"""Running statistics of PyTorch's batch norm after five steps, for crates/phalanx/tests/states.rs.

    python benches/peers/torch_batch_norm.py crates/phalanx/tests/golden/batch_norm.json.gz
"""

import gzip
import json
import sys

import torch

torch.manual_seed(3)


def numbers(tensor):
    return [float(f"{x:.8g}") for x in tensor.flatten().tolist()]


cases = []
for momentum, eps, shape in [
    (0.1, 1e-5, [6, 3, 2, 5]),
    (None, 1e-5, [6, 3, 2, 5]),
    (0.25, 1e-3, [5, 7]),
    (None, 1e-3, [4, 3, 1]),
]:
    channels, rank = shape[-1], len(shape)
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[rank]
    norm = kind(channels, eps=eps, momentum=momentum, affine=False)
    to_torch = [0, rank - 1, *range(1, rank - 1)]
    back = [0, *range(2, rank), 1]
    steps, output = [], None
    for step in range(5):
        # Multiples of 1/64, so that the file is small.
        x = ((torch.randn(shape) * (1 + step) + torch.arange(channels) - 2) * 64).round() / 64
        steps.append(numbers(x))
        output = norm(x.permute(to_torch)).permute(back)
    norm.eval()
    evaluated = norm(x.permute(to_torch)).permute(back)
    assert norm.num_batches_tracked.item() == 5
    cases.append(
        {
            "momentum": momentum,
            "eps": eps,
            "shape": shape,
            "steps": steps,
            "running_mean": numbers(norm.running_mean),
            "running_var": numbers(norm.running_var),
            "output": numbers(output),
            "evaluated": numbers(evaluated),
        }
    )
with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as file:
    file.write(json.dumps(cases).encode())
