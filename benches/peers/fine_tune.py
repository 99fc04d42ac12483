"""What transformers does in 20 steps of AdamW with small models of unusual configurations, and with low-rank adapters.

    python benches/peers/fine_tune.py crates/phalanx/tests/golden/fine_tune

writes a directory for each case: `config.json` and `model.safetensors` as transformers saves them, and `steps.safetensors`
with the batches (`text`, i64 [steps, batch, time + 1]), the loss before each step (`loss`), the gradients of the first
one (`grad.NAME`) and, with adapters, what these start from (`lora.NAME`). `crates/phalanx/tests/fine_tune.rs` repeats
the steps and compares. Needs torch, transformers 5 and safetensors; the weights are random, with a fixed seed.

Adapters follow the definition, y = W x + b + alpha / r * B A x, and not PEFT's code: those of GPT-2 are three, for the
query, key and value columns of `c_attn`.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

STEPS, BATCH = 20, 4
RANK, ALPHA = 2, 3.0
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)

GPT2 = dict(
    n_embd=12, n_head=2, n_layer=2, n_inner=20, vocab_size=17, n_positions=16, layer_norm_epsilon=1e-6,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
LLAMA = dict(
    hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=6, vocab_size=17, max_position_embeddings=64, rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=None)


def rope(kind, theta=10000.0, **numbers):
    return dict(rope_type=kind, rope_theta=theta, **numbers)


LLAMA3 = rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)

# Name: configuration, time, whether rotary scaling is written as before transformers 5, adapted layers.
CASES = {
    "gpt2": (GPT2Config(**GPT2, tie_word_embeddings=False, activation_function="gelu_pytorch_tanh"), 11, False, None),
    "gpt2-lora": (GPT2Config(**GPT2), 11, False, ["c_attn", "c_fc"]),
    "llama": (LlamaConfig(**LLAMA, rope_parameters=rope("default", 500000.0), attention_bias=True, mlp_bias=True,
                          tie_word_embeddings=False), 13, False, None),
    "llama3": (LlamaConfig(**LLAMA, rope_parameters=LLAMA3, tie_word_embeddings=True), 24, False, None),
    "llama3-lora": (LlamaConfig(**LLAMA, rope_parameters=LLAMA3), 24, False, ["q_proj", "v_proj", "down_proj"]),
    "linear": (LlamaConfig(**LLAMA, rope_parameters=rope("linear", factor=2.5)), 13, True, None),
    "dynamic": (LlamaConfig(**LLAMA, rope_parameters=rope("dynamic", factor=4.0)), 13, True, None),
}


def randomize(model, generator):
    """Random weights that are large enough for positions and biases to matter."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and not name.endswith("bias")
        parameter.data = 1.0 + 0.1 * noise if is_norm else 0.2 * noise


def spell_as_before(path):
    """Writes rotary scaling as transformers 4 does: at the top level, with `type`."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = {"type": parameters.pop("rope_type"), **parameters}
    path.write_text(json.dumps(config, indent=2) + "\n")


class Adapted(torch.nn.Module):
    """A linear layer, or one of GPT-2's with its weight [in, out], with adapters for equal blocks of its outputs."""

    def __init__(self, base, names, generator):
        super().__init__()
        self.base, self.names = base, names
        inputs, outputs = base.weight.shape if hasattr(base, "nf") else base.weight.shape[::-1]
        block, bound = outputs // len(names), inputs ** -0.5
        uniform = lambda: (2 * torch.rand(RANK, inputs, generator=generator) - 1) * bound
        self.down = torch.nn.ParameterList([torch.nn.Parameter(uniform()) for _ in names])
        # Not zero, as in training from the start: the gradients of both factors are to be compared.
        noise = lambda: 0.1 * torch.randn(block, RANK, generator=generator)
        self.up = torch.nn.ParameterList([torch.nn.Parameter(noise()) for _ in names])

    def forward(self, x):
        shares = [x @ down.T @ up.T * (ALPHA / RANK) for down, up in zip(self.down, self.up)]
        return self.base(x) + torch.cat(shares, dim=-1)

    def factors(self):
        for name, down, up in zip(self.names, self.down, self.up):
            yield f"{name}.lora_A.weight", down
            yield f"{name}.lora_B.weight", up


def adapt(model, layers, generator):
    """Freezes the model and gives adapters to its layers with these names; the adapters."""
    model.requires_grad_(False)
    adapted = []
    for path, module in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if name in layers:
            names = [f"{parent}.{part}" for part in "qkv"] if name == "c_attn" else [path]
            adapted.append(Adapted(module, names, generator))
            setattr(model.get_submodule(parent), name, adapted[-1])
    return [factor for module in adapted for factor in module.factors()]


def run(directory, time, layers, generator):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").train()
    tensors = {}
    named = list(model.named_parameters())
    if layers:
        named = adapt(model, layers, generator)
        tensors |= {f"lora.{name}": factor.detach().clone() for name, factor in named}
    text = torch.randint(0, model.config.vocab_size, (STEPS, BATCH, time + 1), generator=generator)
    optimizer = torch.optim.AdamW([parameter for _, parameter in named], **ADAMW)
    losses = []
    for step, batch in enumerate(text):
        optimizer.zero_grad()
        logits = model(input_ids=batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        if step == 0:
            tensors |= {f"grad.{name}": parameter.grad.clone() for name, parameter in named}
        losses.append(loss.detach())
        optimizer.step()
    return tensors | {"text": text, "loss": torch.stack(losses)}


def main(out):
    torch.set_num_threads(1)
    for number, (name, (config, time, is_old, layers)) in enumerate(CASES.items()):
        generator = torch.Generator().manual_seed(number)
        directory = pathlib.Path(out) / name
        shutil.rmtree(directory, ignore_errors=True)
        model = AutoModelForCausalLM.from_config(config)
        randomize(model, generator)
        model.save_pretrained(directory)
        (directory / "generation_config.json").unlink(missing_ok=True)
        if is_old:
            spell_as_before(directory / "config.json")
        tensors = run(directory, time, layers, generator)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "steps.safetensors")
        print(f"{name}: loss {tensors['loss'][0]:.6f} to {tensors['loss'][-1]:.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
