"""What PyTorch, torchvision and transformers do in five steps of AdamW with the small models of the zoo.

PHALANX_WRITE_ZOO=DIR cargo nextest run -p phalanx nn::parity      # writes weights and samples
python benches/peers/zoo.py DIR crates/phalanx/tests/golden/zoo.json.gz

writes for each model the loss before each step, and of the first gradient and of the weights and running statistics after
the last step four numbers for each tensor: its norm, and its products with three vectors of signs (see decoders.py). All is
computed in double precision; `single` is how far gradients in single precision are from that.
"""

import gzip
import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torchvision.models import inception
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3
from transformers import BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM, T5Config, T5ForConditionalGeneration, ViTConfig, ViTForImageClassification

from decoders import summary

torch.set_num_threads(1)
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
SMALL_TEXT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def ids(samples, name, *shape):
    return torch.tensor(samples[name]).reshape(-1, *shape)


def image_loss(model, sizes, samples):
    side = sizes["image"]
    images = ids(samples, "images", side, side, 3).permute(0, 3, 1, 2)
    return F.cross_entropy(model(images), torch.tensor(samples["labels"]))


def encoder(sizes, more):
    return dict(
        vocab_size=sizes["vocab"], hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
        intermediate_size=sizes["hidden"], max_position_embeddings=sizes["context"] + more, **SMALL_TEXT)


def masked_loss(model, sizes, samples):
    tokens, targets = (ids(samples, name, sizes["context"]) for name in ["tokens", "targets"])
    return model(input_ids=tokens, labels=targets).loss


def bert(sizes):
    return BertForMaskedLM(BertConfig(**encoder(sizes, 0))), masked_loss


def roberta(sizes):
    return RobertaForMaskedLM(RobertaConfig(type_vocab_size=1, layer_norm_eps=1e-5, **encoder(sizes, 2))), masked_loss


def t5(sizes):
    config = T5Config(
        vocab_size=sizes["vocab"], d_model=sizes["width"], d_kv=sizes["head_dim"], d_ff=sizes["hidden"], num_layers=sizes["layers"],
        num_heads=sizes["heads"], relative_attention_num_buckets=sizes["buckets"], relative_attention_max_distance=sizes["distance"],
        dropout_rate=0.0)

    def loss(model, sizes, samples):
        tokens, begun, targets = (ids(samples, name, sizes["context"]) for name in ["tokens", "decoder_tokens", "targets"])
        logits = model(input_ids=tokens, decoder_input_ids=begun).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return T5ForConditionalGeneration(config), loss


def vit(sizes):
    config = ViTConfig(
        hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"], image_size=sizes["image"],
        intermediate_size=sizes["hidden"], patch_size=sizes["patch"], num_labels=sizes["classes"], **SMALL_TEXT)

    def loss(model, sizes, samples):
        return image_loss(lambda images: model(pixel_values=images).logits, sizes, samples)

    return ViTForImageClassification(config), loss


def renamed(name):
    """Published files of ViT have the names of earlier versions, which transformers translates when it loads them."""
    pairs = [
        ("vit.encoder.layer.", "vit.layers."), ("attention.attention.query", "attention.q_proj"), ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"), ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2")]
    for old, new in pairs if name.startswith("vit.") else []:
        name = name.replace(old, new)
    return name


def alexnet(sizes):
    """torchvision's, narrower, and without its adaptive pool, which does nothing for images of 224."""
    wide, hidden, side = sizes["width"], sizes["hidden"], sizes["image"]
    model = torchvision.models.AlexNet(sizes["classes"], dropout=0.0)
    channels = [3, wide, 3 * wide, 6 * wide, 4 * wide, 4 * wide]
    for (place, old), (inputs, outputs) in zip([(p, m) for p, m in enumerate(model.features) if isinstance(m, nn.Conv2d)], zip(channels, channels[1:])):
        model.features[place] = nn.Conv2d(inputs, outputs, old.kernel_size, old.stride, old.padding)
    model.avgpool = nn.Identity()
    flat = model.features(torch.zeros(1, 3, side, side)).numel()
    model.classifier[1], model.classifier[4] = nn.Linear(flat, hidden), nn.Linear(hidden, hidden)
    model.classifier[6] = nn.Linear(hidden, sizes["classes"])
    return model, image_loss


def convnext(sizes):
    widths = [sizes["width"] << stage for stage in range(len(sizes["blocks"]))]
    blocks = [CNBlockConfig(width, after, count) for width, after, count in zip(widths, widths[1:] + [None], sizes["blocks"])]
    return ConvNeXt(blocks, stochastic_depth_prob=0.0, layer_scale=sizes["layer_scale"], num_classes=sizes["classes"]), image_loss


def mobilenet(sizes):
    inputs, blocks = sizes["width"], []
    for block in sizes["blocks"]:
        activation = "HS" if block["swish"] else "RE"
        blocks.append(InvertedResidualConfig(inputs, block["kernel"], block["wide"], block["out"], block["weighed"], activation, block["stride"], 1, 1.0))
        inputs = block["out"]
    return MobileNetV3(blocks, last_channel=sizes["hidden"], num_classes=sizes["classes"], dropout=sizes["dropout"]), image_loss


