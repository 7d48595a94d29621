"""The header of Inductor's kernels is precompiled with the flags of the kernels, once."""

import subprocess

import pytest
import torch
from packaging.version import Version

from conformance.cell import compiler
from zoo import internals

codecache = pytest.importorskip("torch._inductor.codecache")
isa = pytest.importorskip("torch._inductor.cpu_vec_isa", reason="torch 2.4 keeps it elsewhere")

pytestmark = pytest.mark.skipif(bool(compiler.complaint()), reason="no C++ compiler")


@pytest.fixture
def header(tmp_path, monkeypatch):
    """A small header in place of Inductor's."""
    path = tmp_path / "prefix.h"
    path.write_text("#pragma once\ninline int answer() { return 42; }\n")
    monkeypatch.setattr(internals, "path_of_header", lambda: str(path), raising=False)
    monkeypatch.setattr(internals, "pick_instructions", lambda: isa.invalid_vec_isa)
    return path


def test_torch_does_it_itself_since_2_8():
    assert compiler.lacks_header() == (Version(torch.__version__) < Version("2.8"))


def test_it_is_made_once_and_a_kernel_with_the_same_flags_takes_it(header):
    compiler.precompile_header(60.0)
    made = header.with_name("prefix.h.gch")
    assert made.stat().st_size > 10_000
    before = made.stat().st_mtime_ns
    compiler.precompile_header(60.0)
    assert made.stat().st_mtime_ns == before
    assert sorted(path.name for path in header.parent.iterdir()) == ["prefix.h", "prefix.h.gch"]
    kernel = header.with_name("kernel.cpp")
    kernel.write_text(f'#include "{header}"\nextern "C" int kernel() {{ return answer(); }}\n')
    header.write_text("#error the header itself was read\n")
    command = compiler._command(isa.invalid_vec_isa, header)
    done = subprocess.run([*command, "-c", str(kernel), "-o", str(header.with_name("kernel.o"))], check=False)
    assert done.returncode == 0


def test_a_header_that_does_not_compile_leaves_nothing(header):
    header.write_text("#error no\n")
    with pytest.raises(subprocess.CalledProcessError):
        compiler.precompile_header(60.0)
    assert [path.name for path in header.parent.iterdir()] == ["prefix.h"]
