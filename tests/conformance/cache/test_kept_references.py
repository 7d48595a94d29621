"""A reference of an earlier run is used again only if nothing has changed on which it depends."""

import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from harness.made_by_hand import ENVIRONMENT

from conformance.cache import references, sources
from conformance.cache.references import KeptReferences
from conformance.process.environment import CORES
from conformance.records.plan import OwnModel, SpecLocation
from conformance.records.tasks import MadeReference, ReferenceTask

TASK = ReferenceTask("net", SpecLocation("package.nets"), 0, ("fp32", "amp_fp16"), "")


class Place:
    """A folder of kept references, a source that they depend on, and the folder of a run."""

    def __init__(self, folder):
        self.kept, self.source, self.run = folder / "kept", folder / "nets.py", folder / "run"
        self.run.mkdir()
        self.source.write_text("weights = 1")
        self.task = replace(TASK, path=str(self.run / "net.reference"))

    def references(self, environment=ENVIRONMENT, **planned):
        return KeptReferences(self.kept, environment, planned)

    def own_files(self, *further):
        return sources.contents_of_files({str(self.source), *further})

    def keep(self, task=None, read=(), **planned):
        """Make a reference and keep it, as a run does."""
        task = task or self.task
        (self.run / "net.reference").write_text("the tensors")
        variables = sources.contents_of_variables({"WIDTH", "DEPTH", CORES})
        made = MadeReference(1.5, files=self.own_files(*read), variables=variables, fingerprint="f")
        self.references(**planned).keep(task, made)
        (self.run / "net.reference").unlink()
        return made


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_it_is_used_again(place):
    assert place.references().fetch(place.task) is None
    made = place.keep()
    assert place.references().fetch(place.task) == replace(made, kept=True)
    assert (place.run / "net.reference").read_text() == "the tensors"


def replace_by_fifo(path):
    path.unlink()
    os.mkfifo(path)


