"""Imports the zoo before pytest collects the doctests of its files, which would otherwise be second copies of them.

The key with which runs are marked is kept in a folder of the tests. Commands that the tests start answer SIGINT, even
if the tests run in the background of a shell, which lets its children ignore it. They tell GitHub nothing, even if
GitHub runs the tests.
"""

import os
import signal
import tempfile

import zoo

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
STATE = tempfile.TemporaryDirectory(prefix="conformance-state-")
os.environ["XDG_STATE_HOME"] = STATE.name
for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(name, None)
zoo.list_models()
