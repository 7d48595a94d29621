"""A reference that would need more memory than is free is not begun; the line says how much."""

import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from conformance.axes import PRECISIONS
from conformance.cell import observe
from conformance.oracle import reference
from conformance.process import memory
from zoo.case import Case
from zoo.spec import Spec

MIB = 2**20


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A process that holds 100 MiB and has held 200, in a machine with 500 MiB free."""
    (tmp_path / "status").write_text(f"VmHWM:\t{200 * 1024} kB\nVmRSS:\t{100 * 1024} kB\n")
    (tmp_path / "meminfo").write_text(f"MemAvailable:    {500 * 1024} kB\n")
    monkeypatch.setattr(memory, "SELF", tmp_path)
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """What is asked of the C library."""
    calls = []
    monkeypatch.setattr(memory, "keep_freed", lambda: calls.append("keep"))
    monkeypatch.setattr(memory, "give_back_freed", lambda: calls.append("give back"))
    return calls


def test_what_fits_well_keeps_what_it_frees(kept):
    memory.ensure_room(100 * MIB)  # twice 300, of 600
    assert kept == ["keep"]


def test_what_just_fits_gives_back_what_it_frees(kept):
    memory.ensure_room(101 * MIB)
    memory.ensure_room(261 * MIB)  # 1.3 times 461, of 600
    assert kept == ["give back", "give back"]


def test_what_does_not_fit_is_refused_with_both_sizes(kept):
    with pytest.raises(MemoryError, match=r"needs about 0\.6 GiB of memory, and 0\.6 GiB are free; judge the model at"):
        memory.ensure_room(262 * MIB)
    assert not kept


def test_a_control_group_may_have_less(machine):
    (machine / "memory.max").write_text(str(260 * MIB))
    (machine / "memory.current").write_text(str(100 * MIB))
    memory.ensure_room(0)  # 1.3 times 200, of 160 free and 100 held
    with pytest.raises(MemoryError, match=r"0\.3 GiB are free"):
        memory.ensure_room(MIB)


@pytest.mark.parametrize("file", ["status", "meminfo"])
def test_where_the_system_does_not_tell_nothing_is_refused(machine, file):
    (machine / file).write_text("Name:\tpython\n")
    memory.ensure_room(2**50)


def test_a_reference_stops_before_its_runs(machine, monkeypatch):
    """The weights of this layer are 8 MiB in float64, and 16 are left beside what its process has needed."""
    (machine / "meminfo").write_text(f"MemAvailable:    {180 * 1024} kB\n")  # 1.3 times 216 is 281
    monkeypatch.setattr(reference.Spread, "reference", lambda *_: pytest.fail("a perturbed run was made"))
    case = Case(name="typical", inputs=lambda g: (torch.randn(2, 1024, generator=g),))
    layer = Spec(
        name="wide",
        summary="a wide layer",
        source="none",
        build=lambda: nn.Linear(1024, 1024, bias=False),
        cases=(case,),
    )
    with pytest.raises(MemoryError, match=r"the reference needs about 0\.3 GiB"):
        reference.make(layer, None, 0, [PRECISIONS["fp32"]])


def test_it_ends_as_out_of_memory_and_blames_no_spec():
    assert observe._ending(MemoryError("the reference needs"), "invalid") == "out of memory"


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.parametrize(("first", "mib"), [("memory.give_back_freed()", 32), ("pass", 256)])
def test_freed_blocks_leave_the_process_if_they_are_to(first, mib):
    """In a process of its own, because glibc keeps what it is told. After one of 28 MiB, it keeps smaller blocks."""
    code = (
        "import torch; from conformance.process import memory; large = torch.ones(7 * 2**20); del large;"
        f"{first}; held = [torch.ones(2**20) for _ in range(64)]; kept = held[::8]; del held;"
        "print(memory._bytes_of(memory.SELF / 'status', 'VmRSS'))"
    )
    alone = (
        "import torch; from conformance.process import memory; print(memory._bytes_of(memory.SELF / 'status', 'VmRSS'))"
    )
    found, before = (int(subprocess.check_output([sys.executable, "-c", text])) for text in (code, alone))
    assert (found - before) / MIB == pytest.approx(mib, abs=64)
