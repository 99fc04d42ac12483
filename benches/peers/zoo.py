"""Losses and norms of gradients of models of the zoo, computed by PyTorch and transformers.

PHALANX_WRITE_ZOO=DIR cargo nextest run -p phalanx nn::parity      # writes weights and samples, and fails
python benches/peers/zoo.py DIR > crates/phalanx/tests/golden/zoo.json
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM, ViTConfig, ViTForImageClassification

torch.set_num_threads(1)


def read(name):
    case = json.loads((Path(sys.argv[1]) / f"{name}.json").read_text())
    shapes = case["shapes"]
    weights = {key: torch.tensor(values, dtype=torch.float32).reshape(shapes[key]) for key, values in case["weights"].items()}
    return case["sizes"], case["samples"], weights


def results(module, loss):
    loss.backward()
    norms = {name: float(p.grad.double().norm()) if p.grad is not None else 0.0 for name, p in module.named_parameters()}
    return [float(loss.detach()), dict(sorted(norms.items()))]


def bert():
    sizes, samples, weights = read("bert")
    config = BertConfig(
        vocab_size=sizes["vocab"], hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        intermediate_size=sizes["hidden"], max_position_embeddings=sizes["context"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForMaskedLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert all("decoder" in name or "position_ids" in name for name in missing), missing
    model.tie_weights()
    tokens, targets = (torch.tensor(samples[name]).reshape(-1, sizes["context"]) for name in ["tokens", "targets"])
    return results(model, model(input_ids=tokens, labels=targets).loss)


def vit():
    sizes, samples, weights = read("vit")
    side, patch, width = sizes["image"], sizes["patch"], sizes["width"]
    config = ViTConfig(
        hidden_size=width, num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"], intermediate_size=sizes["hidden"],
        image_size=side, patch_size=patch, num_labels=sizes["classes"], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = ViTForImageClassification(config)
    # A convolution whose stride is its kernel, as a matrix of rows [height, width, channel].
    key = "vit.embeddings.patch_embeddings.projection.weight"
    weights[key] = weights[key].reshape(width, patch, patch, 3).permute(0, 3, 1, 2)
    # Published files have the names of earlier versions, which transformers translates when it loads them.
    names = {name: renamed(name) for name in weights}
    model.load_state_dict({names[name]: values for name, values in weights.items()})
    images = torch.tensor(samples["images"]).reshape(-1, side, side, 3).permute(0, 3, 1, 2)
    logits = model(pixel_values=images).logits
    loss, norms = results(model, F.cross_entropy(logits, torch.tensor(samples["labels"])))
    return [loss, {name: norms[names[name]] for name in sorted(weights)}]


def renamed(name):
    pairs = [
        ("vit.encoder.layer.", "vit.layers."), ("attention.attention.query", "attention.q_proj"), ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"), ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2")]
    for old, new in pairs:
        name = name.replace(old, new)
    return name


def lstm():
    sizes, samples, weights = read("lstm")
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(sizes["vocab"], sizes["width"])
    model.lstm = torch.nn.LSTM(sizes["width"], sizes["width"], sizes["layers"], batch_first=True)
    model.head = torch.nn.Linear(sizes["width"], sizes["vocab"])
    model.load_state_dict(weights)
    tokens, targets = (torch.tensor(samples[name]).reshape(-1, sizes["context"]) for name in ["tokens", "targets"])
    logits = model.head(model.lstm(model.embedding(tokens))[0])
    return results(model, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def dlrm():
    sizes, samples, weights = read("dlrm")
    params = {name: values.requires_grad_() for name, values in weights.items()}

    def stack(name, x, depth, closed):
        for layer in range(depth):
            x = F.linear(x, params[f"{name}.{layer}.weight"], params[f"{name}.{layer}.bias"])
            if closed or layer + 1 < depth:
                x = torch.relu(x)
        return x

    numbers = torch.tensor(samples["numbers"]).reshape(-1, sizes["numbers"])
    bottom = stack("bot_l", numbers, len(sizes["bottom"]) + 1, True)
    rows = [bottom]
    for table in range(sizes["tables"]):
        ids = torch.tensor(samples[f"categories.{table}"]).reshape(-1, sizes["bag"])
        rows.append(F.embedding_bag(ids, params[f"emb_l.{table}.weight"], mode="sum"))
    rows = torch.stack(rows, 1)
    pairs = (rows @ rows.transpose(1, 2)).flatten(1)
    logits = stack("top_l", torch.cat([bottom, pairs], 1), len(sizes["top"]) + 1, False)
    loss = F.binary_cross_entropy_with_logits(logits, torch.tensor(samples["clicks"]).reshape(-1, 1))
    loss.backward()
    return [float(loss.detach()), {name: float(values.grad.double().norm()) for name, values in sorted(params.items())}]


def resnet():
    """torchvision's ResNet with basic blocks, of any width."""
    sizes, samples, weights = read("resnet")
    params = {name: values.requires_grad_("running" not in name) for name, values in weights.items()}

    def conv(name, x, stride=1, padding=0):
        return F.conv2d(x, params[f"{name}.weight"], stride=stride, padding=padding)

    def norm(name, x):
        return F.batch_norm(x, None, None, params[f"{name}.weight"], params[f"{name}.bias"], training=True)

    side = sizes["image"]
    x = torch.tensor(samples["images"]).reshape(-1, side, side, 3).permute(0, 3, 1, 2)
    x = F.max_pool2d(torch.relu(norm("bn1", conv("conv1", x, 2, 3))), 3, 2, 1)
    for stage, blocks in enumerate(sizes["blocks"]):
        for block in range(blocks):
            at, stride = f"layer{stage + 1}.{block}", 2 if stage > 0 and block == 0 else 1
            h = torch.relu(norm(f"{at}.bn1", conv(f"{at}.conv1", x, stride, 1)))
            h = norm(f"{at}.bn2", conv(f"{at}.conv2", h, 1, 1))
            if f"{at}.downsample.0.weight" in params:
                x = norm(f"{at}.downsample.1", conv(f"{at}.downsample.0", x, stride))
            x = torch.relu(h + x)
    logits = F.linear(x.mean([2, 3]), params["fc.weight"], params["fc.bias"])
    loss = F.cross_entropy(logits, torch.tensor(samples["labels"]))
    loss.backward()
    norms = {name: float(values.grad.double().norm()) for name, values in sorted(params.items()) if values.requires_grad}
    return [float(loss.detach()), norms]


cases = {"bert": bert(), "dlrm": dlrm(), "lstm": lstm(), "resnet": resnet(), "vit": vit()}
print(json.dumps(cases, indent=1))
