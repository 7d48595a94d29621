"""Runs the command and lets one call of its main process to the system fail, or dies at it: a script, see `sweep`.

    python failpoints.py count|fail|kill NUMBER LOG ARGUMENT …

The calls are those that change something outside the process: files, folders, processes, messages. They are numbered in
their order. The product knows nothing of this; its children are not touched.
"""

import errno
import functools
import os
import runpy
import signal
import socket
import subprocess
import sys

CALLS = {  # name of the call: the error with which it fails
    **dict.fromkeys(("open", "write", "mkdir"), errno.ENOSPC),
    **dict.fromkeys(("fsync", "ftruncate", "replace", "rename", "link", "unlink", "rmdir"), errno.EIO),
    **dict.fromkeys(("kill", "killpg"), errno.EPERM),
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Failpoints:
    """Counts the calls, and acts at one of them."""

    def __init__(self, action, number, log):
        self._action, self._number, self._log = action, number, log
        self._count = 0
        self._own = os.getpid()
        self._write = os.write

    def reach(self, name, error):
        """Note a call; at the chosen one, fail or die."""
        if os.getpid() != self._own:
            return
        self._count += 1
        self._write(self._log, f"{name}\n".encode())
        if self._count == self._number:
            if self._action == "kill":
                os.kill_for_real(self._own, signal.SIGKILL)
            if self._action == "fail":
                raise OSError(error, os.strerror(error))

    def watch(self, owner, name, error, label=""):
        """Replace a function by one that can fail."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(*arguments, **options):
            flags = arguments[1] if len(arguments) > 1 else 0
            if name != "open" or flags & WRITES:
                self.reach(label or name, error)
            return real(*arguments, **options)

        setattr(owner, name, call)


def main():
    """Run the command with a failpoint."""
    action, number, log, *arguments = sys.argv[1:]
    os.kill_for_real = os.kill
    points = Failpoints(action, int(number), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
    for name, error in CALLS.items():
        points.watch(os, name, error)
    points.watch(subprocess.Popen, "__init__", errno.EAGAIN, "spawn")
    points.watch(socket.socket, "sendmsg", errno.EPIPE, "send")
    sys.argv = ["conformance", *arguments]
    runpy.run_module("conformance", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