CHANGES = {
    "a source": lambda place: place.source.write_text("weights = 2"),
    "a source that is gone": lambda place: place.source.unlink(),
    "the record": lambda place: [path.write_text("{") for path in place.kept.glob("*.json")],
    "the file": lambda place: [path.unlink() for path in place.kept.glob("*.reference")],
    "the file of another model": lambda place: [path.write_text("others") for path in place.kept.glob("*.reference")],
    "no regular file": lambda place: [replace_by_fifo(path) for path in place.kept.glob("*.reference")],
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_makes_a_new_one(place, what):
    place.keep()
    CHANGES[what](place)
    assert place.references().fetch(place.task) is None


@pytest.mark.parametrize(("name", "value"), [("WIDTH", "9"), ("WIDTH", None), ("DEPTH", "2")])
def test_another_value_of_a_variable_that_was_read_makes_a_new_one(place, name, value, monkeypatch):
    monkeypatch.setenv("WIDTH", "8")
    place.keep()
    monkeypatch.setenv("HEIGHT", "8")
    monkeypatch.setenv(CORES, "1")  # nothing depends on that
    assert place.references().fetch(place.task) is not None
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    assert place.references().fetch(place.task) is None


def test_another_version_of_an_installed_package_makes_a_new_one(place, tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    (packages / "timm-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(packages)
    place.keep()
    assert place.references().fetch(place.task)
    (packages / "timm-1.0.dist-info").rename(packages / "timm-1.1.dist-info")
    assert place.references().fetch(place.task) is None


REQUESTS = {
    "model": "other",
    "location": SpecLocation("package.others"),
    "seed": 1,
    "precisions": ("fp32",),
}


@pytest.mark.parametrize("field", REQUESTS)
def test_another_request_has_a_reference_of_its_own(place, field):
    place.keep()
    assert place.references().fetch(replace(place.task, **{field: REQUESTS[field]})) is None


def test_another_machine_or_torch_has_a_reference_of_its_own(place):
    place.keep()
    for field in ("torch", "python", "cpu", "cpu_capability"):
        other = replace(ENVIRONMENT, **{field: "another"})
        assert place.references(environment=other).fetch(place.task) is None


def saved_in(place, name, model="weights", inputs="a call"):
    """The task for a model that is saved in a folder, which its reference depends on."""
    folder = place.run / name
    folder.mkdir()
    (folder / "model.pt").write_text(model)
    (folder / "call.pt").write_text(inputs)
    own = OwnModel("net", saved=str(folder / "model.pt"), call=str(folder / "call.pt"))
    return replace(place.task, location=SpecLocation(own=own))


def test_a_saved_model_may_lie_anywhere(place):
    first = saved_in(place, "first")
    made = place.keep(first, first.location.paths)
    shutil.rmtree(place.run / "first")
    assert place.references().fetch(saved_in(place, "second")) == replace(made, kept=True, files=place.own_files())
    assert place.references().fetch(saved_in(place, "third", model="others")) is None
    assert place.references().fetch(saved_in(place, "fourth", inputs="another call")) is None


def test_those_used_least_recently_make_room(place, monkeypatch):
    tasks = [replace(place.task, model=name) for name in ("one", "two", "three")]
    size = len("the tensors")
    monkeypatch.setattr(references, "LARGEST_SHARE", 1.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * size))
    for task in tasks[:2]:
        place.keep(task)
    for path in place.kept.iterdir():
        os.utime(path, (1.0, 1.0))  # the clock of a file system may stand still between two steps
    assert place.references().fetch(tasks[0]) is not None  # so "two" is older
    place.keep(tasks[2])
    assert [place.references().fetch(task) is not None for task in tasks] == [True, False, True]


def test_one_that_is_too_large_removes_no_other(place, monkeypatch):
    place.keep()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    other = replace(place.task, model="other")
    place.keep(other)
    assert place.references().fetch(other) is None
    assert place.references().fetch(place.task) is not None


def test_without_a_folder_or_one_that_can_be_written_nothing_is_kept(place):
    place.kept.write_text("a file")
    place.keep()
    assert place.references().fetch(place.task) is None
    nowhere = KeptReferences(None, ENVIRONMENT, {})
    nowhere.keep(place.task, MadeReference(1.0))
    assert nowhere.fetch(place.task) is None


def test_the_files_that_are_read_are_noted_and_no_others(tmp_path):
    for name in ("read", "opened", "written", "untouched"):
        (tmp_path / name).write_text(name)
    with sources.note_files() as paths:
        (tmp_path / "read").read_text()
        (tmp_path / "opened").open("rb").close()
        (tmp_path / "written").write_text("new")
    (tmp_path / "untouched").read_text()
    found = {name for name in ("read", "opened", "written", "untouched") if str(tmp_path / name) in paths}
    assert found == {"read", "opened"}


def test_the_variables_that_are_asked_for_are_noted_and_no_others(monkeypatch):
    monkeypatch.setenv("READ", "a secret")
    with sources.note_variables() as names:
        os.environ["WRITTEN"] = "1"
        assert os.getenv("READ") == "a secret"
        assert os.environ.get("ABSENT") is None
        assert os.environb[b"WRITTEN"] == b"1"
        del os.environ["WRITTEN"]
    os.environ.get("UNTOUCHED")
    assert names == {"READ", "ABSENT", "WRITTEN"}
    found = sources.contents_of_variables(names)
    assert (found["ABSENT"], found["WRITTEN"]) == ("", "")
    assert "secret" not in found["READ"] != ""


def test_what_is_installed_or_unreal_or_gone_does_not_count(tmp_path):
    paths = {pytest.__file__, shutil.__file__, "/proc/uptime", str(tmp_path / "gone"), str(tmp_path)}
    assert sources.contents_of_files(paths) == {}


def test_a_file_too_large_for_a_digest_is_told_by_size_and_age(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LARGEST", 10)
    path = tmp_path / "weights"
    path.write_bytes(bytes(11))
    before = sources.content_of_file(path)
    path.write_bytes(bytes(12))
    assert "" != before != sources.content_of_file(path)


def test_a_file_behind_a_link_is_noted_by_the_path_that_is_read(tmp_path):
    """Its content is read under another path, while files are still noted."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "weights.txt").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with sources.note_files() as paths:
        (tmp_path / "link" / "weights.txt").read_text()
        found = sources.contents_of_files(paths)
    assert str(tmp_path / "folder" / "weights.txt") in found
