#!/usr/bin/env python3
"""The models of `phalanx bench model` in PyTorch, for a side-by-side measurement.

    python3 benches/peers/torch_models.py resnet18 --threads 1 --mode eager|channels_last|compile|best [--json]

Fused AdamW in f32 on one random batch. `best` runs all that the model has and reports the fastest. Needs torch, torchvision
and transformers.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Dlrm(nn.Module):
    def __init__(self, numbers=13, tables=8, entries=10_000, width=64, bottom=(512, 256), top=(512, 256)):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(entries, width) for _ in range(tables))
        self.bottom = self.stack([numbers, *bottom, width], closed=True)
        self.top = self.stack([width + (tables + 1) ** 2, *top, 1], closed=False)

    @staticmethod
    def stack(widths, closed):
        layers = []
        for index, (a, b) in enumerate(zip(widths, widths[1:])):
            layers.append(nn.Linear(a, b))
            if closed or index + 2 < len(widths):
                layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def forward(self, numbers, ids):
        x = self.bottom(numbers)
        rows = torch.stack([x, *(table(ids[:, index]) for index, table in enumerate(self.tables))], 1)
        products = (rows @ rows.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products], 1)).squeeze(1)


def resnet(name):
    import torchvision

    model = getattr(torchvision.models, name)()
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(1000, (16,))
    return model, 16, lambda run, images: F.cross_entropy(run(images), labels), images


def bert(_):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048,
                        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tokens = torch.randint(config.vocab_size, (8, 128))
    targets = tokens.masked_fill(torch.rand(8, 128) > 0.15, -100)
    return BertForMaskedLM(config), 8, lambda run, tokens: run(input_ids=tokens, labels=targets).loss, tokens


def vit(_):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, image_size=96,
                       patch_size=12, num_labels=1000, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    images, labels = torch.randn(8, 3, 96, 96), torch.randint(1000, (8,))
    loss = lambda run, images: F.cross_entropy(run(pixel_values=images).logits, labels)
    return ViTForImageClassification(config), 8, loss, images


def dlrm(_):
    numbers, ids, clicks = torch.rand(512, 13), torch.randint(10_000, (512, 8)), torch.randint(2, (512,)).float()
    loss = lambda run, numbers: F.binary_cross_entropy_with_logits(run(numbers, ids), clicks)
    return Dlrm(), 512, loss, numbers


MODELS = {"resnet18": resnet, "resnet50": resnet, "bert": bert, "vit": vit, "dlrm": dlrm}


def measure(args, mode):
    torch.manual_seed(0)
    model, batch, loss, x = MODELS[args.name](args.name)
    model.train()
    if mode == "channels_last":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode == "compile" else model
    seconds = []
    for _ in range(args.warmup_steps + args.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        value = loss(run, x)
        value.backward()
        optimizer.step()
        value.item()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[args.warmup_steps:])
    return {"model": args.name, "mode": mode, "samples_per_s": batch / median, "ms_per_step": 1e3 * median}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", choices=["eager", "channels_last", "compile", "best"], default="best")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images = ["channels_last"] if args.name.startswith("resnet") else []
    modes = ["eager", *images, "compile"] if args.mode == "best" else [args.mode]
    results = [measure(args, mode) for mode in modes]
    best = max(results, key=lambda result: result["samples_per_s"])
    print(json.dumps(best) if args.json else "\n".join(json.dumps(result) for result in results))


main()
