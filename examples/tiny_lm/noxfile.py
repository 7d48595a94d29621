"""Holds the models to their float64 results on several versions of torch: `nox`, or `nox -s "models(2.13.0)"`."""

import nox

VERSIONS = ["2.6.0", "2.13.0"]


@nox.session
@nox.parametrize("torch", VERSIONS, ids=VERSIONS)
def models(session, torch):
    """Run the tests with one torch. Arguments after `--` go to pytest."""
    session.install(f"torch=={torch}", "-e", ".[tests]")  # in one call, so that nothing moves torch
    session.run("python", "-m", "pytest", *session.posargs)
