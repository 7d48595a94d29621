"""Modes that keep what they saw first, that cut operands, or whose small factor only many draws show."""

import torch
from damaging_modes import gradients_through
from miniature_parts import VALUES, Parts, around, fails, gets, register, rows, spec_of
from torch import nn

from conformance import Prepared, register_mode


class Scaled(Parts):
    """A Linear with a buffer that it multiplies by."""

    def forward(self, x):
        return self.linear(x) * self.factor


class Remembers(Parts):
    """A Linear that computes the transposed weight once and keeps it."""

    def forward(self, x):
        if self.kept is None:
            self.kept = self.linear.weight.detach().t().clone()
        return x @ (self.linear.weight.t() * 0 + self.kept) + self.linear.bias


class Switching(Parts):
    """A Linear that is scaled in train mode."""

    def forward(self, x):
        y = self.linear(x)
        return y * self.scale + self.shifts if self.training else y * self.scale


class AsksForCompiler(Switching):
    """As a library may do, it leaves a flag alone when it is compiled, which is the same as long as the flag is set."""

    def forward(self, x):
        y = self.linear(x)
        return y * self.scale if self.shifts or torch.compiler.is_compiling() else y


class Folding(Switching):
    """In eval mode, its weight is folded into another one, as adapters do; or, if it is wrong, once and for all."""

    def train(self, mode=True):  # noqa: FBT002 -- as torch has it
        if mode != self.training:
            with torch.no_grad():
                self.linear.weight.add_(self.other, alpha=1.0 if not mode or self.wrong else -1.0)
        return super().train(mode)

    def forward(self, x):
        y = self.linear(x)
        return y + torch.nn.functional.linear(x, self.other) if self.training else y


class FirstMode(Switching):
    """It scales by what it has made in the first call, whatever mode that was in."""

    def forward(self, x):
        if self.kept is None:
            self.kept = 3.0 if self.training else 1.0
        return self.linear(x) * self.kept


def _of_factor_two(model, x):
    return 2.0 * model.linear(x) + model.shifts


def _as_first(*names):
    """Make a mode that computes with the attributes that the model had at the start."""

    def prepare(model):
        first = {name: getattr(model, name) for name in names}

        def call(*args):
            now = {name: getattr(model, name) for name in names}
            try:
                vars(model).update(first)
                return model(*args)
            finally:
                vars(model).update(now)

        return Prepared(call, dict)

    return prepare


def _with_first(names):
    """Make a mode that computes with copies of some tensors, made at the start. Gradients reach the tensors."""

    def prepare(model):
        first = {name: tensor.detach().clone() for name, tensor in names(model)}

        def call(*args):
            own = dict(names(model))
            kept = {n: t + (first[n].to(t.device) - t).detach() for n, t in own.items()}
            return torch.func.functional_call(model, kept, args)

        return Prepared(call, dict)

    return prepare


def _products_cut(dtype):
    """Make a mode that rounds the input of the first layer to a narrower dtype."""
    return around(lambda model, x: model(x + (x.to(dtype).to(x.dtype) - x).detach()))


def _for_six_rows(model, x):
    """It has the batch size of its first call built in: it fills missing rows, and returns them too."""
    rows = torch.cat([x, x[-1:].expand(6 - len(x), *x.shape[1:])])
    return model(rows)[: len(x)] * (6 / len(x))


def _up_to_six_rows(model, x):
    """It has room for six rows: the seventh is what the sixth is."""
    return torch.cat([model(x[:6]), *([model(x[5:6])] * (len(x) - 6))])


def _blind_to_strides(model, x):
    """It reads its input as if it were contiguous."""
    return model(x.as_strided(x.shape, (x.shape[1], 1)))


def _contiguous_only(model, x):
    if not x.is_contiguous():
        raise ValueError("want a contiguous input")
    return model(x)


register(
    first_weights=_with_first(lambda m: m.named_parameters()),
    first_buffers=_with_first(lambda m: m.named_buffers()),
    input_cut_to_bfloat16=_products_cut(torch.bfloat16),
    input_cut_to_float16=_products_cut(torch.float16),
    for_six_rows=around(_for_six_rows),
    up_to_six_rows=around(_up_to_six_rows),
    first_setting=_as_first("scale"),
    first_flag=_as_first("shifts"),
    first_mode=_as_first("training"),
    blind_to_strides=around(_blind_to_strides),
    contiguous_only=around(_contiguous_only),
    one_percent_over=gradients_through(lambda g: g * 1.01),
    quarter_over=gradients_through(lambda g: g * 1.25),
)
register_mode("of_factor_two", around(_of_factor_two))  # it may call torch.compile, and does not