def inception_v3(sizes):
    """torchvision's, narrower, with the first block of each stage."""
    assert sizes["blocks"] == [1, 1, 1] and sizes["auxiliary"] is None

    class Narrow(inception.BasicConv2d):
        def __init__(self, inputs, outputs, **kwargs):
            super().__init__(inputs * sizes["width"] // 32 if inputs != 3 else 3, outputs * sizes["width"] // 32, **kwargs)

    a, b, c, d, e = (partial(block, conv_block=Narrow) for block in [
        inception.InceptionA, inception.InceptionB, inception.InceptionC, inception.InceptionD, inception.InceptionE])
    model = inception.Inception3(
        sizes["classes"], aux_logits=False, init_weights=False, dropout=0.0, inception_blocks=[Narrow, a, b, c, d, e, inception.InceptionAux])
    for name in ["Mixed_5c", "Mixed_5d", "Mixed_6c", "Mixed_6d", "Mixed_6e", "Mixed_7c"]:
        setattr(model, name, nn.Identity())
    model.Mixed_6a, model.Mixed_6b = b(256), c(736, channels_7x7=128)
    model.fc = nn.Linear(2048 * sizes["width"] // 32, sizes["classes"])
    return model, image_loss


class Residual(nn.Module):
    """torchvision's ResNet of any width."""

    def __init__(self, sizes):
        super().__init__()
        width = sizes["width"]
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        inputs, self.stages = width, len(sizes["blocks"])
        for stage, blocks in enumerate(sizes["blocks"]):
            layer = nn.Sequential()
            for block in range(blocks):
                stride, planes = 2 if stage > 0 and block == 0 else 1, width << stage
                kind = torchvision.models.resnet.Bottleneck if sizes["bottleneck"] else torchvision.models.resnet.BasicBlock
                outputs, down = planes * kind.expansion, None
                if stride > 1 or inputs != outputs:
                    down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
                # As torchvision computes the width inside, from 64 channels of a stage.
                base = sizes["group_width"]
                layer.append(kind(inputs, planes, stride, down, groups=sizes["groups"], base_width=base))
                inputs = outputs
            setattr(self, f"layer{stage + 1}", layer)
        self.fc = nn.Linear(inputs, sizes["classes"])

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean([2, 3]))


def resnet(sizes):
    return Residual(sizes), image_loss


class Unet(nn.Module):
    """milesial/Pytorch-UNet of any depth."""

    class Twice(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            convs = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                     nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            self.double_conv = nn.Sequential(*convs)

        def forward(self, x):
            return self.double_conv(x)

    def __init__(self, sizes):
        super().__init__()
        width, self.levels = sizes["width"], range(1, sizes["layers"] + 1)
        self.inc = Unet.Twice(3, width)
        for level in self.levels:
            down = nn.Module()
            down.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), Unet.Twice(width << level - 1, width << level))
            setattr(self, f"down{level}", down)
            outputs, up = width << sizes["layers"] - level, nn.Module()
            up.up, up.conv = nn.ConvTranspose2d(2 * outputs, outputs, 2, 2), Unet.Twice(2 * outputs, outputs)
            setattr(self, f"up{level}", up)
        self.outc = nn.Module()
        self.outc.conv = nn.Conv2d(width, sizes["classes"], 1)

    def forward(self, x):
        passed = [self.inc(x)]
        for level in self.levels:
            passed.append(getattr(self, f"down{level}").maxpool_conv(passed[-1]))
        x = passed.pop()
        for level in self.levels:
            up = getattr(self, f"up{level}")
            x = up.conv(torch.cat([passed.pop(), up.up(x)], 1))
        return self.outc.conv(x)


def unet(sizes):
    def loss(model, sizes, samples):
        side = sizes["image"]
        logits = model(ids(samples, "images", side, side, 3).permute(0, 3, 1, 2))
        return F.cross_entropy(logits, ids(samples, "labels", side, side))

    return Unet(sizes), loss


def lstm(sizes):
    model = nn.Module()
    model.embedding = nn.Embedding(sizes["vocab"], sizes["width"])
    model.lstm = nn.LSTM(sizes["width"], sizes["width"], sizes["layers"], batch_first=True)
    model.head = nn.Linear(sizes["width"], sizes["vocab"])

    def loss(model, sizes, samples):
        tokens, targets = (ids(samples, name, sizes["context"]) for name in ["tokens", "targets"])
        return F.cross_entropy(model.head(model.lstm(model.embedding(tokens))[0]).flatten(0, 1), targets.flatten())

    return model, loss


def stack(inputs, widths):
    return nn.ModuleList(nn.Linear(before, after) for before, after in zip([inputs] + widths, widths))


def stacked(layers, x, closed):
    for place, layer in enumerate(layers):
        x = layer(x)
        x = torch.relu(x) if closed or place + 1 < len(layers) else x
    return x


def tables(sizes):
    return nn.ModuleList(nn.EmbeddingBag(sizes["entries"], sizes["width"], mode="sum") for _ in range(sizes["tables"]))


