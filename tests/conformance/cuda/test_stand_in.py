"""The code for CUDA, run on a GPU that is none: judged, timed and counted. What CUDA computes is for test_cuda.py."""

import os
import re
from pathlib import Path

from harness.command import conformance, run_folder

from conformance.figures import speed
from conformance.store import run_files

STAND_IN = Path(__file__).resolve().parent / "stand_in"
ROOT = STAND_IN.parents[3]
NETS = """
import torch
from torch import nn
from zoo import Case, Spec

class Switching(nn.Linear):
    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = True
        return super().forward(x)

def spec(name, build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(64, 64, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), dtypes="follows")

"""
NET = NETS + 'NET = spec("net", lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)))'
SWITCHING = NETS + 'SWITCHING = spec("switching", lambda: Switching(64, 64))'


def on_the_stand_in(folder, *arguments):
    path = [str(STAND_IN), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return conformance(folder, *arguments, "--device=cuda", "-n", "1", PYTHONPATH=os.pathsep.join(path))


def test_a_matrix_on_cuda_is_judged_and_timed_in_all_its_precisions(tmp_path):
    """By the events of the stand-in; a busy machine may leave a cell without a figure, for that reason alone."""
    (tmp_path / "nets.py").write_text(NET)
    code, output = on_the_stand_in(tmp_path, "run", "nets.py", "--speed", "--mode=eager", "--mode=scripted")
    assert code == 0, output
    assert "Stand-in GPU" in output
    contents = run_files.read(run_folder(output))
    assert {n: (verdict.status, verdict.observation.facts["tf32"]) for n, verdict in contents.verdicts.items()} == {
        f"net[{mode}-{precision}-cuda]": ("PASS", "on" if precision == "tf32" else "off")
        for mode in ("eager", "scripted")
        for precision in ("fp32", "tf32", "amp_fp16", "amp_bf16")
    }
    found = speed.speeds(contents)
    assert found.keys() == contents.verdicts.keys()
    reasons = [str(timed.reason) for timed in found.values() if timed.seconds is None]
    assert all(said.startswith(("too noisy", "control failed", "no steady state")) for said in reasons), reasons


def test_a_model_that_allows_tf32_by_itself_is_red(tmp_path):
    (tmp_path / "nets.py").write_text(SWITCHING)
    code, output = on_the_stand_in(tmp_path, "run", "nets.py", "--mode=eager", "--precision=fp32", "--no-speed")
    assert code == 1
    assert re.search(r"switching\[eager-fp32-cuda\]  FAIL  structure  matmul precision, .* highest to high", output), (
        output
    )


def test_bytes_and_shares_of_the_ceilings_are_taken_on_cuda(tmp_path):
    axes = ("--mode=eager", "--precision=fp32", "--precision=tf32")
    code, output = on_the_stand_in(tmp_path, "bench", "mlp@64", *axes)
    assert code == 0, output
    results = run_files.read(run_folder(output)).results
    assert set(results["ceilings cuda"].flop_rates) == {"fp32", "tf32"}
    assert results["footprint mlp@64[eager-tf32-cuda]"].saved == 16_384
    assert results["compile mlp@64[eager-tf32-cuda]"].cold.first_gradient > 0
