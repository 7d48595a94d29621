"""Turns sources and axes into the ordered cells of a run, with everything the judge needs as data."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from conformance import sources
from conformance.axes import DEVICES, MODES, PRECISIONS, Mode, Precision, UsageError, choose, exists
from conformance.records import Cell
from conformance.store import FORMAT
from zoo.case import SpecError
from zoo.spec import Spec

TF32_CAPABILITY = (8, 0)


def make(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:
    """Child process: the plan for task["sources"], task["modes"], task["precisions"], task["devices"].

    With task["sizes"], each model that has a scale is planned at all its sizes.

    Returns: the plan, or {"usage": message} where what was asked for cannot be done.
    """
    enter_phase("plan")
    try:
        return _plan(task)
    except (UsageError, SpecError) as problem:
        return {"usage": str(problem)}


def _plan(task: dict[str, Any]) -> dict[str, Any]:
    found, homes = sources.find(task["sources"])
    scales: dict[str, dict[str, Any]] = {}
    if task.get("sizes"):
        found = [(sized, home) for spec, home in found for sized in _at_all_sizes(spec, scales)]
    usual = tuple(name for name, mode in MODES.items() if mode.usual)
    modes = choose("mode", tuple(MODES), tuple(task["modes"]), usual)
    precisions = choose("precision", tuple(PRECISIONS), tuple(task["precisions"]))
    devices = choose("device", DEVICES, tuple(task["devices"]))
    _check_devices("mode", MODES, task["modes"], devices)
    _check_devices("precision", PRECISIONS, task["precisions"], devices)
    for device in task["devices"]:
        check_present(device)
    skip = {(d, p): absence(d, p) for d in devices for p in precisions if exists(PRECISIONS[p], d)}
    cells = []
    for spec, _ in found:
        for device in devices:
            for precision in (p for p in precisions if exists(PRECISIONS[p], device)):
                for mode in (m for m in modes if exists(MODES[m], device)):
                    cell = Cell(spec.name, mode, precision, device)
                    expect = [
                        asdict(e) for e in spec.expectations if e.concerns(mode, precision, device, torch.__version__)
                    ]
                    cells.append({**vars(cell), "skip": skip[device, precision], "expect": expect})
    return {
        "format": FORMAT,
        "seed": task["seed"],
        "deadline": task["deadline"],
        "environment": environment(),
        "homes": [vars(home) for home in homes],
        "models": {spec.name: vars(home) for spec, home in found},
        "figures": {spec.name: _figures(spec) for spec, _ in found},
        "scales": scales,
        "cells": cells,
    }


def _at_all_sizes(spec: Spec, scales: dict[str, dict[str, Any]]) -> list[Spec]:
    """The spec at each size of its scale, which is noted under each name; as it is where it has none."""
    if spec.scale is None:
        return [spec]
    sized = {size: spec.at(size) for size in spec.scale.sizes}
    for size, larger in sized.items():
        scales[larger.name] = {"model": spec.name, "knob": spec.scale.knob, "size": size}
    return list(sized.values())


def _figures(spec: Spec) -> list[str]:
    """What can be timed of a model; whether there is anything to train shows when it is built."""
    if spec.fit is not None:
        return ["fit"]
    return ["forward", "gradient", "step"] if spec.differentiable else ["forward"]


def _check_devices(
    axis: str, table: Mapping[str, Mode | Precision], asked: Sequence[str], devices: Sequence[str]
) -> None:
    """Refuse what no chosen device has.

    Raises:
        UsageError: naming the value and where it exists.
    """
    for name in asked:
        if not any(exists(table[name], device) for device in devices):
            where, chosen = (" and ".join(names) for names in (table[name].devices, devices))
            raise UsageError(f"{axis} {name!r} exists on {where} only, and this run is on {chosen}")


def check_present(device: str) -> None:
    """Refuse a device that was asked for by name and is not there.

    Raises:
        UsageError: naming it and the reason.
    """
    reason = absence(device)
    if reason:
        raise UsageError(f"device {device!r} was asked for, but {reason}")


def absence(device: str, precision: str = "fp32") -> str:
    """Why a precision cannot be had on a device, or the device itself; "" where it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if precision == "tf32" and torch.cuda.get_device_capability() < TF32_CAPABILITY:
        return "this GPU has no TF32"
    return ""


def environment() -> dict[str, Any]:
    """What a verdict may depend on and a reader will want to know."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads_per_cell": 1,
        "gpus": gpus,
        "cuda": torch.version.cuda or "",
        "executable": Path(sys.executable).name,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def probe(task: dict[str, Any], enter_phase: Callable[[str], None]) -> dict[str, Any]:  # noqa: ARG001
    """Child process: the environment alone."""
    return environment()
