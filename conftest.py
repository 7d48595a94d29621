"""Imports the zoo before pytest collects the doctests of its files, which would otherwise be second copies of them.

Commands that the tests start answer SIGINT and SIGHUP, even if the tests run in the background of a shell or under
nohup, which let their children ignore these. They tell GitHub nothing, even if GitHub runs the tests. Each process of
the tests has one thread: threads of processes side by side wait for each other.
"""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import zoo

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(name, None)
zoo.list_models()
