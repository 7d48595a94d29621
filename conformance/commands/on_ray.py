"""Judges the cells of a run on a Ray cluster: each judge is an actor that has one core of a node, or one GPU.

The cells, their order and their verdicts are those of a run on one machine. Ray starts the judges, and tells which are
gone; a cell whose judge is gone is judged by another. A node that might give other verdicts is left out, and that is
said. All verdicts come to the process that has the terminal, which alone writes.
"""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.commands import interrupts, judging, output, planning, progress, stored
from conformance.errors import ChangedError, ExitCode, StoreError, UsageError, counted, one_line
from conformance.judging import shrinking
from conformance.judging.executor import Executor, needs_cpp
from conformance.records.cell import NODE, model_of
from conformance.records.convert import from_json, to_json
from conformance.records.plan import Plan
from conformance.show.text import visible
from conformance.store import run_files

ENGINE = "ray"
TRIES = 3  # of a cell whose judges die, and of a node whose first judge does not start
LOOK_SECONDS = 2.0  # between two looks which nodes there are
CLEAR_SECONDS = 10.0  # the longest that the end of a run waits for a node
ADDRESS, ANSWER_SECONDS = "RAY_ADDRESS", 10.0  # the variable that Ray reads; the longest that a cluster may not answer
GIVEN_BY_RAY = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")  # in its processes; verdicts depend on them


class Judge:
    """Judges cells in a process of its own on a node: the actor.

    Args:
        plan: the plan of the run, in JSON form.
        node: name of the node.
        given: those variables of `GIVEN_BY_RAY` that are set where the run was planned.
        fresh: use nothing of other runs.
    """

    def __init__(self, plan: Any, node: str, given: Mapping[str, str], *, fresh: bool) -> None:
        import ray  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 -- an extra

        for name in GIVEN_BY_RAY:
            os.environ.pop(name, None)
        os.environ.update(given)
        whole: Plan = from_json(Plan, plan)
        self._plan = replace(whole, gpus=tuple(map(int, ray.get_gpu_ids())) if whole.gpus else ())
        self._node, self._planned = node, {one.id: one for one in whole.cells}
        self._folder = Path(tempfile.gettempdir()) / f"conformance-{node.rpartition(' ')[2]}"
        self._folder.mkdir(exist_ok=True)
        self._prepared = contextlib.ExitStack()
        self._prepared.enter_context(planning.children_prepared(self._plan, fresh=fresh, cores="1"))
        self._executor = Executor(self._plan, self._folder / run_files.REFERENCES)

    def why_unfit(self) -> str:
        """Why this node might give other verdicts than the machine that planned the run; "" if it cannot."""
        there, here = self._plan.judge.code, planning.describe_judge().code
        if there != here:
            return f"its conformance is another one: {here}, not {there}"
        found = planning.changes(self._plan)
        if not found and any(needs_cpp(one.cell) for one in self._plan.cells if not one.skip):
            why = self._executor.fault_of_compiler()
            found += [f"torch.compile of x * 2 fails there: {why}"] if why else []
        return "; ".join(found)

    def judge(self, cell: str) -> dict[str, Any]:
        """The verdict of a cell, in JSON form; or the files that have changed, or the problem, so that it has none."""
        try:
            verdict = shrinking.judge(self._executor, self._planned[cell])
        except ChangedError as problem:
            return {"changed": problem.files}
        except OSError as problem:
            return {"problem": one_line(problem)}
        seen = verdict.observation
        return {"verdict": to_json(replace(verdict, observation=replace(seen, facts={**seen.facts, NODE: self._node})))}

    def clear(self) -> None:
        """Remove what the judges of this node have stored."""
        self._prepared.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Work:
    """The cells that are left to judge, and the node that has the reference of each model.

    Args:
        cells: ids of the cells, in the order in which they are to be judged.

    >>> work = Work(["a[eager-fp32-cpu]", "b[eager-fp32-cpu]", "a[scripted-fp32-cpu]"])
    >>> [work.take(node) for node in ("one", "two", "two", "one")]
    ['a[eager-fp32-cpu]', 'b[eager-fp32-cpu]', 'a[scripted-fp32-cpu]', '']
    """

    def __init__(self, cells: Sequence[str]) -> None:
        self._left = OrderedDict.fromkeys(cells)  # a dict finds its first slowly once many before it are gone
        self._nodes: dict[str, str] = {}
        self._deaths = Counter[str]()

    def __len__(self) -> int:
        return len(self._left)

    def take(self, node: str) -> str:
        """The next cell for a node, "" if there is none: of a model that it has, or that no node has, or else any."""
        own = (cell for cell in self._left if self._nodes.get(model_of(cell), node) == node)
        cell = next(own, next(iter(self._left), ""))
        if cell:
            del self._left[cell]
            self._nodes.setdefault(model_of(cell), node)
        return cell

    def put_back(self, cell: str) -> bool:
        """Let a cell whose judge has died be the next one; False if this has happened too often."""
        self._deaths[cell] += 1
        if self._deaths[cell] < TRIES:
            self._left[cell] = None
            self._left.move_to_end(cell, last=False)
        return cell in self._left

    def forget(self, node: str) -> None:
        """A node is gone, and with it the references that it had."""
        self._nodes = {model: other for model, other in self._nodes.items() if other != node}


