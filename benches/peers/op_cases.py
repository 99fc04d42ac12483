#!/usr/bin/env python3
"""Operator cases that `phalanx doctor` and the tests of crates/bench run, beside those of ops.jsonl.gz.

    python3 benches/peers/op_cases.py --out crates/bench/golden/ops_more.jsonl.gz

A line is one case: operator, attributes, inputs, outputs, the gradients fed into outputs and those of the inputs that follow.
Inputs are f32; PyTorch computes in f64, and results are rounded to f32. Sizes are odd where they can be; there are ties,
points at kinks, ignored labels and padded ids.
"""

import argparse
import gzip
import json
import math

import torch
import torch.nn.functional as F

CASES = []
GENERATOR = torch.Generator().manual_seed(20)


def floats(*shape, scale=1.0):
    return (torch.randn(shape, generator=GENERATOR) * scale).float()


def integers(below, *shape):
    return torch.randint(0, below, shape, generator=GENERATOR)


def bools(*shape, share=0.5):
    return torch.rand(shape, generator=GENERATOR) < share


def tensor(x):
    x = x.detach()
    if x.dtype == torch.bool:
        return {"dtype": "bool", "shape": list(x.shape), "data": x.int().flatten().tolist()}
    if x.dtype == torch.int64:
        return {"dtype": "i64", "shape": list(x.shape), "data": x.flatten().tolist()}
    # The shortest decimals that f32 reads back unchanged.
    data = [float(f"{value:.9g}") for value in x.float().flatten().tolist()]
    return {"dtype": "f32", "shape": list(x.shape), "data": data}


def case(op, attrs, inputs, compute, fixed=(), outputs=("y",)):
    """Adds a case. `compute` takes the inputs in f64 by name and gives one result, or as many as `outputs`. Inputs named in
    `fixed` have no gradient."""
    wide, leaves = {}, {}
    for name, x in inputs.items():
        wide[name] = x.double() if x.dtype == torch.float32 else x
        if x.dtype == torch.float32 and name not in fixed:
            leaves[name] = wide[name].requires_grad_()
    results = compute(**wide)
    results = (results,) if isinstance(results, torch.Tensor) else tuple(results)
    given = {name: floats(*y.shape) for name, y in zip(outputs, results) if y.is_floating_point()}
    loss = sum((y * given[name].double()).sum() for name, y in zip(outputs, results) if name in given)
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True) if leaves else ()
    count = sum(1 for other in CASES if other["op"] == op)
    CASES.append(
        {
            "id": f"more-{op}-{count}",
            "op": op,
            "attrs": attrs,
            "inputs": {name: tensor(x) for name, x in inputs.items()},
            "outputs": {name: tensor(y) for name, y in zip(outputs, results)},
            "output_grads": {name: tensor(x) for name, x in given.items()},
            "input_grads": {
                name: tensor(torch.zeros_like(leaves[name]) if grad is None else grad)
                for name, grad in zip(leaves, grads)
            },
        }
    )


def f32(value):
    """The nearest f32: what an attribute is."""
    return torch.tensor(value, dtype=torch.float32).item()


def unary():
    points = torch.tensor([-6.5, -3.0, -1.0, -0.0, 0.0, 0.25, 2.0, 3.0, 3.0001, 5.0, 21.5])
    kinds = [
        ({"kind": "clamp", "low": -1.0, "high": 2.0}, lambda x: x.clamp(-1.0, 2.0)),
        ({"kind": "clamp", "low": 0.0, "high": 3.0}, lambda x: x.clamp(0.0, 3.0)),
        ({"kind": "leaky_relu", "slope": 0.01}, lambda x: F.leaky_relu(x, f32(0.01))),
        ({"kind": "leaky_relu", "slope": 1.5}, lambda x: F.leaky_relu(x, 1.5)),
        ({"kind": "softplus", "beta": 1.0, "threshold": 20.0}, F.softplus),
        ({"kind": "softplus", "beta": 2.0, "threshold": 6.0}, lambda x: F.softplus(x, 2.0, 6.0)),
        ({"kind": "hard_swish"}, F.hardswish),
        ({"kind": "hard_sigmoid"}, F.hardsigmoid),
        ({"kind": "erf"}, torch.erf),
        ({"kind": "elu", "alpha": 0.3}, lambda x: F.elu(x, f32(0.3))),
        ({"kind": "elu"}, F.elu),
    ]
    for attrs, function in kinds:
        case("element_unary", attrs, {"input": points}, lambda input, f=function: f(input))
        case("element_unary", attrs, {"input": floats(3, 1, 7, scale=4.0)}, lambda input, f=function: f(input))


