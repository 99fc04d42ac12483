#!/usr/bin/env python3
"""The model of `phalanx bench train` in PyTorch, for a side-by-side measurement.

    python3 benches/peers/torch_gpt.py --threads 1 --mode eager|compile|best [--json]

A GPT-2 with fused AdamW and scaled_dot_product_attention in f32 on random tokens. `best` runs eager and compiled and
reports the faster one. Before timing, the script checks that every parameter receives a gradient.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        shape = (batch, time_, self.heads, width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, time_, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.wte = nn.Embedding(args.vocab, args.width)
        self.wpe = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def measure(args, mode):
    torch.manual_seed(0)
    model = Gpt(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode == "compile" else model
    tokens = torch.randint(args.vocab, (args.batch, args.context))
    targets = torch.randint(args.vocab, (args.batch, args.context))

    def step():
        loss = run(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert not missing, f"no gradient for {missing}"
    for _ in range(args.warmup_steps):
        step()
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", choices=["eager", "compile", "best"], default="best")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    modes = ["eager", "compile"] if args.mode == "best" else [args.mode]
    results = {mode: measure(args, mode) for mode in modes}
    mode = min(results, key=lambda m: statistics.median(results[m]))
    times = results[mode]
    tokens = args.batch * args.context
    report = {
        "peer": f"torch {torch.__version__}",
        "mode": mode,
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
    main()
