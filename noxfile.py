"""The commands of the project; `nox -l` lists them.

Arguments after `--` go to the tool that a session runs. `--torch=VERSION` among them takes another torch. The
environments of `sample`, `matrix`, `minimums`, `newest` and `nightly` are removed after use; `nox -r` keeps them.
"""

import sys
from pathlib import Path
from shutil import rmtree

import nox
from nox.command import CommandFailed
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / ".ci")]  # nox looks in neither

import environments  # noqa: E402

from conformance.torch_versions import DEFAULT, PYTHON, PYTHONS, VERSIONS  # noqa: E402

STUDIES = ("calibrate", "miniatures", "meters")  # modules of benchmarks/
MATRIX = Path(".conformance", "matrix")  # the runs of `matrix` and its relatives, a folder for each
NEWEST = "newest"  # the id of a `sample`
SAMPLE = ("mlp", "merge", "row_sum", "cube", "checkerboard_scripted", "train_step", "--mode=eager", "--mode=scripted")
COMPILED = ("mlp", "cube", "--mode=compiled", "--precision=amp_bf16")
WRONG = ("docs/nets.py", "--mode=eager", "-k", "forgetful")
LIBRARIES = ("torchvision", "timm")
PROJECT = nox.project.load_toml("pyproject.toml")["project"]

nox.needs_version = ">=2026.8"  # `CommandFailed` has the exit code
nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "uv|venv"
nox.options.error_on_missing_interpreters = True  # a version that is skipped would look like one that passes


def lowest(specifier: str) -> str:
    """The lowest version that a specifier such as ">=3.10" allows."""
    return next(bound.version for bound in SpecifierSet(specifier) if bound.operator == ">=")


def install(session: nox.Session, *extra: str, project: str = ".[images,numpy]") -> list[str]:
    """Install the project on the chosen torch; returns the arguments meant for the tool."""
    chosen = [argument.partition("=")[2] for argument in session.posargs if argument.startswith("--torch=")]
    environments.install(session, chosen[-1] if chosen else DEFAULT, "-e", project, *extra)
    return [argument for argument in session.posargs if not argument.startswith("--torch=")]


def red(session: nox.Session, *command: str) -> bool:
    """Run `conformance`; whether it ends with red cells. Whatever else is wrong ends the session."""
    try:
        session.run("conformance", *command)
    except CommandFailed as problem:
        if problem.return_code != 1:
            raise
        return True
    return False


def judge(session: nox.Session, name: str) -> None:
    """Judge the zoo and run the probes, or judge what is named after `--`, and keep the run as MATRIX / name.

    A shard is kept as MATRIX / name-INDEX-of-COUNT. The first one runs the probes. Their results lie beside the run's.
    """
    shards = [argument.partition("=")[2] for argument in session.posargs if argument.startswith("--shard=")]
    place = MATRIX / "-".join([name, *(shard.replace("/", "-of-") for shard in shards)])
    unfinished = Path(f"{place}.unfinished")
    rmtree(unfinished, ignore_errors=True)
    try:
        failed = red(session, "run", "--no-speed", "--full", f"--store={unfinished}", *session.posargs)
    finally:
        for run in unfinished.glob("runs/*"):
            rmtree(place, ignore_errors=True)
            run.rename(place)
        rmtree(unfinished, ignore_errors=True)
    whole = all(argument.startswith("-") for argument in session.posargs)
    if whole and all(shard.startswith("1/") for shard in shards):
        failed |= red(session, "probes", f"--write={place / 'probes.json'}")
    session.log(f"the run is {place}")
    if failed:
        session.error(f"{name}: not everything is as declared")


@nox.session
def conformance(session: nox.Session) -> None:
    """Judge the zoo, or what is named after `--`, and print the matrix."""
    session.run("conformance", "run", *install(session, project=".[numpy]"))


@nox.session
@nox.parametrize(
    "python,torch",
    [
        *(nox.param(PYTHON, version, id=version, tags=["matrix"]) for version in VERSIONS),
        nox.param(PYTHONS[-1], VERSIONS[-1], id=f"python{PYTHONS[-1]}-{VERSIONS[-1]}", tags=["matrix"]),
    ],
)
def matrix(session: nox.Session, torch: str) -> None:
    """Judge the zoo and run the probes with one torch; the run is stored as .conformance/matrix/VERSION."""
    with environments.removed(session):
        environments.install(session, torch, "-e", ".[numpy]")
        judge(session, torch if session.python == PYTHON else f"python{session.python}-{torch}")