def dlrm(sizes):
    model, width, count = nn.Module(), sizes["width"], sizes["tables"] + 1
    model.bot_l, model.emb_l = stack(sizes["numbers"], sizes["bottom"] + [width]), tables(sizes)
    model.top_l = stack(width + count * count, sizes["top"] + [1])

    def loss(model, sizes, samples):
        bottom = stacked(model.bot_l, ids(samples, "numbers", sizes["numbers"]), True)
        bags = [table(ids(samples, f"categories.{place}", sizes["bag"])) for place, table in enumerate(model.emb_l)]
        rows = torch.stack([bottom] + bags, 1)
        pairs = (rows @ rows.transpose(1, 2)).flatten(1)
        logits = stacked(model.top_l, torch.cat([bottom, pairs], 1), False)
        return F.binary_cross_entropy_with_logits(logits, ids(samples, "clicks", 1))

    return model, loss


def xdl(sizes):
    model = nn.Module()
    model.embedding, model.top = tables(sizes), stack(sizes["tables"] * sizes["width"], sizes["top"] + [1])

    def loss(model, sizes, samples):
        bags = [table(ids(samples, f"categories.{place}", sizes["bag"])) for place, table in enumerate(model.embedding)]
        return F.mse_loss(stacked(model.top, torch.cat(bags, 1), False), ids(samples, "label", 1))

    return model, loss


def candle_uno(sizes):
    model, kinds = nn.Module(), {"cell_rnaseq": "cell", "drug_descriptors": "descriptors", "drug_fingerprints": "fingerprints"}
    model.towers = nn.ModuleDict({kind: stack(sizes[size], sizes["towers"]) for kind, size in kinds.items()})
    model.top = stack(2 + 5 * sizes["towers"][-1], sizes["top"])
    model.head = nn.Linear(sizes["top"][-1], 1)
    inputs = [("cell_rnaseq", "cell_rnaseq")] + [(f"drug_{kind}", f"drug{drug}_{kind}") for kind in ["descriptors", "fingerprints"] for drug in [1, 2]]

    def loss(model, sizes, samples):
        joined = [ids(samples, dose, 1) for dose in ["dose1", "dose2"]]
        joined += [stacked(model.towers[kind], ids(samples, name, sizes[kinds[kind]]), True) for kind, name in inputs]
        x = stacked(model.top, torch.cat(joined, 1), True)
        return F.mse_loss(model.head(x), ids(samples, "growth", 1))

    return model, loss


MODELS = {
    "alexnet": alexnet, "bert": bert, "candle-uno": candle_uno, "convnext": convnext, "dlrm": dlrm, "inception": inception_v3, "lstm": lstm, "mobilenet": mobilenet,
    "resnet": resnet, "resnext": resnet, "roberta": roberta, "t5": t5, "unet": unet, "vit": vit, "xdl": xdl,
}


# Roundings become differences of a percent in a few steps, also in PyTorch: one step, and statistics behind it.
MAGNIFYING = ["inception"]


def steps(name, case, dtype):
    """What a model does; gradients by name."""
    torch.set_default_dtype(dtype)
    sizes, shapes = case["sizes"], case["shapes"]
    model, loss_of = MODELS[name](sizes)
    weights = {key: torch.tensor(values).reshape(shapes[key]) for key, values in case["weights"].items()}
    missing, unexpected = model.load_state_dict({renamed(key): values for key, values in weights.items()}, strict=False)
    # Tied and derived ones.
    derived = ["decoder", "position_ids", "num_batches_tracked", "embed_tokens", "lm_head"]
    assert not unexpected and all(any(word in key for word in derived) for key in missing), (name, missing, unexpected)
    getattr(model, "tie_weights", lambda: None)()
    model.to(dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, gradients = [], {}
    for samples in case["samples"][:1 if name in MAGNIFYING else None]:
        optimizer.zero_grad()
        loss = loss_of(model, sizes, samples)
        loss.backward()
        # AdamW leaves a parameter without a gradient alone.
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found = dict(model.named_parameters())
        gradients = gradients or {key: found[renamed(key)].grad.clone() for key in weights if renamed(key) in found}
        losses.append(loss.item())
        optimizer.step()
    found = {key: model.state_dict()[renamed(key)].detach() for key in weights if name not in MAGNIFYING or "running" in key}
    return losses, gradients, found


def run(name, directory):
    case = json.loads((Path(directory) / f"{name}.json").read_text())
    losses, gradients, found = steps(name, case, torch.float64)
    _, single, _ = steps(name, case, torch.float32)
    result = dict(loss=[float(f"{loss:.9g}") for loss in losses], gradient=summary(gradients), weights=summary(found))
    norm = sum(float(gradient.norm()) ** 2 for gradient in gradients.values()) ** 0.5
    single = summary(single)
    worst = max(abs(a - b) for key, numbers in result["gradient"].items() for a, b in zip(numbers, single[key]))
    return dict(result, single=float(f"{worst / norm:.3g}"))


def main(directory, out):
    cases = {}
    for name in MODELS:
        cases[name] = run(name, directory)
        print(name, cases[name]["loss"], cases[name]["single"])
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write(json.dumps(cases).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
