"""`conformance run`: plan, judge under pytest, measure what is green, print the table."""

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

from conformance import bench, isolation, jobs, report, speed, store, table
from conformance.axes import UsageError
from conformance.execution import Execution

PLAN_DEADLINE = 300.0
PLUGIN = "conformance.plugin"  # named like its entry point, and so found whether the project is installed or not
NEVER_COMPILE = ("eager", "scripted")
MEASUREMENTS = {"speed": speed.jobs_of, "bench": bench.jobs_of}
JUDGED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def main(options: argparse.Namespace, further: list[str]) -> int:
    """Run or resume; returns an exit code of pytest's, and 1 where anything is red or missing.

    Raises:
        UsageError: what was asked for cannot be done.
    """
    folder = _resumed(options) if options.resume else _planned(options)
    contents = read(folder)
    cache = Path(tempfile.mkdtemp(prefix="conformance-cache-")) if options.fresh_cache else cache_of(contents.plan)
    prepare_children(contents.plan, cache)
    store.Writer(folder).close()  # a run that somebody else writes is refused before anything starts
    shutil.rmtree(folder / store.REFERENCES, ignore_errors=True)  # an earlier session's; the model may have changed
    started = time.monotonic()
    try:
        code = _judge(options, contents, folder, further) if contents.missing else exit_code(contents)
        if code in JUDGED and contents.plan["measure"]:
            _measure(folder)
    except KeyboardInterrupt:
        code = int(pytest.ExitCode.INTERRUPTED)
    finally:
        shutil.rmtree(folder / store.REFERENCES, ignore_errors=True)
        if options.fresh_cache:
            shutil.rmtree(cache, ignore_errors=True)
    if code != pytest.ExitCode.USAGE_ERROR:
        print()  # noqa: T201
        contents = store.read(folder)
        show(contents, folder, seconds=time.monotonic() - started)
        for path in report.write_plots(contents, folder) if contents.plan["measure"] == "bench" else ():
            print(f"plot: {path}")  # noqa: T201
    return code


def prepare_children(plan: dict[str, Any], cache: Path) -> None:
    """Set what the processes to come inherit: the compile cache, and whether they will need the compiler."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers beside each cell
    modes = {cell["mode"] for cell in plan["cells"]}
    os.environ["CONFORMANCE_PRELOAD"] = "compiler" if modes - set(NEVER_COMPILE) else ""


def show(contents: store.Contents, folder: Path, seconds: float | None = None) -> None:
    """Print the matrix and, of a bench, the measurements."""
    if contents.plan["measure"] == "bench":
        print(report.Bench(contents).text(), end="\n\n")  # noqa: T201
    print(table.render(contents, seconds=seconds, folder=folder))  # noqa: T201


def read(folder: Path) -> store.Contents:
    """A stored run; a line on the error stream says so where its end was lost."""
    contents = store.read(folder)
    if contents.torn_bytes:
        say(f"{folder / store.LINES}: the last line is unfinished, {contents.torn_bytes} bytes were left out")
    return contents


def say(text: str) -> None:
    """Print a line on the error stream."""
    print(f"conformance: {table.visible(text)}", file=sys.stderr)  # noqa: T201 -- this is the interface


def exit_code(contents: store.Contents) -> int:
    """0 where all cells have verdicts and none is red, otherwise 1."""
    red = contents.missing or any(v.red for v in contents.verdicts.values())
    return int(pytest.ExitCode.TESTS_FAILED if red else pytest.ExitCode.OK)


def _judge(options: argparse.Namespace, contents: store.Contents, folder: Path, further: list[str]) -> int:
    print(f"judging {len(contents.missing)} cells, stored in {folder}", flush=True)  # noqa: T201
    return int(pytest.main(_pytest_arguments(options, contents, folder) + further))


def _measure(folder: Path) -> None:
    """Do the measurements that are not stored yet, of a run whose cells are all judged."""
    contents = store.read(folder)
    if contents.missing:
        return
    execution = Execution(contents.plan, folder / store.REFERENCES)
    work = MEASUREMENTS[contents.plan["measure"]](contents, execution)
    pending = {name: job for name, job in work.items() if name not in contents.answers}
    print(f"\ntaking {len(pending)} measurements", flush=True)  # noqa: T201
    writer = store.Writer(folder)
    try:
        for name, answer in jobs.carry_out(pending):
            writer.add_answer(name, answer)
            contents.answers[name] = answer
            print(table.measured_line(contents, name), flush=True)  # noqa: T201
    finally:
        writer.close()


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
    arguments += ["-qq", "--no-header", "--tb=short", "-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:doctest"]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    if workers not in ("0", "1"):
        arguments += ["-n", workers, "--dist=loadscope"]
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
        "sizes": options.measure == "bench",
    }
    ending = isolation.run("conformance.plan:make", task, deadline=PLAN_DEADLINE, method="spawn")
    if ending.kind != "answered":
        raise UsageError(f"planning {' '.join(options.sources) or 'the zoo'}: the process {ending.message}")
    if "usage" in ending.answer:
        raise UsageError(ending.answer["usage"])
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder: Path = (options.store / "runs" / name).resolve()
    store.create(folder, {**ending.answer, "measure": options.measure})
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


def cache_of(plan: dict[str, Any]) -> Path:
    """The compile cache of this torch on this processor."""
    known = plan["environment"]
    key = hashlib.sha256(f"{known['cpu']} {known['cpu_capability']}".encode()).hexdigest()[:8]
    base = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return base / "torch-conformance" / f"{known['torch']}-{key}"
