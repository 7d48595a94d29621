"""Checks of arguments: each error is one line with the function, the argument, what it must be and what came.

TorchScript compiles `want_floating`, and none of the others. Code that is scripted calls those under
`if not torch.jit.is_scripting():`; a scripted function checks the types of its arguments itself.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def want_tensors(function: str, **tensors: object) -> None:
    """Check that every argument is a tensor.

    Args:
        function: name of the function whose arguments they are, for the error.
        tensors: the arguments by name.

    Raises:
        TypeError: one of them is not a tensor.

    >>> import torch
    >>> want_tensors("softmax", logits=torch.ones(2))
    >>> want_tensors("softmax", logits=[1.0, 2.0])
    Traceback (most recent call last):
    TypeError: softmax: logits must be a tensor, got list
    """
    for argument, value in tensors.items():
        _want_tensor(function, argument, value)


def _want_tensor(function: str, argument: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{function}: {argument} must be a tensor, got {_kind(value)}")


def want_floating(function: str, argument: str, tensor: Tensor) -> None:
    """Check that one argument is a tensor with a floating dtype, also in TorchScript.

    Raises:
        TypeError: it is not a tensor, or its dtype is not floating.

    >>> want_floating("softmax", "logits", torch.arange(3))
    Traceback (most recent call last):
    TypeError: softmax: logits must have a floating dtype, got torch.int64
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _want_tensor(function, argument, tensor)  # TorchScript cannot parse **
    if not tensor.is_floating_point():
        raise TypeError(f"{function}: {argument} must have a floating dtype, got {tensor.dtype}")


def want_integers(function: str, **integers: object) -> None:
    """Check that every argument is an integer; bool is none.

    Raises:
        TypeError: one of them is not an integer.

    >>> want_integers("softmax", dim=None)
    Traceback (most recent call last):
    TypeError: softmax: dim must be an integer, got None
    """
    for argument, value in integers.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{function}: {argument} must be an integer, got {_kind(value)}")


def want_sizes(function: str, **sizes: int) -> None:
    """Check that every argument is an integer of at least 1.

    Raises:
        TypeError: one of them is not an integer.
        ValueError: one of them is below 1.

    >>> want_sizes("Merge", in_features1=5, out_features=0)
    Traceback (most recent call last):
    ValueError: Merge: out_features must be at least 1, got 0
    >>> want_sizes("Merge", in_features1=None)
    Traceback (most recent call last):
    TypeError: Merge: in_features1 must be an integer, got None
    """
    want_integers(function, **sizes)
    for argument, value in sizes.items():
        if value < 1:
            raise ValueError(f"{function}: {argument} must be at least 1, got {value}")


def want_numbers(function: str, **numbers: object) -> None:
    """Check that every argument is a float or an integer; bool is none.

    Raises:
        TypeError: one of them is not a number.

    >>> want_numbers("penalised_step", penalty="small")
    Traceback (most recent call last):
    TypeError: penalised_step: penalty must be a number, got str
    """
    for argument, value in numbers.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(f"{function}: {argument} must be a number, got {_kind(value)}")


def want_floats(function: str, **floats: object) -> None:
    """Check that every argument is a float. An integer in the place of an `eps` is often meant for a stride.

    TorchScript casts an integer before any check.

    Raises:
        TypeError: one of them is not a float.

    >>> want_floats("fused_conv_bn2d", eps=2)
    Traceback (most recent call last):
    TypeError: fused_conv_bn2d: eps must be a float, got int 2
    """
    for argument, value in floats.items():
        if not isinstance(value, float):
            shown = f" {value}" if isinstance(value, int) else ""
            raise TypeError(f"{function}: {argument} must be a float, got {_kind(value)}{shown}")


def want_paths(function: str, **paths: object) -> None:
    """Check that every argument is a path: a string or an `os.PathLike`.

    Raises:
        TypeError: one of them is not a path.

    >>> want_paths("write_graph", path=None)
    Traceback (most recent call last):
    TypeError: write_graph: path must be a path, got None
    """
    for argument, value in paths.items():
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError(f"{function}: {argument} must be a path, got {_kind(value)}")


def want_callables(function: str, **callables: object) -> None:
    """Check that every argument can be called.

    Raises:
        TypeError: one of them cannot be called.

    >>> want_callables("trace_dtypes", model=[1])
    Traceback (most recent call last):
    TypeError: trace_dtypes: model must be callable, got list
    """
    for argument, value in callables.items():
        if not callable(value):
            raise TypeError(f"{function}: {argument} must be callable, got {_kind(value)}")


def want_instances(function: str, kind: type, **values: object) -> None:
    """Check that every argument is an instance of a class.

    Raises:
        TypeError: one of them is not.

    >>> want_instances("averaged", torch.nn.Module, model=None)
    Traceback (most recent call last):
    TypeError: averaged: model must be a Module, got None
    """
    for argument, value in values.items():
        if not isinstance(value, kind):
            article = "an" if kind.__name__[0] in "AEIOU" else "a"
            raise TypeError(f"{function}: {argument} must be {article} {kind.__name__}, got {_kind(value)}")


def want_string(function: str, /, **strings: object) -> None:
    """Check that every argument is a string.

    Raises:
        TypeError: one of them is not a string.

    >>> want_string("get_spec", name=3)
    Traceback (most recent call last):
    TypeError: get_spec: name must be a string, got int
    """
    for argument, value in strings.items():
        if not isinstance(value, str):
            raise TypeError(f"{function}: {argument} must be a string, got {_kind(value)}")
