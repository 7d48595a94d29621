"""What one revision is worth: its cells judged, and what the green ones cost counted. Runs in its delegate."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from conformance import bench, isolation, jobs, speed
from conformance.execution import Execution
from conformance.store import Contents

PLAN_DEADLINE = 300.0


def give(task: dict[str, Any]) -> dict[str, Any]:
    """Plan, judge and count.

    Args:
        task: "sources", "modes", "precisions", "devices", "seed", "deadline", and "folder" for the references.

    Returns: {"usage": message} where what was asked for cannot be done; otherwise "plan"; "unknown", a message for
        each source there is no model of; "cases", the first of each model in words; "verdicts", by cell id "status"
        and "text"; "green", by id of each green cell its "footprint" and the file of its "reference".
    """
    ending = isolation.run("conformance.account:planned", task, deadline=PLAN_DEADLINE, method="spawn")
    if ending.kind != "answered":
        return {"usage": f"the process that plans {ending.message}"}
    if "usage" in ending.answer["plan"]:
        return {"usage": ending.answer["plan"]["usage"]}
    plan = ending.answer["plan"]
    execution = Execution(plan, Path(task["folder"]))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        verdicts = {v.cell: v for v in pool.map(execution.verdict, plan["cells"])}
    green = speed.green(Contents(plan, tuple(verdicts), verdicts))
    footprints = dict(jobs.carry_out({cell.id: partial(bench.footprint, plan, cell) for cell in green}))
    return {
        **ending.answer,
        "verdicts": {name: {"status": v.status, "text": v.text} for name, v in verdicts.items()},
        "green": {c.id: {"footprint": footprints[c.id], "reference": str(execution.reference(c.model))} for c in green},
    }


def planned(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: the plan for those of the sources that this revision has."""
    from conformance import plan  # noqa: PLC0415 -- the delegate itself never imports torch

    if lacking := _lacking():
        return {
            "plan": {
                "usage": f"its zoo has no {lacking[0]}, which this conformance needs; it lacks {len(lacking)} files"
            }
        }
    unknown = {source: text for source in task["sources"] if (text := _objection(source))}
    known = [source for source in task["sources"] if source not in unknown]
    if unknown and not known:
        return {"plan": {"cells": [], "models": {}, "homes": []}, "unknown": unknown, "cases": {}}
    made = plan.make({**task, "sources": known}, enter_phase)
    homes = made.get("models", {})
    return {"plan": made, "unknown": unknown, "cases": {n: _first_case(n, h, task["seed"]) for n, h in homes.items()}}


def _lacking() -> list[str]:
    """What `conformance` needs of the zoo and found elsewhere: an editable install lends what a folder lacks."""
    import conformance.entrant  # noqa: PLC0415
    import conformance.footprint  # noqa: F401, PLC0415
    import zoo  # noqa: PLC0415

    own = Path(zoo.__path__[0])
    return sorted(
        name
        for name, module in sys.modules.items()
        if name.startswith("zoo.") and not Path(module.__file__ or "").is_relative_to(own)
    )


def _objection(source: str) -> str:
    """Why there is no model of a source; "" where there is one, and for files and folders of the zoo."""
    from zoo import catalog  # noqa: PLC0415

    if source.endswith(".py") or f"zoo.{source}" in catalog.FOLDERS:
        return ""
    try:
        catalog.get_spec(source)
    except catalog.UnknownModelError as problem:
        return str(problem)
    except Exception:  # noqa: BLE001 -- the plan will say so
        return ""
    return ""


def _first_case(model: str, home: dict[str, Any], seed: int) -> str:
    """The inputs of what is counted and timed, in words."""
    import torch  # noqa: PLC0415
    from torch.utils import _pytree as pytree  # noqa: PLC0415

    from conformance import inputs, sources  # noqa: PLC0415

    call = inputs.draw_batch(sources.Home(**home).spec(model).cases[0], seed, 0)
    told = []
    for leaf in pytree.tree_leaves((call.args, dict(call.kwargs))):
        if isinstance(leaf, torch.Tensor):
            told.append(f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}")
        else:
            told.append(repr(leaf) if isinstance(leaf, (bool, int, float, str)) else type(leaf).__name__)
    return ", ".join(told)
