"""Every name of torch that torch does not document. No other file of this project reaches for one.

`internals.tree_leaves` is looked up when it is first used, and never at import. Where this torch lacks a name,
`MissingError` says what cannot be done without it; `hasattr(internals, "load_package")` asks without an error.
A torch that drops a name so breaks what needs it, and nothing else.

The names of ATen ops are not among them: the dispatcher tells them, and they are compared, not looked up.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


class MissingError(AttributeError):
    """A name that something needs is missing from this torch. The message names both."""


@dataclass(frozen=True)
class Internal:
    """One name.

    Attributes:
        path: "module:name" or "module", and after " or " where other versions have it; of an attribute "type.name".
        lost: what cannot be done without it.
        torch: the versions that have it, in the form of PEP 440; "" for all that this project is checked on.
    """

    path: str
    lost: str
    torch: str = ""


_TREES = "containers of tensors cannot be read"
_MODES = "a mode that a call leaves on is not noticed"
_SWITCH = "a change of this switch by a call is not noticed"
_OPS = "the ops of a model cannot be seen, so nothing can be judged"
_WRITES = "what an op writes is not known, so nothing can be judged"
_COMPILED = "nothing proves that compiled code ran"
_KERNELS = "Inductor's kernels for the CPU are prepared anew in every process"
_GRAPHS = "what Inductor does once in a process it does anew in every one"
_EXPLAINED = "a pass of TorchScript cannot be switched off"
_BISECTED = "the pass of Inductor that makes a cell wrong is not found"
_HOOKS = "hooks that a call leaves behind are not noticed"

VALUES = {
    "tree_flatten": Internal("torch.utils._pytree:tree_flatten", _TREES),
    "tree_flatten_with_path": Internal("torch.utils._pytree:tree_flatten_with_path", _TREES),
    "tree_leaves": Internal("torch.utils._pytree:tree_leaves", _TREES),
    "tree_map": Internal("torch.utils._pytree:tree_map", _TREES),
    "tree_map_only": Internal("torch.utils._pytree:tree_map_only", _TREES),
    "tree_structure": Internal("torch.utils._pytree:tree_structure", _TREES),
    "tree_unflatten": Internal("torch.utils._pytree:tree_unflatten", _TREES),
    "keystr": Internal("torch.utils._pytree:keystr", _TREES),
    "read_values": Internal("torch:Tensor._values", "sparse tensors with repeated indices cannot be read"),
    "read_indices": Internal("torch:Tensor._indices", "sparse tensors with repeated indices cannot be read"),
    "remove_kernels": Internal("torch.library:Library._destroy", "a kernel that was replaced stays replaced"),
    "StorageWeakRef": Internal("torch.multiprocessing.reductions:StorageWeakRef", "memory cannot be watched"),
    "TorchDispatchMode": Internal("torch.utils._python_dispatch:TorchDispatchMode", _OPS),
    "DisableTorchDispatch": Internal("torch._C:_DisableTorchDispatch", _OPS),
    "DisableTorchFunction": Internal("torch._C:DisableTorchFunction", _OPS),
    "is_torch_function_enabled": Internal("torch._C:_is_torch_function_enabled", "scripts have no oracle"),
    "has_kernel": Internal("torch._C:_dispatch_has_kernel_for_dispatch_key", _OPS),
    "OpOverload": Internal("torch._ops:OpOverload", "operators cannot be judged"),
    "OpOverloadPacket": Internal("torch._ops:OpOverloadPacket", "operators cannot be judged"),
    "operator_definitions": Internal("torch._library.custom_ops:OPDEFS", "the ops inside an operator cannot be seen"),
    "item_op": Internal("torch:ops.aten._local_scalar_dense.default", "a number that `item` takes out is not held"),
    "FunctionBase": Internal("torch._C:_FunctionBase", "what a custom Function was applied to is not known"),
    "file_of_transforms": Internal("torch._functorch.eager_transforms:__file__", "`torch.func.grad` is not recognised"),
    "current_transform": Internal("torch._C._functorch:peek_interpreter_stack", "`torch.vmap` is not recognised"),
    "current_node": Internal("torch._C:_current_autograd_node", "a backward pass inside forward is not recognised"),
    "slow_gradcheck": Internal("torch.autograd.gradcheck:_run_slow_mode_and_get_error", "gradcheck takes longer"),
    "batch_norm": Internal("torch.nn.modules.batchnorm:_BatchNorm", "new batch norms keep mean 0 and variance 1"),
    "all_backward_hooks": Internal("torch.nn.modules.module:_global_backward_hooks", _HOOKS),
    "all_backward_pre_hooks": Internal("torch.nn.modules.module:_global_backward_pre_hooks", _HOOKS),
    "allocation_event": Internal("torch._C._profiler:_EventType", "peak_bytes cannot count"),
    "checks_without_numpy": Internal("torch.amp.autocast_mode:HAS_NUMPY", "custom_fwd needs NumPy to be installed"),
    # processors and devices
    "is_in_bad_fork": Internal("torch.cuda:_is_in_bad_fork", "CUDA refused in a fork is blamed on the model"),
    "sleep_on_device": Internal("torch.cuda:_sleep", "the meter of CUDA cannot be tried"),
    "count_gpus": Internal("torch._C:_cuda_getDeviceCount", "CUDA does not work in forks; a torch for CPUs has none"),
    # switches of a process
    "InferenceMode": Internal("torch._C:_InferenceMode", "inference mode left on cannot be switched off"),
    "is_multithreading_enabled": Internal("torch._C:_is_multithreading_enabled", _SWITCH),
    "get_fp32_precision": Internal("torch._C:_get_fp32_precision_getter", _SWITCH, ">=2.9"),
    "set_fp32_precision": Internal("torch._C:_set_fp32_precision_setter", _SWITCH, ">=2.9"),
    "get_filling": Internal("torch._C:_get_deterministic_fill_uninitialized_memory", _SWITCH),
    "set_filling": Internal("torch._C:_set_deterministic_fill_uninitialized_memory", _SWITCH),
    "get_mkldnn": Internal("torch._C:_get_mkldnn_enabled", _SWITCH),
    "set_mkldnn": Internal("torch._C:_set_mkldnn_enabled", _SWITCH),
    "get_flash_attention": Internal("torch._C:_get_flash_sdp_enabled", _SWITCH),
    "set_flash_attention": Internal("torch._C:_set_sdp_use_flash", _SWITCH),
    "get_math_attention": Internal("torch._C:_get_math_sdp_enabled", _SWITCH),
    "set_math_attention": Internal("torch._C:_set_sdp_use_math", _SWITCH),
    "get_frugal_attention": Internal("torch._C:_get_mem_efficient_sdp_enabled", _SWITCH),
    "set_frugal_attention": Internal("torch._C:_set_sdp_use_mem_efficient", _SWITCH),
    "get_cudnn_attention": Internal("torch._C:_get_cudnn_sdp_enabled", _SWITCH),
    "set_cudnn_attention": Internal("torch._C:_set_sdp_use_cudnn", _SWITCH),
    "get_saving_hooks": Internal("torch._C._autograd:_top_saved_tensors_default_hooks", _HOOKS, ">=2.6"),
    "pop_saving_hooks": Internal("torch._C._autograd:_pop_saved_tensors_default_hooks", _HOOKS),
    "push_saving_hooks": Internal("torch._C._autograd:_push_saved_tensors_default_hooks", _HOOKS),
    "count_function_modes": Internal("torch._C:_len_torch_function_stack", _MODES),
    "get_function_mode": Internal("torch._C:_get_function_stack_at", _MODES),
    "pop_function_mode": Internal("torch.overrides:_pop_mode", _MODES),
    "push_function_mode": Internal("torch.overrides:_push_mode", _MODES),
    "count_dispatch_modes": Internal("torch._C:_len_torch_dispatch_stack", _MODES),
    "get_dispatch_mode": Internal("torch._C:_get_dispatch_stack_at", _MODES),
    "pop_dispatch_mode": Internal("torch.utils._python_dispatch:_pop_mode", _MODES),
    "push_dispatch_mode": Internal("torch.utils._python_dispatch:_push_mode", _MODES),
    "set_script_profiling": Internal("torch._C:_jit_set_profiling_executor", _EXPLAINED),
    "set_script_fusion": Internal("torch._C:_jit_set_texpr_fuser_enabled", _EXPLAINED),
    "set_script_autocast": Internal("torch._C:_jit_set_autocast_mode", _EXPLAINED),
    "set_script_optimisation": Internal("torch._C:_set_graph_executor_optimize", _EXPLAINED),
    # the compiler; looking one of these up imports it
    "register_script_op": Internal("torch.jit._builtins:_register_builtin", "TorchScript takes a value for an op"),
    "dynamo_config": Internal("torch._dynamo.config", "the limit of recompiles cannot be set"),
    "dynamo_counters": Internal("torch._dynamo.utils:counters", _COMPILED),
    "guard_failures": Internal("torch._dynamo.utils:guard_failures", "the reason of a recompile is not known"),
    "compilations": Internal("torch._dynamo.convert_frame:FRAME_COMPILE_COUNTER", "recompiles are counted by graphs"),
    "compile_seconds": Internal(
        "torch._dynamo.utils:compilation_time_metrics", "how long Dynamo and its backend take is not known"
    ),
    "compare_as_benchmarks": Internal("torch._dynamo.utils:same", "the rule of torch's benchmarks cannot be tried"),
    "find_backend": Internal("torch._dynamo:lookup_backend", "a backend cannot be named"),
    "compile_fx": Internal("torch._inductor.compile_fx:compile_fx", "Inductor cannot be called"),
    "inductor_config": Internal("torch._inductor.config", "Inductor's options are not known"),
    "functorch_config": Internal("torch._functorch.config", "the cache of graphs cannot be switched"),
    "graphs_of_device": Internal("torch._inductor.cudagraph_trees:get_manager", "CUDA graphs are not proven"),
    "package": Internal("torch._inductor:aoti_compile_and_package", "there are no packaged cells", ">=2.6"),
    "load_package": Internal("torch._inductor:aoti_load_package", "there are no packaged cells", ">=2.6"),
    "Instructions": Internal("torch._inductor.cpu_vec_isa:VecISA or torch._inductor.codecache:VecISA", _KERNELS),
    "find_instructions": Internal(
        "torch._inductor.cpu_vec_isa:valid_vec_isa_list or torch._inductor.codecache:valid_vec_isa_list", _KERNELS
    ),
    "pick_instructions": Internal("torch._inductor.codecache:pick_vec_isa", _KERNELS),
    "path_of_header": Internal("torch._inductor.codecache:cpp_prefix_path", _KERNELS, "<2.8"),
    "KernelCache": Internal("torch._inductor.codecache:CppPythonBindingsCodeCache", _KERNELS),
    "Bisector": Internal("torch._inductor.compiler_bisector:CompilerBisector", _BISECTED, ">=2.6"),
    "hash_of_torch": Internal("torch._inductor.codecache:torch_key", _GRAPHS),
    "trace_patterns": Internal("torch._inductor.fx_passes.joint_graph:lazy_init", _GRAPHS),
    "find_cpp_compiler": Internal("torch._inductor.cpp_builder:get_cpp_compiler", _KERNELS, ">=2.5"),
    "version_of_compiler": Internal("torch._inductor.cpp_builder:get_compiler_version_info", _KERNELS, ">=2.5"),
    "CppBuilder": Internal("torch._inductor.cpp_builder:CppBuilder", _KERNELS),
    "CppOptions": Internal(
        "torch._inductor.cpp_builder:CppTorchDeviceOptions or torch._inductor.cpp_builder:CppTorchCudaOptions", _KERNELS
    ),
}

ATTRIBUTES = {
    "version_of": Internal("Tensor._version", "writes in place are not noticed"),
    "base_of": Internal("Tensor._base", "views of parameters are replaced too"),
    "hooks_of": Internal("Tensor._backward_hooks", _HOOKS),
    "identity_of": Internal("UntypedStorage._cdata", "memory has no identity"),
    "schema_of": Internal("OpOverload._schema", _WRITES),
    "overload_of": Internal("OpOverload._overloadname", "the terms of a sum are not known"),
    "apply_to_tensors": Internal("Module._apply", "a model cannot be widened"),
    "parameters_of": Internal("Module._parameters", "a model's weights cannot be replaced"),
    "buffers_of": Internal("Module._buffers", "a model's buffers cannot be replaced"),
    "submodules_of": Internal("Module._modules", "modules with two names are seen once"),
    "compiled_call_of": Internal("Module._compiled_call_impl", "a module that was compiled in place is not noticed"),
    "implementation_of": Internal("CustomOpDef._init_fn", "the ops inside an operator cannot be seen"),
    "overload_of_definition": Internal("CustomOpDef._opoverload", "operators cannot be judged"),
    "handle_of": Internal("OpOverloadPacket._op", "the probe of replaced ops cannot run"),
    "validates_arguments": Internal("Distribution._validate_args", "distributions refuse perturbed probabilities"),
}

# keys and names that are read from objects which may lack them
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
HOOKS_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", *BACKWARD_HOOKS)
PARAMETERS, BUFFERS, SUBMODULES = "_parameters", "_buffers", "_modules"
COMPILED_MODULE, COMPILED_FUNCTION = "_orig_mod", "_torchdynamo_orig_callable"  # what `torch.compile` has wrapped
LEFT_TO_EAGER = "_torchdynamo_disable"
TRANSIENT_BUFFERS, LOADING_HOOKS = "_non_persistent_buffers_set", "_load_state_dict_pre_hooks"
COMPILED_MODULE = "_orig_mod"
SAVED = "_saved_"  # begins the names of what a node of autograd's graph saves
COMPILER = "torch._dynamo"
SYMBOLS = "torch.fx.experimental.symbolic_shapes"  # torch imports it when a gradient or a custom op first needs it
FORWARD_MODE = "torch._decomp.decompositions_for_jvp"
IMPORTED_LATE = (COMPILER, FORWARD_MODE)  # torch imports these when a model first needs them, in 0.8 and 0.2 s
NEEDED_TO_COMPILE = """
    torch._inductor.compile_fx
    torch._dynamo.backends.cudagraphs torch._dynamo.backends.distributed torch._dynamo.backends.inductor
    torch._dynamo.backends.onnxrt torch._dynamo.backends.tensorrt torch._dynamo.backends.torchxla
    torch._dynamo.backends.tvm torch._dynamo.repro.after_dynamo torch._functorch._aot_autograd.subclass_codegen
    torch._inductor.codegen.cpp_wrapper_cpu_array_ref torch._inductor.codegen.halide
    torch._inductor.codegen.memory_planning torch._inductor.codegen.mps torch._inductor.codegen.pallas
    torch._inductor.codegen.wrapper_fxir torch._subclasses.schema_check_mode
    torch.distributed.tensor.experimental torch.export._trace torch.utils._cpp_embed_headers
