"""Names of torch that it does not document: all of them in one file, there on this torch, and looked up late."""

import ast
import inspect
import re
import subprocess
import sys

import pytest
import torch
from harness.sources import MODULES, ROOT
from packaging.specifiers import SpecifierSet

from zoo import internals

HOME = "zoo.internals"
PRIVATE = re.compile(r"_[A-Za-z]\w*")
OTHERS = {"sys", "os", "subprocess", "threading", "argparse", "command", "self", "cls"}  # whose private names are used
FIELDS = {"_fields", "_asdict"}  # of named tuples
UNDOCUMENTED = ("torch.multiprocessing.reductions", "torch.amp.autocast_mode")  # modules without an underscore
EXAMPLES = {
    "Tensor": torch.ones(1),
    "UntypedStorage": torch.ones(1).untyped_storage(),
    "OpOverload": torch.ops.aten.add.Tensor,
    "OpOverloadPacket": torch.ops.aten.add,
    "Module": torch.nn.Linear(1, 1),
    "Distribution": torch.distributions.Distribution,
}


def names(node):
    """The names of a chain such as torch._C.name, from the left; [] if it does not begin with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = names(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if before else []


def own_names(tree):
    """Names that a file defines itself: functions, classes, and attributes of `self`."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    stored = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return found | {node.attr for node in stored if names(node)[:1] == ["self"]}


def reaches(tree):
    """What a file says of torch's inside: private attributes, modules, and texts that name either."""
    own = own_names(tree) | FIELDS
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr) and node.attr not in own:
            if (names(node) or ["?"])[0] not in OTHERS:
                yield ast.unparse(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            home = [node.module] if isinstance(node, ast.ImportFrom) else []
            paths = [".".join([*home, alias.name]) for alias in node.names]
            yield from (p for p in paths if re.match(r"torch\b.*\._[a-zA-Z]", p) or p.startswith(UNDOCUMENTED))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if re.fullmatch(r"torch(\.\w+)*\._\w+(\.\w+)*", text) or text in ATTRIBUTE_NAMES:
                yield text


ATTRIBUTE_NAMES = {row.path.rpartition(".")[2] for row in internals.ATTRIBUTES.values()} | {
    *internals.HOOKS_OF_TENSORS,
    *internals.HOOKS_OF_MODULES,
    internals.PARAMETERS,
    internals.BUFFERS,
    internals.SUBMODULES,
    internals.TRANSIENT_BUFFERS,
    internals.LOADING_HOOKS,
    internals.COMPILED_MODULE,
    internals.SAVED,
}


def test_the_walk_sees_what_it_should():
    text = """
import torch._dynamo
from torch.multiprocessing.reductions import StorageWeakRef
tensor._version, torch._C.name(), getattr(module, "_buffers"), sys.modules["torch._inductor.config"]
"""
    assert len(set(reaches(ast.parse(text)))) == 6  # `torch._C` itself, and the five


@pytest.mark.parametrize("name", sorted(set(MODULES) - {HOME}))
def test_no_other_module_reaches_for_a_private_name(name):
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert not set(reaches(tree))


@pytest.mark.parametrize("name", sorted(set(MODULES) - {HOME}))
def test_what_a_module_takes_from_the_file_is_listed_there(name):
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    taken = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and names(n)[:-1] == ["internals"]}
    assert taken <= {*internals.VALUES, *internals.ATTRIBUTES, *vars(internals)}
    assert "zoo.internals" not in {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}  # a late look-up


@pytest.mark.parametrize("name", internals.VALUES)
def test_a_name_is_in_this_torch_if_the_file_says_so(name):
    if name == "count_gpus" and torch.version.cuda is None:
        pytest.skip("this torch is for CPUs")
    listed = internals.VALUES[name]
    version = torch.__version__.split("+")[0]
    assert hasattr(internals, name) == SpecifierSet(listed.torch).contains(version, prereleases=True)
    assert listed.lost
    if inspect.ismodule(getattr(internals, name, None)):
        assert ":" not in listed.path  # it is imported, even if nothing has imported it before


@pytest.mark.parametrize("name", internals.ATTRIBUTES)
def test_an_attribute_is_in_this_torch(name):
    owner = internals.ATTRIBUTES[name].path.partition(".")[0]
    if owner == "CustomOpDef":
        import zoo.functions.cube  # noqa: F401, PLC0415 -- it defines one

        example = next(iter(internals.operator_definitions.values()))
    else:
        example = EXAMPLES[owner]
    getattr(internals, name)(example)


def test_what_is_missing_is_an_error_that_says_what_is_lost(monkeypatch):
    monkeypatch.delattr(torch._C, "_current_autograd_node")
    monkeypatch.delitem(vars(internals), "current_node", raising=False)
    assert not hasattr(internals, "current_node")
    with pytest.raises(internals.MissingError, match=r"has no torch\._C:_current_autograd_node, and without it a back"):
        _ = internals.current_node
    with pytest.raises(internals.MissingError, match=r"has no Tensor\._version, and without it writes in place"):
        internals.version_of(object())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = internals.nothing


def test_what_is_replaced_comes_back(monkeypatch):
    before = torch._C._current_autograd_node
    with internals.replaced("current_node", len):
        assert torch._C._current_autograd_node is len
    assert torch._C._current_autograd_node is before
    monkeypatch.delattr(torch._C, "_current_autograd_node")
    with internals.replaced("current_node", len):
        assert not hasattr(torch._C, "_current_autograd_node")


def test_every_module_imports_where_torch_lacks_all_that_it_does_not_promise():
    code = f"""
import importlib
from zoo import internals

for name in internals.VALUES:
    if name != "TorchDispatchMode":  # the base of classes, without which nothing can be judged
        internals.VALUES[name] = internals.Internal("torch.gone:gone", "nothing")
for name in {sorted(name for name in MODULES if not name.endswith("__main__"))}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