def choices():
    shapes = [
        ((5,), (5,), (5,)),
        ((3, 1), (7,), (3, 7)),
        ((3, 5), (), (3, 5)),
        ((), (3, 1), (1, 5)),
        ((2, 1, 3), (2, 5, 1), (3,)),
        ((1, 4, 1), (3, 4, 5), (3, 1, 1)),
        ((7, 9), (7, 9), ()),
        ((2, 3, 1, 1), (1, 3, 5, 2), (2, 1, 5, 2)),
    ]
    for c, a, b in shapes:
        inputs = {"condition": bools(*c), "lhs": floats(*a), "rhs": floats(*b)}
        case("where", {}, inputs, lambda condition, lhs, rhs: torch.where(condition, lhs, rhs))
    kinds = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}
    for kind, function in kinds.items():
        # A few values, so that many are equal.
        inputs = {"lhs": integers(3, 5, 1).float(), "rhs": integers(3, 7).float()}
        case("compare", {"kind": kind}, inputs, lambda lhs, rhs, f=function: f(lhs, rhs), ("lhs", "rhs"))
        case("compare", {"kind": kind, "scalar": 1}, {"lhs": integers(3, 9)}, lambda lhs, f=function: f(lhs, 1))


def norms():
    for shape, axes in [((3, 5), 1), ((1, 7), 1), ((2, 3, 4), 2), ((2, 5, 3), 1), ((9,), 1), ((2, 1, 3, 5), 3), ((4, 33), 1), ((1, 1), 1)]:
        inputs = {"input": floats(*shape), "gamma": floats(*shape[-axes:])}
        attrs = {"axes": list(range(len(shape) - axes, len(shape))), "eps": 1e-5}
        eps = f32(1e-5)
        case("layer_norm", attrs, inputs, lambda input, gamma: F.layer_norm(input, gamma.shape, gamma, None, eps))


def embeddings():
    for shape, vocab, width, padding in [((7,), 5, 3, 2), ((2, 3), 4, 5, 0), ((3, 1, 5), 3, 2, 2), ((1,), 1, 3, 0)]:
        ids = integers(vocab, *shape)
        ids.view(-1)[0] = padding
        attrs = {"aggregate": "none", "padding_idx": padding}
        case("embedding", attrs, {"input": ids, "weight": floats(vocab, width)},
             lambda input, weight, p=padding: F.embedding(input, weight, padding_idx=p))
    for shape, vocab, width, padding in [((5, 3), 4, 3, 1), ((3, 7), 2, 5, 0), ((1, 4), 9, 1, 8), ((2, 2), 3, 3, 1)]:
        ids = integers(vocab, *shape)
        # One bag has nothing but the padding id.
        ids[0, :] = padding
        attrs = {"aggregate": "sum", "padding_idx": padding}
        case("embedding", attrs, {"input": ids, "weight": floats(vocab, width)},
             lambda input, weight, p=padding: F.embedding_bag(input, weight, mode="sum", padding_idx=p))


def losses():
    settings = [
        (5, 3, 0.1, False), (7, 1, 0.3, True), (1, 9, 0.0, True), (9, 6, 0.25, True),
        (4, 17, 1.0, False), (3, 2, 0.5, True), (6, 8, 0.1, False), (8, 5, 0.0, True),
    ]
    for rows, classes, smoothing, weighted in settings:
        labels = integers(classes, rows)
        if rows > 3:
            labels[1::3] = -100
        inputs = {"logits": floats(rows, classes, scale=3.0), "labels": labels}
        if weighted:
            inputs["weights"] = floats(classes).abs() + 0.1
        smooth = f32(smoothing)
        case(
            "cross_entropy",
            {"ignore_index": -100, "reduction": "mean", "label_smoothing": smoothing},
            inputs,
            lambda logits, labels, weights=None, s=smooth: F.cross_entropy(logits, labels, weights, label_smoothing=s),
            ("weights",),
            ("loss",),
        )
    for rows, classes in [(3, 5), (1, 7), (9, 2)]:
        labels = F.softmax(floats(rows, classes), 1)
        case("dense_cross_entropy", {"reduction": "mean"}, {"logits": floats(rows, classes, scale=30.0), "labels": labels},
             lambda logits, labels: F.cross_entropy(logits, labels), ("labels",), ("loss",))


