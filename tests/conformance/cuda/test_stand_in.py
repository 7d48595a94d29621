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


# which writes down what each call sees of the GPUs
SEEING = (
    NETS
    + """
import os, sitecustomize
from pathlib import Path

class Seeing(nn.Linear):
    def forward(self, x):
        if x.dtype != torch.float64 and sitecustomize.SHARES:
            worker, gpu = os.environ.get("PYTEST_XDIST_WORKER", "none"), os.environ["CUDA_VISIBLE_DEVICES"]
            Path(os.environ["SEEN"], f"{worker} {gpu} {sitecustomize.SHARES[-1]:.2f}").touch()
        return super().forward(x)

SPECS = tuple(spec(f"net{i}", lambda: Seeing(64, 64)) for i in range(6))
"""
)


def on_the_stand_in(folder, *arguments, device="cuda", workers=1, **variables):
    path = os.pathsep.join([str(STAND_IN), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return conformance(folder, *arguments, f"--device={device}", "-n", str(workers), PYTHONPATH=path, **variables)


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


def test_workers_take_the_named_gpus_in_turn_and_share_the_memory_of_each(tmp_path):
    (tmp_path / "nets.py").write_text(SEEING)
    (tmp_path / "seen").mkdir()
    variables = {"SEEN": str(tmp_path / "seen"), "CUDA_VISIBLE_DEVICES": "2,5,GPU-7,6"}
    options = ("run", "nets.py", "--mode=eager", "--precision=fp32", "--no-speed")
    code, output = on_the_stand_in(tmp_path, *options, device="cuda:1,cuda:2", workers=3, **variables)
    assert code == 0, output
    seen = {path.name for path in (tmp_path / "seen").iterdir()}
    assert seen == {"gw0 5 0.45", "gw1 GPU-7 0.90", "gw2 5 0.45"}
    contents = run_files.read(run_folder(output))
    assert contents.plan.gpus == (1, 2)
    facts = {verdict.observation.facts["gpu"] for verdict in contents.verdicts.values()}
    assert facts == {"cuda:1, Stand-in GPU", "cuda:2, Stand-in GPU"}
    code, output = on_the_stand_in(tmp_path, *options, device="cuda:7", **variables)
    visible = ", ".join(f"cuda:{number} (Stand-in GPU)" for number in range(4))
    assert (code, output) == (4, f"conformance: device 'cuda:7' was asked for, but torch sees {visible}\n")


def test_measurements_are_taken_on_the_first_gpu(tmp_path):
    (tmp_path / "nets.py").write_text(SEEING.replace("range(6)", "range(1)"))
    (tmp_path / "seen").mkdir()
    options = ("run", "nets.py", "--mode=eager", "--precision=fp32", "--speed")
    variables = {"SEEN": str(tmp_path / "seen"), "CUDA_VISIBLE_DEVICES": "0,1,2"}
    code, output = on_the_stand_in(tmp_path, *options, device="cuda:2,cuda:1", workers=1, **variables)
    assert code == 0, output
    assert {path.name for path in (tmp_path / "seen").iterdir()} == {"none 1 0.90"}
