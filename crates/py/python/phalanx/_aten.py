"""From an exported program to nodes: decomposed, constants folded, nothing left that does nothing."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Set
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

# Operators that stay whole. Names that a version of torch lacks are skipped.
KEPT = """
linear.default addmm.default baddbmm.default matmul.default einsum.default conv1d.default conv1d.padding conv2d.default
conv2d.padding conv3d.default conv3d.padding conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input
embedding.default embedding_bag.padding_idx layer_norm.default rms_norm.default group_norm.default batch_norm.default
instance_norm.default scaled_dot_product_attention.default softmax.int log_softmax.int gelu.default silu.default
leaky_relu.default elu.default softplus.default hardswish.default hardsigmoid.default relu6.default mish.default
log_sigmoid.default dropout.default max_pool1d.default max_pool2d.default max_pool3d.default avg_pool1d.default
avg_pool2d.default avg_pool3d.default adaptive_avg_pool1d.default adaptive_avg_pool2d.default
adaptive_avg_pool3d.default upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec
upsample_bilinear2d.vec upsample_linear1d.vec lstm.input gru.input cross_entropy_loss.default mse_loss.default
l1_loss.default binary_cross_entropy.default binary_cross_entropy_with_logits.default smooth_l1_loss.default
huber_loss.default kl_div.default nll_loss_nd.default soft_margin_loss.default split.Tensor chunk.default stack.default
roll.default cumsum.default masked_fill.Scalar var.correction std.correction logsumexp.default pixel_shuffle.default
""".split()

RANDOM = {
    "aten.native_dropout", "aten.dropout", "aten.bernoulli", "aten.rand_like", "aten.randn_like", "aten.rand",
    "aten.randn", "aten.randint", "aten.randperm", "aten.multinomial", "aten.normal", "aten.uniform",
}  # fmt: skip
COPIES = {"aten.clone", "aten.alias", "aten.detach", "aten.contiguous", "aten.lift_fresh_copy", "aten.alias_copy"}
SAME_IF_SAME_TYPE = {"aten._to_copy", "aten.to", "aten.expand", "aten.view", "aten.reshape", "aten.slice"}
# What the device does with integers and truth values as well.
ON_DEVICE = {
    "aten.view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.permute", "aten.transpose", "aten.slice",
    "aten.select", "aten.split", "aten.split_with_sizes", "aten.constant_pad_nd", "aten.eq", "aten.ne",
    "aten.lt", "aten.le", "aten.gt", "aten.ge", "getitem",
}  # fmt: skip
LEFT_OUT = {"device", "layout", "pin_memory", "memory_format", "generator", "non_blocking"}


def base(node: fx.Node) -> str:
    """The operator of a node without its overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.name().split(".")[0].replace("::", ".")
    return getattr(target, "__name__", str(target))


def table() -> Any:
    decompositions = torch.export.default_decompositions()
    for name in KEPT:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if op is not None:
            decompositions.pop(op, None)
    return decompositions


class Lowered:
    """The nodes of one graph, ready to be written."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.loss: dict[str, Any] = {}
        self.outputs: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []
        # What becomes of tensors of the module, by name.
        self.roles: dict[str, str] = {}
        # Folded constants that nodes read, by a name of this graph.
        self.constants: dict[str, torch.Tensor] = {}
        # Fed tensors that the host computes, with an example each.
        self.computed: dict[str, torch.Tensor] = {}
        self.inputs_used: set[str] = set()
        self.keep_outputs = True
        self._host: list[fx.Node] = []
        self._host_names: dict[fx.Node, str] = {}
        self._host_inputs: dict[str, fx.Node] = {}
        self._values: dict[fx.Node, Any] = {}
        self._resolve: Any = None

    def section(self, constants: dict[str, str]) -> dict[str, Any]:
        """The graph as the format has it; constants get these names."""

        def named(value: Any) -> Any:
            if isinstance(value, dict):
                if "v" in value and value["v"] in constants:
                    return {**value, "v": constants[value["v"]]}
                return {key: named(inner) for key, inner in value.items()}
            return [named(inner) for inner in value] if isinstance(value, list) else value

        section = {"nodes": [{**node, "args": named(node["args"])} for node in self.nodes], "loss": named(self.loss)}
        if self.outputs and self.keep_outputs:
            section["outputs"] = named(self.outputs)
        if self.updates:
            section["updates"] = named(self.updates)
        return section

    def host_lines(self) -> list[str]:
        return [f"{place[0]} `{place[1]}`" for place in map(source, self._host)]

    def host_values(self, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the host computes from the fed tensors."""
        values = dict(self._values)
        for name, node in self._host_inputs.items():
            values[node] = given[name]
        with torch.no_grad():
            for node in self._host:
                values[node] = run(node, values, self._resolve)
        return {name: values[node] for node, name in self._host_names.items()}