SCALED = spec_of("scaled_by_a_buffer", lambda: Scaled(linear=nn.Linear(5, 4), factor=torch.tensor(3.0)))
SWITCHING = spec_of("switching", lambda: Switching(linear=nn.Linear(5, 4), scale=2.0, shifts=True))
ASKS_FOR_COMPILER = spec_of(
    "asks_for_compiler", lambda: AsksForCompiler(linear=nn.Linear(5, 4), scale=2.0, shifts=True)
)
FOLDING, FOLDING_TWICE = (
    spec_of(
        f"folding_{'twice' if wrong else 'well'}",
        lambda wrong=wrong: Folding(linear=nn.Linear(5, 4), other=torch.ones(4, 5), wrong=wrong),
    )
    for wrong in (False, True)
)
FIRST_MODE = spec_of("first_mode_kept", lambda: FirstMode(linear=nn.Linear(5, 4), kept=None))
REMEMBERS = spec_of("remembers", lambda: Remembers(linear=nn.Linear(5, 4), kept=None), stops_gradients=True)
WIDE = spec_of("wide_linear", lambda: nn.Linear(64, 32), rows(32, 64))
DEEP = spec_of(
    "deep_relu",
    lambda: nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 8)),
    rows(16, 64),
)

MINIATURES = (
    # What a mode has kept
    gets(SCALED, "eager", "fp32", "PASS"),
    fails(SCALED, "first_weights", "fp32", *VALUES, text="typical, with other weights"),
    fails(SCALED, "first_buffers", "fp32", *VALUES, text="typical, with other weights"),
    fails(SCALED, "for_six_rows", "fp32", *VALUES, text="typical, with a row less"),
    fails(SCALED, "up_to_six_rows", "fp32", *VALUES, text="typical, with a row more"),
    fails(SCALED, "blind_to_strides", "fp32", *VALUES, text="typical, with a row less"),
    fails(SCALED, "blind_to_strides", "amp_bf16", "gain", text="draws"),
    gets(SCALED, "contiguous_only", "amp_bf16", "PASS"),
    gets(SWITCHING, "eager", "fp32", "PASS"),
    gets(SWITCHING, "compiled", "fp32", "PASS"),
    gets(SWITCHING, "scripted", "fp32", "PASS"),
    fails(SWITCHING, "first_setting", "fp32", *VALUES, text="typical, with other numbers in its attributes"),
    fails(SWITCHING, "of_factor_two", "fp32", *VALUES, text="typical, with other numbers in its attributes"),
    fails(SWITCHING, "first_flag", "fp32", *VALUES, text="typical, with other numbers in its attributes"),
    fails(SWITCHING, "first_mode", "fp32", *VALUES, text="typical, in eval mode"),
    gets(ASKS_FOR_COMPILER, "compiled", "fp32", "PASS"),
    gets(FOLDING, "eager", "fp32", "PASS"),
    gets(FOLDING, "scripted", "fp32", "PASS"),
    fails(FOLDING_TWICE, "eager", "fp32", *VALUES, text=r"typical, after eval\(\) and train\(\)"),
    fails(FIRST_MODE, "eager", "fp32", *VALUES, text="typical, in eval mode"),
    gets(SCALED, "contiguous_only", "fp32", "PASS"),
    fails(SCALED, "first_weights", "amp_bf16", "gain", text="draws"),
    fails(SCALED, "first_buffers", "amp_bf16", "gain", text="draws"),
    fails(DEEP, "first_weights", "amp_bf16", "gain", text="draws"),
    fails(REMEMBERS, "eager", "fp32", *VALUES, text="typical, with other weights"),
    # Operands of full float32
    fails(SCALED, "input_cut_to_bfloat16", "fp32", *VALUES, text="typical, with other weights"),
    fails(SCALED, "input_cut_to_float16", "fp32", *VALUES, text="typical, with other weights"),
    # A small factor
    fails(WIDE, "one_percent_over", "amp_bf16", "gain", text="gradient of input"),
    fails(WIDE, "one_percent_over", "amp_fp16", *VALUES, text="gradient of input"),
    gets(DEEP, "eager", "amp_bf16", "PASS"),
    fails(DEEP, "quarter_over", "amp_bf16", "gain", text="gradient of input"),
)
