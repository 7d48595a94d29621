"""Starts the command: `conformance`, or `python -m conformance`."""

import sys

from conformance import surroundings


def main() -> int:
    """Run the command of this process, undisturbed by its surroundings; returns its exit code."""
    surroundings.shut_out()
    from conformance.commands import interrupts, output  # noqa: PLC0415 -- after the working folder is off the path

    interrupts.leave_quietly()
    output.make_streams_last()
    from conformance import cli  # noqa: PLC0415 -- after an interrupt can be answered

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
