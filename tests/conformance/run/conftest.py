"""A run folder for the tests of the store."""

import pytest
from harness.stored_runs import NAMES, plan_of

from conformance.run import store


@pytest.fixture
def folder(tmp_path):
    """A run folder with the plan of three cells, and nothing else."""
    run = tmp_path / "run"
    store.create(run, plan_of(*NAMES))
    return run
