"""The commands: judge models, measure them, replicate claims, print a stored run again, look for faults of torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from conformance import against, claims, run, upstream
from conformance.axes import UsageError

STORE = Path(".conformance")
FURTHER = "Further options go to pytest; give their values as --option=value."


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code, which is one of pytest's.

    0 all as expected, 1 something red, 2 interrupted, 3 internal error, 4 what was asked cannot be done,
    5 nothing selected.
    """
    options, further = _parser().parse_known_args(arguments)
    try:
        return _execute(options, further)
    except UsageError as problem:
        run.say(str(problem))
        return int(pytest.ExitCode.USAGE_ERROR)


def _execute(options: argparse.Namespace, further: list[str]) -> int:
    if options.command == "bench" and options.against:
        return _compare(options, further)
    if options.command in ("run", "bench"):
        return run.main(options, further)
    if further:
        raise UsageError(f"{options.command}: unknown option {' '.join(further)}")
    if options.command == "claims":
        return claims.main(options.sources, options.write, seed=options.seed, timeout=options.timeout)
    if options.command == "show":
        return _show(options)
    return upstream.main(options.names, device=options.device, timeout=options.timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conformance", description="Hold models to their contracts.")
    commands = parser.add_subparsers(dest="command", required=True)
    judge = commands.add_parser("run", help="judge models, and measure the speed of what is green", epilog=FURTHER)
    _add_run_options(judge)
    judge.add_argument("--no-speed", dest="measure", action="store_const", const="", default="speed", help="only judge")
    bench = commands.add_parser("bench", help="judge, then measure speed, memory and compile cost", epilog=FURTHER)
    _add_run_options(bench)
    bench.add_argument("--against", metavar="REV", help="compare with the sources at a revision of their repository")
    bench.set_defaults(measure="bench")
    replicate = commands.add_parser("claims", help="measure again what sources say that models gain")
    replicate.add_argument("sources", nargs="*", help="as for run; the whole zoo if none is given")
    replicate.add_argument("--write", type=Path, metavar="FILE", help="the page's file (default: print it)")
    replicate.add_argument("--seed", type=int, default=0, help="of weights, inputs and the order of calls (default: 0)")
    replicate.add_argument("--timeout", type=float, default=300.0, help="seconds a cell may take (default: 300)")
    show = commands.add_parser("show", help="print a stored run")
    show.add_argument("run", type=Path)
    probes = commands.add_parser("probes", help="look for known faults in the installed torch")
    probes.add_argument("names", nargs="*", metavar="NAME", help="of a probe; all if none is given")
    probes.add_argument("--device", default="cpu", help="where to look: cpu or cuda (default: cpu)")
    probes.add_argument("--timeout", type=float, default=300.0, help="seconds a probe may take (default: 300)")
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="*", help="zoo models, files, modules or module:NAME; the whole zoo if none is given"
    )
    for axis in ("mode", "precision", "device"):
        parser.add_argument(f"--{axis}", action="append", default=[], help=f"only this {axis}; may be repeated")
    parser.add_argument("-k", dest="expression", metavar="EXPRESSION", help="only cells whose id matches")
    parser.add_argument("-n", dest="workers", metavar="N", default="", help="processes at work (default: cores)")
    parser.add_argument("-x", dest="first", action="store_true", help="stop at the first red cell")
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs and cotangents (default: 0)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a cell may take (default: 300)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="finish a stored run")
    parser.add_argument("--store", type=Path, default=STORE, help=f"folder for runs (default: {STORE})")
    parser.add_argument("--fresh-cache", action="store_true", help="compile everything anew")


def _compare(options: argparse.Namespace, further: list[str]) -> int:
    idle = {"-k": options.expression, "-n": options.workers, "-x": options.first, "--resume": options.resume}
    unfit = [*(name for name, given in {**idle, "--fresh-cache": options.fresh_cache}.items() if given), *further]
    if unfit:
        raise UsageError(f"bench --against does not take {' '.join(unfit)}")
    axes = {"modes": options.mode, "precisions": options.precision, "devices": options.device}
    return against.main(options.sources, options.against, **axes, seed=options.seed, timeout=options.timeout)


def _show(options: argparse.Namespace) -> int:
    contents = run.read(options.run)
    run.show(contents, options.run)
    return run.exit_code(contents)


if __name__ == "__main__":
    sys.exit(main())
