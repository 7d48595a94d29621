"""The commands of the project: `nox -s conformance`, `nox -s tests`, `nox -s lint`, `nox -s types`.

Arguments after `--` go to the tool that the session runs. `--torch=VERSION` among them takes another torch.
"""

import nox

TORCH = "2.13.0"

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
