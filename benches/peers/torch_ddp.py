#!/usr/bin/env python3
"""The model of `phalanx bench train` under DistributedDataParallel, for a side-by-side measurement.

    python3 benches/peers/torch_ddp.py --processes 2 --threads 1 --mode eager|compile|best [--json]

Model and optimizer are those of torch_gpt.py. Every process computes its own part of the batch, and gloo sums the
gradients over the loopback interface while the backward pass goes on. The processes are started by this script.
Reported is the whole job: a step takes as long as its slowest process. Before timing, the script checks that the
parameters of all processes have the same bits after a step.
"""

import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from torch_gpt import Gpt


def distribute(model, mode):
    """The model whose backward pass sums gradients over processes; its gradients lie in what is sent."""
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return torch.compile(model) if mode == "compile" else model


def check_equal(model):
    """Data-parallel processes have the same parameters."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    assert torch.equal(mine, first), "parameters differ between processes"


def measure(args, rank, distribute, check):
    """Seconds of each timed step, on the slowest process."""
    torch.manual_seed(0)
    model = distribute(Gpt(args), args.mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    torch.manual_seed(1 + rank)
    tokens = torch.randint(args.vocab, (args.batch_per_process, args.context))
    targets = torch.randint(args.vocab, (args.batch_per_process, args.context))

    def step():
        loss = model(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing, f"no gradient for {missing}"
    check(model)
    for _ in range(args.warmup_steps):
        step()
    times = []
    for _ in range(args.steps):
        dist.barrier()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def work(rank, args, port, distribute, check, results):
    """What each process does; the first one hands the times back."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    times = measure(args, rank, distribute, check)
    if rank == 0:
        results.put(times)
    # A process that leaves early breaks connections on which others still wait.
    dist.barrier()
    dist.destroy_process_group()


def job(args, distribute, check):
    """Runs one job of `args.processes` processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(work, (args, port, distribute, check, results), nprocs=args.processes)
    return results.get()


def main(name, doc, distribute, check):
    """Reads the flags, runs a job for each mode and reports the faster one."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch-per-process", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--mode", choices=["eager", "compile", "best"], default="best")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # Read when a process loads PyTorch, which is before it runs `work`.
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    modes = ["eager", "compile"] if args.mode == "best" else [args.mode]
    results = {}
    for mode in modes:
        args.mode = mode
        results[mode] = job(args, distribute, check)
    mode = min(results, key=lambda m: statistics.median(results[m]))
    times = results[mode]
    tokens = args.processes * args.batch_per_process * args.context
    report = {
        "peer": f"{name}, torch {torch.__version__}",
        "mode": mode,
        "processes": args.processes,
        "threads": args.threads,
        "tokens_per_s": tokens / statistics.median(times),
        "best_tokens_per_s": tokens / min(times),
        "ms_per_step": 1e3 * statistics.median(times),
        "median_ms": {m: 1e3 * statistics.median(t) for m, t in results.items()},
    }
    if args.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            print(f"{key}: {value}")


if __name__ == "__main__":
    main("ddp", __doc__, distribute, check_equal)
