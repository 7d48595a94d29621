"""Reads the command line, runs the command, and returns its exit code."""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack

from conformance.commands import bisect, expect, judging, probes, run, stored
from conformance.commands.arguments import STORE, parser
from conformance.commands.output import choose_colour, say
from conformance.errors import ExitCode, MachineError, UsageError, suggestion
from conformance.judging import declarations
from conformance.records.plan import OwnModel
from conformance.records.tasks import PlanRequest
from conformance.torch_versions import complaint

NEED_TORCH = ("run", "bench", "list", "probes", "bisect")


def main(arguments: list[str] | None = None) -> int:
    """Run a command. It prints a `UsageError`, and a failure of the machine, on the error stream and raises neither.

    Args:
        arguments: the words of the command line; None for those of this process.

    Returns:
        One of `ExitCode`.

    Raises:
        SystemExit: --help or --version was given.
    """
    with ExitStack() as surroundings:
        try:
            options, further = parser().parse_known_args(arguments)
            choose_colour(options.color)
            if not (options.command == "show" and options.md):  # which a person may redirect into a file
                surroundings.enter_context(stored.commands_off())
            return _execute(options, further)
        except UsageError as problem:
            say(str(problem))
            return ExitCode.USAGE
        except MachineError as problem:
            say(str(problem))
            return ExitCode.RED
        except OSError as problem:
            say(f"this machine failed: {problem}")
            return ExitCode.USAGE
        except KeyboardInterrupt:
            say("interrupted")
            return ExitCode.INTERRUPTED


def _execute(options: argparse.Namespace, further: list[str]) -> int:
    if options.command in NEED_TORCH and complaint():
        raise UsageError(complaint())
    if options.command in ("run", "bench"):
        options.sources += [word for word in further if not word.startswith("-")]  # argparse takes them before options
        return run.run(_run_options(options, [word for word in further if word.startswith("-")]))
    if further:
        raise UsageError(f"{options.command}: unknown option {further[0]}{suggestion(further[0], options.known)}")
    return _look(options)


def _look(options: argparse.Namespace) -> int:
    """Execute a command that judges nothing of the user."""
    commands: dict[str, Callable[[], int]] = {
        "list": lambda: probes.list_models(tuple(options.sources)),
        "show": lambda: stored.show_run(options.run, markdown=options.md, xml=options.junitxml),
        "expect": lambda: expect.record(options.run, options.file),
        "merge": lambda: stored.merge_shards(tuple(options.runs), options.into, any_cpu=options.any_cpu),
        "diff": lambda: stored.show_changes(options.before, options.after, markdown=options.md, json=options.json),
        "compat": lambda: stored.show_compat(tuple(options.runs), markdown=options.md, json=options.json),
        "bisect": lambda: bisect.bisect(
            options.cell, options.torch, STORE, every=options.every, keep=options.keep, others=tuple(options.others)
        ),
        "probes": lambda: probes.show_probes(
            tuple(options.names), device=options.device, timeout=options.timeout, page=options.write
        ),
    }
    return commands[options.command]()


def _request(options: argparse.Namespace) -> PlanRequest:
    return PlanRequest(
        sources=tuple(options.sources),
        modes=tuple(options.mode),
        precisions=tuple(options.precision),
        devices=tuple(options.device),
        seed=options.seed,
        deadline=options.timeout,
        given=OwnModel(inputs=tuple(options.inputs), training=options.training),
        declared=declarations.read(options.expect) if options.expect else {},
    )


def _run_options(options: argparse.Namespace, further: list[str]) -> run.RunOptions:
    idle = {"-k": options.expression, "--resume": options.resume}
    unfit = [name for name, given in idle.items() if given]
    if options.shard and unfit:
        raise UsageError(f"--shard splits the cells of a new run by its sources and axes; it does not take {unfit[0]}")
    if options.resume and options.command == "run" and options.full:
        raise UsageError("--resume finishes the run at the depth at which it was planned; leave out --full")
    if options.resume and options.every_tensor:
        raise UsageError("--resume stores as much as the run has stored so far; leave out --every-tensor")
    if options.resume and options.strict:
        raise UsageError("--resume judges as the run was planned; leave out --strict")
    if options.balance and not options.shard:
        raise UsageError("--balance is about shards, and there is no --shard")
    return run.RunOptions(
        request=_request(options),
        measure=options.measure,
        resume=options.resume,
        folder=options.store,
        fresh=options.fresh,
        junit=options.junitxml,
        shard=options.shard,
        balance=options.balance,
        every_tensor=options.every_tensor,
        full=options.full,
        strict=options.strict,
        choice=judging.Choice(
            expression=options.expression,
            workers=options.workers or "",
            first=options.first,
            verbose=options.verbose,
            plugins=tuple(options.plugins),
            further=tuple(further),
            known=tuple(options.known),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
