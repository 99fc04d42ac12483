"""Experts of transformers' models as one node each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
}  # fmt: skip
_library: Any = None


def _define() -> None:
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("phalanx", "DEF")
    _library.define("experts(Tensor x, Tensor ids, Tensor weights, Tensor gate_up, Tensor down, str activation) -> Tensor")

    def experts(x: Any, ids: Any, weights: Any, gate_up: Any, down: Any, activation: str) -> Any:
        return torch.empty_like(x)

    _library.impl("experts", experts, "CompositeExplicitAutograd")
    torch.library.register_fake("phalanx::experts", experts, lib=_library)


@contextlib.contextmanager
def experts_as_one_node(module: torch.nn.Module) -> Iterator[None]:
    """Lets experts of transformers' models be exported as one node; restores what they were."""
    configs = {id(c): c for m in module.modules() if (c := getattr(m, "config", None)) is not None}
    wanted = [c for c in configs.values() if getattr(c, "_experts_implementation", None) is not None]
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:
        wanted = []
    if not wanted:
        yield
        return
    _define()

    def forward(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
        word = _ACTIVATIONS.get(getattr(self.config, "hidden_act", "silu"), "unknown")
        return torch.ops.phalanx.experts(
            hidden_states, top_k_index, top_k_weights, self.gate_up_proj, self.down_proj, word
        )

    ALL_EXPERTS_FUNCTIONS.register("phalanx", forward)
    before = [(config, config._experts_implementation) for config in wanted]
    for config in wanted:
        config._experts_implementation = "phalanx"
    try:
        yield
    finally:
        for config, implementation in before:
            config._experts_implementation = implementation
