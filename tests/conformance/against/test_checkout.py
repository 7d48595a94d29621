"""Sources at another revision: taken from its own folder, or refused with the reason."""

import os
import sys
from pathlib import Path

import pytest
from harness.repositories import LEAN, NETS, WASTEFUL, commit, new_repository

import conformance
from conformance.against import checkout, comparison
from conformance.errors import UsageError
from conformance.records.tasks import PlanRequest

ROOT = Path(conformance.__file__).parent.parent
AXES = {"modes": ("eager",), "precisions": ("fp32",), "devices": ("cpu",)}


@pytest.fixture
def repository(tmp_path):
    return new_repository(tmp_path)


@pytest.mark.parametrize(
    ("sources", "revision", "message"),
    [
        (("nets.py",), "nonsense", "--against nonsense: no such revision in "),
        (("nets.py",), "--all", "--against --all: no such revision in "),
        (("later.py",), "HEAD", "--against HEAD: later.py is not in "),
        (("none.py",), "HEAD", "--against HEAD: no file "),
        (("nets.py", "merge"), "HEAD", "beside models of the zoo"),
        (("zoo.ops.softmax",), "HEAD", "zoo.ops.softmax is a module; name its file"),
    ],
)
def test_what_cannot_be_had_is_refused(repository, monkeypatch, sources, revision, message):
    commit(repository, nets=NETS, layers=LEAN)
    (repository / "later.py").write_text(NETS)
    monkeypatch.chdir(repository)
    with pytest.raises(UsageError) as refused:
        comparison.compare(PlanRequest(sources, **AXES), revision)
    assert message in str(refused.value)


def test_no_repository_is_refused_with_the_words_of_git(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # no repository around it is looked for
    (tmp_path / "nets.py").write_text(NETS)
    with pytest.raises(UsageError, match=r"nets\.py is in no git repository \(fatal: .*not a git repository"):
        comparison.compare(PlanRequest((str(tmp_path / "nets.py"),), **AXES), "HEAD")


def test_the_revision_s_own_folder_is_taken_even_inside_a_hook(repository, tmp_path_factory, monkeypatch):
    name = commit(repository, nets=NETS, layers=LEAN)
    (repository / "layers.py").write_text(WASTEFUL)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    current = checkout.working_tree((str(repository / "nets.py"),))
    old = checkout.at_revision(current, "HEAD", tmp_path_factory.mktemp("then"))
    assert old.name == name
    assert Path(old.sources[0]).read_text() == NETS
    assert (Path(old.sources[0]).parent / "layers.py").read_text() == LEAN


def test_a_zoo_that_is_too_old_is_refused_by_name(repository, tmp_path_factory, monkeypatch):
    (repository / "zoo").mkdir()
    (repository / "zoo" / "__init__.py").write_text("OLD = True\n")
    name = commit(repository)
    monkeypatch.setattr(checkout, "folder_of", lambda package: (repository if package == "zoo" else ROOT) / package)
    old = checkout.at_revision(checkout.working_tree(("merge",)), "HEAD", tmp_path_factory.mktemp("then"))
    assert old.name == name
    with pytest.raises(UsageError, match=r"its zoo has no zoo\.\w+, which this conformance needs"):
        comparison._Comparison(old, old, PlanRequest(("merge",), **AXES), tmp_path_factory.mktemp("work"))


def test_the_zoo_of_the_revision_is_judged_by_the_conformance_of_now(tmp_path):
    old = checkout.at_revision(checkout.working_tree(("merge",)), "HEAD", tmp_path)
    assert old.path[0] == tmp_path
    assert old.path[1:] == (ROOT,)
    assert {p.name for p in tmp_path.iterdir()} == {"zoo"}
    assert os.environ.get("PYTHONPATH", "") != str(tmp_path)
    assert sys.modules.get("zoo") is None or str(tmp_path) not in str(sys.modules["zoo"].__file__)
