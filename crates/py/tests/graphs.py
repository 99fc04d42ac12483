"""Small graphs, and batches for them."""

import numpy as np

BATCH = 8

# A classifier with dropout: 12 features, 5 classes.
TRAINING = """graph @classifier {
  %x = input f32[8, 12]
  %labels = input i64[8]
  %fc1.weight = param init=uniform(0.3) f32[16, 12]
  %fc1.bias = param init=zeros f32[16]
  %fc2.weight = param init=uniform(0.3) f32[5, 16]
  %a = linear activation=gelu_erf %x, %fc1.weight, %fc1.bias : f32[8, 16]
  %d = dropout rate=0.1 %a : f32[8, 16]
  %logits = linear %d, %fc2.weight : f32[8, 5]
  %loss = cross_entropy ignore=-100 %logits, %labels : f32[]
  return %loss, %logits
}
"""

EVALUATION = TRAINING.replace("  %d = dropout rate=0.1 %a : f32[8, 16]\n", "").replace("linear %d,", "linear %a,")


def batches(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches whose labels are the largest of the first five features."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        x = random.standard_normal((BATCH, 12), dtype=np.float32)
        made.append((x, x[:, :5].argmax(1).astype(np.int64)))
    return made
