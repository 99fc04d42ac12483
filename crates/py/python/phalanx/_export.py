"""Exports a PyTorch module as a graph file: JSON of the format ``phalanx.aten/1`` and its tensors as safetensors.

What needs torch happens here: export, decomposition, folding of constants, ties, and the part of the graph that runs on
the host. What a graph means for Phalanx is decided by the Rust crate ``import``, which reads what this module writes.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ._aten import Lowered, lowered
from ._experts import experts_as_one_node
from ._rebatch import rebatched

VERSION = "phalanx.aten/1"


class ExportError(Exception):
    """A module that cannot be exported; the message says why and names a way out."""


class ExportedModule:
    """What a module was exported to.

    ``json`` and ``tensors`` are the two files. ``prologue(args, kwargs)`` turns the arguments of a call into the arrays
    that a step is fed, by name: the arguments themselves and what the host computes from them.
    """

    def __init__(
        self,
        document: dict[str, Any],
        stored: dict[str, torch.Tensor],
        names: list[str],
        host: Callable[..., Any],
        spec: Any,
    ):
        self.document = document
        self.json = json.dumps(document, allow_nan=False).encode()
        self.stored = stored
        self.tensors = safetensors(stored)
        self.inputs = names
        self._host = host
        self._spec = spec

    def prologue(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """The arrays that a step is fed, by name, from the arguments of a call."""
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
        if spec != self._spec:
            raise ValueError(f"the module was exported with other arguments: {self._spec}, not {spec}")
        tensors = [leaf for leaf in leaves if _is_tensor(leaf)]
        if len(tensors) != len(self.inputs):
            raise ValueError(f"{len(self.inputs)} tensors were exported as arguments, {len(tensors)} are given")
        given = {name: torch.as_tensor(tensor).detach() for name, tensor in zip(self.inputs, tensors)}
        feeds = {leaf["name"] for leaf in self.document["leaves"] if leaf["role"] in ("input", "computed")}
        computed = self._host(given)
        return {name: np.ascontiguousarray(t.numpy()) for name, t in {**given, **computed}.items() if name in feeds}

    def write_feeds(self, path: str, batches: Sequence[Sequence[Any]]) -> None:
        """Writes what ``phalanx train --feeds`` reads: the arguments of several calls, one batch behind the other."""
        fed = [self.prologue(args) for args in batches]
        rows = {name: torch.from_numpy(np.concatenate([feeds[name] for feeds in fed])) for name in fed[0]}
        with open(path, "wb") as file:
            file.write(safetensors(rows))

    def write(self, path: str) -> None:
        """Writes ``path`` and, beside it, ``path`` with ``.safetensors`` for ``.json``."""
        beside = path.removesuffix(".json") + ".safetensors"
        with open(path, "wb") as file:
            file.write(self.json)
        with open(beside, "wb") as file:
            file.write(self.tensors)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray))


class _Step(torch.nn.Module):
    """A module and its loss as one function of a flat list of tensors."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any] | None, spec: Any, fixed: list[Any]):
        super().__init__()
        self.module = module
        self._loss = loss
        self._spec = spec
        self._fixed = fixed

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        given = iter(tensors)
        leaves = [next(given) if value is _TENSOR else value for value in self._fixed]
        (args, kwargs), targets = pytree.tree_unflatten(leaves, self._spec)
        output = self.module(*args, **kwargs)
        if self._loss is not None:
            return self._loss(output, *targets), _named(output)
        return _loss_of(output)


_TENSOR = object()


def _named(output: Any) -> dict[str, torch.Tensor]:
    """The tensors of a module's result by name."""
    if isinstance(output, torch.Tensor):
        return {"output": output}
    if isinstance(output, Mapping):
        return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
    if isinstance(output, (tuple, list)):
        return {f"output.{i}": value for i, value in enumerate(output) if isinstance(value, torch.Tensor)}
    return {}


