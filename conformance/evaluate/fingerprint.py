"""Tells a built model and its inputs from others: their numbers, and the code of graphs.

Weights or a graph may come from a file that native code reads, so that nobody sees which file it is.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch

from conformance.evaluate import inputs, weights
from zoo import internals
from zoo.spec import Spec


def fingerprint(spec: Spec, seed: int, model: Any) -> str:
    """The fingerprint of a model and of the first inputs of its cases: 32 hexadecimal digits.

    Args:
        spec: the spec of the model.
        seed: seed of the inputs.
        model: the model, from `float64.wide.prepared_model`.
    """
    found = hashlib.blake2b(digest_size=16)
    _add_weights(found, model)
    if isinstance(model, torch.nn.Module):
        for name, module in model.named_modules():
            found.update(f"{name} {getattr(module, 'code', '')}".encode())  # of a ScriptModule or a GraphModule
    for case in spec.cases:
        call = inputs.draw(case, seed, 0)
        for leaf in internals.tree_leaves((call.args, dict(call.kwargs))):
            _add(found, case.name, leaf)
    return found.hexdigest()


def of_weights(model: Any) -> str:
    """The fingerprint of the parameters and buffers of a model: 32 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=16)
    _add_weights(found, model)
    return found.hexdigest()


def _add_weights(found: Any, model: Any) -> None:
    for name, tensor in (weights.parameters_of(model) | weights.buffers_of(model)).items():
        _add(found, name, tensor)


def _add(found: Any, name: str, leaf: Any) -> None:
    if not isinstance(leaf, torch.Tensor):
        found.update(f"{name} {leaf!r}".encode() if isinstance(leaf, (bool, int, float, str)) else name.encode())
        return
    found.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
    if leaf.layout in inputs.SPARSE:
        leaf = leaf.to_dense()
    if leaf.layout == torch.strided and leaf.numel():
        held = leaf.detach().resolve_conj().resolve_neg().cpu().contiguous()
        found.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()))
