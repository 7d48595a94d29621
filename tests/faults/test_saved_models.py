"""A file of a model runs code when it is opened only if a person trusts it; a run that was trusted can be repeated."""

import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
import torch
from harness.command import FP32, conformance, stored_runs
from harness.own_models import Net

import conformance as public
from conformance.errors import UsageError
from conformance.own import saved
from conformance.own.saved import builder

X = torch.ones(3, 4)


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def pickled(thing, **how):
    """The bytes that `torch.save` writes."""
    file = io.BytesIO()
    torch.save(thing, file, **how)
    return file.getvalue()


def scripted():
    """The bytes of an archive of TorchScript."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Net()), file)
    return file.getvalue()


def exported():
    """The bytes of an exported program of symbolic size."""
    file = io.BytesIO()
    rows = torch.export.Dim("rows")
    torch.export.save(torch.export.export(Net(), (X,), dynamic_shapes=({0: rows},)), file)
    return file.getvalue()


def with_parts(archive, change):
    """An archive with other contents: `change` is given the name and the bytes of each part, and returns its bytes."""
    old, new = zipfile.ZipFile(io.BytesIO(archive)), io.BytesIO()
    with zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as file:
        for name in old.namelist():
            file.writestr(name, change(name, old.read(name)))
    return new.getvalue()


def with_pickles(archive, evil):
    """An archive in which each pickle is another one: plain where it was, and by `torch.save` where that wrote it."""
    whole, bare = pickled(evil), zipfile.ZipFile(io.BytesIO(pickled(evil))).read("archive/data.pkl")
    made = {".pkl": bare, ".pt": whole}
    return with_parts(archive, lambda name, held: made.get(Path(name).suffix, held))


def with_expressions(archive, mark):
    """An exported program with code in place of each symbolic size."""
    code = f"__import__('os').mkdir('{mark}')".encode()
    changed = lambda _, held: re.sub(rb'"expr_str": "[^"]*"', b'"expr_str": "%s"' % code, held)  # noqa: E731
    return with_parts(archive, changed)


def with_guards(archive, mark):
    """An exported program with code in place of the guards of its sizes."""
    code = b'"guards_code": ' + json.dumps([f"__import__('os').mkdir('{mark}')"]).encode()
    return with_parts(archive, lambda _, held: re.sub(rb'"guards_code": \[("[^"]*"(, )?)*\]', code, held))


def with_both(archive, evil):
    """An archive that is also one of `torch.save`."""
    file = io.BytesIO(archive)
    with zipfile.ZipFile(file, "a") as held, zipfile.ZipFile(io.BytesIO(pickled(evil))) as other:
        for name in other.namelist():
            held.writestr(name, other.read(name))
    return file.getvalue()


FILES = {  # what is in a file, by its name; and whether torch runs code when it opens it
    "zip.pt": (pickled, True),
    "old.pt": (lambda evil: pickled(evil, _use_new_zipfile_serialization=False), True),
    "protocol.pt": (lambda evil: pickled(evil, pickle_protocol=4), True),
    "pickle.pt2": (pickled, True),
    "inside.pt": (lambda evil: pickled({"model": {"weight": evil}}), True),
    "inputs.pt2": (lambda evil: with_pickles(exported(), evil), True),
    "sizes.pt2": (lambda evil: with_expressions(exported(), evil.mark), True),
    "script.pt": (lambda evil: with_pickles(scripted(), evil), False),
    "both.pt": (lambda evil: with_both(scripted(), evil), False),
    "bare.bin": (lambda evil: zipfile.ZipFile(io.BytesIO(pickled(evil))).read("archive/data.pkl"), True),
}


def open_file(path, *, trusted):
    """What a file holds, or why it is refused."""
    try:
        return builder(path, trusted=trusted)()
    except UsageError as problem:
        return str(problem)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("ignore")  # torch's, of files as odd as these
def test_no_file_runs_code_unless_it_is_trusted(tmp_path, name):
    make, runs = FILES[name]
    mark, path = tmp_path / "mark", tmp_path / name
    path.write_bytes(make(Evil(mark)))
    told = open_file(path, trusted=False)
    assert not mark.exists()
    if runs:
        assert "may run any code when it is opened" in told
        assert told.endswith("; if you trust those who made it, say so: --trust, or trust=True")
    open_file(path, trusted=True)
    assert mark.exists() == runs  # else this test sees nothing


CHANGES = {
    "guards": lambda archive: with_guards(archive, "mark"),
    "a function": lambda archive: with_parts(
        archive, lambda _, held: held.replace(b"torch.ops.aten.tanh.default", b"torch.os.system")
    ),
    "a library": lambda archive: with_parts(
        archive, lambda _, held: held.replace(b"torch.ops.aten.tanh.default", b"torch.ops.load_library")
    ),
    "an attribute": lambda archive: with_parts(
        archive, lambda _, held: held.replace(b"torch.ops.aten.tanh.default", b"torch.ops.aten.tanh.__call__")
    ),
    "a container": lambda archive: with_parts(
        archive,
        lambda _, held: held.replace(b'{\\"type\\": \\"builtins.tuple', b'{\\"type\\": \\"collections.defaultdict'),
    ),
    "another part": lambda archive: with_another(archive, "net/data/constants/custom_obj_0"),
    "a part twice": lambda archive: with_another(archive, "version"),
}


def with_another(archive, name):
    """An archive with one more part."""
    file = io.BytesIO(archive)
    with zipfile.ZipFile(file, "a") as held:
        known = {old.rpartition("/")[2]: old for old in held.namelist()}
        held.writestr(known.get(name, name), b"")
    return file.getvalue()


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_program_that_names_more_than_ops_and_sizes_needs_trust(tmp_path, name):
    before = exported()
    after = CHANGES[name](before)
    if after == before:
        pytest.skip("this torch writes none of it")
    (tmp_path / "net.pt2").write_bytes(after)
    assert "is an exported program that names more than ops and sizes" in open_file(tmp_path / "net.pt2", trusted=False)


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("2*s0 + Max(1, floor(s1/2))", True),
        ("Mul(Integer(2), Symbol('s69', positive=True, integer=True))", True),
        ("L['x'].size()[1] != max(1, L['d']['y'].size()[1] // 2)", True),
        ("open('x')", False),
        ("L['x'].size().__class__", False),
        ("Symbol(b'__x')", False),
        ("S('open(1)')", False),
        ("().__class__", False),
        ("(lambda: 0)()", False),
        ("Symbol('s')('x')", False),
        ("[s for s in s0]", False),
        ("f'{s0}'", False),
        ("s0 s1", False),
    ],
)
def test_an_expression_of_sizes_calls_nothing_else(text, harmless):
    assert saved._is_arithmetic(text) == harmless


def test_what_runs_no_code_needs_no_trust(tmp_path):
    (tmp_path / "net.pt2").write_bytes(exported())
    program = open_file(tmp_path / "net.pt2", trusted=False)
    assert torch.equal(program.module()(X), torch.export.load(tmp_path / "net.pt2").module()(X))
    (tmp_path / "net.pt").write_bytes(scripted())
    assert isinstance(open_file(tmp_path / "net.pt", trusted=False), torch.jit.ScriptModule)
    (tmp_path / "weights.pt").write_bytes(pickled(Net().state_dict()))
    assert "holds weights alone" in open_file(tmp_path / "weights.pt", trusted=False)


def test_a_module_names_the_code_that_it_asks_for(tmp_path):
    (tmp_path / "net.pt").write_bytes(pickled(torch.nn.Linear(2, 2)))
    assert "it asks for torch.nn.modules.linear.Linear" in open_file(tmp_path / "net.pt", trusted=False)
    told = {}
    for role in ("reference", "candidate"):
        with pytest.raises(UsageError) as caught:
            public.check(torch.nn.Linear(2, 2), torch.ones(2, 2), **{role: tmp_path / "net.pt"})
        told[role] = str(caught.value)
    assert all(f"the {role}: {tmp_path / 'net.pt'} may run any code" in text for role, text in told.items())


def test_trust_is_for_the_files_that_a_person_names(tmp_path):
    (tmp_path / "net.pt").write_bytes(pickled(torch.nn.Linear(4, 2)))
    fast = {"modes": "eager", "precisions": "fp32"}
    with pytest.raises(UsageError, match=r"net\.pt may run any code when it is opened"):
        public.check(tmp_path / "net.pt", X, **fast)
    found = public.check(tmp_path / "net.pt", X, **fast, trust=True)
    assert found.ok
    stored = found.write(tmp_path / "kept")  # its arguments are a pickle, which somebody else may have written
    words = (str(stored / "saved" / "call.pt"), str(tmp_path / "net.pt"))
    code, output = conformance(tmp_path, "explain", str(stored), found.cells[0].cell, *words)
    assert code == 4
    assert re.search(r"may run code when it is opened; if you trust .* --trust$", output)
    code, output = conformance(tmp_path, "explain", str(stored), found.cells[0].cell, "--trust", *words)
    assert code == 0, output


def test_a_trusted_run_is_repeated_with_the_same_word(tmp_path):
    (tmp_path / "net.pt").write_bytes(pickled(torch.nn.Linear(4, 2)))
    code, output = conformance(tmp_path, "run", "net.pt", "--input", "3,4", *FP32)
    assert (code, len(output.splitlines())) == (4, 1)
    code, output = conformance(tmp_path, "run", "net.pt", "--input", "3,4", *FP32, "--trust", "-n1", "--collect-only")
    assert code == 1, output
    (stored,) = stored_runs(tmp_path)
    again = f"conformance run {tmp_path / 'net.pt'} --trust --resume {stored}"
    assert again in output
    code, output = conformance(tmp_path, "run", "net.pt", "--resume", str(stored))
    assert code == 4
    assert output.endswith(f"may run code when it is opened; if you trust those who made it: {again}\n")
    code, output = conformance(tmp_path, *again.split()[1:])
    assert code == 0, output
