"""Reads, restores, casts and fingerprints the parameters and buffers of a model; a plain function has none."""

import ctypes
import hashlib
from typing import Any

import torch

from conformance.axes import Precision
from conformance.errors import NotProvenError
from conformance.evaluate import inputs
from zoo import Spec, SpecError, internals


def parameters_of(owner: Any) -> dict[str, torch.Tensor]:
    """The parameters of a module, by name."""
    return dict(owner.named_parameters()) if isinstance(owner, torch.nn.Module) else {}


def buffers_of(owner: Any) -> dict[str, torch.Tensor]:
    """The buffers of a module, by name."""
    return dict(owner.named_buffers()) if isinstance(owner, torch.nn.Module) else {}


def reset(owner: Any, state: dict[str, torch.Tensor], *, tables: bool = False) -> None:
    """Restore parameters and buffers from `state_of`, in place, so that nothing recompiles, and drop each `.grad`.

    If `tables`, the buffers that are not persistent are restored too.

    Raises:
        SpecError: a parameter was made since then.
    """
    with torch.no_grad():
        for name, parameter in parameters_of(owner).items():
            if name not in state:
                raise SpecError(f"a call makes the parameter {name}; make it in __init__, or use a lazy module")
            parameter.copy_(state[name])
            parameter.grad = None
    reset_buffers(owner, state, tables=tables)


def reset_buffers(owner: Any, state: dict[str, torch.Tensor], *, tables: bool = False) -> None:
    """Restore the buffers in place, hidden from autograd, because batch norm saves them for its backward.

    One that was registered since then stays. So does one that is not persistent, unless asked for: the model may know
    in another way that it has filled that table.
    """
    kept = set() if tables else not_persistent(owner)
    for name, buffer in buffers_of(owner).items():
        if name in kept or name not in state:
            continue
        if buffer.shape == state[name].shape:
            buffer.data.copy_(state[name])
        else:
            buffer.data = state[name].to(buffer.dtype, copy=True)


def not_persistent(owner: Any) -> set[str]:
    """The names of the buffers of a module that are not persistent; those of a ScriptModule are not known."""
    modules = owner.named_modules() if isinstance(owner, torch.nn.Module) else ()
    named = ((path, vars(module).get(internals.TRANSIENT_BUFFERS, ())) for path, module in modules)
    return {f"{path}.{name}".lstrip(".") for path, names in named for name in names}


def sharing_memory(owner: Any) -> set[str]:
    """The names of the parameters and buffers of a module that lie in the memory of another one, as views of it do."""
    spans = sorted(
        (t.data_ptr(), t.data_ptr() + inputs.extent(t) * t.element_size(), name)
        for name, t in (parameters_of(owner) | buffers_of(owner)).items()
        if t.layout == torch.strided and t.numel()
    )
    found, reach, farthest = set[str](), 0, ""
    for start, end, name in spans:
        found |= {name, farthest} if start < reach else set()
        reach, farthest = max((reach, farthest), (end, name))
    return found


def state_of(owner: Any) -> dict[str, torch.Tensor]:
    """Copies of the parameters and buffers of a module, by name."""
    return {name: tensor.detach().clone() for name, tensor in (parameters_of(owner) | buffers_of(owner)).items()}


def cast_of(spec: Spec, precision: Precision | None) -> torch.dtype | None:
    """The dtype to cast a model to; None if the precision casts nothing, or if the spec builds it in that dtype."""
    if precision is None or not precision.cast or spec.dtype == precision.cast:
        return None
    return getattr(torch, precision.cast)  # type: ignore[no-any-return]


def model_in(model: Any, dtype: torch.dtype | None, device: str) -> Any:
    """The module on a device, its real parameters and buffers cast in place to a dtype, if any; a function as it is.

    Raises:
        NotProvenError: the module did not take the dtype, or it has complex numbers, which have no narrow dtype.
    """
    if not isinstance(model, torch.nn.Module):
        return model
    if dtype is None:
        return model.to(device)
    floating = {name: t for name, t in (parameters_of(model) | buffers_of(model)).items() if inputs.is_rounded(t)}
    for name, tensor in floating.items():
        if tensor.is_complex():
            raise NotProvenError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}, which {dtype} cannot hold")
    model = model.to(device=device, dtype=dtype)
    parts = [*model.parameters(), *model.buffers()]
    if floating and not any(t.dtype == dtype for t in parts):
        raise NotProvenError(f"no parameter or buffer is in {dtype} after model.to({dtype})")
    return model


# Weights or a graph may come from a file that native code reads, so that nobody sees which file it is. A fingerprint
# tells them from others.


def fingerprint(spec: Spec, seed: int, model: Any) -> str:
    """The fingerprint of a model and of the first inputs of its cases: 32 hexadecimal digits."""
    found = _hash_weights(model)
    if isinstance(model, torch.nn.Module):
        for name, module in model.named_modules():
            found.update(f"{name} {getattr(module, 'code', '')}".encode())  # of a ScriptModule or a GraphModule
    for case in spec.cases:
        for leaf in inputs.call_leaves(inputs.draw(case, seed, 0)):
            _add(found, case.name, leaf)
    return found.hexdigest()


def fingerprint_of_weights(model: Any) -> str:
    """The fingerprint of the parameters and buffers of a model: 32 hexadecimal digits."""
    return _hash_weights(model).hexdigest()


def _hash_weights(model: Any) -> hashlib.blake2b:
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in (parameters_of(model) | buffers_of(model)).items():
        _add(found, name, tensor)
    return found


def _add(found: hashlib.blake2b, name: str, leaf: Any) -> None:
    if not isinstance(leaf, torch.Tensor):
        found.update(f"{name} {leaf!r}".encode() if isinstance(leaf, (bool, int, float, str)) else name.encode())
        return
    found.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
    if leaf.layout in inputs.SPARSE:
        leaf = leaf.to_dense()
    if leaf.layout == torch.strided and leaf.numel():
        held = leaf.detach().resolve_conj().resolve_neg().cpu().contiguous()
        found.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()))
