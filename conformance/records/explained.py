"""What a look at one cell finds, and the rungs of the ladder that `conformance explain` climbs."""

from dataclasses import dataclass

from conformance.records.convert import Rounded
from conformance.records.tasks import CellTask, Target

STAGES = "conformance.cell.stages"  # the module that registers the modes of the ladder
SCRIPTED_PARTS = "scripted_parts"
COMPILED = {  # the stages of torch.compile, in their order, and what each adds
    "aot_eager": "autograd captured ahead of time",
    "aot_eager_decomposed": "and its decompositions",
    "compiled": "and Inductor",
}
MENDING = {  # modes that leave a part of the compiler out, or that mend a known kind of fault, and how a person gets it
    "with_precision_casts": "torch._inductor.config.emulate_precision_casts = True",
    "with_fallback_random": "torch._inductor.config.fallback_random = True",
    "with_backward_autocast_off": 'torch._functorch.config.backward_pass_autocast = "off"',
    "with_patterns_off": "torch._inductor.config.pattern_matcher = False",
    "with_fusion_off": "torch._inductor.config.max_fusion_size = 1",
    "with_vectors_off": "torch._inductor.config.cpp.simdlen = 1",
    "with_caches_off": "torch._inductor.config.force_disable_caches = True",
    "compiled_dynamic": "torch.compile(model, dynamic=True)",
}
SCRIPTED = {  # the same of TorchScript
    "without_profiling": "torch._C._jit_set_profiling_executor(False)",
    "without_fusion": "torch._C._jit_set_texpr_fuser_enabled(False)",
    "without_autocast": "torch._C._jit_set_autocast_mode(False)",
    "without_optimisation": "torch.jit.optimized_execution(False)",
}


@dataclass(frozen=True)
class Numbers:
    """One tensor of the measured call, by one gate.

    Attributes:
        case, tensor, dtype: of the tensor.
        gate, value, budget: the gate that a verdict names of the tensor, or the one with the largest margin.
        error, eager: ‖y − y*‖ / ‖y*‖ of this mode and of eager at the same precision, y* in float64; the absolute norm
            if y* is zero. None: there is no eager beside it.
        at, ulps: the element that is farthest off, and by how many units in the last place of its dtype.
        margin: the value over the budget.
    """

    case: str
    tensor: str
    dtype: str
    gate: str
    value: Rounded
    budget: Rounded
    error: Rounded | None
    eager: Rounded | None
    at: str
    ulps: Rounded | None
    margin: Rounded


@dataclass(frozen=True)
class Exit:
    """The end of the first call of a module inside a model.

    Attributes:
        path, kind: name of the module, and of its class.
        line: file and line of its forward; "" if it is torch's own.
        dtype: of the first tensor that it returns in eager, at the cell's precision; "" if it returns none.
        done: the modules that have returned by then and are in no other of them; the last one is this module.
    """

    path: str
    kind: str
    line: str
    dtype: str
    done: tuple[str, ...]

    @property
    def parent(self) -> str:
        """The name of the module that holds this one."""
        return self.path.rpartition(".")[0]

    def __str__(self) -> str:
        """The module, as a sentence names it."""
        return f"`{self.path}` ({', '.join(filter(None, [self.kind, self.line]))})"


@dataclass(frozen=True)
class Look:
    """What a look at a cell finds.

    Attributes:
        numbers: of each tensor, worst first.
        exits: the ends of the modules, in the order of eager's forward; none of a training.
    """

    numbers: tuple[Numbers, ...]
    exits: tuple[Exit, ...]


LOOK = Target("conformance.cell.look:look", CellTask, Look)


@dataclass(frozen=True)
class CulpritTask:
    """Find what makes a cell wrong: its verdict has one of the statuses in `shown`, and the cell beside it is right."""

    cell: CellTask
    beside: CellTask
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Culprit:
    """A sentence that names what makes the cell wrong; "" if nothing was found."""

    said: str


BISECT = Target("conformance.cell.culprit:bisect", CulpritTask, Culprit)
FIND_OP = Target("conformance.cell.culprit:find_op", CulpritTask, Culprit)
