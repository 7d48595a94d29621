"""Models and modes that leave the process, a module or a leaf in another state than they found it."""

import torch
from damaging_modes import Bent, same
from miniature_parts import LINEAR, VALUES, around, fails, gets, register, rows, spec_of
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from zoo import Case

LEFT_ON = []


class GradOff(nn.Module):
    """A Linear that leaves grad mode off."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)

    def forward(self, x):
        y = self.linear(x)
        torch.set_grad_enabled(False)
        return y


def _after(act):
    """Make a mode that does something after forward; act(model, x, y)."""

    def wrapped(model, x):
        y = model(x)
        act(model, x, y)
        return y

    return around(wrapped)


def _in_backward(act):
    def wrapped(model, x):
        def damage(gradient):
            act(model)
            return gradient

        return Bent.apply(model(x), same, damage)

    return around(wrapped)


def _leave_on(context):
    LEFT_ON.append(context)
    context.__enter__()


def _new_parameter(model, *_):
    model.bias = nn.Parameter(model.bias.detach().clone())


def _same_bytes(model, *_):
    with torch.no_grad():
        model.bias.copy_(model.bias.clone())


class Doubled(nn.Linear):
    """A Linear that doubles its bias before each use."""

    def forward(self, x):
        self.bias.data.mul_(2.0)
        return super().forward(x)


def _on_a_copy(model, x):
    return nn.functional.linear(x, model.weight, model.bias + model.bias.detach())


def _appends(x, cache):
    cache.append(x.exp())
    return x * 2


def _in_vain(model, x, cache):
    return model(x, [*cache])


def _coarsely(model, x, cache):
    y = model(x, cache)
    cache[-1] = cache[-1] * 1.25
    return y


def _only_second(model, *_):
    LEFT_ON.append(model)
    if len(LEFT_ON) == 2:
        torch.set_grad_enabled(False)


register(
    seeding=_after(lambda *_: torch.manual_seed(0)),
    default_dtype_left=_after(lambda *_: torch.set_default_dtype(torch.float64)),
    default_device_left=_after(lambda *_: torch.set_default_device("meta")),
    grad_left_off=_after(lambda *_: torch.set_grad_enabled(False)),
    inference_left_on=_after(lambda *_: _leave_on(torch.inference_mode())),
    autocast_dtype_left=_after(lambda *_: torch.set_autocast_dtype("cpu", torch.float16)),
    autocast_cache_left=_after(lambda *_: torch.set_autocast_cache_enabled(False)),
    products_left_coarse=_after(lambda *_: torch.set_float32_matmul_precision("medium")),
    determinism_left_on=_after(lambda *_: torch.use_deterministic_algorithms(True)),
    benchmark_left_on=_after(lambda *_: setattr(torch.backends.cudnn, "benchmark", True)),
    threads_left=_after(lambda *_: torch.set_num_threads(2)),
    function_mode_left=_after(lambda *_: _leave_on(TorchFunctionMode())),
    dispatch_mode_left=_after(lambda *_: _leave_on(TorchDispatchMode())),
    anomaly_left_on=_after(lambda *_: torch.autograd.set_detect_anomaly(True)),
    gradient_left=_after(lambda _, __, y: y.sum().backward(retain_graph=True)),
    frozen=_after(lambda model, *_: model.bias.requires_grad_(False)),
    left_in_eval=_after(lambda model, *_: model.eval()),
    hooked=_after(lambda model, *_: model.register_forward_hook(lambda *_: None)),
    leaf_hooked=_after(lambda model, *_: model.weight.register_hook(lambda _: None)),
    parameter_replaced=_after(_new_parameter),
    parameter_added=_after(lambda model, *_: model.register_parameter("more", None)),
    attribute_added=_after(lambda model, _, y: setattr(model, "cache", y.detach())),
    bytes_rewritten=_after(_same_bytes),
    changed_in_backward=_in_backward(lambda model: model.bias.data.add_(1.0)),
    state_in_backward=_in_backward(lambda _: torch.set_default_dtype(torch.float64)),
    second_call_leaves=_after(_only_second),
    on_a_copy=around(_on_a_copy),
    in_vain=around(_in_vain),
    coarsely=around(_coarsely),
)

GRAD_OFF = spec_of("leaves_grad_off", GradOff)
DECLARED = spec_of("declares_another_state", GradOff, changes_state=("training", "grad mode"))
TWO_CASES = spec_of("leaves_grad_off_twice", GradOff, rows(6, 5), rows(3, 5, name="again"), changes_state=("training",))
DOUBLED = spec_of("doubled", lambda: Doubled(5, 4), mutates=("bias",))
APPENDS = spec_of(
    "appends",
    lambda: _appends,
    Case(name="typical", inputs=lambda g: (torch.randn(6, 5, generator=g), [])),
    dtypes="input",
)

MINIATURES = (
    fails(LINEAR, "seeding", "fp32", "structure", text="random generator, case typical: forward changed it"),
    fails(LINEAR, "default_dtype_left", "fp32", "structure", text="default dtype.*float32 to torch.float64"),
    fails(LINEAR, "default_device_left", "fp32", "structure", text="default device.*from None to meta"),
    fails(LINEAR, "grad_left_off", "fp32", "structure", text="grad mode.*forward changed it from on to off"),
    fails(LINEAR, "inference_left_on", "fp32", "structure", text="inference mode.*from off to on"),
    fails(LINEAR, "autocast_dtype_left", "fp32", "structure", text="autocast.*forward changed it of cpu"),
    fails(LINEAR, "autocast_cache_left", "amp_bf16", "structure", text="autocast.*of cache from on to off"),
    fails(LINEAR, "products_left_coarse", "fp32", "structure", text="matmul precision.*highest to medium"),
    fails(LINEAR, "determinism_left_on", "fp32", "structure", text="determinism.*of algorithms from off to on"),
    fails(LINEAR, "benchmark_left_on", "fp32", "structure", text="determinism.*of cudnn.benchmark"),
    fails(LINEAR, "threads_left", "fp32", "structure", text="threads.*from 1 to 2"),
    fails(LINEAR, "function_mode_left", "fp32", "structure", text="modes.*from none to TorchFunctionMode"),
    fails(LINEAR, "dispatch_mode_left", "fp32", "structure", text="modes.*from none to TorchDispatchMode"),
    fails(LINEAR, "anomaly_left_on", "fp32", "structure", text="anomaly mode"),
    fails(LINEAR, "gradient_left", "fp32", "structure", text="gradients.*of input: .grad is another"),
    fails(LINEAR, "frozen", "fp32", "structure", text="requires_grad.*of bias to False"),
    fails(LINEAR, "left_in_eval", "fp32", "structure", text="training.*of the model from train to eval"),
    fails(LINEAR, "hooked", "fp32", "structure", text="hooks.*of the model: 1 hooks, 0 before"),
    fails(LINEAR, "leaf_hooked", "fp32", "structure", text="hooks.*of weight: 1 hooks, 0 before"),
    fails(LINEAR, "parameter_replaced", "fp32", "structure", text="parameters.*bias is another object"),
    fails(LINEAR, "parameter_added", "fp32", "structure", text="parameters.*more is new"),
    gets(LINEAR, "attribute_added", "fp32", "PASS"),  # many models keep a mask or the last attention
    fails(LINEAR, "bytes_rewritten", "fp32", "structure", text="bias.*written in forward.*with the same bytes"),
    fails(LINEAR, "changed_in_backward", "fp32", "structure", text="bias.*changed in backward, undeclared"),
    fails(LINEAR, "state_in_backward", "fp32", "structure", text="default dtype.*backward changed it"),
    fails(GRAD_OFF, "eager", "fp32", "structure", text="grad mode, case typical: forward changed it from on to off"),
    fails(TWO_CASES, "eager", "fp32", "structure", text="grad mode, case typical"),
    gets(DECLARED, "eager", "fp32", "PASS"),
    gets(DOUBLED, "eager", "fp32", "PASS"),
    fails(DOUBLED, "on_a_copy", "fp32", *VALUES - {"slice"}, text="bias after, case typical"),
    gets(APPENDS, "eager", "fp32", "PASS"),
    fails(APPENDS, "in_vain", "fp32", "structure", text=r"put into cache\[0\], case typical: None, where the oracle"),
    fails(APPENDS, "coarsely", "fp32", *VALUES, text=r"put into cache\[0\], case typical"),
    gets(LINEAR, "second_call_leaves", "fp32", "UNSTABLE", text="grad mode.*differs: only then: forward changed it"),
)
