"""`conformance.check`: judges a model of one's own in one call, from a script, a notebook or a test."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance import axes, errors
from conformance.commands import checking
from conformance.judging import declarations
from conformance.own import capture, forms, spec
from conformance.records import plan, tasks
from zoo import Call, Convention, Expect, SpecError

RUN, REGISTERED, MAIN = "run", "modes", "__main__:"


def check(  # noqa: PLR0913 -- everything that a person may want to say; only the model and its inputs must be said
    target: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    modes: str | Iterable[str] = (),
    precisions: str | Iterable[str] = (),
    device: str = "cpu",
    train: bool | None = None,
    seed: int = 0,
    expect: str | os.PathLike[str] | Iterable[Expect | Convention] = (),
    reference: Any = None,
    candidate: Any = None,
) -> checking.Report:
    """Judge whether a model computes the same in every mode and precision, forward and backward.

    The model is called in processes of their own, never in this one. Nothing need be declared: what is unknown is what
    eager does, and the report says what was assumed.

    Args:
        target: a module, a class that is built without arguments, a function, a subclass of `autograd.Function`, an
            operator such as `torch.ops.aten.sin`, a ScriptModule, an exported program, the path of a saved model, or a
            text such as "package.module:Net", "path/to/file.py:Net" or "timm:convnext_atto".
        inputs: the positional arguments of one call, on any device; without any, an architecture of a library gets
            some that fit. Floating tensors are also drawn again, from the
            distribution of the given ones; everything else stays as it is.
        kwargs: the keyword arguments of the call.
        modes: names of modes, such as "compiled"; none: eager, scripted and compiled.
        precisions: names of precisions, such as "amp_bf16"; none: all of the device.
        device: the device to judge on.
        train: True or False puts the model into train or eval mode; None leaves it as it is.
        seed: seed of cotangents, of further draws, and of weights if the model is built anew.
        expect: declared divergences, as `zoo.Expect` explains them, or the path of a file that holds them; also
            gradients that are not the derivative by design, as `zoo.Convention` explains them.
        reference: the model that the target replaces, of any kind that a target may be. It is the oracle: outputs,
            dtypes and gradients must be its own. A class, module or function takes the weights of the target, by name;
            what is saved, a ScriptModule and an exported program must have them.
        candidate: another model for the target's place. It is judged beside it, in a column with its name. Its weights
            are as those of a reference.

    Returns:
        The report; `print(report)` shows it, and `report.raise_if_failed()` gates a test.

    Raises:
        UsageError: the model cannot be sent to another process, does not take the inputs, or a name is unknown; or
            the parameters and buffers of reference or candidate are not the model's.
        MachineError: the machine failed, and not the model.
    """
    checking.refuse_in_child()
    file = Path(expect) if isinstance(expect, (str, os.PathLike)) else None
    given = () if isinstance(expect, (str, os.PathLike)) else tuple(expect)
    folder = Path(tempfile.mkdtemp(prefix="conformance-check-"))
    try:
        request = tasks.PlanRequest(
            modes=_names("mode", modes, () if isinstance(target, (str, os.PathLike)) else axes.MODES),
            precisions=_names("precision", precisions, axes.PRECISIONS),
            devices=_names("device", device, axes.DEVICES),
            seed=seed,
            declared=declarations.read(file) if file else {},
        )
        others = {"reference": _of_main(reference), "candidate": _of_main(candidate)}
        location = _locate(target, _call(inputs, kwargs), folder / checking.SAVED, train, given, others)
        request = replace(request, registered=capture.store_modes(request.modes, folder / checking.SAVED / REGISTERED))
        if location.own and isinstance(target, (str, os.PathLike)) and not location.own.name:
            request = replace(request, sources=(os.fspath(target),), given=location.own)
        else:
            request = replace(request, own=location)
        return checking.Report(checking.judge_request(request, folder / RUN), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _locate(  # noqa: PLR0913 -- as given
    target: Any,
    call: Call,
    folder: Path,
    train: bool | None,  # noqa: FBT001
    expect: tuple[Expect | Convention, ...],
    others: Mapping[str, Any],
) -> plan.SpecLocation:
    """The location of the model; without a name if the target is the name of one that every process finds."""
    target = _of_main(target)
    named = isinstance(target, (str, os.PathLike))
    if not (call.args or call.kwargs or (named and forms.is_named(str(target)))):
        raise errors.UsageError("check: no inputs; give those of one call, as in check(model, x)")
    folder.mkdir()
    return capture.capture(None if named else target, call, folder, train=train, expect=expect, **others)


def _of_main(thing: Any) -> Any:
    """What a name of the main module, such as "__main__:Net", stands for; anything else as it is."""
    named = isinstance(thing, str) and thing.startswith(MAIN)
    return spec.attribute(sys.modules["__main__"], thing.removeprefix(MAIN)) if named else thing


def _call(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Call:
    try:
        return Call(args, dict(kwargs or {}))
    except (SpecError, TypeError, ValueError) as problem:
        raise errors.UsageError(f"check: kwargs must map names to arguments, got {kwargs!r}") from problem


def _names(axis: str, given: str | Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The names that were given for an axis. A source that is named may bring modes of its own: then none is known."""
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise errors.UsageError(f"check: {axis}s must be names, got {given!r}")
    if known:
        axes.choose(axis, tuple(known), names)
    return names
