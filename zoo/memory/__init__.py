"""Tools for the tensors that autograd saves for backward: count, offload, recompute and compress them.

The idea of forbidding hooks comes from an article on `disable_saved_tensors_hooks`.
"""

from zoo.memory.compress import compress
from zoo.memory.forbid import forbid_saved_tensor_hooks
from zoo.memory.held_bytes import held_bytes
from zoo.memory.offload import offload_to_cpu
from zoo.memory.peak_bytes import kept_bytes, peak_bytes
from zoo.memory.recompute import recompute
from zoo.memory.saved_bytes import SavedBytes, saved_bytes

__all__ = [
    "SavedBytes",
    "compress",
    "forbid_saved_tensor_hooks",
    "held_bytes",
    "kept_bytes",
    "offload_to_cpu",
    "peak_bytes",
    "recompute",
    "saved_bytes",
]
