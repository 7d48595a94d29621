"""Makes the spec of a part of a model: its forward up to the end of one of its modules, and backward from there."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from conformance.errors import call_theirs
from conformance.records.plan import Part
from zoo import Spec


class Reached(Exception):  # noqa: N818 -- no error: forward has come to the end of the part
    """Carries what the last module of the part returned."""


def part_of(spec: Spec, part: Part) -> Spec:
    """The spec of a part of a module, with one case. Its contract is what eager does.

    It keeps the names, the weights and the inputs of the whole. A trusted implementation that has a module of the same
    name is cut there too; without one, the part is its own formula.
    """
    return replace(
        spec,
        name=part.name,
        alias="",
        build=_cut(spec.build, part),
        cases=(spec.case(part.case) if part.case else spec.cases[0],),
        dtypes=None,
        stops_gradients=True,
        twice_differentiable=spec.twice_differentiable and not part.light,
        vmappable=spec.vmappable and not part.light,
        forward_mode=spec.forward_mode and not part.light,
        one_graph=None,
        aliases=(),
        float32_accurate=(),
        reference=_cut(spec.reference, part) if spec.reference and spec.trusts_model else None,
        surrogate_gradient=None,
        twin="",
        scripted=None,
        expectations=(),
        scale=None,
        family=None,
        claims=(),
        candidates=(),
        error_inputs=(),
    )


def _cut(build: Callable[..., Any], part: Part) -> Callable[[], Any]:
    """A builder of the module that stops where the part ends."""
    return lambda: stop_after(call_theirs(build), part.done)


def stop_after(model: torch.nn.Module, done: tuple[str, ...]) -> torch.nn.Module:
    """Let a module return what the last of these modules inside returns, as soon as that returns.

    Raises:
        AttributeError: it has no such module.
    """

    def stop(_: Any, __: Any, output: Any) -> None:
        raise Reached(output)

    whole = type(model)

    @functools.wraps(whole.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return whole.forward(self, *args, **kwargs)
        except Reached as reached:
            return reached.args[0]

    hook = model.get_submodule(done[-1]).register_forward_hook(stop)
    model.__class__ = type(whole.__name__, (whole,), {"forward": forward, "stop": (done, hook)})
    return model


def script_parts(model: torch.nn.Module) -> torch.nn.Module:
    """Script, in place, each module of a part that has returned when forward stops; the rest stays Python.

    Raises:
        Whatever TorchScript raises.
    """
    done, hook = model.stop  # type: ignore[misc]  # of `stop_after`
    hook.remove()  # TorchScript would try to compile it
    for path in done:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, torch.jit.script(model.get_submodule(path)))
    last = model.get_submodule(done[-1])
    cut = type(model)

    def stop(module: Any, _: Any, output: Any) -> None:
        if module is last:
            raise Reached(output)

    @functools.wraps(cut.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with register_module_forward_hook(stop):  # a ScriptModule takes no hook of its own
            return cut.forward(self, *args, **kwargs)

    model.__class__ = type(cut.__name__, (cut,), {"forward": forward})
    return model
