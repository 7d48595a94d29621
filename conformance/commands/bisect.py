"""`conformance bisect`: judges one cell with several versions of torch, and tells between which its verdict changed.

Each version has an environment of its own, with this Python. `uv` makes it where it is installed; otherwise `venv` and
pip do. What configures them (index, proxy, folders of wheels) is left to them. All judge with the same code: a copy.
"""

import contextlib
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from packaging.version import InvalidVersion, Version

from conformance.commands import planning, stored
from conformance.commands.output import progress, say, tell
from conformance.errors import ExitCode, NotInstalledError, UsageError, one_line, suggestion
from conformance.records.cell import STATUSES, Cell, Verdict
from conformance.records.plan import Environment
from conformance.records.tasks import PlanRequest
from conformance.show.matrix import figure
from conformance.show.text import markdown_table, visible
from conformance.store import run_files
from conformance.torch_versions import VERSIONS

CELL = re.compile(r"(?:(.+)::)?([\w.]+(?:@\w+)?)\[(\w+)-(\w+)-(\w+)\]", re.ASCII)
RANGE = ".."
START = "import sys; sys.path[:] = filter(None, sys.path); from conformance.__main__ import main; sys.exit(main())"
HERE, OWN = Path(__file__).resolve().parents[2], ("conformance", "zoo")
NEEDED = (
    "filelock>=3.12",
    "jinja2>=3.1",
    "packaging>=23",
    "pytest>=8",
    "pytest-xdist>=3.5",
    "setuptools>=68",
    "tabulate>=0.9",
)
INDEX = "TORCH_INDEX"  # the variable that names an index for torch alone
ELSEWHERE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # what lies there would count as installed
FAILURE = re.compile(r"^\s*(?:error|fatal|×)\W*(.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """What one version of torch gave."""

    version: str
    verdict: str  # the status of the cell; "" if it was not judged
    detail: str = ""  # the margin or the reason, or why the cell was not judged


@dataclass(frozen=True)
class Trials:
    """Judges a cell of a source with one version of torch after the other."""

    source: str
    cell: Cell
    folder: Path  # for the environments, the runs, and the copy of this project's code
    keep: bool = False  # the environments and the copy
    others: tuple[str, ...] = ()  # what else to install, in words of pip

    def judge(self, version: str) -> Row:
        """Make the environment of a version, judge the cell in it, and remove it unless it is kept."""
        own = self.folder / version
        try:
            own.mkdir()
            progress(f"torch {version}: installing")
            python = make_environment(own / "environment", version, self.others)
            progress(f"torch {version}: judging")
            return self._run(own, python, version)
        except (NotInstalledError, UsageError) as problem:
            return Row(version, "", one_line(problem))
        except OSError as problem:
            return Row(version, "", f"this machine failed: {problem.strerror or problem}")
        finally:
            self.remove(own / "environment")
            with contextlib.suppress(OSError):
                own.rmdir()  # if it holds nothing

    def remove(self, folder: Path) -> None:
        """Remove a folder unless everything is to be kept."""
        if not self.keep:
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                say(f"{folder} could not be removed")

    def _run(self, own: Path, python: Path, version: str) -> Row:
        """Judge the cell with the Python of an environment.

        Raises:
            UsageError: what was stored cannot be read.
        """
        cell = self.cell
        axes = (f"--mode={cell.mode}", f"--precision={cell.precision}", f"--device={cell.device}")
        chosen = () if self.source == cell.model else ("-k", cell.id)
        words = [str(python), "-c", START, "run", self.source, *axes, *chosen, "-n1", "--no-speed", f"--store={own}"]
        done = _run(words, _variables(self.folder / "code"))
        (own / "output.txt").write_bytes(done.stdout)
        runs = sorted(own.glob("runs/*"))
        contents = run_files.read(runs[-1]) if runs else None
        verdict = contents.verdicts.get(cell.id) if contents else None
        found = contents.plan.environment.torch if contents else version
        if not is_version(version, found):
            return Row(version, "", f"torch {version} was asked for, and torch {found} is installed")
        return Row(version, verdict.status, _detail(verdict)) if verdict else Row(version, "", _last_words(done.stdout))


def bisect(  # noqa: PLR0913 -- all that a person may say
    cell: str, torch: str, store: Path, *, every: bool = False, keep: bool = False, others: tuple[str, ...] = ()
) -> int:
    """Judge a cell with some versions of torch, and print the table; see `Trials`, `versions` and `search`.

    Returns:
        An exit code: `OK` if the cell was judged and is not red with each version that was tried.

    Raises:
        UsageError: a word cannot be read, this torch cannot plan the cell, or nothing can be stored.
    """
    source, wanted = _parse_cell(cell)
    tried = versions(torch, VERSIONS)
    plan = planning.make_plan(PlanRequest((source,), (wanted.mode,), (wanted.precision,), (wanted.device,)))
    known = [planned.id for planned in plan.cells]
    if wanted.id not in known:
        raise UsageError(f"{source} has no cell {wanted.id}{suggestion(wanted.id, known)}")
    place = (store / "bisect" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}").resolve()
    trials = Trials(source, wanted, place, keep, others)
    try:
        copy_code(place / "code")
    except (OSError, shutil.Error) as problem:
        raise UsageError(f"{place} cannot be written: {one_line(problem)}") from None
    rows: list[Row] = []
    interrupted = False
    try:
        for row in search(tried, trials.judge, every=every):
            rows.append(row)
            progress(f"torch {row.version}: {row.verdict or 'not judged'}  {row.detail}")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        tell(report(wanted, plan.environment, rows, tried))
        tell(f"\nruns stored in {visible(str(place))}")
        trials.remove(place / "code")
    if interrupted:
        return ExitCode.INTERRUPTED
    green = all(row.verdict and not STATUSES[row.verdict].red for row in rows)
    return ExitCode.OK if green else ExitCode.RED


def _parse_cell(text: str) -> tuple[str, Cell]:
    """The source and the cell that a word of the command line names."""
    found = CELL.fullmatch(text)
    if not found:
        raise UsageError(
            f"bisect {text}: want MODEL[MODE-PRECISION-DEVICE], such as merge[compiled-amp_fp16-cpu] or "
            "nets.py::gate[eager-fp32-cpu]"
        )
    source, model, *axes = found.groups()
    return source or model, Cell(model, *axes)


def _variables(code: Path) -> dict[str, str]:
    """The variables of a run of one version: it imports this project from the copy, and not from where it is now."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    inherited = [entry for entry in entries if Path(entry).resolve() != HERE]
    github = (stored.SUMMARY, stored.ACTIONS)  # no run of one version speaks for the step
    kept = {name: value for name, value in os.environ.items() if name not in github}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(code), *inherited])}


