"""Starts the command: `conformance`, or `python -m conformance`."""

import sys

from conformance import surroundings


def main() -> int:
    """Run the command of this process, undisturbed by its surroundings; returns its exit code."""
    surroundings.shut_out()
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
