"""Operator cases of convolutions, pools and resizing, computed by PyTorch in double precision from single-precision inputs.

    python benches/peers/conv_cases.py crates/bench/golden/conv.jsonl.gz

One JSON object a line, as in ops.jsonl.gz. Tensors have PyTorch's layout [batch, channels, space...]. `padding` has two numbers
for each dimension of space: in front and behind.
"""

import gzip
import json
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(20)
CASES = []


def tensor(x):
    data = [float(v) for v in x.detach().double().reshape(-1)]
    return {"dtype": "f32", "shape": list(x.shape), "data": [round(v, 6) for v in data]}


def sample(*shape, ties=False):
    """Multiples of 1/64, which are short to write; of 1/2 if equal ones are wanted."""
    step = 2 if ties else 64
    return torch.round(torch.randn(*shape).float() * step) / step


def add(op, attrs, inputs, function):
    leaves = {name: x.double().requires_grad_() for name, x in inputs.items()}
    y = function(**leaves)
    given = sample(*y.shape)
    y.backward(given.double())
    number = sum(case["op"] == op for case in CASES)
    CASES.append({
        "id": f"{op}-{number}",
        "op": op,
        "attrs": attrs,
        "inputs": {name: tensor(x) for name, x in inputs.items()},
        "outputs": {"output": tensor(y)},
        "output_grads": {"output": tensor(given)},
        "input_grads": {name: tensor(x.grad) for name, x in leaves.items()},
    })


def pad(x, padding, value=0.0):
    """`padding` is by dimension; torch's list begins with the last one."""
    pairs = [padding[i:i + 2] for i in range(0, len(padding), 2)]
    return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=value)


