"""A program of a user, started by tests as the ranks of a job: prints a line of JSON on rank 0."""

import json
import sys

import phalanx as px
from graphs import EVALUATION, TRAINING, batches

options = json.loads(sys.argv[1])
fails = options.pop("fails", None)
trainer = px.Trainer(px.Model(TRAINING, EVALUATION), px.AdamW(1e-2), no_cache=True, pin="off", **options)
trainer.fit(batches(3))
if fails == trainer.rank:
    raise ValueError("the data is gone")
trainer.fit(batches(3, seed=1))
found = {
    "hash": trainer.weights_hash,
    "loss": trainer.evaluate(batches(2))["loss"],
    "bias": trainer.state_dict()["fc1.bias"].tolist(),
    "ranks": trainer.ranks,
}
if trainer.rank == 0:
    print(json.dumps(found))