def rows():
    shapes = [((5, 3), 0, (7,)), ((4, 3, 2), 1, (2, 3)), ((3, 5), 1, ()), ((6,), 0, (9,)),
              ((2, 3, 7), 2, (5,)), ((1, 4), 0, (3, 1)), ((3, 4, 5), 0, (8,)), ((2, 9, 1), 1, (4, 2))]
    for shape, dim, index in shapes:
        # A few rows only, so that some are chosen often and others never.
        ids = integers(max(1, shape[dim] - 1), *index)
        case("gather_rows", {"dim": dim}, {"input": floats(*shape), "index": ids},
             lambda input, index, d=dim: input.index_select(d, index.flatten()).unflatten(d, index.shape or (1,))
             .reshape(input.shape[:d] + index.shape + input.shape[d + 1 :]))
    for shape, dim, size in [((7, 3), 0, 5), ((2, 5, 3), 1, 2), ((9,), 0, 4), ((3, 4, 5), 2, 7),
                             ((8, 2), 0, 3), ((1, 6), 1, 1), ((4, 3, 2), 0, 9), ((2, 7, 1), 1, 3)]:
        ids = integers(size, shape[dim])
        case("scatter_add", {"dim": dim, "size": size}, {"input": floats(*shape), "index": ids},
             lambda input, index, d=dim, n=size: torch.zeros(
                 input.shape[:d] + (n,) + input.shape[d + 1 :], dtype=torch.float64).index_add(d, index, input))


def tops():
    for shape, k in [((5, 7), 3), ((4,), 4), ((2, 3, 9), 1), ((6, 5), 5)]:
        # A few values only: of equal ones the first comes first, which PyTorch's topk does not promise.
        x = integers(4, *shape).float()
        case("topk", {"k": k, "sorted": True}, {"input": x}, lambda input, k=k: tuple(
            part[..., :k] for part in reversed(torch.sort(input, dim=-1, descending=True, stable=True))),
            (), ("indices", "values"))


def experts():
    activations = {"silu": F.silu, "gelu_erf": F.gelu, "relu": F.relu}
    settings = [
        # rows, width, hidden, experts, k, activation, gated
        ((5,), 3, 7, 4, 2, "silu", True), ((2, 3), 4, 5, 3, 2, "silu", True), ((7,), 5, 3, 2, 1, "relu", False),
        ((3,), 1, 9, 5, 3, "gelu_erf", False), ((9,), 6, 4, 8, 2, "silu", True), ((1,), 4, 4, 1, 1, "silu", False),
        ((4, 1), 3, 5, 6, 4, "gelu_erf", True), ((11,), 8, 6, 3, 3, "relu", True),
    ]
    for rows, width, hidden, count, k, name, gated in settings:
        # Different experts of a row, and some expert that nobody chooses.
        routes = torch.rand((*rows, count), generator=GENERATOR)
        ids = routes.topk(k).indices if count == k else routes[..., : max(k, count - 1)].topk(k).indices
        inputs = {"input": floats(*rows, width), "ids": ids, "weights": floats(*rows, k),
                  "up": floats(count, hidden, width), "down": floats(count, width, hidden)}
        if gated:
            inputs["gate"] = floats(count, hidden, width)

        def compute(input, ids, weights, up, down, gate=None, act=activations[name]):
            u = (up[ids] @ input[..., None, :, None])[..., 0]
            h = act(u) if gate is None else act((gate[ids] @ input[..., None, :, None])[..., 0]) * u
            z = (down[ids] @ h[..., None])[..., 0]
            return (z * weights[..., None]).sum(-2)

        case("experts", {"activation": name}, inputs, compute)


def capacities():
    """Experts that take so many routes of a sample, in order; the others are left out."""
    settings = [
        # rows, width, hidden, experts, k, capacity
        ((2, 5), 3, 4, 3, 2, 3), ((3, 4), 4, 5, 4, 2, 1), ((9,), 3, 5, 3, 1, 2), ((7,), 5, 2, 2, 2, 4), ((1, 6), 2, 3, 5, 3, 2),
        ((4, 3), 3, 3, 2, 1, 3), ((2, 2, 3), 4, 3, 3, 2, 2), ((5,), 2, 3, 4, 2, 9),
    ]
    for rows, width, hidden, count, k, capacity in settings:
        ids = torch.rand((*rows, count), generator=GENERATOR).topk(k).indices
        inputs = {"input": floats(*rows, width), "ids": ids, "weights": floats(*rows, k),
                  "up": floats(count, hidden, width), "down": floats(count, width, hidden)}

        def compute(input, ids, weights, up, down, samples=rows[0] if len(rows) > 1 else 1):
            routes = F.one_hot(ids.reshape(samples, -1), up.shape[0])
            places = (routes.cumsum(1) * routes).sum(-1).reshape(ids.shape)
            h = F.silu((up[ids] @ input[..., None, :, None])[..., 0])
            z = (down[ids] @ h[..., None])[..., 0]
            return (z * (weights * (places <= capacity))[..., None]).sum(-2)

        case("experts", {"activation": "silu", "capacity": capacity}, inputs, compute)


