"""Records of the zoo: what a convention, an error input, a claim and a probe accept, and what they refuse."""

import ast
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from torch import nn

import zoo
from conformance.torch_versions import VERSIONS
from zoo import Convention, Family
from zoo.case import Call, Case, SpecError
from zoo.error_input import ErrorInput
from zoo.probe import EVERY_MINOR, NEVER, Probe, Seen, find


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tensor": "", "why": "w"}, "name of a tensor"),
        ({"tensor": "x", "why": ""}, "needs a reason"),
        ({"tensor": "x", "why": "w", "rows": (-1,)}, "rows must be"),
        ({"tensor": "x", "why": "w", "rows": [1]}, "rows must be"),
    ],
)
def test_a_malformed_convention_is_refused(fields, complaint):
    with pytest.raises(SpecError, match=complaint):
        Convention(**fields)


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({}, "sizes must map names to bounds, got {}"),
        ({"Rows": (1, 9)}, "size 'Rows': want lower-case letters"),
        ({"rows": (0, 9)}, r"rows must lie between two whole numbers from 1, got \(0, 9\)"),
        ({"rows": (5, 4)}, r"rows must lie between .* got \(5, 4\)"),
        ({"rows": (1, 2.0)}, r"rows must lie between .* got \(1, 2.0\)"),
        ({"rows": (True, 9)}, r"rows must lie between .* got \(True, 9\)"),
        ({"rows": 9}, "rows must lie between .* got 9"),
    ],
)
def test_a_family_with_wrong_bounds_is_refused_and_names_them(sizes, complaint):
    with pytest.raises(SpecError, match=complaint):
        Family(sizes=sizes, inputs=print)


def test_the_family_of_a_spec_is_a_family_and_its_inputs_can_be_called():
    with pytest.raises(SpecError, match="family must be a Family, got 3"):
        replace(zoo.get_spec("softmax"), family=3)
    with pytest.raises(SpecError, match="inputs must be callable, got 3"):
        Family(sizes={"rows": (1, 9)}, inputs=3)


def test_a_model_at_a_shape_leaves_to_its_cases_what_is_theirs():
    spec = zoo.get_spec("exp_fp32")
    shaped = spec.sized("rows=2,n=3")
    assert shaped.name == "exp_fp32@rows=2,n=3"
    assert shaped.sized("rows=1,n=1").name == "exp_fp32@rows=1,n=1"
    assert shaped.cases[0].draw(torch.Generator()).args[0].shape == (2, 3)
    assert any(one.case for one in spec.expectations)
    assert shaped.expectations == tuple(one for one in spec.expectations if not one.case)
    assert (shaped.error_inputs, shaped.scale) == ((), None)
    assert spec.at(64).family is None


def test_only_a_star_is_a_pattern():
    assert Convention(tensor="encoder.*", why="w").concerns("encoder.0.weight")
    assert Convention(tensor="output[1]", why="w").concerns("output[1]")
    assert not Convention(tensor="output[1]", why="w").concerns("output1")


def test_a_builder_is_a_trusted_implementation_a_function_of_the_model_a_formula_and_a_module_nothing():
    square = zoo.get_spec("square")
    for reference in (nn.Identity, partial(nn.Linear, 3, 4), lambda: nn.Linear(3, 4)):
        assert replace(square, reference=reference).trusts_model
    for reference in (lambda _, x: x, lambda *inputs: inputs, max):
        assert not replace(square, reference=reference).trusts_model
    with pytest.raises(SpecError, match="want its class"):
        replace(square, reference=nn.Identity())


# error inputs


def given(**fields):
    return ErrorInput(
        **{"name": "scalar", "inputs": lambda _: (torch.ones(()),), "error": ValueError, "match": "rank", **fields}
    )


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "Scalar"}, "ErrorInput name 'Scalar': want lower-case"),
        ({"name": 3}, "ErrorInput name 3: want lower-case"),
        ({"inputs": torch.ones(())}, "ErrorInput 'scalar': inputs must be a function"),
        ({"error": ()}, "ErrorInput 'scalar': error must be a type of exception or a tuple of types, got ()"),
        ({"error": "ValueError"}, "error must be a type of exception"),
        ({"error": (ValueError, 3)}, "error must be a type of exception"),
        ({"error": SystemExit}, "error must be a type of exception"),
        ({"match": ""}, "match must be a regular expression for the message, got ''"),
        ({"match": None}, "match must be a regular expression"),
        ({"match": "("}, "match '(': "),
        ({"devices": "cpu"}, "devices must be a tuple of names"),
    ],
)
def test_a_malformed_error_input_is_refused(fields, complaint):
    with pytest.raises(SpecError) as refused:
        given(**fields)
    assert complaint in str(refused.value)


