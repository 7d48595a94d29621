"""Wrong numbers and dtypes of models that are cast to a narrow dtype as a whole, or that are in one themselves."""

import damaging_modes  # noqa: F401 -- registers modes
import torch
from miniature_parts import LINEAR, VALUES, Parts, fails, gets, rows, spec_of
from torch import nn

from zoo import Case


class Stubborn(Parts):
    """Its parameters stay in float32, whatever it is asked for."""

    def _apply(self, fn, recurse=True):  # noqa: ARG002, FBT002 -- torch's
        return self

    def forward(self, x):
        return self.linear(x.float())


class Lifted(Parts):
    """Its result is in float32, although it is cast."""

    def forward(self, x):
        return self.linear(x).float()


class Rotation(Parts):
    """Its parameter is complex, and there are no complex numbers of two bytes that a module could hold."""

    def forward(self, x):
        return (x * self.turn).real


WIDE = spec_of("wide", lambda: nn.Linear(64, 64), rows(64, 64), dtypes="follows")
STUBBORN = spec_of("stubborn", lambda: Stubborn(linear=nn.Linear(5, 4)))
LIFTED = spec_of("lifted", lambda: Lifted(linear=nn.Linear(5, 4)), dtypes="follows")
ROTATION = spec_of(
    "rotation", lambda: Rotation(turn=nn.Parameter(torch.randn(5, dtype=torch.complex64))), differentiable=False
)
UNDECLARED = spec_of("undeclared_half", lambda: nn.Linear(5, 4).bfloat16())
DECLARED = spec_of(
    "declared_dtype",
    lambda: nn.Linear(5, 4).bfloat16(),
    Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g).bfloat16(),)),
    dtype="bfloat16",
    dtypes="float32",
)

MINIATURES = (
    gets(LINEAR, "eager", "bf16", "PASS"),
    fails(LINEAR, "nan", "bf16", "class", "gain", text=r"element \(0, 0\) is nan"),
    fails(LINEAR, "wrong_dtype", "fp16", "dtype", text="float64, should be float16"),
    fails(LINEAR, "sample_dropped", "bf16", *VALUES),
    fails(LINEAR, "zeros", "bf16", *VALUES),
    fails(LINEAR, "sign", "fp16", *VALUES),
    fails(LINEAR, "rolled", "bf16", *VALUES),
    fails(WIDE, "one_percent", "bf16", "gain", text="gradient of input"),
    fails(WIDE, "one_percent", "fp16", *VALUES, text="gradient of input"),
    fails(LIFTED, "eager", "bf16", "dtype", text="float32, should be bfloat16"),
    fails(DECLARED, "eager", "bf16", "dtype", text="bfloat16, should be float32"),
    gets(STUBBORN, "eager", "bf16", "VOID", text="no parameter or buffer is in"),
    gets(ROTATION, "eager", "bf16", "VOID", text="complex64"),
    gets(UNDECLARED, "eager", "fp32", "INVALID", text="dtype='bfloat16'"),
)