@nox.session(python=lowest(PROJECT["requires-python"]))
def minimums(session: nox.Session) -> None:
    """Do what `matrix` does, with the lowest version of every dependency, and of Python."""
    requirements = map(Requirement, PROJECT["dependencies"])
    pins = {requirement.name: lowest(str(requirement.specifier)) for requirement in requirements}
    with environments.removed(session):
        environments.install(session, pins.pop("torch"), "-e", ".", pins=pins)
        judge(session, "minimums")


@nox.session(python=PYTHON)
def newest(session: nox.Session) -> None:
    """Do what `matrix` does, with the newest torch."""
    with environments.removed(session):
        environments.install_latest(session, "-e", ".[numpy]")
        judge(session, "newest")


@nox.session(python=PYTHON)
def nightly(session: nox.Session) -> None:
    """Do what `matrix` does, with a nightly build of torch; the variable TORCH_NIGHTLY_INDEX names their index."""
    with environments.removed(session):
        environments.install_latest(session, "-e", ".[numpy]", nightly=True)
        judge(session, "nightly")


@nox.session
def merge(session: nox.Session) -> None:
    """Merge the shards of the versions named after `--`, or of all, into one run for each version."""
    session.install(*(text for text in PROJECT["dependencies"] if Requirement(text).name != "torch"))
    session.install("--no-deps", "-e", ".")
    failed = []
    for version in session.posargs or sorted({shard.name.rsplit("-", 3)[0] for shard in MATRIX.glob("*-*-of-*")}):
        shards, place = sorted(map(str, MATRIX.glob(f"{version}-*-of-*"))), MATRIX / version
        if not shards:
            session.error(f"{place}: there are no shards of it")
        is_red = red(session, "merge", "--any-cpu", *shards, f"--into={place}")  # hosted machines differ
        is_red |= red(session, "show", str(place), f"--junitxml={place}.xml")
        failed += [version] if is_red else []
    if failed:
        session.error(f"not everything is as declared with torch {', '.join(failed)}")


@nox.session(venv_backend="venv")  # whose pip knows which versions lie on disk
@nox.parametrize("torch", [nox.param(version, id=version) for version in (*VERSIONS, NEWEST)])
def sample(session: nox.Session, torch: str) -> None:
    """Judge something of every kind with one torch, and a wrong model; `newest` is the newest one that pip can get."""
    with environments.removed(session):
        if torch == NEWEST:
            later = VERSIONS[VERSIONS.index(DEFAULT) + 1 :]
            environments.install_first(session, later[::-1], "-e", ".")
        else:
            environments.install(session, torch, "-e", ".")
        environments.add(session, LIBRARIES)
        session.run("conformance", "run", "--no-speed", *SAMPLE)
        session.run("conformance", "run", "--no-speed", *COMPILED)
        session.run("python", ".ci/sample.py")
        if not red(session, "run", "--no-speed", *WRONG):
            session.error(f"conformance run {' '.join(WRONG)} is green, and the model is wrong")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that are fast, and some that compile or start commands, on all cores."""
    session.run("pytest", "-n", "auto", "-m", "not slow", *install(session, project=".[images,numpy,tests]"))


@nox.session
def tests_all(session: nox.Session) -> None:
    """Run all tests on all cores."""
    session.run("pytest", "-n", "auto", *install(session, project=".[images,numpy,ray,tests]"))


@nox.session
def failpoints(session: nox.Session) -> None:
    """Let every call of the runner to the system fail once, and be its last once; this takes an hour."""
    arguments = install(session, project=".[images,numpy,tests]")
    session.run("pytest", "-n", "auto", "tests/faults/test_failpoints.py", *arguments, env={"FAILPOINTS_EVERY": "1"})


@nox.session
def lint(session: nox.Session) -> None:
    """Check style."""
    session.install("ruff==0.17.6")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    install(session, "mypy==2.4.1", "types-tabulate", "nox")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Write the pages that follow from specs, probes and docstrings."""
    session.run("python", "docs/build.py", *install(session))


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Run one benchmark: `nox -s benchmarks -- overhead --help`."""
    arguments = install(session)
    if not arguments:
        session.error("name a module of benchmarks/ after `--`")
    session.run("python", "-m", f"benchmarks.{arguments[0]}", *arguments[1:])


@nox.session
def studies(session: nox.Session) -> None:
    """Repeat the studies behind docs/method.md and docs/measurement.md; this takes hours."""
    install(session, "pytest-benchmark")
    for study in STUDIES:
        session.run("python", "-m", f"benchmarks.{study}")
