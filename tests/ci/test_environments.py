"""What installs torch for a session: it is the torch asked for, or one line says why not."""

import importlib.util
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from harness.command import ROOT
from nox.command import CommandFailed

sys.path.append(str(ROOT / ".ci"))
import environments
from pins import wrong

loader = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
noxfile = importlib.util.module_from_spec(loader)
loader.loader.exec_module(noxfile)

UV = """
  × No solution found when resolving dependencies:
  ╰─▶ Because there is no version of torch==9.9.9 and you require torch==9.9.9, we can conclude that it is impossible.
"""
PIP = """
Looking in links: /wheels
ERROR: Could not find a version that satisfies the requirement torch==9.9.9 (from versions: 2.4.1, 2.6.0)
ERROR: No matching distribution found for torch==9.9.9
"""


class EndedError(Exception):
    """The session ended with an error."""


class Session:
    """A session of nox whose installer knows some packages, and whose Python imports the torch that is installed.

    Attributes:
        asked: the arguments of each installation.
        said: what was logged and warned of.
        run_codes: the exit codes of commands, by their first words.
    """

    python, venv_backend, virtualenv, posargs = "3.11", "uv", None, ()

    def __init__(self, *known, refusal=UV, torch=None, moves="", **run_codes):
        self.known, self.refusal, self.torch, self.moves = set(known), refusal, torch, moves
        self.packages, self.asked, self.said, self.commands = {}, [], [], []
        self.run_codes = run_codes

    def install(self, *arguments, stdout, **_):
        self.asked.append(arguments)
        ((name, _, version),) = (word.partition("==") for word in arguments[:1])
        if "==" in arguments[0] and arguments[0] not in self.known:
            stdout.write(self.refusal)
            raise CommandFailed("install")
        if name == "torch":
            self.packages["torch"] = version or max(self.known).partition("==")[2]
        elif self.moves:
            self.packages["torch"] = self.moves

    def run(self, *command, **_):
        self.commands.append(command)
        if command[-1].endswith("installed.py"):
            here = self.torch or {"version": self.packages["torch"], "file": "torch.py"}
            packages = [{"name": n, "version": v, "requires": []} for n, v in self.packages.items()]
            return json.dumps({"packages": packages, "torch": here})
        for store in (word.partition("=")[2] for word in command if word.startswith("--store=")):
            Path(store, "runs", "1").mkdir(parents=True)
        if code := self.run_codes.get(command[1], 0):
            raise CommandFailed(return_code=code)
        return True

    def error(self, text):
        raise EndedError(text)

    def log(self, text):
        self.said.append(text)

    warn = log


@pytest.mark.parametrize(
    ("backend", "refusal", "why"),
    [
        ("uv", UV, "× No solution found when resolving dependencies: ╰─▶ Because there is no version of torch==9.9.9"),
        ("venv", PIP, "ERROR: Could not find a version that satisfies the requirement torch==9.9.9 (from versions: 2"),
        ("uv", "Killed", "Killed"),
        ("uv", "", "it printed nothing"),
    ],
)
def test_a_torch_that_cannot_be_installed_is_one_line(backend, refusal, why):
    session = Session("torch==2.6.0", refusal=refusal)
    session.venv_backend = backend
    with pytest.raises(EndedError, match=r"^torch==9\.9\.9 cannot be installed with Python 3\.11 on \w+: ") as ended:
        environments.install(session, "9.9.9", "-e", ".")
    assert why in str(ended.value)
    assert len(str(ended.value).splitlines()) == 1


def test_torch_comes_first_and_from_its_index_alone(monkeypatch):
    monkeypatch.setenv(environments.INDEX, "https://index.test")
    session = Session("torch==2.6.0")
    environments.install(session, "2.6.0", "-e", ".")
    assert session.asked == [("torch==2.6.0", "--default-index", "https://index.test"), ("-e", ".")]
    assert session.said == ["torch is the torch asked for, 2.6.0"] * 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("2.6.0", r"^torch 2\.6\.0 was asked for, and 2\.13\.0 is installed: "),
        ("latest", "torch 'latest': want a version"),
    ],
)
def test_a_package_that_moves_torch_and_what_is_no_version_end_the_session(asked, message):
    with pytest.raises(EndedError, match=message):
        environments.install(Session("torch==2.6.0", moves="2.13.0"), asked, "-e", ".")


