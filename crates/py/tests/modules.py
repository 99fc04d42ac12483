"""Modules of PyTorch."""

import torch
from torch import nn


class Tied(nn.Module):
    """Words in, words out of the same table, with a norm that has states."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 24)
        self.norm = nn.BatchNorm1d(24)
        self.hidden = nn.Linear(24, 24)
        self.head = nn.Linear(24, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens, targets):
        x = self.norm(self.table(tokens))
        logits = self.head(torch.relu(self.hidden(x)))
        return nn.functional.cross_entropy(logits, targets)


class Dropping(nn.Module):
    """Dropouts between layers and in attention."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(16, 24)
        self.encoder = nn.TransformerEncoderLayer(24, 4, 32, dropout=0.2, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(24, 16))

    def forward(self, tokens, targets):
        logits = self.head(self.encoder(self.words(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets for `Tied`."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 16, (8,), generator=generator) for _ in range(2))
