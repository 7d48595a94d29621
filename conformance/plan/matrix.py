"""Plans a run: turns sources and axes into ordered cells, as records that do not need torch."""

import importlib
import inspect
import linecache
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import torch

from conformance.axes import DEVICES, MODES, ONE_GPU, PRECISIONS, Mode, Precision, choose, exists, usual
from conformance.cache import sources
from conformance.errors import UsageError, some
from conformance.own.spec import try_model
from conformance.plan import find
from conformance.process import environment as process_environment
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Cell, Shape, SizedModel
from conformance.records.measurements import FIGURES
from conformance.records.plan import Environment, Place, Plan, PlannedCell, PlannedModel, SpecLocation
from conformance.records.tasks import PACKAGE, Nothing, PlanRequest, ProbeInfo, ProbeList, ProbesRequest, SeenOn
from conformance.seeds import seed_of
from zoo import Spec, SpecError, catalog, probe

TF32_CAPABILITY = (8, 0)
INSTEAD = "Instead:"


def make(task: PlanRequest, process: ChildProcess) -> Plan:
    """Child process: plan the cells of a request; see `plan`. Raises UsageError if the request cannot be planned."""
    process.enter("plan")
    torch.set_num_threads(1)  # several would wait for each other where other processes use the cores
    try:
        return plan(task)
    except SpecError as problem:
        raise UsageError(str(problem)) from problem


def plan(asked: PlanRequest) -> Plan:
    """Plan the cells of a request: all its models in all its modes, precisions and devices that exist together.

    Raises UsageError if a source or a value of an axis is unknown, or a device that was asked for is absent, and
    SpecError if the spec of a model is wrong.
    """
    found, registering = find_specs(asked)
    before = _digests(found)
    found, assumed = try_all(found, asked.seed)
    if asked.all_sizes:
        check_sized(asked.modes, [spec for spec, _ in found])
    sizes = {size.name: size for spec, _ in found for size in _sizes(spec, asked)}
    shapeless = _shapeless(found, asked)
    found = [(sized, location) for spec, location in found for sized in _as_asked(spec, asked)]
    known_modes = modes_of_all(spec for spec, _ in found)
    modes = _chosen_modes(asked, known_modes, found)
    precisions = choose("precision", tuple(PRECISIONS), asked.precisions, usual(PRECISIONS))
    devices = _chosen_devices(asked.devices)
    _check_devices("mode", known_modes, asked.modes, devices)
    _check_devices("precision", PRECISIONS, asked.precisions, devices)
    gpus = gpus_of(asked.devices, devices)
    cells: list[PlannedCell] = []
    for spec, location in found:
        own = planned_modes(spec, location, asked.modes)
        squares = _squares(devices, precisions_of(spec, location, precisions, asked.precisions), gpus)
        cells += _cells(spec, [own[m] for m in modes if m in own], squares, first_case=asked.first_case)
    if not cells:
        raise UsageError(f"no model exists in {', '.join(modes)} at {', '.join(precisions)}")
    used = dict.fromkeys(planned.cell.mode for planned in cells)
    models = {
        spec.name: _model(spec, location, devices, sizes.get(spec.name), assumed.get(spec.name, ()))
        for spec, location in found
    }
    return Plan(
        seed=asked.seed,
        deadline=asked.deadline,
        environment=environment(),
        modes={name: location for name, location in registering.items() if name in used},
        models=models,
        cells=tuple(cells),
        compiling_modes=tuple(name for name in used if known_modes[name].compiles),
        symptoms={name: _symptom(name) for one in cells for e in one.expect if (name := e.probe)},
        digests=_unchanged(before, _digests(found)),
        gpus=gpus,
        shapeless=shapeless,
    )


def _chosen_modes(asked: PlanRequest, known: Mapping[str, Mode], found: Iterable[find.Found]) -> tuple[str, ...]:
    """The modes that were asked for, or the usual ones; in any case the candidates of models without a spec.

    At drawn shapes, those that compile are not usual: a compiler takes longer than all else.
    """
    default = tuple(name for name in usual(known) if not (asked.shapes and known[name].compiles))
    candidates = (candidate.name for spec, location in found if location.own for candidate in spec.candidates)
    return tuple(dict.fromkeys((*choose("mode", tuple(known), asked.modes, default), *candidates)))


