"""Models that draw from torch's generator: wrong uses of what was drawn, and draws that cannot be compared."""

from collections import OrderedDict

import torch
from miniature_parts import VALUES, Parts, around, fails, gets, register, spec_of
from torch import nn

DRAWS = ("random generator",)


def _dropping():
    return nn.Sequential(OrderedDict(linear=nn.Linear(5, 4), drop=nn.Dropout(0.25)))


class Noisy(Parts):
    """Adds noise, in the dtype of what it is added to."""

    def forward(self, x):
        y = self.linear(x)
        return y + 0.1 * torch.randn_like(y)


class Converting(Parts):
    """Its first call puts a new part in the place of the old one, with its weights, as some models choose a kernel."""

    def forward(self, x):
        if self.kind == "old":
            self.kind, new = "new", Parts(linear=nn.Linear(5, 4), drop=nn.Dropout(0.25))
            new.linear, self.part = self.part.linear, new.train(self.training)
        return self.part.drop(self.part.linear(x))


def _converting():
    return Converting(kind="old", part=Parts(linear=nn.Linear(5, 4))).eval()


def _unscaled(model, x):
    return model(x) * 0.75


def _gradient_of_all(model, x):
    """The right output, with the gradient that it has if nothing is dropped."""
    dropped, whole = model(x), model.linear(x) / 0.75
    return whole + (dropped - whole).detach()


def _noise_of_uniform_numbers(model, x):
    y = model.linear(x)
    return y + 0.1 * torch.rand_like(y)


def _twice_the_noise(model, x):
    return 2 * model(x) - model.linear(x)


def _other_mask(model, x):
    torch.manual_seed(1)
    return model(x)


def _draws_once_more(model, x):
    torch.rand(3)
    return model(x)


def _as_six_rows(model, x):
    """Right for six rows: with fewer, it draws for six all the same, and gives too much."""
    count = len(x)
    return model(torch.cat([x, x[: max(0, 6 - count)]]))[:count] * (max(6, count) / count)


register(
    as_six_rows=around(_as_six_rows),
    unscaled=around(_unscaled),
    gradient_of_all=around(_gradient_of_all),
    noise_of_uniform_numbers=around(_noise_of_uniform_numbers),
    twice_the_noise=around(_twice_the_noise),
    other_mask=around(_other_mask),
    draws_once_more=around(_draws_once_more),
)

DROPPING = spec_of("dropping", _dropping, changes_state=DRAWS)
UNDECLARED = spec_of("dropping_undeclared", _dropping)
NOISY = spec_of("noisy", lambda: Noisy(linear=nn.Linear(5, 4)), changes_state=DRAWS)
CONVERTING = spec_of("converting", _converting, changes_state=(*DRAWS, "submodules"))

MINIATURES = (
    fails(DROPPING, "unscaled", "fp32", *VALUES),
    fails(DROPPING, "unscaled", "amp_bf16", *VALUES),
    fails(DROPPING, "gradient_of_all", "fp32", *VALUES, text="gradient of"),
    fails(DROPPING, "as_six_rows", "fp32", *VALUES, text="typical, with a row less"),
    gets(DROPPING, "other_mask", "fp32", "INCONCLUSIVE", text="draws other random numbers than the oracle"),
    gets(DROPPING, "draws_once_more", "fp32", "INCONCLUSIVE", text="draws other random numbers than the oracle"),
    gets(UNDECLARED, "eager", "fp32", "UNSTABLE", text="two identical float64 runs differ"),
    gets(CONVERTING, "eager", "fp32", "PASS"),
    fails(CONVERTING, "unscaled", "fp32", *VALUES),
    fails(NOISY, "twice_the_noise", "fp32", *VALUES),
    gets(NOISY, "noise_of_uniform_numbers", "fp32", "INCONCLUSIVE", text="draws other random numbers than the oracle"),
    # 24 numbers: torch draws the last 16 of them once more in float32, and not in bfloat16
    gets(NOISY, "eager", "amp_bf16", "PASS"),
    fails(NOISY, "scripted", "amp_fp16", "dtype"),  # TorchScript promotes 0.1 times a tensor to float32
    gets(NOISY, "compiled", "amp_bf16", "PASS"),
    fails(NOISY, "twice_the_noise", "amp_bf16", *VALUES),
    gets(NOISY, "noise_of_uniform_numbers", "amp_bf16", "INCONCLUSIVE", text="judge the model in eval mode, draw in"),
)
