"""An error is one line that says its cause; those of memory and of the machine are known by their texts."""

import re

import pytest
import torch
from harness.command import conformance
from harness.targets import hang, target_of
from torch import nn

from conformance.evaluate.error_text import is_out_of_memory, one_line
from conformance.process import child, fork_server, process_table


class Viewed(nn.Module):
    def helper(self, x):
        return x.view(3, 5)

    def forward(self, x):
        y = self.helper(x)
        return y + 1


class Raising(nn.Module):
    def forward(self, x):
        if x.dim() > 0:
            raise ValueError("no such thing")
        return x


class Unknown(nn.Module):
    def forward(self, x):
        return x.clamp(min=torch.finfo(x.dtype).min)


class Generator(nn.Module):
    def forward(self, x):
        return [a * b * x for a in range(2) for b in range(2)]


class Mistaken(nn.Module):
    def forward(self, x):
        return torch.cat(x, dim=0)


class Promoting(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight) * torch.ones(4)


@pytest.mark.parametrize(
    ("module", "start", "end"),
    [
        (
            Viewed,
            "RuntimeError: shape '[3, 5]' is invalid for input of size 4 (test_error_text.py, line ",
            ": return x.view(3, 5))",
        ),
        (Raising, "ValueError: no such thing (test_error_text.py, line ", ': raise ValueError("no such thing"))'),
        (Unknown, "Unknown builtin op: aten::finfo", ": return x.clamp(min=torch.finfo(x.dtype).min))"),
        (Generator, "Only a single generator is currently supported (test_error_text.py, line ", ")"),
        (Mistaken, "Arguments for call are not valid.", ": return torch.cat(x, dim=0))"),
    ],
)
def test_an_error_of_torchscript_is_its_cause_and_its_line(module, start, end):
    with pytest.raises(Exception) as raised:  # noqa: PT011 -- TorchScript raises what it likes
        torch.jit.script(module())(torch.ones(4))
    found = one_line(raised.value)
    assert found.startswith(start), found
    assert found.endswith(end), found
    assert "~" not in found
    assert "Traceback" not in found


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ('in File "a.py", line 3, no number', 'in File "a.py", line 3, no number'),
        (
            'no such op\n\nfrom user code:\n   File "a.py", line 3, in forward\n    return op(x)',
            'no such op from user code: File "a.py", line 3, in forward return op(x)',
        ),
        ("first\n\nAt:\nnoon", "first At: noon"),
        ("first\n\nAt:\n  noon(12): came\nlast", "first last"),
        ("no <object object at 0x7ff9294cea40>", "no <object object>"),  # so cells that fail alike say the same
    ],
)
def test_other_errors_stay_as_they_are_but_for_addresses_and_callers(said, line):
    assert one_line(ValueError(said)) == line


def test_an_error_of_the_backward_that_torchscript_writes_is_its_cause():
    scripted = torch.jit.script(Promoting(4, 4).bfloat16())
    x = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
    scripted(x).mean().backward()  # that of eager; from the second call on, TorchScript has its own
    second = scripted(x).mean()
    with pytest.raises(RuntimeError) as raised:
        second.backward()
    found = one_line(raised.value)
    assert found.startswith("RuntimeError: expected m1 and m2 to have the same dtype"), found
    assert found.endswith("grad_input = torch.matmul(grad_output, weight))"), found


# Faults of a device, told by their texts on the CPU

ADVICE = """
Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
LINE = "return self.table[index] + torch.empty([10_000_000_000_000], dtype=torch.uint8, device=index.device)"
SCRIPTED = f"""The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "/somewhere/in/the/folders/of/a/user/with/a/long/name/nets.py", line 3, in forward
    {LINE}
                               ~~~~~~~~~~~ <--- HERE
RuntimeError: """
FULL = (
    "CUDA out of memory. Tried to allocate 9.09 TiB. GPU 0 has a total capacity of 139.80 GiB of which 138.20 GiB is "
    "free. Including non-PyTorch memory, this process has 1.60 GiB memory in use. 125.82 GiB allowed;"
)
VERBOSE = (
    "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace (please do this especially if you're reporting a bug to "
    'PyTorch). For even more developer context, set TORCH_LOGS="+dynamo"\n'
)
OTHERS = " Process 2134 has 14.00 MiB memory in use. Process 2139 has 1.25 GiB memory in use." * 8
REMEDY = (
    " Of the allocated memory 1.00 GiB is allocated by PyTorch, and 24.00 MiB is reserved by PyTorch but unallocated. "
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html)"
)
ASSERTED = "CUDA error: device-side assert triggered"
NETS = f"""
import torch
from conformance import Prepared, register_mode
from zoo import Case, Spec