def attend(query, key, value, bias=None, *, causal, scale, window=0, softcap=0.0):
    """The definition; PyTorch's own attention has neither window nor softcap, and is compared with below."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(query.shape[2])[:, None]
    j = torch.arange(key.shape[2])[None, :]
    shown = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
    if causal:
        shown = shown & (j <= i)
    if window:
        shown = shown & ((i - j).abs() < window)
    if bias is not None and bias.dtype == torch.bool:
        shown = shown & bias
    elif bias is not None:
        scores = scores + bias
    shown = shown.expand_as(scores)
    scores = scores.masked_fill(~shown, -math.inf)
    seen = (scores > -math.inf).any(-1, keepdim=True)
    # A row that sees nothing gives zeros, and no gradient.
    return torch.where(seen, torch.softmax(torch.where(seen, scores, 0.0), -1), 0.0) @ value


def attentions():
    settings = [
        # batch, heads, key heads, queries, keys, dim, value dim, attributes, shape of the bias
        (2, 2, 1, 5, 5, 3, 4, {"causal": True}, None),
        (1, 3, 3, 4, 7, 5, 5, {"causal": True}, None),
        (1, 2, 1, 7, 3, 2, 2, {"causal": True}, None),
        (2, 2, 2, 9, 9, 4, 4, {"window": 3}, None),
        (1, 4, 2, 11, 11, 3, 3, {"causal": True, "window": 4, "softcap": 1.5}, None),
        (2, 1, 1, 5, 6, 4, 1, {"softcap": 0.7}, None),
        (3, 2, 1, 5, 5, 3, 3, {"mask": True}, (3, 1, 5, 5)),
        (2, 2, 2, 3, 7, 2, 3, {"mask": True}, (1, 1, 3, 7)),
        (2, 4, 2, 4, 6, 3, 3, {"mask": True}, (2, 1, 1, 6)),
        (2, 2, 2, 5, 5, 3, 3, {"mask": True, "causal": True}, (1, 2, 5, 5)),
        (2, 2, 1, 3, 5, 4, 4, {}, (2, 2, 3, 5)),
        (3, 2, 2, 5, 4, 3, 2, {}, (1, 2, 5, 4)),
        (2, 3, 1, 4, 4, 2, 2, {"causal": True, "softcap": 2.0}, (2, 1, 4, 4)),
        (2, 1, 1, 1, 9, 3, 3, {}, (1, 1, 1, 9)),
    ]
    for batch, heads, key_heads, queries, keys, dim, value_dim, attrs, shape in settings:
        attrs = {"causal": False, "scale": 0.5, **attrs}
        inputs = {
            "query": floats(batch, heads, queries, dim),
            "key": floats(batch, key_heads, keys, dim),
            "value": floats(batch, key_heads, keys, value_dim),
        }
        if shape is not None:
            inputs["bias"] = bools(*shape, share=0.6) if attrs.get("mask") else floats(*shape)
        if attrs.get("mask"):
            inputs["bias"][0, 0, 0, :] = False
        numbers = {key: f32(value) if key in ("scale", "softcap") else value for key, value in attrs.items() if key != "mask"}
        case("attention", attrs, inputs, lambda query, key, value, bias=None, a=numbers: attend(query, key, value, bias, **a))
        if not attrs.get("window") and not attrs.get("softcap"):
            compare_with_torch(inputs, attrs)


def compare_with_torch(inputs, attrs):
    """PyTorch's attention gives what `attend` gives, rows that see nothing included."""
    q, k, v = (inputs[name].double() for name in ("query", "key", "value"))
    bias = inputs.get("bias")
    mask = bias if bias is None or bias.dtype == torch.bool else bias.double()
    if attrs["causal"] and mask is not None:
        lower = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        mask = mask & lower if mask.dtype == torch.bool else mask.masked_fill(~lower, -math.inf)
    causal = attrs["causal"] and mask is None
    theirs = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=0.5, enable_gqa=True)
    ours = attend(q, k, v, None if bias is None else bias if bias.dtype == torch.bool else bias.double(),
                  causal=attrs["causal"], scale=0.5)
    assert (theirs - ours).abs().max() < 1e-12, attrs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    path = parser.parse_args().out
    for group in GROUPS:
        group()
    text = "".join(json.dumps(line) + "\n" for line in CASES)
    # No time of writing in the file: the same cases are the same bytes.
    with open(path, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write(text.encode())
    print(f"{len(CASES)} cases, {len(text)} bytes")


GROUPS = [unary, choices, norms, embeddings, losses, rows, tops, experts, attentions, capacities]

if __name__ == "__main__":
    main()
