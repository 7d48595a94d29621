"""What only a GPU can show: processes, clock, switches and counts do what they say, and faults stay in their cell.

Nothing here touches CUDA in pytest's own process: every test asks a child of the fork server, as cells are, or a run.
"""

import pytest
import torch
from harness import cuda_targets
from harness.command import conformance, run_folder
from harness.cuda_targets import MEBIBYTE, target_of
from harness.processes import printed

from conformance.process import child
from conformance.store import run_files

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="torch sees no CUDA device")

SERVE = """
import json
from harness.cuda_targets import multiply, target_of
from conformance.process import child

ending = child.run(target_of(multiply), {}, deadline=120.0)
print(json.dumps([ending.kind, ending.result, ending.message]))
"""


def result(function):
    """What a target returns from a child."""
    ending = child.run(target_of(function), {}, deadline=120.0)
    assert ending.kind == "answered", f"in phase {ending.phase}: {ending.message}"
    return ending.result


def test_a_child_of_the_fork_server_uses_cuda_though_the_compiler_was_imported_before():
    kind, told, message = printed(SERVE, CONFORMANCE_COMPILES_FOR="cuda")
    assert (kind, message) == ("answered", "")
    assert told == [True, [[5.0, 14.0], [14.0, 50.0]]]


def test_a_cell_killed_at_its_deadline_gives_the_memory_back():
    ending = child.run(target_of(cuda_targets.hold_most_of_the_memory), {}, deadline=15.0)
    assert (ending.kind, ending.phase) == ("timed out", "working"), ending.message
    assert result(cuda_targets.take_most_of_the_memory) > 0


def test_float32_products_keep_what_tf32_would_round():
    (product, convolution), with_tf32 = result(cuda_targets.product_and_convolution)
    assert product == 0.0
    assert convolution < 2**-16  # not zero: an algorithm may go through sums of its own
    assert with_tf32 == pytest.approx([2**-12, 2**-12], rel=0.01)


def test_an_overflow_halves_the_scale_and_skips_the_step():
    assert result(cuda_targets.two_steps) == [[2.0**9, True, False], [2.0**9, False, True]]


def test_torchscript_fuses_a_chain_on_cuda_and_rounds_like_float32():
    fused, error = result(cuda_targets.fused_chain)
    assert fused
    assert error < 64 * 2**-24


def test_the_device_clock_sees_how_long_the_device_slept():
    empty, nap, longer = result(cuda_targets.sleeping)
    assert empty < nap
    assert 1.5 < longer / nap < 2.5


def test_bytes_on_cuda_are_those_asked_for():
    counted, numbers = result(cuda_targets.bytes_counted), 4 * 1025
    assert 4 * numbers <= counted.pop("peak with backward")["cuda"] <= 6 * numbers  # on the CPU it is 5
    assert counted == {
        "peak": [{"cuda": 5 * MEBIBYTE}, {"cuda": 2 * numbers}, {"cuda": 3}],
        "kept": [{}, {"cuda": numbers}],
        "held": {"cuda": numbers},
        "saved": numbers,
    }


# The matrix

NETS = """
import torch
from torch import Tensor, nn
from zoo import Case, Spec

def spec(name, build):
    case = Case(name="typical", inputs=lambda g: (torch.randn(6, 8, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=build, cases=(case,), dtypes="follows")

class Hog(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            x = x + torch.empty([10_000_000_000_000], dtype=torch.uint8, device=x.device)[0]
        return x * 2

class PastTheEnd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.size(0), device=x.device)
        if x.is_cuda:
            rows = rows + 1000
        return x[rows] * 2

class BackwardPastTheEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        rows = torch.arange(gradient.size(0), device=gradient.device)
        return (gradient * 2)[rows + 1000 if gradient.is_cuda else rows]

class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (2.02 if gradient.is_cuda else 2)

class WrongDtype(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y.float() if x.is_cuda else y

HOG = spec("hog", Hog)
PAST_THE_END = spec("past_the_end", PastTheEnd)
BACKWARD_PAST_THE_END = spec("backward_past_the_end", lambda: BackwardPastTheEnd.apply)
WRONG_GRADIENT = spec("wrong_gradient", lambda: WrongGradient.apply)
WRONG_DTYPE = spec("wrong_dtype", lambda: WrongDtype(8, 8))
GOOD = spec("good", lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
"""
CHOICE = """
    good or (fp32 and eager and not wrong_dtype) or (fp32 and scripted and (hog or past_the_end) and not backward)
    or (amp_fp16 and eager and wrong_dtype)
"""
FULL, ASSERTED = "CUDA out of memory. Tried to allocate", "CUDA error: device-side assert triggered"
WANTED = {
    "hog[eager-fp32-cuda]": ("OOM", FULL),
    "hog[scripted-fp32-cuda]": ("OOM", FULL),
    "past_the_end[eager-fp32-cuda]": ("ERROR", ASSERTED),
    "past_the_end[scripted-fp32-cuda]": ("ERROR", ASSERTED),
    "backward_past_the_end[eager-fp32-cuda]": ("ERROR", ASSERTED),
    "wrong_gradient[eager-fp32-cuda]": ("FAIL", "norm  gradient of args[0], case typical"),
    "wrong_dtype[eager-amp_fp16-cuda]": ("FAIL", "float32, should be float16"),
    "good[eager-fp32-cuda]": ("PASS", ""),
    "good[scripted-fp32-cuda]": ("PASS", ""),
    "good[compiled-fp32-cuda]": ("PASS", ""),
    "good[eager-amp_fp16-cuda]": ("PASS", ""),
    "good[scripted-amp_fp16-cuda]": ("PASS", ""),
    "good[compiled-amp_fp16-cuda]": ("PASS", ""),
}
ADVICE = ("\n", "CUDA_LAUNCH_BLOCKING", "TORCH_USE_CUDA_DSA", "expandable_segments")


def test_faults_stay_in_their_cells_and_are_told_in_one_line(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    axes = ("--precision=fp32", "--precision=amp_fp16", "--device=cuda", "--no-speed")
    code, output = conformance(tmp_path, "run", "nets.py", *axes, "-n", "2", "-k", " ".join(CHOICE.split()))
    assert code == 1, output
    verdicts = run_files.read(run_folder(output)).verdicts
    assert {cell: verdict.status for cell, verdict in verdicts.items()} == {c: w[0] for c, w in WANTED.items()}, output
    for cell, (_, text) in WANTED.items():
        told = verdicts[cell].text
        assert text in told
        assert not [word for word in ADVICE if word in told]


@pytest.mark.parametrize(
    ("mode", "precision", "facts"),
    [
        ("graphed", "fp32", {"CUDA graphs": 2, "tf32": "off"}),  # graphs of forward and of backward
        ("eager", "tf32", {"tf32": "on"}),
    ],
)
def test_calls_are_replayed_from_graphs_and_tf32_is_proven_where_they_are_asked_for(tmp_path, mode, precision, facts):
    (tmp_path / "nets.py").write_text(NETS)
    axes = (f"--mode={mode}", f"--precision={precision}", "--device=cuda", "--no-speed")
    code, output = conformance(tmp_path, "run", "nets.py", *axes, "-n", "1", "-k", "good")
    assert code == 0, output
    (verdict,) = run_files.read(run_folder(output)).verdicts.values()
    assert verdict.observation.facts.items() >= facts.items()
