"""A module that was exported from PyTorch, trained without it: numbers are those that PyTorch gave (`golden.py`)."""

import json
from pathlib import Path

import numpy as np
import phalanx as px
import pytest

DATA = Path(__file__).with_name("data")


def feeds(batch):
    return [np.array(values, np.int64) for values in batch]


@pytest.mark.parametrize("plan", [None, "dp2", "fsdp2"])
def test_steps_are_those_of_pytorch(plan):
    expected = json.loads((DATA / "tied.expected.json").read_text())
    *batches, last = expected["batches"]
    model = px.load(DATA / "tied.json")
    with px.Trainer(model, px.AdamW(1e-2, eps=1e-6), plan=plan) as run:
        for batch, loss in zip(batches, expected["losses"], strict=True):
            assert run.step(*feeds(batch)).loss == pytest.approx(loss, rel=1e-5)
        state = run.state_dict()
        assert set(state) == set(expected["state"])
        for name, values in expected["state"].items():
            np.testing.assert_allclose(state[name], np.array(values), rtol=1e-4, atol=1e-4, err_msg=name)
        assert state["head.weight"] is state["table.weight"]
        found = run.evaluate([feeds(last)])["loss"]
    assert found == pytest.approx(expected["evaluated"], rel=1e-4)


def test_files_that_are_no_models_are_named(tmp_path):
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(px.Error, match="version"):
        px.load(tmp_path / "model.json")
    (tmp_path / "model.json").write_bytes((DATA / "tied.json").read_bytes())
    with pytest.raises(px.Error, match="cannot be read"):
        px.load(tmp_path / "model.json")
    text = (DATA / "tied.json").read_text().replace("aten.linear", "aten.fft_rfft")
    (tmp_path / "model.json").write_text(text)
    (tmp_path / "model.safetensors").write_bytes((DATA / "tied.safetensors").read_bytes())
    with pytest.raises(px.UnsupportedError, match="no counterpart") as error:
        px.load(tmp_path / "model.json")
    assert error.value.operators == ["aten.fft_rfft"]
