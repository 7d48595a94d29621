"""Declared divergences that several models share."""

from __future__ import annotations

from dataclasses import replace

from zoo.expect import Expect

FUNCTION_APPLY_REFUSED = Expect(
    outcome="refuses",
    modes=("scripted",),
    torch=">=2.14",
    error="RuntimeError",
    match="built-in method apply of FunctionMeta|Expression of type dots cannot be used in a type expression",
    reason="TorchScript cannot call Function.apply since it moved into C++",
    link="https://github.com/pytorch/pytorch/pull/190694",
)
SCRIPT_NOT_CAPTURED = Expect(
    outcome="ERROR",
    modes=("compiled", "graphed"),
    match="torch.compile captures no",
    reason="torch.compile does not capture TorchScript; compile the eager model",
)
NESTED_FUNCTION_NOT_TRACED = Expect(
    outcome="VOID",
    modes=("compiled", "graphed"),
    torch="<2.6",
    match="too many positional arguments",
    reason="torch.compile could not trace a Function with setup_context inside a backward",
    link="https://github.com/pytorch/pytorch/issues/118397",
)
SECOND_LOST = Expect(
    outcome="FAIL",
    modes=("compiled", "graphed"),
    torch="<2.13",
    gate="structure",
    reason="the gradient of compiled code did not require grad, so second derivatives were lost without an error",
    link="https://github.com/pytorch/pytorch/issues/181581",
)
SECOND_LOST_EARLY = replace(SECOND_LOST, torch="<2.6")  # later versions raise an error instead