def _chosen_devices(asked: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds of the devices that were asked for, or of all that are present."""
    present = tuple(device for device in DEVICES if not why_absent(device))
    return choose("device", DEVICES, tuple(map(kind_of, asked)), present)


def _model(
    spec: Spec, location: SpecLocation, devices: Sequence[str], size: SizedModel | None, assumed: tuple[str, ...]
) -> PlannedModel:
    """What the plan holds of a model."""
    scale = spec.scale
    working = {device: at for device in devices if scale and (at := scale.working_on(device))}
    return PlannedModel(
        location,
        figures_of(spec),
        size,
        _shape(spec),
        working={device: SizedModel(spec.name, at, scale.size_name) for device, at in working.items() if scale},
        candidates=tuple(candidate.name for candidate in spec.candidates),
        written=_place(spec.name, location),
        assumed=assumed,
        wrong_on_purpose=location.module.startswith(f"zoo.{catalog.WRONG_ON_PURPOSE}."),
    )


def _shape(spec: Spec) -> Shape | None:
    """The shape of a model that is planned at one."""
    model, _, sizes = spec.name.partition("@")
    if spec.family is None or not sizes:
        return None
    given = dict(one.split("=") for one in sizes.split(","))
    least = {name: low for name, (low, _) in spec.family.sizes.items()}
    return Shape(model, {name: int(given[name]) for name in least}, least)


def _symptom(name: str) -> str:
    """What a probe returns where its fault shows."""
    return str(importlib.import_module(f"{PACKAGE}.{name}").PROBE.symptom)


def _squares(devices: Sequence[str], precisions: Sequence[str], gpus: Sequence[int]) -> dict[tuple[str, str], str]:
    """The devices and precisions that exist together, each with the reason why this machine lacks it, or ""."""
    found = [(device, name) for device in devices for name in precisions if exists(PRECISIONS[name], device)]
    return {square: why_absent(*square, *gpus[:1]) for square in found}


def _cells(
    spec: Spec, modes: Sequence[Mode], squares: Mapping[tuple[str, str], str], *, first_case: bool
) -> Iterator[PlannedCell]:
    """The cells of a model, each with the declared divergences that apply to it.

    With `first_case`, the cells of modes that compile judge the first case alone.
    """
    later = tuple(case.name for case in spec.cases[1:]) if first_case else ()
    for device, precision, mode in ((d, p, m) for (d, p), m in product(squares, modes) if exists(m, d)):
        left_out = later if mode.compiles else ()
        concerned = [e for e in spec.expectations if e.concerns(mode.name, precision, device, torch.__version__)]
        declared = [e for e in concerned if e.case not in left_out]
        cell = Cell(spec.name, mode.name, precision, device)
        yield PlannedCell(cell, squares[device, precision], tuple(declared), left_out)


def _sizes(spec: Spec, asked: PlanRequest) -> list[SizedModel]:
    """The sizes at which a model is planned; none for that of its cases."""
    scale = spec.scale if asked.all_sizes else None
    return [SizedModel(spec.name, size, scale.size_name) for size in scale.sizes] if scale else []


def _shapeless(found: Sequence[find.Found], asked: PlanRequest) -> tuple[str, ...]:
    """The models that are asked for at drawn shapes, and have no family; UsageError if all are such."""
    names = tuple(spec.name for spec, _ in found if asked.shapes and spec.family is None)
    if names and len(names) == len(found):
        raise UsageError(f"--shapes {asked.shapes}: no family of shapes is in the spec of {some(names)}")
    return names


def _as_asked(spec: Spec, asked: PlanRequest) -> list[Spec]:
    """The spec at each of these sizes or at drawn shapes, or as it is; with what is declared outside the code."""
    declared = replace(spec, expectations=(*spec.expectations, *asked.declared.get(spec.name, ())))
    if asked.shapes:
        drawn = spec.family.draw(asked.shapes, seed_of(asked.seed, spec.name, "shapes")) if spec.family else []
        return [declared.shaped(sizes) for sizes in drawn]
    return [declared.at(sized.size) for sized in _sizes(spec, asked)] or [declared]


def figures_of(spec: Spec) -> tuple[str, ...]:
    """The figures that can be timed of a model; keys of `FIGURES`.

    "step" is among them even if the model has no parameters to train, because only the built model shows that.
    """
    if spec.fit is not None:
        return ("fit",)
    return tuple(name for name in FIGURES if name != "fit") if spec.differentiable else ("forward",)


def _check_devices(
    axis: str, table: Mapping[str, Mode | Precision], asked: Sequence[str], devices: Sequence[str]
) -> None:
    """Refuse, by a UsageError that names it and its devices, a mode or precision that exists on no chosen device."""
    for name in asked:
        if not any(exists(table[name], device) for device in devices):
            where, chosen = (" and ".join(names) for names in (table[name].devices, devices))
            raise UsageError(f"{axis} {name!r} exists on {where} only, and this run is on {chosen}")


def check_present(*devices: str) -> None:
    """Refuse devices that were asked for by name, by a UsageError with the reason, if one is absent."""
    for device in devices:
        reason = why_absent(kind_of(device))
        if reason:
            raise UsageError(f"device {device!r} was asked for, but {reason}")


def kind_of(device: str) -> str:
    """The kind of a device: that of "cuda:1" is "cuda"."""
    return "cuda" if ONE_GPU.fullmatch(device) else device


def gpus_of(asked: Sequence[str], devices: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the GPUs that were asked for; without a number, of all that are of the kind of the first.

    There are none if CUDA is not among the devices. Raises UsageError if a device that was asked for is absent, or if
    the GPUs are of several kinds, on which a verdict may depend.
    """
    check_present(*asked)
    names = _gpus() if "cuda" in devices else ()
    numbers = sorted({int(found[1]) for device in asked if (found := ONE_GPU.fullmatch(device))})
    seen = ", ".join(f"cuda:{number} ({name})" for number, name in enumerate(names))
    for number in numbers:
        if number >= len(names):
            raise UsageError(f"device 'cuda:{number}' was asked for, but torch sees {seen}")
    if len({names[number] for number in numbers}) > 1:
        raise UsageError(f"the GPUs of a run must be of one kind; torch sees {seen}")
    return tuple(numbers or (number for number, name in enumerate(names) if name == names[0]))


def why_absent(device: str, precision: str = "fp32", gpu: int = 0) -> str:
    """Why this machine does not have a device, or a precision on it; "" if it has it. `gpu` is the number of a GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if precision == "tf32" and torch.cuda.get_device_capability(gpu) < TF32_CAPABILITY:
        return "this GPU has no TF32"
    return ""


def observe_environment(task: Nothing, process: ChildProcess) -> Environment:  # noqa: ARG001
    """Child process: describe the environment."""
    return environment()


def environment() -> Environment:
    """The environment of this process."""
    return Environment(
        torch=str(torch.__version__),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_processor(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cores=os.cpu_count() or 1,
        threads_per_cell=1,
        gpus=_gpus(),
        cuda=torch.version.cuda or "",
        executable=Path(sys.executable).name,
        variables=process_environment.compiler_variables(),
    )


def _gpus() -> tuple[str, ...]:
    """The name of each GPU that is visible."""
    return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# Plans models that have no spec: finds them, calls each once, and leaves out the modes that they do not exist in.


def find_specs(asked: PlanRequest) -> tuple[list[find.Found], dict[str, SpecLocation]]:
    """The specs of the sources, or of the one model without a spec that is judged in their place; see `find.find`."""
    if asked.registered is not None:
        find.load_registering(asked.registered)
    if asked.own is not None:
        return [(find.spec_at(asked.own, ""), asked.own)], find.registering()
    return find.find(asked.sources, asked.given)


def try_all(specs: Sequence[find.Found], seed: int) -> tuple[list[find.Found], dict[str, tuple[str, ...]]]:
    """The same specs, those of models without one with the contracts that a call shows, and these contracts in words.

    Raises UsageError if a model cannot be built, or does not take its inputs; and UsageError or SpecError if its
    reference or candidate has other weights.
    """
    known, assumed = [], {}
    for spec, location in specs:
        if location.own is None:
            known.append((spec, location))
            continue
        own, assumed[spec.name] = try_model(location.own, find.module_of(location), seed, *find.others_of(location.own))
        place = replace(location, own=own)
        known.append((find.spec_at(place, ""), place))
    return known, assumed


def modes_of(spec: Spec) -> dict[str, Mode]:
    """The modes of a model by name: every mode, then its candidates; SpecError if one of these is named like a mode."""
    own = {}
    for candidate in spec.candidates:
        if candidate.name in MODES:
            raise SpecError(f"{spec.name}: candidate {candidate.name!r} has the name of a mode")
        own[candidate.name] = Mode(candidate.name, devices=candidate.devices, compiles=candidate.compiles)
    return MODES | own


def modes_of_all(specs: Iterable[Spec]) -> dict[str, Mode]:
    """The modes of all models by name, see `modes_of`; a candidate of several is here once, on the devices of all."""
    found = dict(MODES)
    for mode in (mode for spec in specs for mode in modes_of(spec).values()):
        known = found.setdefault(mode.name, mode)
        everywhere = not (known.devices and mode.devices)
        devices = () if everywhere else tuple(dict.fromkeys((*known.devices, *mode.devices)))
        found[mode.name] = replace(known, devices=devices, compiles=known.compiles or mode.compiles)
    return found


def check_sized(asked: Sequence[str], specs: Iterable[Spec]) -> None:
    """Refuse, by a UsageError, a candidate asked for in a bench that exists at no size of its model's scale."""
    every = [(spec, candidate) for spec in specs for candidate in spec.candidates if candidate.name in asked]
    planned = {candidate.name for spec, candidate in every if candidate.build_at or spec.scale is None}
    for spec, candidate in every:
        if candidate.name not in planned:
            raise UsageError(
                f"mode {candidate.name!r} is a candidate of {spec.name} without build_at, so a bench, which takes "
                f"{spec.name} at the sizes of its scale, has no {candidate.name}"
            )


def planned_modes(spec: Spec, location: SpecLocation, asked: Sequence[str]) -> dict[str, Mode]:
    """The modes of a model by name, without those that it does not exist in: a training needs gradients.

    Raises SpecError if a candidate has the name of a mode, and UsageError if it exists in none that was asked for.
    """
    without = location.own.without if location.own else ()
    if asked and set(asked) <= set(without):
        raise UsageError(f"{location.name} ({spec.summary}) has no mode {', '.join(asked)}")
    known = modes_of(spec).items()
    return {name: mode for name, mode in known if name not in without and not (mode.forward_only and spec.fit)}


def precisions_of(spec: Spec, location: SpecLocation, chosen: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The precisions of a model, among those that were chosen; the user named those that were asked for.

    A model in half precision has no others, and it is judged as it is unless another was asked for. A training and an
    exported program cannot be cast. Raises UsageError if a model in half precision has none of those asked for.
    """
    if spec.dtype != "float32":
        known = tuple(p.name for p in PRECISIONS.values() if p.low_dtype == spec.dtype)
        found = tuple(p for p in known if p in asked or (not asked and PRECISIONS[p].cast))
        if not found:
            raise UsageError(f"{spec.name} is in {spec.dtype}, so want {' or '.join(known)}, got {', '.join(asked)}")
        return found
    without = location.own.without if location.own else ()
    return tuple(p for p in chosen if not (PRECISIONS[p].cast and (spec.fit is not None or p in without)))


def _digests(specs: Sequence[find.Found]) -> dict[str, str]:
    """What tells the content of all that was imported, of saved models and of their inputs, by path."""
    paths = [path for _, location in specs if location.own for path in location.paths]
    saved = {path: content for path in paths if (content := sources.content_of_file(Path(path)))}
    return sources.digests_of_imported() | saved


def _unchanged(before: Mapping[str, str], now: dict[str, str]) -> dict[str, str]:
    """The digests of now. Raises UsageError if some are not what they were when the specs had been found."""
    if changed := [path for path, what in before.items() if now.get(path) != what]:
        raise UsageError(f"{some(changed)} changed while the run was planned; start it again")
    return now


# Finds the file and line at which a spec is written, so that a report can point there.


def _place(model: str, location: SpecLocation) -> Place | None:
    """The line on which a source names a spec, or its first one; None if the module has no source file."""
    module = sys.modules.get(location.module) if location.module else find.module_of(location)
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str) or not file.endswith(".py"):
        return None
    if location.own:
        thing = re.escape(location.own.thing)
        patterns = [rf"^\s*(class|def) {thing}\b|^{thing}\s*[:=]"]
    else:
        name = model.partition("@")[0]
        quoted = rf"(['\"]){re.escape(name)}\1"
        patterns = [rf"\bname\s*=\s*{quoted}", quoted, *(rf"^{key}\b.*=" for key in _variables(name, module))]
    lines = linecache.getlines(file)
    found = (number for pattern in patterns for number, text in enumerate(lines, 1) if re.search(pattern, text))
    return Place(str(Path(file).resolve()), next(found, 1))


def _variables(name: str, module: ModuleType) -> list[str]:
    """The variables of a module that hold the spec of that name, alone or in a tuple."""
    held = [(key, value if isinstance(value, tuple) else (value,)) for key, value in vars(module).items()]
    return [re.escape(key) for key, values in held if any(isinstance(v, Spec) and v.name == name for v in values)]


# Reads the probes of known torch faults as data.


def read_probes(task: ProbesRequest, process: ChildProcess) -> ProbeList:
    """Child process: read the probes of a package, with what they declare for a device; UsageError if it is absent."""
    process.enter("read")
    check_present(task.device)
    infos = tuple(_info(found, task.device, task.package) for found in probe.find(task.package))
    return ProbeList(infos, environment())


def _info(known: probe.Probe, device: str, package: str) -> ProbeInfo:
    return ProbeInfo(
        name=known.name,
        summary=known.summary,
        issue=known.issue,
        source=known.source,
        symptom=known.symptom,
        devices=known.devices,
        seen={where: SeenOn(seen.torch, seen.checked) for where, seen in known.seen.items()},
        concerns=known.concerns(device),
        declared=known.seen[device].shows_in(torch.__version__) if device in known.seen else None,
        remedy=_remedy(f"{package}.{known.name}"),
    )


def _remedy(module: str) -> str:
    """What to do instead, as the top of a probe's file says it; "" if it does not."""
    paragraphs = (inspect.getdoc(importlib.import_module(module)) or "").split("\n\n")
    found = next((text for text in paragraphs if text.startswith(INSTEAD)), "")
    return " ".join(found.removeprefix(INSTEAD).split())
