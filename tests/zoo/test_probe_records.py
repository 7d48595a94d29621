"""The records of known torch faults: their checks, the search for them, and the form of each file."""

import ast
import re
import sys
from pathlib import Path

import pytest
from harness.processes import fresh
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from conformance.torch_versions import VERSIONS
from zoo.case import SpecError
from zoo.probe import EVERY_MINOR, NEVER, Probe, Seen, find

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "zoo" / "probes").glob("[!_]*.py"))
GOOD = {
    "name": "example",
    "summary": "one line",
    "issue": "https://github.com/pytorch/pytorch/issues/1",
    "symptom": "a wrong number",
    "seen": {"cpu": Seen(torch=">=2.6,<2.15", checked=("2.4.1", "2.6.0", "2.15.0"))},
    "observe": lambda device: device,
}


def test_a_record_keeps_what_it_is_given():
    probe = Probe(**GOOD)
    assert (probe.name, probe.symptom, probe.source, probe.devices) == ("example", "a wrong number", "", ())
    assert (probe.seen["cpu"].torch, probe.observe("cpu")) == (">=2.6,<2.15", "cpu")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "Example", "probe name 'Example'"),
        ("name", "two words", "probe name 'two words'"),
        ("name", 7, "probe name 7"),
        ("summary", "", "summary: want one line"),
        ("summary", "two\nlines", "summary: want one line"),
        ("symptom", "", "symptom: want one line"),
        ("symptom", None, "symptom: want one line"),
        ("issue", "", "want an issue, or a source"),
        ("issue", "#179804", "issue: want a link, got '#179804'"),
        ("observe", "a string", "observe must be a function, got 'a string'"),
        ("devices", "cpu", "devices must be a tuple of names, got 'cpu'"),
        ("devices", ("cuda",), "seen on cpu, which devices leaves out"),
        ("seen", GOOD["seen"]["cpu"], "seen: want a Seen for each device"),
        ("seen", {"cpu": ">=2.4"}, "seen: want a Seen for each device"),
    ],
)
def test_an_invalid_field_is_refused(field, value, message):
    with pytest.raises(SpecError, match=message.replace("(", r"\(")):
        Probe(**{**GOOD, field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("torch", "", "torch: want a range of versions, or 'never', got ''"),
        ("torch", None, "torch: want a range of versions, or 'never', got None"),
        ("torch", "2.6", "Invalid specifier"),
        ("torch", "none", "Invalid specifier"),
        ("checked", (), "checked: want a tuple"),
        ("checked", "2.6.0", "checked: want a tuple"),
        ("checked", ("two",), "Invalid version"),
        ("checked", ("2.11.0", "2.8.0"), "want rising versions, got 2.11.0, 2.8.0"),
        ("checked", ("2.8.0", "2.8.0"), "want rising versions"),
    ],
)
def test_invalid_versions_are_refused(field, value, message):
    with pytest.raises(SpecError, match=message):
        Seen(**{"torch": ">=2.6", "checked": ("2.6.0",), field: value})


@pytest.mark.parametrize(
    ("devices", "device", "concerns"),
    [((), "cpu", True), ((), "cuda", True), (("cpu",), "cpu", True), (("cpu",), "cuda", False)],
)
def test_a_probe_is_about_all_devices_or_those_it_names(devices, device, concerns):
    assert Probe(**{**GOOD, "devices": devices}).concerns(device) is concerns


def test_a_source_replaces_an_issue():
    assert Probe(**{**GOOD, "issue": "", "source": "seen on two machines"}).source == "seen on two machines"


@pytest.mark.parametrize(
    ("torch", "version", "shows"),
    [
        (">=2.6,<2.15", "2.4.1", False),
        (">=2.6,<2.15", "2.6.0", True),
        (">=2.6,<2.15", "2.13.0+cpu", True),
        (">=2.6,<2.15", "2.14.0.dev20260801+cu130", True),
        (">=2.6,<2.15", "2.15.0", False),
        (">=2.4", "2.10.0", True),
        (NEVER, "2.13.0", False),
    ],
)
def test_a_range_is_read_as_pep_440(torch, version, shows):
    assert Seen(torch=torch, checked=("2.6.0",)).shows_in(version) is shows