MOVER = {"name": "mover", "version": "1.0", "requires": ["torch>=2.13"]}
BYSTANDER = {"name": "bystander", "version": "1.0", "requires": ["torch>=2.4", 'torch<2; extra == "old"']}


@pytest.mark.parametrize(
    ("installed", "imported", "problem"),
    [
        ("2.6.0", {"version": "2.6.0", "file": "torch.py"}, ""),
        ("2.6.0+cpu", {"version": "2.6.0+cpu", "file": "torch.py"}, ""),
        ("2.13.0", {}, "torch 2.6.0 was asked for, and 2.13.0 is installed: mover 1.0 requires torch>=2.13"),
        ("2.6.0", {"version": "2.9.1", "file": "/t"}, "torch 2.6.0 is installed, but Python imports 2.9.1 from /t"),
        ("2.6.0", {"problem": "OSError: no"}, "torch 2.6.0 is installed, and its import fails: OSError: no"),
        ("", {}, "torch 2.6.0 was asked for, and is not installed"),
    ],
)
def test_what_is_not_the_torch_asked_for_is_named_with_its_culprit(installed, imported, problem):
    torch = [{"name": "torch", "version": installed, "requires": []}] if installed else []
    assert wrong({"packages": [MOVER, BYSTANDER, *torch], "torch": imported}, {"torch": "2.6.0"}) == problem


@pytest.mark.parametrize(
    ("version", "told"), [("2.16.0.dev20261120", ""), ("2.15.0", "gave 2.15.0"), ("", "is not set")]
)
def test_a_nightly_build_comes_from_the_index_of_nightly_builds(monkeypatch, version, told):
    monkeypatch.setenv(environments.NIGHTLY_INDEX, "https://nightly.test" if version else "")
    session = Session(f"torch=={version}")
    if told:
        with pytest.raises(EndedError, match=rf"TORCH_NIGHTLY_INDEX {told}"):
            environments.install_latest(session, "-e", ".", nightly=True)
    else:
        assert environments.install_latest(session, "-e", ".", nightly=True) == version
        assert session.asked[0] == ("torch", "--default-index", "https://nightly.test", "--pre")


def test_the_first_version_that_can_be_had_is_taken_and_the_others_are_named():
    session = Session("torch==2.14.1", refusal=PIP)
    environments.install_first(session, ("2.15.0", "2.14.1"), "-e", ".")
    assert session.said[0].startswith("torch 2.15.0 cannot be installed: ERROR: Could not find a version")
    assert session.said[1:] == ["torch is the torch asked for, 2.14.1"] * 2
    with pytest.raises(EndedError, match=r"no second torch was judged: none of 2\.15\.0, 2\.14\.1 can be installed"):
        environments.install_first(Session(), ("2.15.0", "2.14.1"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "place", "ending"),
    [
        ((), 0, "2.6.0", ""),
        (("--shard=1/2",), 0, "2.6.0-1-of-2", ""),
        (("--shard=2/2",), 0, "2.6.0-2-of-2", "no probes"),
        (("merge",), 0, "2.6.0", "no probes"),
        ((), 1, "2.6.0", "2.6.0: not everything is as declared"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_run_has_a_place_of_its_own_and_the_first_shard_probes(words, code, place, ending):
    session = Session(run=code)
    session.posargs = words
    with pytest.raises(EndedError, match=ending) if code else nullcontext():
        noxfile.judge(session, "2.6.0")
    assert [path.name for path in noxfile.MATRIX.iterdir()] == [place]
    assert [command[1] for command in session.commands] == ["run", "probes"][: 1 if ending == "no probes" else 2]


@pytest.mark.usefixtures("here")
def test_a_run_that_does_not_come_about_ends_the_session():
    with pytest.raises(CommandFailed):
        noxfile.judge(session := Session(run=4), "2.6.0")
    assert [command[1] for command in session.commands] == ["run"]