def run(node: fx.Node, values: dict[fx.Node, Any], resolve: Any) -> Any:
    """A node's result from the values of its arguments."""
    target = torch.ops.aten.reshape.default if node.target is torch.ops.aten.view.default else node.target
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda other: values[resolve(other)])
    return target(*args, **kwargs)


_HERE = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def source(node: fx.Node) -> tuple[str, str]:
    """The user's file and line, and what that line says."""
    frames = re.findall(r'File "([^"]+)", line (\d+)[^\n]*\n\s*([^\n]*)', node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_HERE) and not frame[0].endswith("_export.py")]
    own = own or [frame for frame in frames if not frame[0].endswith("_export.py")]
    if not own:
        return "", ""
    path, line, code = own[-1]
    return f"{os.path.basename(path)}:{line}", code.strip()


def check_shapes(node: fx.Node) -> None:
    """Refuses tensors whose extents depend on data."""
    value = node.meta.get("val")
    for tensor in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(tensor, torch.Tensor) and any(isinstance(extent, torch.SymInt) for extent in tensor.shape):
            line, code = source(node)
            where = f"{line} `{code}` ({base(node)})" if line else base(node)
            raise _problem(
                f"{where}: the shape of its result depends on data: use a mask of fixed shape and torch.where"
            )


def module_path(node: fx.Node) -> str:
    """The path of the module that a node belongs to."""
    stack = node.meta.get("nn_module_stack")
    path = list(stack.values())[-1][0] if stack else ""
    path = re.sub(r"^L\['self'\]\.?|^self\.?", "", path)
    path = re.sub(r"\._modules\['(\w+)'\]|\[(\d+)\]", lambda m: "." + (m[1] or m[2]), path)
    path = re.sub(r"@\d+", "", path)
    return re.sub(r"^module(\.|$)", "", path.strip("."))


def lowered(program: Any, names: list[str], states: Set[str] = frozenset()) -> Lowered:
    """The nodes of an exported program whose arguments are called ``names``; ``states`` are buffers that training changes."""
    return _Lowering(program.run_decompositions(table()), names, states).result


