"""Declared divergences that several models share, or that are of torch and not of one model."""

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
    outcome="refuses",
    modes=("compiled", "compiled_dynamic", "exported", "packaged", "graphed"),
    error="TypeError",
    match="torch.compile captures no|torch.export takes no",
    reason="neither torch.compile nor torch.export captures TorchScript; take the eager model",
)
EXPORT_DROPS_BACKWARD = Expect(
    outcome="FAIL",
    modes=("exported",),
    gate="norm",
    reason="an exported program has the ops of a Function's forward and not its backward",
    link="https://github.com/pytorch/pytorch/issues/106388",
)
PACKAGE_HIDES_BUFFERS = Expect(
    outcome="refuses",
    modes=("packaged",),
    error="TypeError",
    match="and those of a package cannot be read or put back",
    reason="a package has copies of the buffers that forward writes; in eval mode it would write none",
)
NAMED_TUPLE_NOT_PACKAGED = Expect(
    outcome="refuses",
    modes=("packaged",),
    error="NotImplementedError",
    match="Can't serialize TreeSpec of namedtuple class",
    reason="a package stores the structure of the outputs, and a named tuple must be registered for that by its name",
    link="https://github.com/pytorch/pytorch/pull/123388",
)
NESTED_FUNCTION_NOT_TRACED = Expect(
    outcome="VOID",
    modes=("compiled", "graphed"),
    torch="<2.6",
    match="too many positional arguments",
    reason="torch.compile could not trace a Function with setup_context inside a backward",
    link="https://github.com/pytorch/pytorch/issues/118397",
)
STRIDES_NOT_SORTED = Expect(
    outcome="ERROR",
    modes=("compiled_dynamic",),
    torch=">=2.13",
    error="InductorError",
    match="cannot determine truth value of Relational",
    reason="Inductor sorts the strides of a convolution, and cannot where they are products of symbols",
    link="https://github.com/pytorch/pytorch/issues/185510",
)
CHECK_LOST = Expect(
    outcome="FAIL",
    modes=("compiled", "graphed"),
    torch="<2.9",
    gate="raises",
    tensor="output",
    reason="torch.compile removed torch._assert_async, because nobody uses a result of it",
)
CHECK_ABORTS = Expect(
    outcome="CRASH",
    modes=("compiled", "graphed"),
    devices=("cpu",),
    torch="<2.5",
    match="in phase error inputs: killed by SIGABRT",
    reason="compiled code checks the index itself and aborts the process instead of raising an error",
)
NAN_IN_BOUNDS = Expect(
    outcome="ERROR",
    modes=("compiled", "graphed"),
    torch="<2.5",
    error="BackendCompilerFailed",
    match="Invalid NaN comparison",
    reason="Inductor multiplied 0 by infinity in the bounds of an index expression",
    link="https://github.com/pytorch/pytorch/issues/133735",
)
LOOPS_MERGED = Expect(
    outcome="ERROR",
    modes=("compiled", "graphed"),
    torch=">=2.5,<2.6",
    error="AssertionError",
    match=r"\(\{y0: |\(\(4, 6, 6\), \(24, 6\)\)",
    reason="Inductor merges loops of different sizes, and stops at its own assertion",
)
REPEATED_TOKENS_LOST = Expect(
    outcome="FAIL",
    modes=("compiled",),
    devices=("cpu",),
    torch=">=2.5,<2.7",
    tensor="gradient of embedding.weight",
    reason="on one thread Inductor stores each term of a repeated token's gradient and does not add it",
    link="https://github.com/pytorch/pytorch/pull/147961",
)
SECOND_LOST = Expect(
    outcome="FAIL",
    modes=("compiled", "graphed"),
    precisions=("fp32", "tf32"),  # under autocast the saved casts require grad, since 2.6
    torch="<2.13",
    gate="structure",
    reason="the gradient of compiled code has no way back to the inputs: second derivatives are lost without an error",
    link="https://github.com/pytorch/pytorch/issues/181581",
)
SECOND_LOST_EARLY = replace(SECOND_LOST, precisions=("amp_fp16", "amp_bf16"), torch="<2.6")
BEYOND_FLOAT16 = Expect(
    outcome="FAIL",
    modes=("eager", "scripted"),
    precisions=("fp16",),
    gate="class",
    reason="a step on the way to a second derivative exceeds 65504, the largest number of float16",
)
TANGENT_LOST = Expect(
    outcome="FAIL",
    modes=("scripted",),
    gate="structure",
    tensor="tangent of output",
    reason="TorchScript's own derivatives know no forward mode, so from the second call on tangents are lost",
    link="https://github.com/pytorch/pytorch/issues/73972",
)
