"""Plans a run: its cells, the code that judges them, and the caches of the child processes."""

import contextlib
import hashlib
import importlib.util
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from conformance.cache import sources
from conformance.commands.output import say
from conformance.errors import UsageError, with_last_lines
from conformance.process import child, environment, fork_server, process_table
from conformance.records.plan import Environment, Judge, Plan, in_words
from conformance.records.tasks import ENVIRONMENT, PLAN, Nothing, PlanRequest, ResultT, Target, TaskT

DEADLINE = 300.0  # of a child that plans or reads a source; to build an architecture of a library takes seconds
PACKAGES = ("conformance", "zoo")
COMPILED = "__pycache__"
DIGITS = 12  # of the digest
OF_TORCH = "torchinductor_"  # begins the name of the folder that torch sets itself, when it compiles
OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")  # set in a git hook, for its repository


def make_plan(request: PlanRequest) -> Plan:
    """The plan of a request, made by a child process.

    The fork server makes it if it serves the cells too, so torch is imported once. One that compiles keeps code in a
    folder that only the plan knows, so it starts later.

    Raises:
        UsageError: it cannot be planned.
    """
    method = "spawn" if request.may_compile and not fork_server.compiles() else "forkserver"
    asked = " ".join(request.sources) or (request.own.name if request.own else "the zoo")
    return ask_child(f"planning {asked}", PLAN, request, method, DEADLINE * max(1, len(request.sources)))


def ask_child(
    what: str, target: Target[TaskT, ResultT], task: TaskT, method: str, deadline: float = DEADLINE
) -> ResultT:
    """The answer of a child process.

    Raises:
        UsageError: it refuses the task, or fails at what it was to do.
    """
    ending = child.run(target, task, deadline=deadline, method=method)
    if ending.result is None:
        failed = with_last_lines(f"{what}: {ending.message}{_memory_limit(ending)}", ending.said)
        raise UsageError(ending.message if ending.kind == "refused" else failed)
    return ending.result


def _memory_limit(ending: child.Ending[ResultT]) -> str:
    """The limit on memory, if a process seems to have died of it and does not say so itself."""
    told, limit = " ".join((ending.message, *ending.said)), process_table.say_memory_limit()
    return f"; {limit}" if limit and limit not in told and re.search("memory|alloc", told, re.IGNORECASE) else ""


@contextlib.contextmanager
def children_prepared(
    plan: Plan, *, compiles_for: Collection[str] = (), fresh: bool = False, cores: str = ""
) -> Iterator[Path]:
    """Let child processes use the compiled code and the references that this user's runs keep.

    Yields the folder of compiled code. If it cannot be written, a message says so, and it is a temporary one.

    Args:
        plan: the plan of the cells, with the environment.
        compiles_for: the device types for which the fork server prepares to compile at once.
        fresh: use nothing of other runs.
        cores: number of cores that the run may use, if a person gave one.
    """
    folder = environment.cache_of(plan.environment)
    problem = "" if fresh else environment.why_unusable(folder)
    if problem and plan.compiling_modes:
        say(f"compiled code is kept for this run only, because {folder} cannot be written: {problem}")
    references = None if fresh else environment.references_of(plan.environment)
    before = environment.of_children()
    with contextlib.ExitStack() as temporary:
        if fresh or problem:
            made = tempfile.TemporaryDirectory(prefix="conformance-cache-", ignore_cleanup_errors=True)
            folder = Path(temporary.enter_context(made))
        given = os.environ.get(environment.CACHE, "")
        if plan.compiling_modes and given and not Path(given).name.startswith(OF_TORCH):
            say(f"{environment.CACHE}={given} is not used: compiled code is kept in {folder}")
        environment.prepare_children(folder, compiles_for=compiles_for, references=references, cores=cores)
        environment.use_gpu(plan.gpus)
        try:
            yield folder
        finally:
            for name in environment.OWN:
                os.environ.pop(name, None)
            os.environ.update(before)


def describe_judge() -> Judge:
    """The code that judges here, and today's date."""
    return Judge(time.strftime("%Y-%m-%d", time.gmtime()), _revision(), _code())


def _code() -> str:
    content = hashlib.sha256()
    for package in PACKAGES:
        folder = _folder_of(package)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if COMPILED not in path.parts}
        for name in sorted(files):
            content.update(f"{package}/{name} {sources.digest(files[name])}\n".encode())
    return content.hexdigest()[:DIGITS]


def _revision() -> str:
    folders = [str(_folder_of(package)) for package in PACKAGES]
    try:
        top = _git(folders[0], "rev-parse", "--show-toplevel")
        _git(top, "ls-files", "--error-unmatch", "--", *folders)
        commit = _git(top, "rev-parse", "--short", "HEAD")
        changed = _git(top, "status", "--porcelain", "--", *folders)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""  # there is no git, no commit, or no repository of theirs
    return f"{commit}+" if changed else commit


def _folder_of(package: str) -> Path:
    """The folder of a package, without importing it."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).resolve().parent


def _git(folder: str, *arguments: str) -> str:
    """What git prints when it is called in a folder."""
    variables = {key: value for key, value in os.environ.items() if key not in OF_A_HOOK}
    done = subprocess.run(["git", "-C", folder, *arguments], env=variables, capture_output=True, check=True)  # noqa: S603, S607
    return done.stdout.decode().strip()


# Decides whether more of a stored plan can be judged: only on its machine, with its software and its sources.

DECIDING = ("torch", "python", "system", "cpu", "cpu_capability", "threads_per_cell", "gpus", "cuda", "variables")


def refuse_changed(folder: Path, plan: Plan) -> None:
    """Refuse to judge more of a stored plan on another machine, with other software or with other sources.

    Raises:
        UsageError: something has changed since the run was planned; the message names all of it.
    """
    if changed := changes(plan):
        raise UsageError(f"{folder} cannot go on, start a new run: {'; '.join(changed)}")


def changes(plan: Plan) -> list[str]:
    """What a verdict may depend on that is not here as it was where a plan was made.

    Raises:
        UsageError: this machine cannot be described.
    """
    return [*_changed_sources(plan), *_changed_environment(plan)]


def _changed_sources(plan: Plan) -> Iterator[str]:
    for file, then in plan.digests.items():
        now = sources.content_of_file(Path(file))
        if now != then:
            yield f"{file} has changed since it was planned" if now else f"{file} is gone"


def _changed_environment(plan: Plan) -> Iterator[str]:
    method = "spawn" if plan.compiling_modes else "forkserver"  # as for the plan
    ending = child.run(ENVIRONMENT, Nothing(), deadline=DEADLINE, method=method)
    now: Environment | None = ending.result
    if now is None:
        raise UsageError(f"describing this machine: {ending.message}")
    for key in DECIDING:
        was, found = getattr(plan.environment, key), getattr(now, key)
        if was != found:
            yield f"it was made with {key} {in_words(was)}, this is {in_words(found)}"
