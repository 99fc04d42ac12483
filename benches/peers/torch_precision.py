#!/usr/bin/env python3
"""The losses that `phalanx bench precision` compares with: a small GPT-2 in PyTorch, in f32 and under autocast to bf16.

    python3 benches/peers/torch_precision.py --out crates/bench/golden/precision.txt.gz

4 layers, width 128, 4 heads, context 64, batch 32, AdamW, warm-up and cosine, gradients clipped to a norm of 1. Batches
and initial weights are functions of whole numbers, so that both sides make the same ones: `noise` here is `noise` in
crates/bench/src/precision/model.rs, and so are all constants. A line of the file has the losses of one step, f32 first.
"""

import argparse
import gzip
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, VOCAB = 4, 128, 4, 64, 32, 256
STEPS = 500
MASK = (1 << 64) - 1

# Pages of this project at some time, as bytes.
TEXT = pathlib.Path(__file__).parents[2] / "crates/bench/golden/precision-text.gz"


def noise(stream, index):
    """64 bits that look random, for a stream of numbers and an index; the mixer of splitmix64."""
    z = (stream * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def batch(data, step):
    first = [noise(1, BATCH * step + row) % (len(data) - CONTEXT) for row in range(BATCH)]
    tokens = torch.stack([data[at : at + CONTEXT] for at in first])
    return tokens, torch.stack([data[at + 1 : at + 1 + CONTEXT] for at in first])


def stream(name):
    """FNV-1a of a parameter's name."""
    hash = 0xCBF29CE484222325
    for byte in name.encode():
        hash = (hash ^ byte) * 0x100000001B3 & MASK
    return hash


def uniform(name, shape, scale):
    """Numbers between -scale and scale, each rounded once to f32."""
    index = np.arange(math.prod(shape), dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(stream(name) * 0x9E3779B97F4A7C15 & MASK) + index * np.uint64(0xD1B54A32D192ED03)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    whole = (z >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return torch.from_numpy((whole.astype(np.float32) * (np.float32(scale) / np.float32(1 << 23))).reshape(shape))


# Standard deviations of 0.02, and of that by the root of 8 for projections into the residual stream.
SCALE, RESIDUAL = 0.034641016, 0.012247449


def parameters():
    all = {
        "transformer.wte.weight": uniform("transformer.wte.weight", (VOCAB, WIDTH), SCALE),
        "transformer.wpe.weight": uniform("transformer.wpe.weight", (CONTEXT, WIDTH), SCALE),
    }

    def linear(name, inputs, outputs, scale):
        all[f"{name}.weight"] = uniform(f"{name}.weight", (inputs, outputs), scale)
        all[f"{name}.bias"] = torch.zeros(outputs)

    def norm(name):
        all[f"{name}.weight"], all[f"{name}.bias"] = torch.ones(WIDTH), torch.zeros(WIDTH)

    for layer in range(LAYERS):
        block = f"transformer.h.{layer}"
        norm(f"{block}.ln_1")
        for one in "qkv":
            linear(f"{block}.attn.{one}", WIDTH, WIDTH, SCALE)
        linear(f"{block}.attn.c_proj", WIDTH, WIDTH, RESIDUAL)
        norm(f"{block}.ln_2")
        linear(f"{block}.mlp.c_fc", WIDTH, 4 * WIDTH, SCALE)
        linear(f"{block}.mlp.c_proj", 4 * WIDTH, WIDTH, RESIDUAL)
    norm("transformer.ln_f")
    return {name: value.requires_grad_() for name, value in all.items()}


def loss(params, tokens, targets):
    def linear(name, x):
        return F.linear(x, params[f"{name}.weight"].t(), params[f"{name}.bias"])

    def norm(name, x):
        return F.layer_norm(x, (WIDTH,), params[f"{name}.weight"], params[f"{name}.bias"], 1e-5)

    def heads(x):
        return x.view(BATCH, CONTEXT, HEADS, WIDTH // HEADS).transpose(1, 2)

    table = params["transformer.wte.weight"]
    x = F.embedding(tokens, table) + params["transformer.wpe.weight"]
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}"
        normed = norm(f"{block}.ln_1", x)
        q, k, v = (heads(linear(f"{block}.attn.{one}", normed)) for one in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(f"{block}.attn.c_proj", y.transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH))
        hidden = F.gelu(linear(f"{block}.mlp.c_fc", norm(f"{block}.ln_2", x)), approximate="tanh")
        x = x + linear(f"{block}.mlp.c_proj", hidden)
    logits = F.linear(norm("transformer.ln_f", x), table)
    return F.cross_entropy(logits.float().view(-1, VOCAB), targets.reshape(-1))


def train(data, autocast, steps):
    params = parameters()
    values = list(params.values())
    optimizer = torch.optim.AdamW(values, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(steps):
        rate = 1e-3 * min(1.0, (step + 1) / 50) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / STEPS)))
        optimizer.param_groups[0]["lr"] = rate
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(params, *batch(data, step))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(values, 1.0)
        optimizer.step()
        losses.append(value.item())
        if step % 50 == 0:
            print("autocast" if autocast else "f32", step, losses[-1], flush=True)
    return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = torch.frombuffer(bytearray(gzip.decompress(TEXT.read_bytes())), dtype=torch.uint8).long()
    single, autocast = (train(data, mode, args.steps) for mode in (False, True))
    lines = "".join(f"{a:.9g} {b:.9g}\n" for a, b in zip(single, autocast))
    # No time of writing, so that the same losses are the same file.
    with open(args.out, "wb") as file:
        file.write(gzip.compress(lines.encode(), mtime=0))
    differences = [abs(a - b) for a, b in zip(single, autocast)]
    print(f"autocast differs by at most {max(differences):.2e}, by {sum(differences) / len(differences):.2e} in the mean")


if __name__ == "__main__":
    main()
