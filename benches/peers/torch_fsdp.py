#!/usr/bin/env python3
"""The model of `phalanx bench train` under FSDP2, for a side-by-side measurement.

    python3 benches/peers/torch_fsdp.py --processes 2 --threads 1 --mode eager|compile|best [--json]

As torch_ddp.py, whose flags it has, but every process keeps only its share of parameters, gradients and moments:
`fully_shard` gathers the parameters of a block before they are used and scatters the sums of its gradients. Before
timing, the script checks that every parameter is sharded over all processes.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_ddp


def distribute(model, mode):
    """The model with each block, and the rest as a whole, sharded over all processes."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        if mode == "compile":
            block.compile()
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def check_sharded(model):
    """Every process holds its share of every parameter."""
    for name, parameter in model.named_parameters():
        share = parameter.to_local().numel() * dist.get_world_size()
        # Rows that do not divide leave the last processes with fewer.
        rows = parameter.shape[0]
        assert share == parameter.numel() or rows % dist.get_world_size(), f"{name} is not sharded"
        assert torch.isfinite(parameter.to_local()).all(), f"{name} is not finite"


if __name__ == "__main__":
    torch_ddp.main("fsdp", __doc__, distribute, check_sharded)