FAULTS = {{
    "memory": torch.cuda.OutOfMemoryError({FULL + REMEDY!r}),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "asserting": getattr(torch, "AcceleratorError", RuntimeError)({ASSERTED + ADVICE!r}),
}}

def raising(problem):
    def call(*args):
        raise problem
    return lambda model: Prepared(call, dict)

for name, problem in FAULTS.items():
    register_mode(name, raising(problem))

def doubling(x: torch.Tensor) -> torch.Tensor:
    return x * 2

SPEC = Spec(
    name="doubling",
    summary="twice its argument",
    source="a test",
    build=lambda: doubling,
    cases=(Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),)),),
    dtypes="input",
)
"""


@pytest.mark.parametrize(
    ("problem", "means_memory"),
    [
        (MemoryError(), True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory" + ADVICE), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError(SCRIPTED + FULL), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448."), False),
        (RuntimeError(ASSERTED + ADVICE), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("the last batch is out of memory order"), False),
    ],
)
def test_memory_refused_in_every_form_and_another_refusal(problem, means_memory):
    assert is_out_of_memory(problem) is means_memory


def test_the_advice_is_cut_off():
    assert one_line(RuntimeError(ASSERTED + ADVICE)) == ASSERTED
    assert one_line(RuntimeError(SCRIPTED + ASSERTED + ADVICE)) == f"RuntimeError: {ASSERTED} (nets.py, line 3: {LINE})"
    assert one_line(torch.cuda.OutOfMemoryError(FULL + REMEDY)) == FULL
    assert one_line(RuntimeError(SCRIPTED + FULL + REMEDY)) == f"RuntimeError: {FULL} (nets.py, line 3: {LINE})"
    compiling = "TypeError: cannot determine truth value of Relational: s53*s77 < s77"
    assert one_line(RuntimeError(f"{compiling}\n\n{VERBOSE}")) == compiling
    crowded = FULL.replace(" Including", f"{OTHERS} Including") + REMEDY
    assert one_line(RuntimeError(SCRIPTED + crowded)).startswith(f"RuntimeError: {FULL} (nets.py, line 3: ")


def test_the_callers_of_what_a_script_calls_in_python_are_cut_off():
    @torch.jit.ignore
    def missing(x: torch.Tensor) -> torch.Tensor:
        raise NameError("name 'absent' is not defined")

    @torch.jit.script
    def calls(x: torch.Tensor) -> torch.Tensor:
        return missing(x)

    with pytest.raises(RuntimeError, match="\n\nAt:\n") as caught:
        calls(torch.ones(1))
    assert re.fullmatch(
        r"RuntimeError: NameError: name 'absent' is not defined \(test_error_text\.py, line \d+: return missing\(x\)\)",
        one_line(caught.value),
    )


def test_a_fault_in_one_cell_leaves_its_neighbours_green(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    code, output = conformance(tmp_path, "run", "nets.py", "--precision=fp32", "--device=cpu", "--no-speed", "-n", "1")
    assert code == 1, output
    reds = dict(re.findall(r"✗ doubling\[(\w+)-fp32-cpu\] +(.+)", output))
    assert reds["memory"].split(maxsplit=1)[0] == "OOM"
    assert "in phase call: CUDA out of memory. Tried to allocate 9.09 TiB" in reds["memory"]
    assert reds["cublas"].split(maxsplit=1)[0] == "OOM"
    assert re.fullmatch(r"ERROR +in phase call: \w+: CUDA error: device-side assert triggered", reds["asserting"])
    assert "6 cells: 3 pass" in output


def test_a_dead_process_that_the_system_holds_does_not_hold_the_run(monkeypatch):
    """As one that a driver keeps until its kernel ends. Here nobody kills it, which looks the same."""
    child.run(target_of(hang), {}, deadline=0.1)  # the fork server has started before the clock does
    monkeypatch.setattr(process_table, "kill_group", lambda _: None)
    monkeypatch.setattr(fork_server, "LAST_SECONDS", 0.5)
    ending = child.run(target_of(hang), {}, deadline=2.0)
    assert (ending.kind, ending.message) == ("timed out", "no answer within 2 s")
    assert ending.seconds < 30.0


def test_of_an_error_of_the_compiler_the_cause_is_left():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="broadcast") as mismatch:
        torch.compile(lambda a, b: torch.relu(a + b), fullgraph=True)(torch.ones(3, 5), torch.ones(4, 5))
    said = one_line(mismatch.value)
    assert "broadcast" in said[:120]
    with pytest.raises(Exception, match=r"(?i)data-dependent") as branch:
        torch.compile(lambda x: x + 1 if x.sum() > 0 else x, fullgraph=True)(torch.ones(3))
    said += one_line(branch.value)
    assert "test_error_text.py" in said
    assert not [word for word in ("Hint:", "^^", "please visit", "FakeTensor") if word in said]