""".split()  # torch imports these, as far as it has them, at the first compile of a process


def __getattr__(name: str) -> Any:
    """The value of one of `VALUES`, or the function that reads one of `ATTRIBUTES` from its owner.

    Raises:
        MissingError: this torch lacks it.
        AttributeError: no such name is listed here.
    """
    if name in VALUES:
        value = _found(VALUES[name])
    elif name in ATTRIBUTES:
        value = _reader(ATTRIBUTES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _found(internal: Internal) -> Any:
    for path in internal.path.split(" or "):
        with contextlib.suppress(ImportError, AttributeError):
            return pkgutil.resolve_name(path)
    raise _missing(internal)


def _reader(internal: Internal) -> Callable[[Any], Any]:
    attribute = internal.path.rpartition(".")[2]

    def read(owner: Any) -> Any:
        try:
            return getattr(owner, attribute)
        except AttributeError:
            raise _missing(internal) from None

    return read


def _missing(internal: Internal) -> MissingError:
    return MissingError(f"torch {torch.__version__} has no {internal.path}, and without it {internal.lost}")


def loaded(name: str) -> Any:
    """The value of one of `VALUES` if its module has been imported; None if not, or if this torch lacks it."""
    module, _, attribute = VALUES[name].path.partition(":")
    return getattr(sys.modules.get(module), attribute, None)


@contextlib.contextmanager
def replaced(name: str, value: Any) -> Iterator[None]:
    """A context in which torch has another value in the place of one of `VALUES`. What torch lacks is not replaced."""
    module, _, attribute = VALUES[name].path.partition(":")
    try:
        home = importlib.import_module(module)
        before = getattr(home, attribute)
    except (ImportError, AttributeError):
        yield
        return
    setattr(home, attribute, value)
    try:
        yield
    finally:
        setattr(home, attribute, before)


class Unwrapped:
    """Base of dispatch modes whose methods torch leaves as they are; to wrap them, it would import its compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def assert_async(condition: torch.Tensor, message: str) -> None:
    """Raise an error later if a tensor of one element is false: no other check avoids a synchronisation."""
    torch._assert_async(condition, message)


def default_device() -> str | None:
    """The device that `torch.set_default_device` has set; None if it has set none, or if this torch hides it."""
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else str(context.device)


def graphs_of(script: torch.jit.ScriptModule) -> list[Any]:
    """The graphs of all methods of a ScriptModule; its public attribute is that of `forward` alone."""
    own = script._c
    return [own._get_method(name).graph for name in own._method_names()]