@dataclass
class _Seat:
    """A judge on a node, and the cell that it judges; "" if it judges none."""

    judge: Any
    node: str
    cell: str = ""


@contextlib.contextmanager
def connected(address: str, *, fresh: bool) -> Iterator["Cluster"]:
    """A cluster: that of an address such as "ray://host:10001"; for "ray", the one that runs here, or a new one.

    Args:
        address: the address.
        fresh: use nothing of other runs on its nodes.

    Raises:
        UsageError: Ray is not installed, there is no cluster at that address, or it has another version of Ray.
    """
    try:
        import ray  # noqa: PLC0415 -- an extra, which takes a second to import
    except ImportError:
        raise UsageError("--on ray needs Ray, which is not installed: pip install 'ray[client]'") from None
    _refuse_silent(address)
    answers = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    try:
        ray.init(address=None if address == ENGINE else address, log_to_driver=False, logging_level="ERROR")
    except Exception as problem:  # noqa: BLE001 -- Ray raises many kinds
        port = "" if address == ENGINE else "; ray:// takes the port of Ray's client, which is 10001 unless it was set"
        raise UsageError(f"--on {address}: Ray {ray.__version__} cannot use it: {one_line(problem)}{port}") from None
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)  # Ray sets its own
    try:
        yield Cluster(ray, address, fresh=fresh)
    finally:
        ray.shutdown()


def _refuse_silent(address: str) -> None:
    """Refuse an address where nothing answers: Ray itself tries for many minutes."""
    named = os.environ.get(ADDRESS, "") if address == ENGINE else address
    host, colon, port = named.removeprefix(f"{ENGINE}://").rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as problem:
        where = f"--on {address}" + f" ({ADDRESS}={named})" * (address == ENGINE)
        raise UsageError(f"{where}: no Ray cluster answers there: {one_line(problem)}") from None


class Cluster:
    """A cluster of Ray, which `connected` makes."""

    def __init__(self, ray: Any, address: str, *, fresh: bool) -> None:
        self._ray, self._address, self._fresh = ray, address, fresh

    @contextlib.contextmanager
    def held_alone(self) -> Iterator[None]:
        """A context that holds all cores of the node on which this process runs, if it runs on one."""
        here = self._ray.get_runtime_context().get_node_id()
        cores = sum(node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["NodeID"] == here)
        if not cores:
            yield
            return
        holder = self.actor(_Holder, here, num_cpus=cores).remote()
        held = holder.holds.remote()
        if not self._ray.wait([held], timeout=LOOK_SECONDS)[0]:
            output.tell("· waiting until Ray gives all cores of this node, to measure alone")
        self._ray.get(held)
        try:
            yield
        finally:
            self._ray.kill(holder)

    def actor(self, what: type, node: str, **needs: float) -> Any:
        """The class of an actor on one node."""
        place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(scheduling_strategy=place, **needs)(what)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """What Ray tells of each node, by its name: the host, and the beginning of its id."""
        nodes = (node for node in self._ray.nodes() if node["Alive"])
        return {f"{node['NodeManagerHostname']} {node['NodeID'][:8]}": node for node in nodes}

    def judge_missing(
        self, choice: judging.Choice, contents: run_files.Contents, folder: Path, writer: run_files.Writer
    ) -> int:
        """Judge the cells of a run that have no verdict, as a person has chosen; returns an exit code.

        Raises:
            UsageError: no node can judge them, or pytest, which selects them, does not take the expression.
            StoreError: a verdict could not be stored.
        """
        expected = progress.expected_seconds(contents, folder)
        ticker = progress.Ticker(progress.Progress(expected, "cell"), every_line=choice.verbose)
        recorder = judging.Recorder(folder, writer, [*expected], ticker)
        if choice.expression:
            code = judging.select(choice, folder, recorder)
            if code != ExitCode.OK:
                return code
            contents = run_files.read(folder)
        missing = {*contents.missing}
        judged = f"{counted(len(missing), 'cell')} of {counted(len({*map(model_of, missing)}), 'model')}"
        output.tell(f"judging {judged} on {self._address}, stored in {visible(str(folder))}")
        order = [cell for cell in judging.order(contents.plan, expected, len(self.nodes())) if cell in missing]
        session = _Session(self._ray, self, contents.plan, Work(order), choice, recorder)
        try:
            with ticker.beating():
                session.judge_all(fresh=self._fresh)
        finally:
            session.end()
        if recorder.problem:
            raise StoreError(recorder.problem)
        return ExitCode.RED if session.stopped else stored.exit_code(run_files.read(folder))


class _Holder:
    """An actor that only holds what it was given."""

    def holds(self) -> None:
        """Return as soon as it does."""