def conv(batch, channels, space, outputs, kernel, stride=None, padding=None, dilation=None, groups=1, bias=True):
    dims = len(space)
    stride, dilation, padding = stride or [1] * dims, dilation or [1] * dims, padding or [0] * 2 * dims
    function = [F.conv1d, F.conv2d, F.conv3d][dims - 1]
    inputs = {"input": sample(batch, channels, *space), "filter": sample(outputs, channels // groups, *kernel)}
    if bias:
        inputs["bias"] = sample(outputs)
    attrs = dict(stride=stride, padding=padding, dilation=dilation, groups=groups, adjoint=False,
                 output_padding=[], use_bias=bias)

    def run(input, filter, bias=None):
        return function(pad(input, padding), filter, bias, stride, 0, dilation, groups)

    add(f"conv{dims}d_more", attrs, inputs, run)


def adjoint(batch, channels, space, outputs, kernel, stride=None, padding=None, dilation=None, groups=1,
            output_padding=None, bias=True):
    dims = len(space)
    stride, dilation = stride or [1] * dims, dilation or [1] * dims
    padding, output_padding = padding or [0] * dims, output_padding or [0] * dims
    function = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][dims - 1]
    inputs = {"input": sample(batch, channels, *space), "filter": sample(channels, outputs // groups, *kernel)}
    if bias:
        inputs["bias"] = sample(outputs)
    attrs = dict(stride=stride, padding=[n for n in padding for _ in range(2)], dilation=dilation, groups=groups,
                 adjoint=True, output_padding=output_padding, use_bias=bias)

    def run(input, filter, bias=None):
        return function(input, filter, bias, stride, padding, output_padding, groups, dilation)

    add(f"conv{dims}d_adjoint", attrs, inputs, run)


def pool(kind, batch, channels, space, kernel, stride=None, padding=None, ceil=False, count_padding=True, ties=False):
    dims = len(space)
    attrs = dict(kind=kind, kernel=kernel, stride=stride or [], ceil=ceil, count_padding=count_padding, adaptive=[],
                 padding=[n for n in padding or [] for _ in range(2)])

    def run(input):
        if kind == "max":
            function = [F.max_pool1d, F.max_pool2d, F.max_pool3d][dims - 1]
            return function(input, kernel, stride or kernel, padding or 0, ceil_mode=ceil)
        function = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][dims - 1]
        return function(input, kernel, stride or kernel, padding or 0, ceil, count_padding)

    add(f"pool{dims}d_more", attrs, {"input": sample(batch, channels, *space, ties=ties)}, run)


def adaptive(kind, batch, channels, space, to, ties=False):
    dims = len(space)
    attrs = dict(kind=kind, kernel=[], stride=[], padding=[], ceil=False, count_padding=True, adaptive=to)
    names = {"max": "adaptive_max_pool", "avg": "adaptive_avg_pool"}
    function = getattr(F, f"{names[kind]}{dims}d")
    add(f"pool{dims}d_adaptive", attrs, {"input": sample(batch, channels, *space, ties=ties)},
        lambda input: function(input, to))


def resize(kind, batch, channels, space, size=None, scale=None, align=False):
    mode = ["linear", "bilinear", "trilinear"][len(space) - 1] if kind == "linear" else kind.replace("_", "-")
    attrs = dict(kind=kind, align=align, size=size or [], scale=scale or [])
    add("resize", attrs, {"input": sample(batch, channels, *space)},
        lambda input: F.interpolate(input, size, scale, mode, align if kind == "linear" else None))


def build():
    for groups, channels, outputs in [(1, 3, 5), (2, 4, 6), (4, 4, 8), (1, 8, 4)]:
        conv(2, channels, [9], outputs, [3], groups=groups, padding=[1, 1])
        conv(2, channels, [11], outputs, [4], [2], [2, 1], [2], groups, bias=False)
        conv(2, channels, [7, 6], outputs, [3, 3], padding=[1, 1, 1, 1], groups=groups)
        conv(1, channels, [8, 9], outputs, [2, 3], [2, 3], [0, 1, 2, 0], [2, 1], groups)
        conv(1, channels, [4, 5, 4], outputs, [2, 3, 2], padding=[1, 0, 1, 1, 0, 0], groups=groups)
        conv(2, channels, [5, 4, 6], outputs, [3, 1, 2], [2, 1, 2], [1] * 6, [1, 2, 2], groups, bias=False)
    conv(2, 3, [12, 12], 4, [7, 7], [2, 2], [3, 3, 3, 3])
    conv(2, 3, [8, 8], 6, [4, 4], [4, 4])
    conv(2, 6, [7, 7], 6, [3, 3], [2, 2], [1] * 4, groups=6)
    conv(1, 5, [6, 6], 10, [3, 3], [1, 1], [2] * 4, [2, 2], groups=5)
    conv(2, 16, [5, 5], 16, [3, 3], padding=[1] * 4)
    conv(2, 8, [4, 4], 9, [1, 1], [2, 2])
    for groups, channels, outputs in [(1, 4, 3), (2, 4, 6)]:
        adjoint(2, channels, [5], outputs, [4], [2], [1], groups=groups)
        adjoint(2, channels, [4], outputs, [3], [3], [0], [2], groups, [1], bias=False)
        adjoint(2, channels, [4, 3], outputs, [3, 3], [2, 2], [1, 1], groups=groups, output_padding=[1, 1])
        adjoint(1, channels, [3, 5], outputs, [2, 4], [1, 3], [0, 2], [2, 1], groups)
        adjoint(1, channels, [2, 3, 2], outputs, [2, 2, 3], [2, 1, 2], [0, 1, 1], groups=groups)
    adjoint(2, 6, [4, 4], 6, [3, 3], [2, 2], [1, 1], groups=6, output_padding=[1, 0])
    adjoint(2, 4, [4, 4], 2, [2, 2], [2, 2])
    for kind in ["max", "avg"]:
        for ties in [False, True]:
            pool(kind, 2, 3, [9], [3], [2], [1], ties=ties)
            pool(kind, 2, 2, [8], [3], [2], ceil=True, ties=ties)
            pool(kind, 2, 3, [7, 8], [3, 2], [2, 1], [1, 0], ties=ties)
            pool(kind, 1, 2, [6, 7], [2, 3], [2, 2], [1, 1], True, ties, ties)
            pool(kind, 1, 2, [4, 5, 6], [2, 3, 2], [1, 2, 2], [1, 1, 0], ties=ties)
            pool(kind, 1, 2, [5, 4, 5], [3, 2, 2], [2, 2, 3], [1, 0, 1], True, False, ties)
        adaptive(kind, 2, 3, [7], [3])
        adaptive(kind, 2, 3, [7, 5], [3, 5], True)
        adaptive(kind, 2, 2, [6, 8], [1, 1])
        adaptive(kind, 1, 2, [3, 4], [5, 2])
        adaptive(kind, 1, 2, [5, 4, 6], [2, 3, 4])
    pool("avg", 2, 2, [5, 5], [3, 3], [2, 2], [1, 1], True, False)
    for kind in ["nearest", "nearest_exact", "linear"]:
        resize(kind, 2, 3, [5], [8])
        resize(kind, 2, 2, [6, 5], [4, 11])
        resize(kind, 1, 3, [4, 4], scale=[2.0, 2.0])
        resize(kind, 1, 2, [5, 7], scale=[1.6, 0.7])
        resize(kind, 1, 2, [3, 4, 2], [5, 3, 4])
    resize("linear", 2, 2, [4, 5], [7, 3], align=True)
    resize("linear", 1, 2, [3], [1], align=True)
    resize("linear", 1, 2, [4, 4], scale=[2.3, 1.5], align=True)


build()
with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as file:
    file.write("".join(json.dumps(case) + "\n" for case in CASES).encode())
print(len(CASES), "cases")