def is_version(asked_for: str, found: str) -> bool:
    """Whether a version is the one asked for, which may leave open for what it was built, such as "+cpu"."""
    return Version(found) == Version(asked_for) or Version(found).public == asked_for


def _detail(verdict: Verdict) -> str:
    """The margin or the reason."""
    if verdict.status == "PASS":
        return figure(verdict.margin or 0.0)
    return one_line(visible(verdict.text if verdict.red else verdict.reason or verdict.text))


def _last_words(printed: bytes) -> str:
    """The last message of a run that judged nothing."""
    lines = [line for line in printed.decode(errors="replace").splitlines() if line.strip()]
    said = [line.partition(": ")[2] for line in lines if line.startswith("conformance: ")]
    return one_line(visible((said or lines or ["it printed nothing"])[-1]))


def report(cell: Cell, known: Environment, rows: Sequence[Row], tried: Sequence[str]) -> str:
    """The table of versions in Markdown, as one pastes it into an issue, and what follows from it."""
    body = [
        [row.version, f"{STATUSES[row.verdict].glyph} {row.verdict}" if row.verdict else "not judged", row.detail]
        for row in sorted(rows, key=lambda row: tried.index(row.version))
    ]
    head = f"{cell.id} · Python {known.python} · {known.system} · {known.cpu} {known.cpu_capability}"
    table = markdown_table(body, ["torch", "verdict", "margin or reason"])
    return "\n".join([visible(head), "", table, "", *findings(rows, tried)])


def versions(asked: str, known: Sequence[str]) -> tuple[str, ...]:
    """The versions that a person asks for, in order, each once.

    They are versions and ranges, separated by commas. A range has its ends and the known versions between them.

    Raises:
        UsageError: a part is no version, or a range ends before it starts.

    >>> versions("2.6.0..2.8.1,2.4.1", ("2.7.1", "2.8.0", "2.9.1"))
    ('2.4.1', '2.6.0', '2.7.1', '2.8.0', '2.8.1')
    """
    chosen: dict[Version, str] = {}
    for part in asked.split(","):
        ends = [text.strip() for text in part.split(RANGE, 1)]
        try:
            low, high = Version(ends[0]), Version(ends[-1])
        except InvalidVersion:
            raise UsageError(f"--torch {asked}: want versions such as 2.6.0..2.15.0 or 2.6.0,2.8.0") from None
        if low > high:
            raise UsageError(f"--torch {asked}: {ends[0]} is newer than {ends[-1]}")
        for text in (ends[0], *(text for text in known if low < Version(text) < high), ends[-1]):
            chosen.setdefault(Version(text), text)
    return tuple(chosen[version] for version in sorted(chosen))


