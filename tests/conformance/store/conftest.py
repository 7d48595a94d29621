"""A run folder for the tests of the store."""

import pytest
from harness.stored_runs import NAMES, plan_of

from conformance.store import run_files


@pytest.fixture
def folder(tmp_path):
    """A run folder with the plan of three cells, and nothing else."""
    run = tmp_path / "run"
    run_files.create(run, plan_of(*NAMES))
    return run
