"""What transformers does in five steps of AdamW with small models of every family of decoders.

    python benches/peers/decoders.py crates/phalanx/tests/golden/decoders.json.gz

writes for each case `config` as transformers saves it, the loss before each step, and of the first gradient and of the
weights after the last step four numbers for each tensor of `model.safetensors`: its norm, and its products with three
vectors of signs. `crates/phalanx/tests/decoders.rs` repeats the steps and compares. Weights, batches and signs are a
hash of a name and an index, so that they are not stored. Needs torch, transformers 5 and safetensors.
"""

import gzip
import json
import pathlib
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

STEPS, BATCH, TIME = 5, 4, 11
IGNORED = -100
# With a smaller eps, gradients that are zero in theory, such as those of key biases, would become steps of noise.
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)

SMALL = dict(hidden_size=21, intermediate_size=20, num_hidden_layers=2, vocab_size=29, max_position_embeddings=24,
             num_attention_heads=3, bos_token_id=None, eos_token_id=None, pad_token_id=None)
GROUPED = dict(SMALL, num_key_value_heads=1, head_dim=6)
NEOX = dict(SMALL, hidden_size=24)


def rope(theta=10000.0, **more):
    return dict(rope_type="default", rope_theta=theta, **more)


LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8)

CASES = {
    "llama": ("Llama", dict(GROUPED, pad_token_id=-1, attention_bias=True, mlp_bias=True)),
    "llama3": ("Llama", dict(GROUPED, rope_parameters=LLAMA3, num_key_value_heads=3, tie_word_embeddings=True)),
    "mistral": ("Mistral", dict(GROUPED, sliding_window=TIME, head_dim=8)),
    "mistral-window": ("Mistral", dict(GROUPED, sliding_window=4, head_dim=8)),
    "qwen2-window": ("Qwen2", dict(GROUPED, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen2": ("Qwen2", dict(GROUPED, use_sliding_window=True, sliding_window=13, max_window_layers=1)),
    "qwen2-tied": ("Qwen2", dict(GROUPED, tie_word_embeddings=True, pad_token_id=5, rope_parameters=rope(1e6))),
    "qwen3": ("Qwen3", dict(GROUPED, attention_bias=True)),
    "phi3": ("Phi3", dict(GROUPED, pad_token_id=7, head_dim=8, rope_parameters=rope(partial_rotary_factor=0.75))),
    "phi3-whole": ("Phi3", dict(GROUPED, tie_word_embeddings=True)),
    "olmo2": ("Olmo2", dict(GROUPED, pad_token_id=1, rms_norm_eps=1e-6)),
    "olmo2-biased": ("Olmo2", dict(GROUPED, attention_bias=True, num_key_value_heads=3)),
    "gemma": ("Gemma", dict(GROUPED, pad_token_id=0)),
    "gemma-untied": ("Gemma", dict(GROUPED, tie_word_embeddings=False, attention_bias=True)),
    "gpt_neox": ("GPTNeoX", NEOX),
    "gpt_neox-serial": ("GPTNeoX", dict(NEOX, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True,
                                        hidden_act="gelu_new", rope_parameters=rope(500.0, partial_rotary_factor=1.0))),
    "mixtral": ("Mixtral", dict(GROUPED, num_local_experts=5, num_experts_per_tok=3)),
    "mixtral-balanced": ("Mixtral", dict(GROUPED, num_local_experts=3, num_experts_per_tok=2, output_router_logits=True,
                                         router_aux_loss_coef=0.5, sliding_window=TIME + 1)),
}


def words(name, count):
    """64 bits for each index: splitmix64 from the FNV-1a hash of the name on."""
    start = 0xCBF29CE484222325
    for byte in name.encode():
        start = (start ^ byte) * 0x100000001B3 % 2**64
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(start) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return z ^ (z >> numpy.uint64(31))


def weight(name, shape):
    """Uniform, around 1 for the scales of norms; large enough for positions and biases to matter."""
    count = int(numpy.prod(shape))
    uniform = (words(name, count) >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(2**23) - numpy.float32(1)
    is_scale = len(shape) == 1 and name.endswith(".weight")
    values = numpy.float32(1) + numpy.float32(0.25) * uniform if is_scale else numpy.float32(0.5) * uniform
    return torch.from_numpy(values).reshape(shape)


def batch(step, vocab):
    """Tokens and labels; one label in seven is ignored."""
    ids = words(f"tokens {step}", BATCH * (TIME + 1)).astype(object) % vocab
    text = torch.tensor([int(id) for id in ids]).reshape(BATCH, TIME + 1)
    skipped = words(f"ignored {step}", BATCH * TIME).astype(object) % 7 == 0
    skipped = torch.tensor([bool(skip) for skip in skipped]).reshape(BATCH, TIME)
    return text[:, :-1], text[:, 1:].masked_fill(skipped, IGNORED)


def stored(model):
    """The tensors that transformers would write."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return load_file(pathlib.Path(directory) / "model.safetensors")


def summary(tensors):
    """Four numbers for each tensor."""
    def numbers(name, tensor):
        values = tensor.double().flatten().numpy()
        signs = [1.0 - 2.0 * (words(f"{name} {k}", len(values)) >> numpy.uint64(63)).astype(float) for k in range(3)]
        return [float(numpy.linalg.norm(values))] + [float(values @ sign) for sign in signs]
    return {name: [float(f"{number:.10g}") for number in numbers(name, tensor)] for name, tensor in tensors.items()}


def start(config, directory):
    """A model with the weights of the hash."""
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    path = pathlib.Path(directory) / "model.safetensors"
    save_file({name: weight(name, tensor.shape) for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    eager = dict(attn_implementation="eager", experts_implementation="eager")
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **eager).train()


def run(config):
    with tempfile.TemporaryDirectory() as directory:
        model = start(config, directory)
        saved = json.loads((pathlib.Path(directory) / "config.json").read_text())
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    result = dict(config=saved, loss=[])
    for step in range(STEPS):
        tokens, labels = batch(step, config.vocab_size)
        optimizer.zero_grad()
        outputs = model(input_ids=tokens)
        logits = outputs.logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)
        if getattr(outputs, "aux_loss", None) is not None:
            loss = loss + config.router_aux_loss_coef * outputs.aux_loss
        loss.backward()
        if step == 0:
            before = [parameter.data for parameter in model.parameters()]
            for parameter in model.parameters():
                parameter.data = parameter.grad.clone()
            result["gradient"] = summary(stored(model))
            for parameter, data in zip(model.parameters(), before):
                parameter.data = data
        result["loss"].append(float(f"{loss.item():.9g}"))
        optimizer.step()
    result["weights"] = summary(stored(model))
    return result


def main(out):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    cases = {}
    for name, (family, settings) in CASES.items():
        cases[name] = run(getattr(transformers, f"{family}Config")(**settings))
        print(name, cases[name]["loss"])
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write(json.dumps(cases).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