class _Session:
    """The judging of some cells on a cluster.

    Attributes:
        stopped: whether a red cell has ended it, as -x asks.
    """

    def __init__(  # noqa: PLR0913 -- all that it needs
        self,
        ray: Any,
        cluster: Cluster,
        plan: Plan,
        work: Work,
        choice: judging.Choice,
        recorder: judging.Recorder,
    ) -> None:
        self._ray, self._cluster, self._plan, self._work = ray, cluster, plan, work
        self._choice, self._recorder = choice, recorder
        self._kind = "GPU" if plan.gpus else "CPU"
        self._asked: dict[Any, _Seat] = {}  # by what the judge will answer
        self._idle: list[_Seat] = []
        self._fit: set[str] = set()  # nodes
        self._unfit: dict[str, str] = {}  # and why
        self._failed = Counter[str]()
        self.stopped = False

    def end(self) -> None:
        """End all judges, and remove what those have stored that are not lost."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            last = {seat.node: seat for seat in self._idle}
            self._ray.get([seat.judge.clear.remote() for seat in last.values()], timeout=CLEAR_SECONDS)
            for seat in self._seats:
                self._ray.kill(seat.judge)

    @property
    def _seats(self) -> list[_Seat]:
        return [*self._idle, *self._asked.values()]

    def judge_all(self, *, fresh: bool) -> None:
        """Judge the cells.

        Raises:
            UsageError: no node can judge them.
        """
        given = {name: os.environ[name] for name in GIVEN_BY_RAY if name in os.environ}
        asked, looked = (self._ray.put(to_json(self._plan)), given), -LOOK_SECONDS
        while self._work or any(seat.cell for seat in self._asked.values()):
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                self._look(*asked, fresh=fresh)
            self._assign()
            answered, _ = self._ray.wait([*self._asked], timeout=LOOK_SECONDS) if self._asked else ([], [])
            for answer in answered:
                self._hear(answer)
                if self.stopped or self._recorder.problem:
                    return

    def _look(self, plan: Any, given: Mapping[str, str], *, fresh: bool) -> None:
        """See to it that each node has its judges: one, until that has said that the node is fit; then all.

        Raises:
            UsageError: no node is fit.
        """
        nodes = self._cluster.nodes()
        for name in self._fit - nodes.keys():
            self._fit.remove(name)
            self._work.forget(name)
            self._idle = [seat for seat in self._idle if seat.node != name]
            self._recorder.tell(f"· node {name} is gone")
        seated = Counter(seat.node for seat in self._seats)
        for name, node in nodes.items():
            room = int(node["Resources"].get(self._kind, 0))
            if not room and name not in self._unfit:
                self._leave_out(name, f"it has no {self._kind} that Ray may give")
            wanted = 0 if name in self._unfit else room if name in self._fit else 1
            free = (int(self._choice.workers or 0) or len(self._work)) - seated.total()
            for _ in range(min(wanted - seated[name], free, len(self._work))):
                judge = self._cluster.actor(Judge, node["NodeID"], num_cpus=1, num_gpus=int(self._kind == "GPU"))
                seat = _Seat(judge.remote(plan, name, given, fresh=fresh), name)
                self._asked[seat.judge.why_unfit.remote()] = seat
                seated[name] += 1
        if not seated:
            why = "; ".join(f"{name}: {text}" for name, text in self._unfit.items()) or "it has no nodes"
            raise UsageError(f"the cluster cannot judge these cells: {why}")

    def _leave_out(self, node: str, why: str) -> None:
        self._unfit[node] = why
        self._recorder.tell(f"· node {node} is left out: {visible(why)}")

    def _assign(self) -> None:
        """Let idle judges judge what is left."""
        idle, self._idle = self._idle, []
        for seat in idle:
            seat.cell = self._work.take(seat.node)
            if seat.cell:
                self._asked[seat.judge.judge.remote(seat.cell)] = seat
            else:
                self._idle.append(seat)

    def _hear(self, answer: Any) -> None:
        """Take what a judge answers."""
        seat = self._asked.pop(answer)
        try:
            told = self._ray.get(answer)
        except self._ray.exceptions.RayError as problem:
            self._lose(seat, one_line(problem))
            return
        if seat.cell:
            if "problem" in told:
                self._recorder.tell(f"· {visible(told['problem'])}")
            self.stopped = self._recorder.store(told.get("verdict"), told.get("changed", ())) and self._choice.first
            seat.cell = ""
        elif told:
            self._leave_out(seat.node, told)
            self._ray.kill(seat.judge)
            return
        else:
            self._fit.add(seat.node)
        self._idle.append(seat)

    def _lose(self, seat: _Seat, why: str) -> None:
        """A judge has died: another one judges its cell."""
        if seat.cell and not self._work.put_back(seat.cell):
            self._recorder.tell(f"· {seat.cell} was not judged: its judges died {TRIES} times: {visible(why)}")
        if not seat.cell:
            self._failed[seat.node] += 1
            if self._failed[seat.node] == TRIES:
                self._leave_out(seat.node, why)
