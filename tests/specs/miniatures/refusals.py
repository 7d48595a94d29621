"""Models that must refuse an input with an error, and modes of them that accept it."""

import os
from dataclasses import replace

import torch
from miniature_parts import Parts, around, expect, fails, gets, register, spec_of

from conformance import NotProvenError
from zoo import Candidate
from zoo.error_input import ErrorInput


def _everywhere(x):
    if x.dim() != 2:
        raise ValueError("everywhere: x must be a matrix")
    return x * 2


def _unless_scripted(x):
    if not torch.jit.is_scripting() and x.dim() != 2:
        raise ValueError("unless_scripted: x must be a matrix")
    return x * 2


def _unless_compiled(x):
    if not torch.compiler.is_compiling() and x.size(0) > 6:
        raise ValueError("unless_compiled: x must have 6 rows at most")
    if x.dim() != 2:
        raise ValueError("unless_compiled: x must be a matrix")
    return x * 2


def _never(x):
    return x * 2


def _dying(x):
    if x.dim() != 2:
        os.kill(os.getpid(), 11)
    return x * 2


def _without_memory(x):
    if x.dim() != 2:
        raise MemoryError("no room for a vector")
    return x * 2


def _in_autocast(x):
    if x.dim() != 2 and torch.is_autocast_enabled("cpu"):
        raise ValueError("in_autocast: x must be a matrix")
    return x * 2


class _Counting(Parts):
    """Counts its calls in a buffer before it looks at its input."""

    def forward(self, x):
        self.calls += 1
        if x.dim() != 2 or self.calls > 1.5:
            raise ValueError("counting: x must be a matrix at the first call" if self.calls < 1.5 else "too late")
        return x * 2


def _fit(call, model, precision, x):
    if x.dim() != 2:
        raise ValueError("fit: x must be a matrix")
    return call(x).mean()


def _flat(name="flat", error=ValueError, match="must be a matrix"):
    return ErrorInput(name=name, inputs=lambda g: (torch.randn(6, generator=g),), error=error, match=match)


def _long(name):
    return ErrorInput(
        name=name, inputs=lambda g: (torch.randn(7, 5, generator=g),), error=ValueError, match="6 rows at most"
    )


def _falling_back(model, x):
    if x.dim() != 2:
        raise NotProvenError("it fell back to eager")
    return model(x)


register(
    accepting=around(lambda model, x: model(x if x.dim() == 2 else x[:, None])),
    falling_back_on_vectors=around(_falling_back),
)

EVERYWHERE = spec_of("refuses_everywhere", lambda: _everywhere, error_inputs=(_flat(),))
BUILT_SCRIPTED = spec_of("refuses_as_a_script", lambda: torch.jit.script(_everywhere), error_inputs=(_flat(),))
UNSCRIPTED = spec_of("accepts_scripted", lambda: _unless_scripted, error_inputs=(_flat(),))
UNCOMPILED = spec_of("accepts_compiled", lambda: _unless_compiled, error_inputs=(_flat(), _long("long")))
NEVER = spec_of("accepts_everywhere", lambda: _never, error_inputs=(_flat(),))
OTHER_TYPE = spec_of("raises_another_type", lambda: _everywhere, error_inputs=(_flat(error=TypeError),))
OTHER_TEXT = spec_of("raises_another_text", lambda: _everywhere, error_inputs=(_flat(match="must be a vector"),))
EITHER_TYPE = spec_of("raises_either_type", lambda: _everywhere, error_inputs=(_flat(error=(TypeError, ValueError)),))
COUNTING = spec_of(
    "refuses_and_counts",
    lambda: _Counting(calls=torch.zeros(())),
    dtypes="input",
    error_inputs=(_flat("one", match="first call"), _flat("two", match="first call")),
)
FIT = spec_of("refuses_to_fit", lambda: _never, differentiable=False, fit=_fit, error_inputs=(_flat(),))
ON_CUDA = spec_of("refuses_on_cuda", lambda: _never, error_inputs=(replace(_flat(), devices=("cuda",)),))
DIES = spec_of("dies_of_an_error_input", lambda: _dying, error_inputs=(_flat(),))
NO_MEMORY = spec_of("no_memory_for_an_error_input", lambda: _without_memory, error_inputs=(_flat(),))
NO_MEMORY_WANTED = spec_of(
    "no_memory_wanted", lambda: _without_memory, error_inputs=(_flat(error=MemoryError, match="no room"),)
)
IN_AUTOCAST = spec_of("refuses_in_autocast", lambda: _in_autocast, error_inputs=(_flat(),))
REPLACED = spec_of(
    "refusal_replaced",
    lambda: _everywhere,
    error_inputs=(_flat(),),
    candidates=(Candidate(name="careless", build=lambda: _never),),
)
DECLARED = spec_of(
    "acceptance_declared",
    lambda: _unless_scripted,
    error_inputs=(_flat(), _flat("also-flat")),
    expectations=(
        expect("FAIL", "scripted", precisions=("fp32",), gate="raises", tensor="output"),
        expect("FAIL", "scripted", precisions=("amp_bf16",), gate="raises", tensor="output", case="flat"),
        expect("FAIL", "scripted", precisions=("amp_fp16",), tensor="output"),
        expect("FAIL", "eager", precisions=("fp32",), gate="raises", tensor="output"),
    ),
)