def test_it_draws_as_a_case_does_and_is_none():
    generator = torch.Generator()
    assert given().draw(generator).args == (torch.ones(()),)
    assert given(inputs=lambda _: Call(kwargs={"dim": 3})).draw(generator).kwargs == {"dim": 3}
    with pytest.raises(SpecError, match="ErrorInput 'scalar': inputs must return a tuple of arguments or a Call"):
        given(inputs=lambda _: torch.ones(())).draw(generator)
    with pytest.raises(SpecError, match="cases must be a tuple of Case records"):
        replace(zoo.get_spec("square"), cases=(given(),))
    assert replace(zoo.get_spec("square"), error_inputs=(given(),)).at(16).error_inputs == ()
    assert given(error=(ValueError, TypeError)).wanted == "ValueError or TypeError matching 'rank'"


def test_a_type_is_told_from_another_also_in_the_text_of_torchscript():
    @torch.jit.script
    def scripted(x: torch.Tensor):
        if x.dim() == 0:
            raise ValueError("the rank is 0")
        return x

    with pytest.raises(torch.jit.Error) as raised:
        scripted(torch.ones(()))
    text = str(raised.value)
    assert given().describes(raised.value, text)
    assert given(error=(TypeError, ValueError)).describes(raised.value, text)
    assert not given(error=TypeError).describes(raised.value, text)
    assert not given(match="the device").describes(raised.value, text)
    assert not given(error=TypeError).describes(ValueError("TypeError: the rank is 0"), "TypeError: the rank is 0")


@pytest.mark.parametrize(
    ("error_inputs", "complaint"),
    [
        ([given()], "error_inputs must be a tuple of ErrorInput records"),
        ((Case(name="scalar", inputs=lambda _: ()),), "error_inputs must be a tuple of ErrorInput records"),
        ((given(), given()), "two error_inputs are named 'scalar'"),
        ((given(name="typical"),), "a case and an error input are named 'typical'"),
    ],
)
def test_a_spec_refuses_what_is_no_tuple_of_them(error_inputs, complaint):
    with pytest.raises(SpecError, match=complaint):
        replace(zoo.get_spec("square"), error_inputs=error_inputs)


# claims: each can be measured

CLAIMS = [(name, claim) for name in zoo.list_models() for claim in zoo.get_spec(name).claims]


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=lambda part: getattr(part, "quantity", part))
def test_model_and_baseline_have_the_same_scale_and_the_claim_names_source_and_machine(name, claim):
    scale, baseline = zoo.get_spec(name).scale, zoo.get_spec(claim.baseline or name).scale
    if claim.quantity == "fit":  # a whole training has no scale, and says at which size its source ran it
        assert claim.sizes
        assert not claim.baseline
    else:
        assert (scale.size_name, scale.sizes) == (baseline.size_name, baseline.sizes)
    assert claim.text == " ".join(claim.text.split())
    assert "not named" in claim.source or "NVIDIA" in claim.source, f"{name}: on which machine?"


def test_factors_follow_from_what_was_published():
    """A ratio of two peaks, and a gain of seven percent of the time."""
    sources = {(name, claim.factor): claim.source for name, claim in CLAIMS}
    assert "RTX 3070" in sources["fused_conv_bn", round(2.68 / 1.56, 2)]
    assert ("rms_norm_native", round(1 / (1 - 0.07), 3)) in sources


# probes of known torch faults: their checks, the search for them, and the form of each file

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


def test_a_probe_is_about_all_devices_or_those_it_names_and_a_source_replaces_its_issue():
    for devices, concerned in (((), ["cpu", "cuda"]), (("cpu",), ["cpu"])):
        probe = Probe(**{**GOOD, "issue": "", "source": "seen on two machines", "devices": devices})
        assert [device for device in ("cpu", "cuda") if probe.concerns(device)] == concerned


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


def test_every_file_of_the_folder_is_found_and_the_probes_ran_on_every_version_of_the_matrix():
    assert EVERY_MINOR == VERSIONS
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


def test_files_are_found_in_the_order_of_their_names_and_two_cannot_define_one_probe(package):
    assert find(package()) == []
    package("second", PROBE_FILE.format(name="second"))
    assert [p.name for p in find(package("first", PROBE_FILE.format(name="first")))] == ["first", "second"]
    with pytest.raises(SpecError, match="named 'first', want 'third'"):
        find(package("third", PROBE_FILE.format(name="first")))


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


MAKERS = {"ones", "zeros", "full", "tensor", "eye", "rand", "randn", "arange", "empty", "LSTM"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_to_do_instead_and_makes_every_tensor_on_the_given_device(path):
    nodes = list(ast.walk(tree := ast.parse(path.read_text())))
    assert "\n\nInstead: " in ast.get_docstring(tree)
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    named |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    others = {name for name in named if name.partition(".")[0] not in {"torch", *sys.stdlib_module_names}}
    assert {"zoo.probe"} <= others <= {"zoo.probe", "zoo"}  # `zoo.internals` is for names that torch does not document
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
