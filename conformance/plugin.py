"""The pytest plugin: adds one option, and loads the rest if the option is given.

It does nothing in other test suites, and costs them next to nothing. It never imports torch: only the cells' own
processes do.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the one option; `conformance run` sets it."""
    parser.getgroup("conformance").addoption(
        "--conformance-run", metavar="FOLDER", help="judge the cells of this run folder's plan"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take part in a conformance run only."""
    if config.getoption("--conformance-run"):
        from conformance.commands import judging  # noqa: PLC0415 -- other test suites must not pay for it

        config.pluginmanager.register(judging, "conformance-items")