class _Lowering:
    def __init__(self, program: Any, names: list[str], states: Set[str]):
        self.program = program
        self.graph = program.graph
        self.states = states
        self.result = Lowered()
        self.result._resolve = self.resolve
        self.alias: dict[fx.Node, fx.Node] = {}
        self.constants: dict[fx.Node, Any] = {}
        self.leaves: dict[fx.Node, str] = {}
        self.fed: dict[fx.Node, str] = {}
        self.leave(names)
        self.fold()
        self.prune()
        self.split_host()
        self.write()

    def resolve(self, node: fx.Node) -> fx.Node:
        while node in self.alias:
            node = self.alias[node]
        return node

    def leave(self, names: list[str]) -> None:
        """What the program's inputs are."""
        signature = self.program.graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        by_name = {node.name: node for node in self.graph.nodes if node.op == "placeholder"}
        fed = iter(names)
        for spec in signature.input_specs:
            if isinstance(spec.arg, ConstantArgument):
                continue
            node, target = by_name[spec.arg.name], (spec.target or "").removeprefix("module.")
            if spec.kind == InputKind.USER_INPUT:
                self.fed[node] = next(fed)
            elif spec.kind == InputKind.PARAMETER:
                tensor = self.program.state_dict[spec.target]
                self.leaves[node] = self.first_name(spec.target, tensor)
                self.result.roles[self.leaves[node]] = "param" if tensor.requires_grad else "fixed"
            elif spec.kind == InputKind.BUFFER and (spec.target in mutated or target in self.states):
                self.leaves[node] = target
                self.result.roles[target] = "state"
            elif spec.kind == InputKind.BUFFER:
                kept = self.program.state_dict if spec.persistent else self.program.constants
                self.constants[node] = kept[spec.target]
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                self.constants[node] = self.program.constants[spec.target]

    def first_name(self, target: str, tensor: torch.Tensor) -> str:
        """The first name of a tied parameter; the program has the last."""
        for name, other in self.program.state_dict.items():
            if other is tensor or (other.data_ptr() == tensor.data_ptr() and other.shape == tensor.shape and tensor.numel()):
                return name.removeprefix("module.")
        return target.removeprefix("module.")

    def fold(self) -> None:
        """Computes what is constant, and leaves out what does nothing."""
        self.live: list[fx.Node] = []
        for node in self.graph.nodes:
            if node.op != "call_function":
                continue
            name = base(node)
            if "assert" in name or name.startswith("sym_constrain") or name == "aten.sym_constrain_range":
                continue
            check_shapes(node)
            inputs = [self.resolve(other) for other in node.all_input_nodes]
            random = name in RANDOM
            if not random and all(other in self.constants for other in inputs):
                with torch.no_grad():
                    self.constants[node] = run(node, self.constants, self.resolve)
                continue
            if name == "aten.cat" and (only := self.only_part(node)) is not None:
                self.alias[node] = only
                continue
            if inputs and self.is_copy(node, name, inputs[0]):
                self.alias[node] = inputs[0]
                continue
            self.live.append(node)

    def only_part(self, cat: fx.Node) -> fx.Node | None:
        """The only part that has elements: caches of keys and values begin empty."""
        parts = [self.resolve(part) for part in cat.args[0]]
        full = [part for part in parts if self.value(part).numel() > 0]
        return full[0] if len(full) == 1 < len(parts) else None

    def is_copy(self, node: fx.Node, name: str, first: fx.Node) -> bool:
        if name in COPIES:
            return True
        after, before = node.meta.get("val"), self.value(first)
        same = (
            isinstance(after, torch.Tensor)
            and isinstance(before, torch.Tensor)
            and after.shape == before.shape
            and after.dtype == before.dtype
        )
        if not same:
            return False
        if name == "aten.permute":
            return list(node.args[1]) == list(range(after.dim()))
        return name in SAME_IF_SAME_TYPE

    def value(self, node: fx.Node) -> Any:
        return self.constants[node] if node in self.constants else node.meta.get("val")

    def prune(self) -> None:
        """Keeps what the loss, outputs and updates need."""
        output = next(node for node in self.graph.nodes if node.op == "output")
        specs = self.program.graph_signature.output_specs
        self.ends: list[tuple[Any, fx.Node]] = []
        for spec, end in zip(specs, output.args[0]):
            if not isinstance(end, fx.Node):
                continue
            end = self.resolve(end)
            if spec.kind == OutputKind.BUFFER_MUTATION and self.is_counter(spec.target, end):
                self.result.roles[spec.target.removeprefix("module.")] = "counter"
                continue
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                name = next((n for node, n in self.fed.items() if node.name == spec.target), spec.target)
                line, code = source(end)
                where = f"{line} `{code}` writes" if line else "the module writes"
                raise _problem(f"{where} to its argument `{name}`: make a copy, {name} = {name}.clone()")
            self.ends.append((spec, end))
        needed = {end for _, end in self.ends}
        for node in reversed(self.live):
            if node in needed:
                needed |= {self.resolve(other) for other in node.all_input_nodes}
        self.live = [node for node in self.live if node in needed]

    def is_counter(self, target: str, end: fx.Node) -> bool:
        """Whether an update raises an integer by one."""
        if end.op != "call_function" or base(end) != "aten.add" or end.args[1] != 1:
            return False
        before = self.resolve(end.args[0])
        value = end.meta.get("val")
        return self.leaves.get(before) == target.removeprefix("module.") and not value.dtype.is_floating_point

    def split_host(self) -> None:
        """Integers and truth values that depend on arguments alone are computed on the host, where devices cannot."""
        from_inputs: set[fx.Node] = set(self.fed)
        host: set[fx.Node] = set()
        for node in self.live:
            value = node.meta.get("val")
            first = value[0] if isinstance(value, (list, tuple)) and value else value
            if not isinstance(first, torch.Tensor) or first.is_floating_point() or first.is_complex():
                continue
            inputs = [self.resolve(other) for other in node.all_input_nodes]
            if base(node) in RANDOM or not all(n in from_inputs or n in self.constants for n in inputs):
                continue
            from_inputs.add(node)
            floats = [n for n in inputs if n in self.fed and n.meta["val"].is_floating_point()]
            if base(node) not in ON_DEVICE or any(n in host for n in inputs) or (floats and base(node) == "aten._to_copy"):
                host.add(node)
        uses: dict[fx.Node, list[fx.Node]] = {}
        for node in self.live:
            for other in node.all_input_nodes:
                uses.setdefault(self.resolve(other), []).append(node)
        ends = {end for _, end in self.ends}
        for node in self.live:
            if node in host and base(node) != "getitem_" and (node in ends or any(u not in host for u in uses.get(node, []))):
                if isinstance(node.meta["val"], torch.Tensor):
                    self.result._host_names[node] = f"host.{node.name}"
        self.result._host_inputs = {name: node for node, name in self.fed.items()}
        # All that the host needs, and no more.
        needed = set(self.result._host_names)
        for node in reversed(self.live):
            if node in needed:
                needed |= {self.resolve(other) for other in node.all_input_nodes}
        self.result._host = [node for node in self.live if node in needed]
        self.result._values = {n: v for n, v in self.constants.items() if n in needed}
        for node, name in self.result._host_names.items():
            self.result.computed[name] = node.meta["val"]
        # What only the host needs is not written.
        written = {end for _, end in self.ends}
        for node in reversed(self.live):
            if node in written and node not in self.result._host_names:
                written |= {self.resolve(other) for other in node.all_input_nodes}
        self.live = [node for node in self.live if node in written and node not in self.result._host_names]

    def reference(self, node: fx.Node) -> dict[str, Any]:
        node = self.resolve(node)
        if node in self.result._host_names:
            return {"v": self.result._host_names[node]}
        if node in self.fed:
            self.result.inputs_used.add(self.fed[node])
            return {"v": self.fed[node]}
        if node in self.leaves:
            return {"v": self.leaves[node]}
        if node in self.constants:
            key = f"constant:{node.name}"
            self.result.constants[key] = self.constants[node]
            return {"v": key}
        if node.target is operator.getitem:
            return {**self.reference(node.args[0]), "i": node.args[1]}
        return {"v": f"node:{node.name}"}

    def argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.reference(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(inner) for inner in value]
        if isinstance(value, torch.dtype):
            from ._export import dtype_word

            return {"dtype": dtype_word(value)}
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return {"f": str(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return str(value)

    def arguments(self, node: fx.Node) -> dict[str, Any]:
        """All arguments by the names of the operator's schema."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return {str(i): self.argument(value) for i, value in enumerate(node.args)}
        values: dict[str, Any] = {}
        for index, argument in enumerate(node.target._schema.arguments):
            if argument.name in LEFT_OUT:
                continue
            if index < len(node.args) and not argument.kwarg_only:
                value = node.args[index]
            else:
                value = node.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)
            values[argument.name] = self.argument(value)
        return values

    def write(self) -> None:
        from ._export import dtype_word

        for node in self.live:
            if node.target is operator.getitem:
                continue
            value = node.meta.get("val")
            values = value if isinstance(value, (list, tuple)) else [value]
            line, code = source(node)
            overload = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else str(node.target)
            self.result.nodes.append({
                "name": f"node:{node.name}",
                "op": overload.replace("::", ".").removesuffix(".default"),
                "args": self.arguments(node),
                "results": [
                    {"dtype": dtype_word(v.dtype), "shape": list(v.shape)} if isinstance(v, torch.Tensor) else {"dtype": "none", "shape": []}
                    for v in values
                ],
                "module": module_path(node),
                "source": line,
                "code": code,
            })  # fmt: skip
        names = [name for name in self.output_names()]
        for spec, end in self.ends:
            if spec.kind == OutputKind.BUFFER_MUTATION:
                self.result.updates.append({"state": spec.target.removeprefix("module."), "value": self.reference(end)})
            elif not self.result.loss:
                self.result.loss = self.reference(end)
                names.pop(0)
            else:
                self.result.outputs.append({"name": names.pop(0), "value": self.reference(end)})

    def output_names(self) -> list[str]:
        """What the outputs are called: the loss, and the keys beside it."""
        spec = self.program.call_spec.out_spec
        leaves, _ = torch.utils._pytree.tree_flatten_with_path(spec.unflatten([0] * spec.num_leaves))
        return [str(path[-1].key) if len(path) > 1 and hasattr(path[-1], "key") else "loss" for path, _ in leaves]


def _problem(text: str) -> Exception:
    from ._export import ExportError

    return ExportError(text)
