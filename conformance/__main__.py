"""Starts the command, `conformance` or `python -m conformance`, after shutting out what surrounds it.

That is the files, variables and open descriptors of the person's own project. This file runs first and imports next to
nothing, because a file `random.py` in the working folder must not be imported in place of the standard library's.
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
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number, which is this


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


def main() -> int:
    """Run the command of this process, undisturbed by its surroundings; returns its exit code."""
    shut_out()
    from conformance import torch_versions  # noqa: PLC0415 -- after the working folder is off the path

    wrong = torch_versions.complaint_about_python()
    if wrong:  # which may not even read the other files
        print(f"conformance: {wrong}", file=sys.stderr)  # noqa: T201
        return 4  # `ExitCode.USAGE`
    from conformance.commands import interrupts  # noqa: PLC0415 -- after the working folder is off the path

    with interrupts.answer_signals() as ending:
        from conformance.commands import output  # noqa: PLC0415 -- after an interrupt can be answered

        output.make_streams_last()
        from conformance import cli  # noqa: PLC0415

        ending.code = cli.main()
    return ending.code


if __name__ == "__main__":
    sys.exit(main())
