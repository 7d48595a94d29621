"""A Python or a torch that is not supported, or not whole, is one line that says which, and the exit code 4."""

import os
from importlib import metadata

import pytest
from harness.command import FP32, ROOT, conformance
from packaging.requirements import Requirement
from packaging.version import Version

import conformance as public
from conformance import __main__, cli, torch_versions
from conformance.errors import UsageError
from conformance.judging import toml_file

PROJECT = toml_file.read(ROOT / "pyproject.toml")["project"]


@pytest.fixture
def installed(monkeypatch):
    """Lets another torch, or none, be installed."""

    def install(version):
        def found(name):
            assert name == "torch"
            if version is None:
                raise metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(torch_versions.metadata, "version", found)
        if version is None:
            monkeypatch.setattr(torch_versions.importlib.util, "find_spec", lambda _: None)

    return install


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("2.3.1+cu121", "torch 2.3.1+cu121 is too old; 2.4 and newer are supported"),
        ("1.13.1", "torch 1.13.1 is too old; 2.4 and newer are supported"),
        (None, "torch is not installed; 2.4 and newer are supported"),
        ("2.4.0a0+git", ""),
        ("2.10.0", ""),
        ("2.99.0.dev20270101", ""),
        ("3.0.0", ""),
    ],
)
def test_a_torch_is_named_with_those_that_are_supported(installed, capsys, version, told):
    installed(version)
    assert torch_versions.complaint() == told
    if told:
        assert cli.main(["run", "merge"]) == 4
        assert capsys.readouterr().err == f"conformance: {told}\n"
        with pytest.raises(UsageError, match=r"2\.4 and newer are supported"):
            _ = public.check


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("3.9.18", "Python 3.9.18 is too old; 3.10 to 3.14 are supported"),
        ("3.15.0rc1", "Python 3.15.0rc1 has not been tried; 3.10 to 3.14 are supported"),
        ("3.14.8", ""),
        ("3.10.0", ""),
    ],
)
def test_a_python_is_named_with_those_that_are_supported(monkeypatch, capsys, version, told):
    monkeypatch.setattr(torch_versions.platform, "python_version", lambda: version)
    assert torch_versions.complaint() == told
    if told:
        monkeypatch.setattr(__main__, "shut_out", lambda: None)
        assert __main__.main() == 4
        assert capsys.readouterr().err == f"conformance: {told}\n"


def test_the_stored_runs_of_others_are_shown_without_torch(installed, tmp_path, capsys):
    installed(None)
    assert cli.main(["show", str(tmp_path)]) == 4
    assert "is no run folder" in capsys.readouterr().err


def test_a_torch_that_does_not_import_is_said_and_nothing_else(tmp_path):
    (tmp_path / "half" / "torch").mkdir(parents=True)
    (tmp_path / "half" / "torch" / "__init__.py").write_text("raise OSError('libtorch_cpu.so: cannot open it')\n")
    path = os.pathsep.join([str(tmp_path / "half"), str(ROOT)])
    code, printed = conformance(tmp_path, "run", "merge", *FP32, PYTHONPATH=path)
    told = "torch is installed, and its import fails: OSError: libtorch_cpu.so: cannot open it; install it again"
    assert (code, printed) == (4, f"conformance: {told}\n")


def test_the_project_promises_the_versions_that_are_listed_and_what_is_here_is_among_them():
    assert torch_versions.complaint() == ""
    requirement = next(r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "torch")
    assert requirement.specifier.contains(torch_versions.VERSIONS[0])
    assert not requirement.specifier.contains("2.3.1")
    begins = "Programming Language :: Python :: "
    promised = [text.removeprefix(begins) for text in PROJECT["classifiers"] if text.startswith(f"{begins}3.")]
    assert promised == list(torch_versions.PYTHONS)
    assert PROJECT["requires-python"] == f">={torch_versions.PYTHONS[0]}"
    assert list(map(Version, torch_versions.VERSIONS)) == sorted(map(Version, torch_versions.VERSIONS))
