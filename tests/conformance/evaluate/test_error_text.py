"""An error of TorchScript is told by its cause and by the line that it is about."""

import pytest
import torch
from torch import nn

from conformance.evaluate.error_text import one_line


class Viewed(nn.Module):
    def helper(self, x):
        return x.view(3, 5)

    def forward(self, x):
        y = self.helper(x)
        return y + 1


class Raising(nn.Module):
    def forward(self, x):
        if x.dim() > 0:
            raise ValueError("no such thing")
        return x


class Unknown(nn.Module):
    def forward(self, x):
        return x.clamp(min=torch.finfo(x.dtype).min)


class Generator(nn.Module):
    def forward(self, x):
        return [a * b * x for a in range(2) for b in range(2)]


class Mistaken(nn.Module):
    def forward(self, x):
        return torch.cat(x, dim=0)


class Promoting(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight) * torch.ones(4)


@pytest.mark.parametrize(
    ("module", "start", "end"),
    [
        (
            Viewed,
            "RuntimeError: shape '[3, 5]' is invalid for input of size 4 (test_error_text.py, line ",
            ": return x.view(3, 5))",
        ),
        (Raising, "ValueError: no such thing (test_error_text.py, line ", ': raise ValueError("no such thing"))'),
        (Unknown, "Unknown builtin op: aten::finfo", ": return x.clamp(min=torch.finfo(x.dtype).min))"),
        (Generator, "Only a single generator is currently supported (test_error_text.py, line ", ")"),
        (Mistaken, "Arguments for call are not valid.", ": return torch.cat(x, dim=0))"),
    ],
)
def test_an_error_of_torchscript_is_its_cause_and_its_line(module, start, end):
    with pytest.raises(Exception) as raised:  # noqa: PT011 -- TorchScript raises what it likes
        torch.jit.script(module())(torch.ones(4))
    found = one_line(raised.value)
    assert found.startswith(start), found
    assert found.endswith(end), found
    assert "~" not in found
    assert "Traceback" not in found


def test_other_errors_stay_as_they_are():
    assert one_line(ValueError('in File "a.py", line 3, no number')) == 'in File "a.py", line 3, no number'
    by_dynamo = 'no such op from user code: File "a.py", line 3, in forward return op(x)'
    assert (
        one_line(ValueError('no such op\n\nfrom user code:\n   File "a.py", line 3, in forward\n    return op(x)'))
        == by_dynamo
    )


def test_an_error_of_the_backward_that_torchscript_writes_is_its_cause():
    scripted = torch.jit.script(Promoting(4, 4).bfloat16())
    x = torch.ones(3, 4, dtype=torch.bfloat16, requires_grad=True)
    scripted(x).mean().backward()  # that of eager; from the second call on, TorchScript has its own
    second = scripted(x).mean()
    with pytest.raises(RuntimeError) as raised:
        second.backward()
    found = one_line(raised.value)
    assert found.startswith("RuntimeError: expected m1 and m2 to have the same dtype"), found
    assert found.endswith("grad_input = torch.matmul(grad_output, weight))"), found


def test_cells_that_fail_alike_say_the_same_of_an_object():
    one, other = object(), object()
    assert one_line(OSError(f"no source for {one}")) == one_line(OSError(f"no source for {other}"))
    assert one_line(OSError(f"no source for {one}")) == "no source for <object object>"
