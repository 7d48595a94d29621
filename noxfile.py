"""The commands of the project; `nox -l` lists them.

Arguments after `--` go to the tool that a session runs. `--torch=VERSION` among them takes another torch.
"""

import nox
from packaging.requirements import Requirement

TORCH = "2.13.0"
STUDIES = ("calibrate", "miniatures", "meters")  # modules of benchmarks/

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"


def install(session: nox.Session, *extra: str, project: str = ".[images]") -> list[str]:
    """Install the project on the chosen torch; returns the arguments meant for the tool."""
    chosen = [argument.partition("=")[2] for argument in session.posargs if argument.startswith("--torch=")]
    session.install(f"torch=={chosen[-1] if chosen else TORCH}", "-e", project, *extra)
    return [argument for argument in session.posargs if not argument.startswith("--torch=")]


@nox.session
def conformance(session: nox.Session) -> None:
    """Judge the zoo, or what is named after `--`, and print the matrix."""
    session.run("conformance", "run", *install(session, project="."))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on all cores."""
    session.run("pytest", "-n", "auto", *install(session))


@nox.session
def failpoints(session: nox.Session) -> None:
    """Let every call of the runner to the system fail once, and be its last once; this takes an hour."""
    arguments = install(session)
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


@nox.session
def minimums(session: nox.Session) -> None:
    """Judge the zoo, or what is named after `--`, with the lowest version of every dependency."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    lowest = [
        f"{requirement.name}=={bound.version}"
        for requirement in map(Requirement, project["dependencies"])
        for bound in requirement.specifier
        if bound.operator == ">="
    ]
    session.install(*lowest, "-e", ".")
    session.run("conformance", "run", *session.posargs)
