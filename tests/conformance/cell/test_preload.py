"""The fork server: nothing that it imports may reach the CUDA runtime, which would refuse CUDA to every cell."""

import pytest
import torch
from harness.processes import printed

from conformance.evaluate.error_text import POISONED, one_line
from zoo import internals

RUNTIME = """
import json, os, torch

asked = []
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, lambda name=name: asked.append(name) or 1)
if not hasattr(torch._C, "_cuda_getCurrentRawStream"):  # a torch without CUDA; the compiler imports it from one with it
    torch._C._cuda_getCurrentRawStream = None
"""
LOAD = f"""{RUNTIME}
torch.cuda._device_count_nvml = lambda: 1  # as on a machine with a GPU, where modules that ask go on to use the answer
import conformance.cell.preload as server
server.import_late(server.LATE)
meanwhile = list(asked)
print(json.dumps([meanwhile, torch.cuda.is_available(), asked, "PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ]))
"""
SERVE = """
import json
from harness.targets import target_of, use_cuda
from conformance.process import child

ending = child.run(target_of(use_cuda), {}, deadline=120.0)
print(json.dumps([ending.kind, ending.result, ending.message]))
"""
POISONED_FORK = """
import json, os, torch
from harness.targets import use_cuda

torch.cuda.is_available()
if os.fork() == 0:
    print(json.dumps(use_cuda({}, None)), flush=True)
    os._exit(0)
os.wait()
"""
LATE = """
import json, os
from harness.targets import needs, target_of
from conformance.process import child

modules = os.environ["MODULES"].split()
found = [child.run(target_of(needs), {"modules": modules}, deadline=120.0).result for _ in range(2)]
print(json.dumps([[one[name] for one in found] for name in ("there", "threads", "tangent")]))
"""
BUILTINS = """
import json, weakref
from torch.jit import _builtins

seen = []
register = _builtins._register_builtin
_builtins._register_builtin = lambda op, name: (seen.append((weakref.ref(op), name)), register(op, name))
import conformance.cell.preload as server
with server.ops_kept():
    import torch._inductor.compile_fx
print(json.dumps([len(seen), [name for op, name in seen if op() is None]]))
"""
PREPARED = """
import json, torch
import conformance.cell.preload
from zoo import internals

before = internals.trace_patterns.cache_info().misses
def compile_without_kernels(graph, inputs):
    return internals.compile_fx(graph, inputs, inner_compile=lambda graph, *_, **__: graph)

torch.compile(lambda x: x.cos(), backend=compile_without_kernels)(torch.ones(3))
print(json.dumps([before, internals.trace_patterns.cache_info().misses]))
"""
CUDA_BUILD = pytest.mark.skipif(not hasattr(torch._C, "_cuda_isInBadFork"), reason="torch without CUDA refuses no fork")


@pytest.fixture(autouse=True)
def _runtime_may_be_asked(monkeypatch):
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)


def test_no_import_reaches_the_runtime_which_is_asked_again_afterwards():
    for devices in ("cpu cuda", ""):  # the compiler is imported at once, or once a child has needed it
        meanwhile, available, asked, nvml_only = printed(LOAD, CONFORMANCE_COMPILES_FOR=devices)
        assert meanwhile == []
        assert available
        assert asked == ["_cuda_getDeviceCount"]
        assert not nvml_only


@CUDA_BUILD
def test_a_child_of_the_fork_server_may_use_cuda():
    kind, cuda, message = printed(SERVE, CONFORMANCE_COMPILES_FOR="cpu cuda")
    assert (kind, cuda["refused"], message) == ("answered", False, "")
    assert "forked" not in cuda["text"]


@CUDA_BUILD
def test_a_cell_of_a_poisoned_fork_server_names_the_fault():
    cuda = printed(POISONED_FORK)
    assert cuda["refused"]
    assert cuda["text"].startswith(f"{POISONED}: Cannot re-initialize CUDA in forked subprocess")


def test_only_a_refused_process_blames_the_fork_server(monkeypatch):
    """A model may fork workers of its own, which CUDA refuses just so."""
    problem = RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
    assert one_line(problem) == str(problem)
    monkeypatch.setattr(internals, "is_in_bad_fork", lambda: True)
    assert one_line(problem) == f"{POISONED}: {problem}"
    assert one_line(ValueError("no CUDA here")) == "no CUDA here"


def test_a_server_imports_a_module_only_once_a_child_has_needed_it():
    modules = [*internals.IMPORTED_LATE, "conformance.measure.side_by_side", "zoo.models"]
    there, threads, tangents = printed(LATE, MODULES=" ".join(modules), CONFORMANCE_COMPILES_FOR="")
    assert there == [[False] * len(modules), [True] * len(modules)]
    assert threads[0] == threads[1]  # a fork has none of them, and would wait for what they hold
    assert tangents == [[2.0, 0.0], [2.0, 0.0]]  # of a scripted model, in both
    (there, *_) = printed(LATE, MODULES=internals.COMPILER, CONFORMANCE_COMPILES_FOR="cuda")
    assert there == [[True], [True]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch may trace its patterns on the GPU")
def test_a_compile_finds_what_the_server_has_prepared():
    assert printed(PREPARED, CONFORMANCE_COMPILES_FOR="cuda") == [1, 1]


def test_torchscript_knows_no_address_of_an_op_that_is_gone():
    known, gone = printed(BUILTINS)
    assert known > 0
    assert gone == []