def search(tried: Sequence[str], judge: Callable[[str], Row], *, every: bool = False) -> Iterator[Row]:
    """Try versions until the last one with the verdict of the first, and the one after it, are known.

    A version that cannot be judged is passed over for its neighbours. If both ends have one verdict, no other version
    is tried, unless every one of them is wanted. The rows are yielded as they become known.
    """
    if every:
        yield from map(judge, tried)
        return
    rows: dict[int, Row] = {}

    def attempt(places: Sequence[int]) -> Iterator[Row]:
        """Try places until one is judged."""
        for place in places:
            rows[place] = judge(tried[place])
            yield rows[place]
            if rows[place].verdict:
                return

    yield from attempt(range(len(tried)))
    yield from attempt([place for place in reversed(range(len(tried))) if place not in rows])
    judged = sorted(place for place, row in rows.items() if row.verdict)
    if not judged or rows[judged[0]].verdict == rows[judged[-1]].verdict:
        return
    low, high = judged
    while left := [place for place in range(low + 1, high) if place not in rows]:
        middle = min(left, key=lambda place: abs(2 * place - low - high))
        yield from attempt([middle])
        if rows[middle].verdict:
            low, high = (middle, high) if rows[middle].verdict == rows[low].verdict else (low, middle)


def findings(rows: Sequence[Row], tried: Sequence[str]) -> Iterator[str]:
    """Between which of the versions that were asked for, in order, the verdict changed: one line for each change."""
    known = {row.version: row for row in rows}
    judged = [version for version in tried if version in known and known[version].verdict]
    if len(judged) < 2:  # noqa: PLR2004 -- a change needs two
        yield "fewer than two versions were judged, so nothing shows whether the verdict changed"
        return
    changes = [(a, b) for a, b in pairwise(judged) if known[a].verdict != known[b].verdict]
    for before, after in changes:
        between = tried[tried.index(before) + 1 : tried.index(after)]
        yield f"{known[before].verdict} in {before}, {known[after].verdict} in {after}{_open(between, known)}"
    if not changes:
        between = [version for version in tried if version not in known]
        same = known[judged[0]].verdict
        yield f"no change: {same} in each version that was judged{_open(between, known)}"


def _open(between: Sequence[str], known: dict[str, Row]) -> str:
    """What stays open about the versions between two others."""
    failed = [version for version in between if version in known]
    untried = [version for version in between if version not in known]
    parts = [f"{', '.join(failed)} could not be judged"] if failed else []
    parts += [f"{', '.join(untried)} was not tried, see --all"] if untried else []
    return f" ({'; '.join(parts)})" if parts else ""


def copy_code(folder: Path) -> None:
    """Copy the packages of this project to a folder for the search path, and nothing that is installed beside them."""
    for name in OWN:
        shutil.copytree(HERE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def make_environment(folder: Path, torch: str, others: Sequence[str]) -> Path:
    """Make an environment with a version of torch in a new folder; returns the path of its Python.

    Raises:
        NotInstalledError: there is no such torch for this Python and machine, or something was not installed.
    """
    uv = shutil.which("uv")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    new = [uv, "venv", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    _install(f"the environment for torch {torch}", [*new, str(folder)])
    install = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    index = os.environ.get(INDEX)
    option = "--default-index" if uv else "--index-url"  # uv prefers a person's UV_DEFAULT_INDEX to its --index-url
    _install(f"torch {torch}", [*install, f"torch=={torch}", *([option, index] if index else [])])
    _install(" ".join(["what runs on it", *others]), [*install, f"torch=={torch}", *NEEDED, *others])
    return python


def _install(what: str, words: list[str]) -> None:
    """Run a command that installs something.

    Raises:
        NotInstalledError: it fails.
    """
    try:
        done = _run(words, {name: value for name, value in os.environ.items() if name not in ELSEWHERE})
    except OSError as problem:
        raise NotInstalledError(f"{what} was not installed: {problem.strerror or problem}") from None
    if done.returncode:
        python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        why = reason(done.stdout.decode(errors="replace"))
        raise NotInstalledError(f"{what} was not installed with {python}: {why}")


def _run(words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command; what it prints on either stream is the output."""
    return subprocess.run(  # noqa: S603
        words, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )


def reason(printed: str) -> str:
    r"""Why an installer failed, on one line: its last words that tell of an error, or its last line.

    >>> reason("ERROR: Could not find a version (from versions: 2.4)\nERROR: No matching distribution found\n")
    'No matching distribution found'
    """
    lines = [line for line in printed.splitlines() if line.strip()]
    errors = [(place, found[1]) for place, line in enumerate(lines) if (found := FAILURE.match(line))]
    if not errors:
        return one_line(lines[-1]) if lines else "it printed nothing"
    place, text = errors[-1]
    return one_line(" ".join(" ".join([text, *lines[place + 1 :]]).split()))
