"""`mpirun -n 2 python train.py`, under both kinds of launchers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHERS = [
    ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
    ["mpiexec.mpich", "-n", "2"],
]


def trained(launcher, **options):
    program = str(Path(__file__).with_name("train.py"))
    command = [*launcher, sys.executable, program, json.dumps(options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def alone():
    found = trained([])
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=["openmpi", "mpich"])
def test_ranks_have_the_bits_of_one_process(launcher, alone):
    if shutil.which(launcher[0]) is None:
        assert "PHALANX_WITHOUT_MPI" in os.environ, f"{launcher[0]} is not installed"
        pytest.skip("PHALANX_WITHOUT_MPI is set")
    for options in [{}, {"plan": "fsdp", "devices_per_rank": 1}]:
        found = trained(launcher, **options)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout) == {**alone, "ranks": 2}
    # An exception on one rank ends the job, and says why.
    found = trained(launcher, fails=1)
    assert found.returncode != 0
    assert "rank 1: ValueError: the data is gone" in found.stderr
