"""Imports the zoo before pytest collects the doctests of its files, which would otherwise be second copies of them.

The key with which runs are marked is kept in a folder of the tests.
"""

import os
import tempfile

import zoo

STATE = tempfile.TemporaryDirectory(prefix="conformance-state-")
os.environ["XDG_STATE_HOME"] = STATE.name
zoo.list_models()
