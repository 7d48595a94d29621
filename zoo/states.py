"""The states of a process and a model, apart from results, that a spec may declare as changed by a call."""

STATES = (
    "random generator",
    "default dtype",
    "default device",
    "grad mode",
    "inference mode",
    "autocast",
    "matmul precision",
    "determinism",
    "backends",
    "threads",
    "modes",
    "anomaly mode",
    "gradients",
    "requires_grad",
    "training",
    "hooks",
    "parameters",
    "buffers",
    "submodules",
)
