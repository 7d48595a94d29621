"""The commands: `conformance run` judges, `show` prints a stored run again, `probes` looks for faults of torch."""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from conformance import isolation, store, table, upstream
from conformance.axes import UsageError

STORE = Path(".conformance")
PLAN_DEADLINE = 300.0
NEVER_COMPILE = ("eager", "scripted")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code, which is one of pytest's.

    0 all as expected, 1 something red, 2 interrupted, 3 internal error, 4 what was asked cannot be done,
    5 nothing selected.
    """
    options, further = _parser().parse_known_args(arguments)
    try:
        return _execute(options, further)
    except UsageError as problem:
        _say(str(problem))
        return int(pytest.ExitCode.USAGE_ERROR)


def _execute(options: argparse.Namespace, further: list[str]) -> int:
    if options.command == "run":
        return _run(options, further)
    if further:
        raise UsageError(f"{options.command}: unknown option {' '.join(further)}")
    return _show(options) if options.command == "show" else upstream.main(options.names, timeout=options.timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conformance", description="Hold models to their contracts.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="judge models",
        epilog="Further options go to pytest; give their values as --option=value.",
    )
    run.add_argument(
        "sources", nargs="*", help="zoo models, files, modules or module:NAME; the whole zoo if none is given"
    )
    for axis in ("mode", "precision", "device"):
        run.add_argument(f"--{axis}", action="append", default=[], help=f"only this {axis}; may be repeated")
    run.add_argument("-k", dest="expression", metavar="EXPRESSION", help="only cells whose id matches")
    run.add_argument("-n", dest="workers", metavar="N", default="", help="processes at work (default: cores)")
    run.add_argument("-x", dest="first", action="store_true", help="stop at the first red cell")
    run.add_argument("--seed", type=int, default=0, help="of weights, inputs and cotangents (default: 0)")
    run.add_argument("--timeout", type=float, default=300.0, help="seconds a cell may take (default: 300)")
    run.add_argument("--resume", type=Path, metavar="RUN", help="finish a stored run")
    run.add_argument("--store", type=Path, default=STORE, help=f"folder for runs (default: {STORE})")
    run.add_argument("--fresh-cache", action="store_true", help="compile everything anew")
    show = commands.add_parser("show", help="print a stored run")
    show.add_argument("run", type=Path)
    probes = commands.add_parser("probes", help="look for known faults in the installed torch")
    probes.add_argument("names", nargs="*", metavar="NAME", help="of a probe; all if none is given")
    probes.add_argument("--timeout", type=float, default=300.0, help="seconds a probe may take (default: 300)")
    return parser


def _show(options: argparse.Namespace) -> int:
    contents = _read(options.run)
    print(table.render(contents, folder=options.run))  # noqa: T201
    red = contents.missing or any(v.red for v in contents.verdicts.values())
    return int(pytest.ExitCode.TESTS_FAILED if red else pytest.ExitCode.OK)


def _read(folder: Path) -> store.Contents:
    """The stored run; a line says so where its end was lost."""
    contents = store.read(folder)
    if contents.torn_bytes:
        _say(f"{folder / store.LINES}: the last line is unfinished, {contents.torn_bytes} bytes were left out")
    return contents


def _say(text: str) -> None:
    print(f"conformance: {table.visible(text)}", file=sys.stderr)  # noqa: T201 -- this is the interface


def _run(options: argparse.Namespace, further: list[str]) -> int:
    folder = _resumed(options) if options.resume else _planned(options)
    contents = _read(folder)
    if not contents.missing:
        return _show(argparse.Namespace(run=folder))
    cache = Path(tempfile.mkdtemp(prefix="conformance-cache-")) if options.fresh_cache else _cache(contents.plan)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers beside each cell
    modes = {cell["mode"] for cell in contents.plan["cells"]}
    os.environ["CONFORMANCE_PRELOAD"] = "compiler" if modes - set(NEVER_COMPILE) else ""
    print(f"judging {len(contents.missing)} cells, stored in {folder}", flush=True)  # noqa: T201
    try:
        store.Writer(folder).close()  # a run that somebody else writes is refused before pytest starts
        return int(pytest.main(_pytest_arguments(options, contents, folder) + further))
    finally:
        if options.fresh_cache:
            shutil.rmtree(cache, ignore_errors=True)


def _pytest_arguments(options: argparse.Namespace, contents: store.Contents, folder: Path) -> list[str]:
    models = {cell.partition("[")[0] for cell in contents.missing}
    workers = options.workers or str(min(os.cpu_count() or 1, len(models)))
    arguments = [
        str(folder / store.PLAN),
        f"--conformance-run={folder}",
        f"--rootdir={folder}",
        "-c",
        os.devnull,
    ]
    arguments += ["-qq", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:doctest"]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    if workers not in ("0", "1"):
        arguments += ["-n", workers, "--dist=loadgroup"]
    if options.expression:
        arguments += ["-k", options.expression]
    return arguments + (["-x"] if options.first else [])


def _planned(options: argparse.Namespace) -> Path:
    task: dict[str, Any] = {
        "sources": options.sources,
        "modes": options.mode,
        "precisions": options.precision,
        "devices": options.device,
        "seed": options.seed,
        "deadline": options.timeout,
    }
    ending = isolation.run("conformance.plan:make", task, deadline=PLAN_DEADLINE, method="spawn")
    if ending.kind != "answered":
        raise UsageError(f"planning {' '.join(options.sources) or 'the zoo'}: the process {ending.message}")
    if "usage" in ending.answer:
        raise UsageError(ending.answer["usage"])
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder: Path = (options.store / "runs" / name).resolve()
    store.create(folder, ending.answer)
    return folder


def _resumed(options: argparse.Namespace) -> Path:
    if options.sources or options.mode or options.precision or options.device:
        raise UsageError("--resume takes its cells from the stored run; leave out sources and axes")
    folder: Path = options.resume.resolve()
    then = store.read(folder).plan["environment"]
    ending = isolation.run("conformance.plan:probe", {}, deadline=PLAN_DEADLINE, method="spawn")
    now = ending.answer or {}
    for key in ("torch", "python", "cpu", "gpus"):
        if then[key] != now.get(key):
            raise UsageError(f"{folder} was made with {key} {then[key]}, this is {now.get(key)}")
    return folder


def _cache(plan: dict[str, Any]) -> Path:
    """The compile cache of this torch on this processor."""
    known = plan["environment"]
    key = hashlib.sha256(f"{known['cpu']} {known['cpu_capability']}".encode()).hexdigest()[:8]
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return base / "torch-conformance" / f"{known['torch']}-{key}"


if __name__ == "__main__":
    sys.exit(main())
