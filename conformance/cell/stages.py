"""Registers the stages of the compilers, and switches that mend known faults, as modes for `conformance explain`."""

from functools import partial
from typing import Any

import torch

from conformance.axes import Prepared, register_mode
from conformance.cell.modes import compile_model
from conformance.cell.proofs import register_backend
from conformance.own.part import script_parts
from conformance.records.explained import SCRIPTED, SCRIPTED_PARTS
from zoo import internals


def _compile(model: Any, **patches: Any) -> Prepared:
    return compile_model(model, one_graph=None, patches=patches)


def _compile_backward_plainly(model: Any) -> Prepared:
    """Compile a backward that runs without the autocast of its forward, as eager's does.

    Raises:
        AttributeError: this torch has no such switch.
    """
    internals.functorch_config.backward_pass_autocast = "off"  # noqa: S105 -- no password
    return _compile(model)


def _script(name: str, model: Any) -> Prepared:
    """Script a model after a pass of TorchScript was switched off, as in "without_fusion"."""
    getattr(internals, name.replace("without", "set_script"))(False)
    scripted = model if isinstance(model, torch.jit.ScriptModule) else torch.jit.script(model)
    return Prepared(scripted, lambda: {"scripted": True}, scripted)


def _script_parts(model: Any) -> Prepared:
    scripted = script_parts(model)
    return Prepared(scripted, lambda: {"scripted parts": True}, scripted)


register_backend("aot_eager", "aot_eager")
register_backend("aot_eager_decomposed", "aot_eager_decomp_partition")
register_mode("with_precision_casts", partial(_compile, emulate_precision_casts=True), needs_cpp=True)
register_mode("with_fallback_random", partial(_compile, fallback_random=True), needs_cpp=True)
register_mode("with_patterns_off", partial(_compile, pattern_matcher=False), needs_cpp=True)
register_mode("with_fusion_off", partial(_compile, max_fusion_size=1), needs_cpp=True)
register_mode("with_vectors_off", partial(_compile, **{"cpp.simdlen": 1}), needs_cpp=True)
register_mode("with_caches_off", partial(_compile, force_disable_caches=True), needs_cpp=True)
register_mode("with_backward_autocast_off", _compile_backward_plainly, needs_cpp=True)
for _pass in SCRIPTED:
    register_mode(_pass, partial(_script, _pass), compiles=False, warm_calls=3)
register_mode(SCRIPTED_PARTS, _script_parts, compiles=False, warm_calls=3)
