"""Reads the command line, describes every command with its arguments, runs the command, and returns its exit code."""

from __future__ import annotations

import argparse
import os
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from conformance import __version__
from conformance.axes import DEVICES
from conformance.commands import bisect, expect, explain, judging, on_ray, probes, repro, run, stored
from conformance.commands.output import COLOURS, choose_colour, say
from conformance.errors import ExitCode, MachineError, UsageError, suggestion
from conformance.judging import declarations, resuming
from conformance.records.plan import OtherModel, OwnModel
from conformance.records.tasks import CELL_SECONDS, PlanRequest
from conformance.torch_versions import complaint

TORCH_DEVICE = "TORCH_DEVICE"  # a variable that PyTorch's libraries read, too
STORE = Path(".conformance")  # where runs are stored unless the command says otherwise
MEANT = {"check": "run"}  # what people type for a command
FURTHER = "Further options go to pytest; give their values as --option=value."


class _Parser(argparse.ArgumentParser):
    """A parser whose errors end with our exit code, not with argparse's 2, which means interrupted."""

    def error(self, message: str) -> NoReturn:
        """Raise a `UsageError` for arguments that argparse cannot parse."""
        raise UsageError(f"{message}; {self.prog} --help lists the options")

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # argparse has no other way
        """Raise a `UsageError` for a word that is none of those known; it suggests one."""
        if action.choices is not None and value not in action.choices:
            raise UsageError(f"unknown {action.dest} {value!r}{suggestion(MEANT.get(value, value), action.choices)}")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands. An error of its ends as a `UsageError`."""
    whole = _Parser(prog="conformance", description="Check that models compute the same in every mode and precision.")
    whole.add_argument("--version", action="version", version=f"conformance {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    judge = commands.add_parser("run", help="check models, and time the cells that pass", epilog=FURTHER)
    _add_run_options(judge)
    _add_extent(judge)
    judge.add_argument("--shard", type=shard, metavar="I/N", help="only part I of N of the models; merge joins them")
    judge.add_argument("--balance", type=Path, metavar="RUN", help="balance the shards by the seconds of this run")
    bench = commands.add_parser("bench", help="check, then measure speed, memory and compile cost", epilog=FURTHER)
    _add_run_options(bench)
    bench.set_defaults(measure="bench", full=True, shapes=0, shard=None, balance=None)
    models = commands.add_parser("list", help="list models with their summaries and cases")
    models.add_argument("sources", nargs="*", help="as for run; the whole zoo if none is given")
    again = commands.add_parser("show", help="print a stored run")
    again.add_argument("run", type=Path)
    again.add_argument("--md", action="store_true", help="print Markdown, for the summary of a CI step or an issue")
    again.add_argument("--csv", type=Path, metavar="FILE", help="also write the cells to this file, one on each line")
    _add_html(again)
    _add_junit(again)
    why = commands.add_parser("explain", help="say where and why a cell is red, and what mends it")
    why.add_argument(
        "words",
        nargs="+",
        metavar="[RUN] CELL [SOURCE…]",
        help="a stored run, or none; MODEL[MODE-PRECISION-DEVICE]; its sources if not of the zoo",
    )
    _add_trust(why)
    trace = commands.add_parser("bisect", help="find the version of torch that changed the verdict on a cell")
    _add_bisect_options(trace)
    look = commands.add_parser("probes", help="look for known faults in the installed torch")
    look.add_argument("names", nargs="*", metavar="NAME", help="of a probe; all if none is given")
    look.add_argument("--write", type=Path, metavar="FILE", help="store the results in this file, for compat")
    look.add_argument("--device", help=f"cpu or cuda (default: {TORCH_DEVICE}, or else cpu)")
    look.add_argument("--timeout", type=seconds, default=300.0, help="seconds that a probe may take (default: 300)")
    _add_commands_on_runs(commands)
    for command in commands.choices.values():
        command.add_argument("--color", choices=COLOURS, default="auto", help="of the output (default: auto)")
        command.set_defaults(known=sorted(command._option_string_actions))  # noqa: SLF001 -- argparse has no other way
    return whole


def _add_commands_on_runs(commands: argparse._SubParsersAction[_Parser]) -> None:
    """The commands that join and compare stored runs, and declare what they found."""
    declare = commands.add_parser("expect", help="declare the red cells of a run, or take out what is stale")
    text = "record writes the red cells of the run as declared divergences, for review; prune takes stale ones out"
    declare.add_argument("action", choices=["record", "prune"], help=text)
    declare.add_argument("run", type=Path, metavar="RUN")
    declare.add_argument("file", type=Path, metavar="FILE", help="of declarations; record makes it if there is none")
    script = commands.add_parser("repro", help="write a script of torch alone that shows why a cell is red")
    script.add_argument("run", type=Path, metavar="RUN")
    script.add_argument("cell", metavar="CELL", help="MODEL[MODE-PRECISION-DEVICE]")
    script.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="of the cell, if it is not of the zoo: it is executed"
    )
    _add_trust(script)
    script.add_argument("--into", type=Path, metavar="FILE", help="the script; default: named after the cell, here")
    script.add_argument("--issue", action="store_true", help="print a text in Markdown, for an issue")
    join = commands.add_parser("merge", help="join the shards of one plan into one run")
    join.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the run of a shard")
    join.add_argument("--into", type=Path, metavar="FOLDER", required=True, help="the joined run; it must not exist")
    join.add_argument("--any-cpu", action="store_true", help="the shards may come from different processors")
    compare = commands.add_parser("diff", help="compare two stored runs")
    compare.add_argument("before", type=Path, metavar="A")
    compare.add_argument("after", type=Path, metavar="B")
    follow = commands.add_parser("compat", help="show what works since which torch version")
    follow.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a stored run, or a file of probes --write or compat --json"
    )
    for command in (compare, follow):
        _add_html(command)
        command.add_argument("--md", type=Path, metavar="FILE", help="also write Markdown to this file")
        command.add_argument("--json", type=Path, metavar="FILE", help="also write JSON to this file")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="*",
        help="models of the zoo or patterns of them, files, modules, file.py:NAME, module:NAME or saved models; the "
        "whole zoo if none is given",
    )
    _add_own_model(parser)
    _add_trust(parser)
    for axis in ("mode", "precision", "device"):
        text = f"only this {axis}, or a list such as a,b; may be repeated"
        parser.add_argument(f"--{axis}", action="extend", type=listed, default=[], help=text)
    parser.add_argument("-k", dest="expression", metavar="EXPRESSION", default="", help="only cells whose id matches")
    processes = "number of processes (default: as many as save time)"
    parser.add_argument("-n", dest="workers", metavar="N", type=workers, help=processes)
    cluster = "judge on a Ray cluster: ray for the one here, or ray://HOST:PORT (default: this machine)"
    parser.add_argument("--on", metavar="ENGINE", type=engine, help=cluster)
    parser.add_argument(
        "-p", dest="plugins", metavar="NAME", action="append", default=[], help="load this pytest plugin; no other is"
    )
    parser.add_argument("-x", dest="first", action="store_true", help="stop at the first red cell")
    parser.add_argument("-v", dest="verbose", action="store_true", help="print a line for every cell and every speed")
    parser.add_argument("--seed", type=seed, default=0, help="of weights, inputs and cotangents (default: 0)")
    parser.add_argument(
        "--timeout", type=seconds, default=CELL_SECONDS, help="seconds that a cell may take (default: 300)"
    )
    parser.add_argument(
        "--expect", type=Path, metavar="FILE", help="divergences that are declared in a file; see expect record"
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="finish a stored run")
    parser.add_argument("--store", type=Path, default=STORE, help=f"folder for runs (default: {STORE})")
    parser.add_argument(
        "--fresh", action="store_true", help="reuse no verdict, reference or compiled code of earlier runs"
    )
    parser.add_argument(
        "--every-tensor", action="store_true", help="store the numbers of all tensors (default: near their budgets)"
    )
    unproven = "red are modes without a proof too, and graph breaks that no spec declares"
    parser.add_argument("--strict", action="store_true", help=unproven)
    _add_junit(parser)


def _add_extent(judge: argparse.ArgumentParser) -> None:
    """How much of what is asked for is judged and timed."""
    judge.add_argument(
        "--full", action="store_true", help="all cases and all speeds; only the whole zoo has less without it"
    )
    text = "judge each model at N shapes drawn from its family, in place of its cases"
    judge.add_argument("--shapes", type=shapes, default=0, metavar="N", help=text)
    speed = judge.add_mutually_exclusive_group()
    speed.add_argument("--no-speed", dest="measure", action="store_const", const="", help="only check")
    speed.add_argument(
        "--speed", dest="measure", action="store_const", const="speed", help="time all that passes, your own models too"
    )


def _add_bisect_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "cell", metavar="CELL", help="MODEL[MODE-PRECISION-DEVICE]; SOURCE:: before it if not of the zoo"
    )
    parser.add_argument("--torch", required=True, metavar="VERSIONS", help="such as 2.6.0..2.15.0 or 2.6.0,2.8.0")
    parser.add_argument("--all", dest="every", action="store_true", help="judge every version (default: binary search)")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument(
        "--with", dest="others", metavar="PACKAGE", action="append", default=[], help="install this beside torch"
    )


def _add_own_model(parser: argparse.ArgumentParser) -> None:
    """What may be said of models without a spec."""
    parser.add_argument(
        "--input",
        dest="inputs",
        metavar="INPUT",
        action="append",
        default=[],
        help="an input of a model without a spec: [NAME=]SHAPE[:DTYPE[:LOW..HIGH]], such as 2,3,64,64",
    )
    text = "the model that a model without a spec replaces, and must compute the same as: a source, as for run"
    parser.add_argument("--reference", metavar="SOURCE", type=OtherModel.named, help=text)
    training = parser.add_mutually_exclusive_group()
    for name in ("train", "eval"):
        text = f"put a model without a spec into {name} mode"
        training.add_argument(f"--{name}", dest="training", action="store_const", const=name, default="", help=text)


def _add_trust(parser: argparse.ArgumentParser) -> None:
    text = "saved models may run code when they are opened; without it, those that do are refused"
    parser.add_argument("--trust", action="store_true", help=text)


def _add_html(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one page of HTML to this file")


def _add_junit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--junitxml", "--junit-xml", type=Path, metavar="FILE", help="write the verdicts to this file, as JUnit's XML"
    )


# Reads the values of options. Each function raises `ArgumentTypeError` with what was asked and what was given.


def listed(text: str) -> list[str]:
    """A list of names."""
    return text.split(",")


NumberT = TypeVar("NumberT", int, float)

MOST_WORKERS, MOST_SHAPES, LARGEST_SEED, LONGEST = 1024, 1000, 2**63 - 1, 1e7


def workers(text: str) -> str:
    """A number of processes."""
    return str(_number(int, text, 0, MOST_WORKERS, f"a number of processes from 0 to {MOST_WORKERS}"))


def engine(text: str) -> str:
    """Ray, or the address of one of its clusters."""
    if text != on_ray.ENGINE and not text.startswith(f"{on_ray.ENGINE}://"):
        raise ArgumentTypeError(f"want ray or ray://HOST:PORT, got {text!r}")
    return text


def shapes(text: str) -> int:
    """A number of shapes."""
    return _number(int, text, 1, MOST_SHAPES, f"a number of shapes from 1 to {MOST_SHAPES}")


def seed(text: str) -> int:
    """A seed that torch takes."""
    return _number(int, text, 0, LARGEST_SEED, f"a whole number from 0 to {LARGEST_SEED}")


def seconds(text: str) -> float:
    """A number of seconds that passes."""
    return _number(float, text, sys.float_info.min, LONGEST, f"a number of seconds above 0, at most {LONGEST:g}")


def shard(text: str) -> tuple[int, int]:
    """Which part of how many."""
    found = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text, re.ASCII)
    index, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= index <= count:
        raise ArgumentTypeError(f"want a shard such as 1/4, got {text!r}")
    return index, count


def _number(kind: Callable[[str], NumberT], text: str, least: NumberT, most: NumberT, wanted: str) -> NumberT:
    try:
        number = kind(text)
    except ValueError:
        raise ArgumentTypeError(f"want {wanted}, got {text!r}") from None
    if not least <= number <= most:
        raise ArgumentTypeError(f"want {wanted}, got {text!r}")
    return number


def device_of_torch() -> tuple[str, ...]:
    """The device that the environment names, as for other tests of torch; () if it names none.

    Raises:
        UsageError: it is no device that is known here.
    """
    named = os.environ.get(TORCH_DEVICE, "")
    if named and named not in DEVICES:
        raise UsageError(f"{TORCH_DEVICE}: unknown device {named!r}{suggestion(named, DEVICES)}")
    return (named,) if named else ()


# Runs the command that the line names.

NEED_TORCH = ("run", "bench", "list", "probes", "bisect", "explain", "repro")


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
            typed = sys.argv[1:] if arguments is None else arguments
            return _execute(options, further, tuple(typed))
        except UsageError as problem:
            say(str(problem))
            return ExitCode.USAGE
        except MachineError as problem:
            say(str(problem))
            return ExitCode.RED
        except OSError as problem:
            say(_failure(problem))
            return ExitCode.USAGE
        except KeyboardInterrupt:
            say("interrupted")
            return ExitCode.INTERRUPTED


def _failure(problem: OSError) -> str:
    try:
        Path.cwd()
    except OSError:
        return "the working folder was removed; go to one that exists"
    return f"this machine failed: {problem}"


def _execute(options: argparse.Namespace, further: list[str], typed: tuple[str, ...]) -> int:
    if options.command in NEED_TORCH and complaint():
        raise UsageError(complaint())
    for listed in {"sources", "words"}.intersection(vars(options)):  # argparse takes them before options alone
        getattr(options, listed).extend(word for word in further if not word.startswith("-"))
        further = [word for word in further if word.startswith("-")]
    if options.command in ("run", "bench"):
        return run.run(replace(_run_options(options, further), command=typed))
    if further:
        raise UsageError(f"{options.command}: unknown option {further[0]}{suggestion(further[0], options.known)}")
    return _look(options)


def _look(options: argparse.Namespace) -> int:
    """Execute a command that judges nothing of the user."""
    commands: dict[str, Callable[[], int]] = {
        "list": lambda: probes.list_models(tuple(options.sources)),
        "show": lambda: stored.show_run(
            options.run, markdown=options.md, xml=options.junitxml, html=options.html, csv=options.csv
        ),
        "explain": lambda: explain.explain([*options.words, *[resuming.TRUST] * options.trust]),
        "expect": lambda: {"record": expect.record, "prune": expect.prune}[options.action](options.run, options.file),
        "repro": lambda: repro.hand_out(
            options.run,
            options.cell,
            [*options.sources, *[resuming.TRUST] * options.trust],
            options.into,
            issue=options.issue,
        ),
        "merge": lambda: stored.merge_shards(tuple(options.runs), options.into, any_cpu=options.any_cpu),
        "diff": lambda: stored.show_changes(
            options.before, options.after, markdown=options.md, json=options.json, html=options.html
        ),
        "compat": lambda: stored.show_compat(
            tuple(options.runs), markdown=options.md, json=options.json, html=options.html
        ),
        "bisect": lambda: bisect.bisect(
            options.cell, options.torch, STORE, every=options.every, keep=options.keep, others=tuple(options.others)
        ),
        "probes": lambda: probes.show_probes(
            tuple(options.names),
            device=options.device or (*device_of_torch(), "cpu")[0],
            timeout=options.timeout,
            page=options.write,
        ),
    }
    return commands[options.command]()


def _request(options: argparse.Namespace) -> PlanRequest:
    beside = options.reference and replace(options.reference, trusted=options.trust)
    return PlanRequest(
        sources=tuple(options.sources),
        modes=tuple(options.mode),
        precisions=tuple(options.precision),
        devices=tuple(options.device or ([] if options.resume else device_of_torch())),
        seed=options.seed,
        deadline=options.timeout,
        shapes=options.shapes,
        given=OwnModel(
            inputs=tuple(options.inputs), training=options.training, reference=beside, trusted=options.trust
        ),
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
    if options.on and (further or options.plugins):
        raise UsageError(f"--on {options.on}: pytest judges nothing there; leave out {[*further, '-p'][0]}")
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
        on=options.on or "",
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