def _loss_of(output: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss that a module returns, and what it returns beside it."""
    named = _named(output)
    for name in ("loss", "output", "output.0"):
        value = named.get(name)
        if value is not None and value.dim() == 0:
            return value, {key: other for key, other in named.items() if key != name}
    kind = type(output).__name__
    raise ExportError(
        f"the module returns {kind}, not a scalar loss: return the loss, a dict with `loss`, "
        "or pass loss=fn, which is called with the result and the targets"
    )


def _names(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A name for each tensor among the arguments: that of the parameter of ``forward``."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ExportError(f"the example does not fit the module's forward: {error}") from None
    names: list[str] = []
    for name, value in bound.items():
        leaves = [leaf for leaf in pytree.tree_leaves(value) if _is_tensor(leaf)]
        if isinstance(value, dict) and name not in kwargs:
            names += [key for key, leaf in value.items() for _ in pytree.tree_leaves(leaf) if _is_tensor(leaf)]
        else:
            names += [name] if len(leaves) == 1 else [f"{name}.{i}" for i in range(len(leaves))]
    return names


def _check(module: torch.nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type != "cpu":
            raise ExportError(f"`{name}` is on {tensor.device}: move the module to the CPU first, `module.cpu()`")
        if tensor.is_sparse or tensor.layout != torch.strided:
            raise ExportError(f"`{name}` is {tensor.layout}: use dense tensors")
        if tensor.is_quantized:
            raise ExportError(f"`{name}` is quantized: train the module with float32 weights")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ExportError(f"`{name}` is {tensor.dtype}: use `module.float()`; precision= of the Trainer rounds products")
        if tensor.is_complex():
            raise ExportError(f"`{name}` is {tensor.dtype}: keep real and imaginary parts as two tensors")


@contextlib.contextmanager
def _mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    before = {child: child.training for child in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for child, mode in before.items():
            child.training = mode


def export(
    module: torch.nn.Module,
    example: Sequence[Any] | Mapping[str, Any],
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    batch: int | None = None,
    host: str = "allow",
    eval: bool = True,
) -> ExportedModule:
    """Exports ``module``, called with ``example``: a sequence of arguments, or a mapping of keyword arguments.

    The module returns its scalar loss, alone or as ``loss`` of a dict; or ``loss(result, *targets)`` is one. Weights are
    those the module has now. ``batch`` is the number of samples of a step, if it is not that of the example. With
    ``host="forbid"`` nothing may be left to compute on the host. ``eval=False`` leaves out the graph for evaluation.
    """
    if host not in ("allow", "forbid"):
        raise ExportError(f"host={host!r}: use 'allow' or 'forbid'")
    args, kwargs = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
    if targets and loss is None:
        raise ExportError("targets are given but no loss: pass loss=fn")
    _check(module)
    names = _names(module, args, kwargs)
    names += ["target"] if len(targets) == 1 else [f"target.{i}" for i in range(len(targets))]
    leaves, spec = pytree.tree_flatten(((args, kwargs), tuple(targets)))
    fixed = [_TENSOR if _is_tensor(leaf) else leaf for leaf in leaves]
    tensors = [torch.as_tensor(leaf) for leaf in leaves if _is_tensor(leaf)]
    for name, tensor in zip(names, tensors):
        if tensor.device.type != "cpu":
            raise ExportError(f"argument `{name}` is on {tensor.device}: pass tensors on the CPU")
    step = _Step(module, loss, spec, fixed)
    sections: dict[str, Lowered] = {}
    for section, training in [("train", True), ("eval", False)][: 2 if eval else 1]:
        with _mode(module, training), experts_as_one_node(module):
            # Evaluation only reads what training changes, and must not take it for constant.
            states = {name for lower in sections.values() for name, role in lower.roles.items() if role == "state"}
            try:
                sections[section] = _exported(step, names, tensors, batch, states)
            except ExportError:
                # A module may return no loss when it is evaluated: then there is no such graph.
                if training:
                    raise
    if "eval" in sections:
        sections["train"].keep_outputs = False
    document, stored = _document(module, names, tensors, batch, sections)
    computed = [leaf["name"] for leaf in document["leaves"] if leaf["role"] == "computed"]
    if computed and host == "forbid":
        lines = sorted({line for lower in sections.values() for line in lower.host_lines()})
        raise ExportError("host='forbid', but these lines compute integers on the host: " + "; ".join(lines))

    def prologue(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        computed: dict[str, torch.Tensor] = {}
        for lower in sections.values():
            computed.update(lower.host_values(given))
        return computed

    call_spec = pytree.tree_flatten((args + tuple(targets), kwargs))[1]
    return ExportedModule(document, stored, names, prologue, call_spec)


def _exported(
    step: _Step, names: list[str], tensors: list[torch.Tensor], batch: int | None, states: set[str]
) -> Lowered:
    first = lowered(_program(step, tensors), names, states)
    if batch is None or not tensors or batch == tensors[0].shape[0]:
        return first
    size = tensors[0].shape[0]
    larger = [torch.cat([t, t[:1]]) if t.dim() and t.shape[0] == size else t for t in tensors]
    second = lowered(_program(step, larger), names, states)
    return rebatched(first, second, size, batch)


def _program(step: _Step, tensors: list[torch.Tensor]) -> Any:
    reasons = []
    for strict in (False, True):
        try:
            with _own_gradients_refused():
                return torch.export.export(step, tuple(tensors), strict=strict)
        except ExportError:
            raise
        except Exception as error:  # torch.export raises many kinds
            reasons.append(_first_lines(error))
    raise ExportError(
        f"torch.export cannot export this module: {reasons[0]}\n(strict: {reasons[1]})\n"
        "A value that depends on data cannot decide shapes or branches: use torch.where and fixed shapes"
    )


@contextlib.contextmanager
def _own_gradients_refused() -> Iterator[None]:
    """Refuses gradients written by hand: an exported graph has only what the forward pass computes."""
    before = torch.autograd.Function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith("torch."):
            return before.__get__(None, cls)(*args, **kwargs)
        place = ""
        for frame in inspect.stack()[1:]:
            if f"{os.sep}torch{os.sep}" not in frame.filename:
                place = f"{os.path.basename(frame.filename)}:{frame.lineno} "
                break
        raise ExportError(
            f"{place}`{cls.__name__}` is a torch.autograd.Function: its backward pass cannot be exported; write the "
            "forward pass with operators that PyTorch differentiates"
        )

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = before  # type: ignore[method-assign, assignment]


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    user = [line for line in lines if line.startswith("File ") and "site-packages/torch/" not in line]
    return " ".join(lines[:2])[:400] + (f" at {user[-1]}" if user else "")


def _document(
    module: torch.nn.Module,
    names: list[str],
    tensors: list[torch.Tensor],
    batch: int | None,
    sections: dict[str, Lowered],
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The JSON document, and the tensors that lie beside it."""
    stored: dict[str, torch.Tensor] = {}
    leaves: list[dict[str, Any]] = []
    size = tensors[0].shape[0] if tensors and tensors[0].dim() else None

    def leaf(name: str, tensor: torch.Tensor, role: str, **more: Any) -> None:
        shape = list(tensor.shape)
        if role in ("input", "computed") and batch is not None and shape and shape[0] == size:
            shape[0] = batch
        leaves.append({"name": name, "dtype": dtype_word(tensor.dtype), "shape": shape, "role": role, **more})

    used = {name for lower in sections.values() for name in lower.inputs_used}
    for name, tensor in zip(names, tensors):
        if name in used:
            leaf(name, tensor, "input")
    for lower in sections.values():
        for name, tensor in lower.computed.items():
            if all(other["name"] != name for other in leaves):
                leaf(name, tensor, "computed")
    roles: dict[str, str] = {}
    for lower in sections.values():
        roles = {**lower.roles, **roles}
    aliases = _aliases(module)
    for name, tensor in [*module.named_parameters(), *_buffers(module)]:
        role = roles.get(name, "fixed" if not tensor.requires_grad else "param")
        extra = {"aliases": aliases[name]} if aliases.get(name) else {}
        leaf(name, tensor, role, **extra)
        stored[name] = tensor.detach()
    document: dict[str, Any] = {"version": VERSION, "name": type(module).__name__, "leaves": leaves}
    count = 0
    for section, lower in sections.items():
        known: dict[str, str] = {}
        for key, tensor in lower.constants.items():
            same = next((n for n, t in stored.items() if n.startswith("constant.") and _same(t, tensor)), None)
            if same is None:
                same = f"constant.{count}"
                count += 1
                leaf(same, tensor, "constant")
                stored[same] = tensor.detach()
            known[key] = same
        document[section] = lower.section(known)
    return document, stored


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that a ``state_dict`` has."""
    kept = module.state_dict(keep_vars=True)
    return ((name, tensor) for name, tensor in module.named_buffers() if name in kept)


def _aliases(module: torch.nn.Module) -> dict[str, list[str]]:
    """Other names of each tensor, by its first one: ties are found by identity."""
    first: dict[int, str] = {}
    aliases: dict[str, list[str]] = {}
    every = [
        *module.named_parameters(remove_duplicate=False),
        *((n, b) for n, b in module.named_buffers(remove_duplicate=False)),
    ]
    for name, tensor in every:
        own = first.setdefault(id(tensor), name)
        if own != name:
            aliases.setdefault(own, []).append(name)
    return aliases


_WORDS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}


def dtype_word(dtype: torch.dtype) -> str:
    """What the format calls an element type."""
    return _WORDS.get(dtype, str(dtype).removeprefix("torch."))


def safetensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    header: dict[str, Any] = {}
    blobs: list[bytes] = []
    at = 0
    for name, tensor in tensors.items():
        word = dtype_word(tensor.dtype).upper()
        blob = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {"dtype": word, "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)
