"""Shuts out what surrounds the command: the files, variables and open descriptors of the person's own project.

It runs first and imports next to nothing, because a file `random.py` in the working folder must not be imported in
place of the standard library's.
"""

import os
import sys

OWN_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 -- pathlib imports much
OF_PYTEST = "PYTEST_"  # PYTEST_ADDOPTS and PYTEST_PLUGINS are meant for the person's own tests
STANDARD_STREAMS = (0, 1, 2)


def shut_out() -> None:
    """Make this process, and all that it will start, independent of the working folder and of pytest's variables.

    The working folder becomes the last entry of `sys.path`: `package.module:SPEC` is found in it, and no file in it
    hides a module of the standard library or of this project.
    """
    open_standard_streams()
    working = _working_folder()
    sys.path[:] = [entry for entry in sys.path if not _is(entry, working)] + ([working] if working else [])
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not _is(entry, working)]
    if _is(OWN_ROOT, working):
        inherited.insert(0, OWN_ROOT)  # a checkout that is not installed
    os.environ["PYTHONPATH"] = os.pathsep.join(inherited)
    os.environ["PYTHONSAFEPATH"] = "1"  # a child does not put the working folder first either
    for name in [name for name in os.environ if name.startswith(OF_PYTEST)]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    _forget_warning_options()


def open_standard_streams() -> None:
    """Open the null device in place of closed standard streams, so that no file of the run gets their numbers."""
    for descriptor in STANDARD_STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _forget_warning_options() -> None:
    """Drop -W and PYTHONWARNINGS: a warning that becomes an error would change verdicts."""
    os.environ.pop("PYTHONWARNINGS", None)
    if sys.warnoptions:
        import warnings  # noqa: PLC0415 -- not needed otherwise

        sys.warnoptions.clear()
        warnings.resetwarnings()
        warnings.simplefilter("ignore")


def _working_folder() -> str:
    """Absolute path of the working folder; "" if it does not exist."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""


def _is(entry: str, working: str) -> bool:
    """Whether an entry of a search path is the working folder."""
    return not entry or (bool(working) and os.path.realpath(entry) == os.path.realpath(working))
