"""Small modules whose graph files are goldens; each returns its loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F

MODULES = {}


def golden(make):
    MODULES[make.__name__] = make
    return make


def tokens(vocab: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocab, shape)


@golden
def mlp():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

        def forward(self, x, y):
            return F.cross_entropy(self.net(x), y, label_smoothing=0.1)

    return Mlp(), (torch.randn(8, 6), tokens(4, 8))


@golden
def gpt():
    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(c, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, c))
            return x + self.mlp(self.ln2(x))

    class Gpt(nn.Module):
        def __init__(self, vocab=40, width=16):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, width, padding_idx=3), nn.Embedding(12, width)
            self.h = nn.ModuleList([Block(width, 4), Block(width, 4)])
            self.ln = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocab, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, ids, labels):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            for block in self.h:
                x = block(x)
            logits = self.head(self.ln(x))
            return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-1)

    labels = tokens(40, 4, 10)
    labels[0, :3] = -1
    return Gpt(), (tokens(40, 4, 10), labels)


@golden
def encoder():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 3)

        def forward(self, x, y):
            return F.cross_entropy(self.head(self.layers(x).mean(1)), y)

    return Encoder(), (torch.randn(4, 6, 16), tokens(3, 4))


@golden
def convolutions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
            self.down = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, groups=2, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.norm = nn.GroupNorm(2, 16)
            self.out = nn.Conv2d(16, 4, 1)

        def forward(self, x, y):
            a = self.stem(x)
            b = F.avg_pool2d(F.max_pool2d(self.down(a), 3, 1, 1), 3, 1, 1)
            c = self.norm(torch.cat([self.up(b), a], 1))
            c = F.interpolate(F.max_pool2d(c, 2), scale_factor=2, mode="bilinear", align_corners=False)
            return F.cross_entropy(self.out(c), y)

    return Net(), (torch.randn(4, 3, 8, 8), tokens(4, 4, 8, 8))


@golden
def recurrent():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 6)
            self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
            self.gru = nn.GRU(8, 5, batch_first=True, bidirectional=True)
            self.head = nn.Linear(10, 3)

        def forward(self, ids, y):
            h, _ = self.lstm(self.emb(ids))
            h, _ = self.gru(h)
            return F.cross_entropy(self.head(h.mean(1)), y)

    return Net(), (tokens(20, 4, 5), tokens(3, 4))


@golden
def clicks():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bottom = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
            self.bags = nn.ModuleList([nn.EmbeddingBag(30, 8, mode="sum") for _ in range(2)])
            self.register_buffer("rows", torch.tensor([1, 2, 2]), persistent=False)
            self.register_buffer("columns", torch.tensor([0, 0, 1]), persistent=False)
            self.top = nn.Linear(11, 1)

        def forward(self, dense, sparse, y):
            x = self.bottom(dense)
            z = torch.stack([x] + [bag(sparse[:, i]) for i, bag in enumerate(self.bags)], 1)
            pairs = torch.bmm(z, z.transpose(1, 2))[:, self.rows, self.columns]
            out = self.top(torch.cat([x, pairs], 1)).squeeze(1)
            return F.binary_cross_entropy_with_logits(out, y)

    return Net(), (torch.randn(8, 5), tokens(30, 8, 2, 3), torch.rand(8).round())


@golden
def elements():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 12), nn.Linear(6, 12)

        def forward(self, x, target):
            a, b = F.glu(self.a(x)), F.softplus(self.b(x)[:, ::2])
            c = torch.where(a > 0, a.sin(), b.clamp(0.1, 1.5)) + F.elu(a) * F.silu(b) - torch.maximum(a, b) / (1 + b.pow(2))
            c = c.flip(1).roll(2, 1) + a.cumsum(1) + torch.einsum("bi,bj->bj", a, b)
            c = c + F.leaky_relu(c, 0.2) + F.mish(c) + F.log_softmax(c, -1) + c.var(1, keepdim=True)
            return F.smooth_l1_loss(c, target) + F.mse_loss(c, target, reduction="sum") / x.shape[0]

    return Net(), (torch.randn(4, 6), torch.randn(4, 6))


def decoder(name, config, cls, **more):
    def make():
        import transformers

        sizes = dict(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24)
        sizes |= dict(max_position_embeddings=16, use_cache=False, **more)
        model = getattr(transformers, cls)(getattr(transformers, config)(**sizes))

        class Loss(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, ids, labels):
                return self.model(input_ids=ids, labels=labels).loss

        return Loss(), (tokens(32, 4, 8), tokens(32, 4, 8))

    MODULES[name] = make


decoder("llama", "LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2)
decoder("qwen3", "Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=4)
decoder("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", num_key_value_heads=2, head_dim=4, sliding_window=4)
decoder("mixtral", "MixtralConfig", "MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
decoder("bert", "BertConfig", "BertForMaskedLM")