def test_the_probes_ran_on_every_version_of_the_matrix():
    assert EVERY_MINOR == VERSIONS


def test_every_file_of_the_folder_is_found_under_its_own_name():
    assert [probe.name for probe in find()] == [path.stem for path in FILES]
    assert len(FILES) >= 19


PROBE_FILE = """
from zoo.probe import Probe, Seen
SEEN = {{"cpu": Seen(torch="never", checked=("2.4.1",))}}
PROBE = Probe(name={name!r}, summary="s", source="s", symptom="s", seen=SEEN, observe=str)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make a package of probes; return a function that writes one file and returns the package's name."""
    folder = tmp_path / f"probes_{tmp_path.name}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    def write(stem="", text=""):
        if stem:
            (folder / f"{stem}.py").write_text(text)
        return folder.name

    return write


def test_an_empty_package_has_no_probes(package):
    assert find(package()) == []


def test_files_are_found_in_the_order_of_their_names(package):
    package("second", PROBE_FILE.format(name="second"))
    assert [p.name for p in find(package("first", PROBE_FILE.format(name="first")))] == ["first", "second"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defines no PROBE"),
        ("PROBE = 7", "defines no PROBE"),
        ("1 / 0", "does not import: ZeroDivisionError"),
        (PROBE_FILE.format(name="other"), "named 'other', want 'mine'"),
        (PROBE_FILE.format(name="Mine"), "does not import: SpecError"),
    ],
)
def test_a_file_without_its_probe_is_refused(package, text, message):
    with pytest.raises(SpecError, match=message):
        find(package("mine", text))


def test_two_files_cannot_define_one_probe(package):
    package("mine", PROBE_FILE.format(name="mine"))
    with pytest.raises(SpecError, match="named 'mine', want 'yours'"):
        find(package("yours", PROBE_FILE.format(name="mine")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_to_do_instead_and_imports_torch_and_the_record_alone(path):
    tree = ast.parse(path.read_text())
    assert "\n\nInstead: " in ast.get_docstring(tree)
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    named |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    others = {name for name in named if name.partition(".")[0] not in {"torch", *sys.stdlib_module_names}}
    assert {"zoo.probe"} <= others <= {"zoo.probe", "zoo"}  # `zoo.internals` is for names that torch does not document


MAKERS = {"ones", "zeros", "full", "tensor", "eye", "rand", "randn", "arange", "empty", "LSTM"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_makes_every_tensor_on_the_given_device_and_says_why_if_it_leaves_one_out(path):
    nodes = list(ast.walk(tree := ast.parse(path.read_text())))
    inside = [node for f in nodes if isinstance(f, ast.FunctionDef) for node in ast.walk(f)]
    texts = {node.value for node in inside if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert not {text for text in texts if re.search(r"\b(cpu|cuda)\b", text)}
    assert not {node.attr for node in inside if isinstance(node, ast.Attribute)} & {"cpu", "cuda"}
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    made = [call for call in calls if call.func.attr in MAKERS]
    assert made
    assert all("device" in {keyword.arg for keyword in call.keywords} for call in made)
    (probe,) = (probe for probe in find() if probe.name == path.stem)
    assert bool(probe.devices) == ("\n\nOnly on " in ast.get_docstring(tree))


@pytest.mark.parametrize("probe", find(), ids=lambda probe: probe.name)
def test_a_range_ends_only_at_versions_that_were_run(probe):
    for seen in probe.seen.values():
        run = {Version(version).release[:2] for version in seen.checked}
        ends = SpecifierSet("" if seen.torch == NEVER else seen.torch)
        assert {Version(end.version).release[:2] for end in ends} <= run


def test_the_zoo_reads_no_probe_until_asked_and_reading_loads_no_compiler():
    code = """
import sys, zoo
zoo.list_models()
print("zoo.probe" in sys.modules, "zoo.probes" in sys.modules)
before = {"torch._dynamo", "torch._inductor", "torch._functorch.config"} & set(sys.modules)
from zoo.probe import find
find()
print(*({"torch._dynamo", "torch._inductor", "torch._functorch.config"} & set(sys.modules)) - before)
"""
    assert fresh(code) == ["False", "False"]