FLAT = r"raises  output, case flat: "
MINIATURES = (
    gets(EVERYWHERE, "eager", "fp32", "PASS"),
    gets(EVERYWHERE, "eager", "amp_bf16", "PASS"),
    gets(EVERYWHERE, "scripted", "fp32", "PASS"),
    gets(EVERYWHERE, "compiled", "fp32", "PASS"),
    fails(EVERYWHERE, "accepting", "fp32", "raises", text=rf"{FLAT}float32 \[6, 1\]; it must raise ValueError"),
    gets(BUILT_SCRIPTED, "eager", "fp32", "PASS"),
    gets(UNSCRIPTED, "eager", "fp32", "PASS"),
    fails(UNSCRIPTED, "scripted", "fp32", "raises", text=rf"{FLAT}float32 \[6\]; it must raise ValueError matching"),
    fails(UNCOMPILED, "compiled", "fp32", "raises", text=r"case long: float32 \[7, 5\]"),
    fails(NEVER, "eager", "fp32", "raises", text=FLAT),
    fails(OTHER_TYPE, "eager", "fp32", "raises", text=f"{FLAT}ValueError: everywhere: .*; it must raise TypeError"),
    fails(OTHER_TEXT, "eager", "fp32", "raises", text="it must raise ValueError matching 'must be a vector'"),
    gets(OTHER_TYPE, "scripted", "fp32", "PASS"),
    gets(OTHER_TEXT, "compiled", "fp32", "PASS"),
    gets(EITHER_TYPE, "eager", "fp32", "PASS"),
    gets(COUNTING, "eager", "fp32", "PASS"),
    gets(FIT, "eager", "fp32", "PASS"),
    gets(ON_CUDA, "eager", "fp32", "PASS"),
    gets(DIES, "eager", "fp32", "CRASH", text="phase error inputs: killed by SIGSEGV"),
    gets(NO_MEMORY, "eager", "fp32", "OOM", text="phase error inputs"),
    gets(NO_MEMORY_WANTED, "eager", "fp32", "PASS"),
    gets(IN_AUTOCAST, "eager", "amp_bf16", "PASS"),
    fails(IN_AUTOCAST, "eager", "fp32", "raises", text=FLAT),
    gets(EVERYWHERE, "falling_back_on_vectors", "fp32", "VOID", text="phase error inputs: it fell back to eager"),
    fails(REPLACED, "careless", "fp32", "raises", text=FLAT),
    gets(DECLARED, "scripted", "fp32", "EXPECTED", "raises"),
    fails(DECLARED, "scripted", "amp_bf16", "raises", text="case flat"),
    fails(DECLARED, "scripted", "amp_fp16", "raises"),
    gets(DECLARED, "eager", "fp32", "STALE", text="declared FAIL did not happen"),
)
