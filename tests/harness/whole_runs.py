"""Runs of many models, written by hand as fast as the disk takes them, for tests of commands that read several runs."""

from dataclasses import replace

from conformance.records.cell import Cell, Discrepancy, Measure, Observation, TensorName, Verdict
from conformance.records.convert import to_json
from conformance.records.plan import PlannedCell
from conformance.store import files, run_files, shards
from harness.made_by_hand import ENVIRONMENT, plan_for

MODES, PRECISIONS = ("eager", "scripted", "compiled"), ("fp32", "amp_fp16", "amp_bf16")


def plan_of_zoo(models=("net", "gate", "line"), torch="2.13.0", **others):
    """A plan of nine cells for each model."""
    cells = [PlannedCell(Cell(model, m, p, "cpu")) for model in models for p in PRECISIONS for m in MODES]
    environment = replace(ENVIRONMENT, torch=torch, **others.pop("environment", {}))
    fields = {"compiling_modes": ("compiled",), "digests": {"/src/net.py": "00"}, **others}
    return replace(plan_for(*cells), environment=environment, **fields)


def at_first_case(plan):
    """The plan whose compiled cells leave one case out."""
    cells = (replace(one, left_out=("empty",) if one.cell.mode == "compiled" else ()) for one in plan.cells)
    return replace(plan, cells=tuple(cells))


def seen(margin=0.1, dtype="float32", tensors=1):
    """What was observed in a cell whose worst error is that share of its budget."""
    measures = tuple(Measure(gate, margin, 1.0) for gate in ("norm", "slice", "gain", "pointwise"))
    found = (
        Discrepancy("typical", TensorName("output", f"output[{i}]"), "rounded", dtype, "", measures)
        for i in range(tensors)
    )
    return Observation("finished", discrepancies=tuple(found), seconds={"reference": 2.0}, cases=("typical",))


def verdict(cell, status="PASS", margin=0.1, dtype="float32", tensors=1, **others):
    return Verdict(cell, status, margin=margin, seconds=1.0, observation=seen(margin, dtype, tensors), **others)


def write(folder, plan, statuses=(), *, left_out=(), results=None):
    """Write a run: every cell passes, but for those with a verdict or status of their own; returns the folder."""
    given, records = dict(statuses), []
    for planned in plan.cells:
        if planned.id not in left_out:
            own = given.get(planned.id, "PASS")
            records.append({"verdict": to_json(own if isinstance(own, Verdict) else verdict(planned.id, own))})
    records += [{"job": job, "result": result} for job, result in (results or {}).items()]
    run_files.create(folder, plan, b"".join(map(files.record_line, records)))
    if not left_out:
        run_files.Writer(folder).close()
    return folder


def write_shards(folder, plan, count, **others):
    """Write the runs of all shards of a plan; returns their folders."""
    return [
        write(folder / f"shard{own.index}", shards.cut(plan, own), **others) for own in shards.split(plan, count, None)
    ]
