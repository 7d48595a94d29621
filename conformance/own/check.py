"""`conformance.check`: judges a model of one's own in one call, from a script, a notebook or a test."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance import axes, errors
from conformance.process import child, child_side
from conformance.records import tasks
from zoo import Convention, Expect

if TYPE_CHECKING:
    from conformance.commands.checking import Report

RUN, REGISTERED = "run", "modes"
IN_CHILD = (
    "check was called while a child process imported your module; put the call into a function, or under "
    'if __name__ == "__main__":'
)


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
    trust: bool = False,
) -> "Report":
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
        trust: saved models may run any code when they are opened, as whole modules of `torch.save` and exported
            programs do. Without it, these are refused.

    Returns:
        The report; `print(report)` shows it, and `report.raise_if_failed()` gates a test.

    Raises:
        UsageError: the model cannot be sent to another process, does not take the inputs, or a name is unknown; or
            the parameters and buffers of reference or candidate are not the model's.
        MachineError: the machine failed, and not the model.
    """
    if child_side.is_child():
        raise errors.UsageError(IN_CHILD)
    request = tasks.PlanRequest(
        modes=_names("mode", modes, () if isinstance(target, (str, os.PathLike)) else axes.MODES),
        precisions=_names("precision", precisions, axes.PRECISIONS),
        devices=_names("device", device, axes.DEVICES),
        seed=seed,
    )
    if not request.may_compile:  # else it would need the folder of compiled code, which the plan names
        child.start_server()
    from conformance.commands import checking  # noqa: PLC0415 -- 0.2 s, in which the fork server starts
    from conformance.judging import declarations  # noqa: PLC0415
    from conformance.own import capture  # noqa: PLC0415

    file = Path(expect) if isinstance(expect, (str, os.PathLike)) else None
    given = () if isinstance(expect, (str, os.PathLike)) else tuple(expect)
    folder = Path(tempfile.mkdtemp(prefix="conformance-check-"))
    try:
        request = replace(request, declared=declarations.read(file) if file else {})
        saved, call = folder / checking.SAVED, capture.call_of(inputs, kwargs)
        others = {"reference": reference, "candidate": candidate}
        location = capture.locate(target, call, saved, train=train, expect=given, trust=trust, **others)
        request = replace(request, registered=capture.store_modes(request.modes, saved / REGISTERED))
        if location.own and isinstance(target, (str, os.PathLike)) and not location.own.name:
            request = replace(request, sources=(os.fspath(target),), given=location.own)
        else:
            request = replace(request, own=location)
        return checking.Report(checking.judge_request(request, folder / RUN), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _names(axis: str, given: str | Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The names that were given for an axis. A source that is named may bring modes of its own: then none is known."""
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise errors.UsageError(f"check: {axis}s must be names, got {given!r}")
    if known:
        axes.choose(axis, tuple(known), names)
    return names
