"""Turns off what torch.distributions asks of arguments: perturbed probabilities do not add up to one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributions import Distribution

from zoo import internals


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """A context in which a distribution checks its arguments only if it is told to, by `validate_args=True`."""
    before = internals.validates_arguments(Distribution)  # there is a setter, and no getter
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)
