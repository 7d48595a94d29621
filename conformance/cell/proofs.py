"""Proves for a mode of your own that what it should reach did run: a kernel, a backend, a graph, a dtype.

A count at the entrance of a mode proves nothing, because the entrance is passed even if a fallback does the work. So
each of these counts at the far end, and compares before and after every single call.
"""

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import Any

import torch

from conformance.axes import Mode, Prepared, register_mode
from conformance.errors import NotProvenError, UsageError, of_model
from zoo import internals

Compiler = Callable[..., Callable[..., Any]]
MOST_NAMED = 8  # ops in a message


class Runs:
    """Counts how often something ran, and makes a callable that must run it in every call.

    Mark what must run with `counted`, `compiler` or `module`; then return `prepared(call)` from the mode.

    Args:
        what: its name, for messages and for the record.

    >>> def kernel(x):
    ...     return 2 * x
    >>> runs = Runs("kernel")
    >>> kernel = runs.counted(kernel)
    >>> mode = runs.prepared(lambda x: kernel(x) if x > 0 else 2 * x)
    >>> mode.call(3), mode.proof()
    (6, {'runs of kernel': 1})
    >>> mode.call(-3)
    Traceback (most recent call last):
    conformance.errors.NotProvenError: a call must run kernel, and call 2 did not; it ran 1 times in all
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._runs = 0

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that counts its calls and does the same. Put it in the place where the backend looks it up.

        Args:
            function: a kernel, or a ScriptModule or ScriptFunction, which has no Python code to fall back to.
        """

        @wraps(function, updated=())
        def counting(*args: Any, **kwargs: Any) -> Any:
            self._runs += 1
            return function(*args, **kwargs)

        return counting

    def compiler(self, backend: str | Compiler) -> Compiler:
        """A backend for `torch.compile` whose compiled graphs count their runs.

        Args:
            backend: the name of a backend, or a function from a graph and its examples to a callable.
        """

        def compile_counted(graph: Any, examples: Any, **options: Any) -> Callable[..., Any]:
            compile_graph = internals.find_backend(backend) if isinstance(backend, str) else backend
            return self.counted(compile_graph(graph, examples, **options))

        return compile_counted

    def module(self, module: torch.nn.Module) -> None:
        """Count the calls of a module from outside: an FX graph, or a part of a model.

        Args:
            module: the module; a ScriptModule takes no hooks, so use `counted` for it.
        """

        def count(*_: Any) -> None:
            self._runs += 1

        module.register_forward_hook(count)

    def prepared(self, call: Callable[..., Any], parameters_of: Any = None) -> Prepared:
        """The callable of the mode. Each call must run what is counted; otherwise it raises `NotProvenError`.

        Args:
            call: takes the arguments of the model.
            parameters_of: see `Prepared`.
        """
        calls = 0

        def checked(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            before = self._runs
            returned = call(*args, **kwargs)
            if self._runs == before:
                raise NotProvenError(
                    f"a call must run {self.what}, and call {calls} did not; it ran {self._runs} times in all"
                )
            return returned

        def proof() -> dict[str, Any]:
            if not self._runs:
                raise NotProvenError(f"a call must run {self.what}, and there was no call")
            return {f"runs of {self.what}": self._runs}

        return Prepared(checked, proof, parameters_of, unchecked_call=call)


def register_backend(name: str, backend: str | Compiler) -> Mode:
    """Add the mode of a backend of `torch.compile`. Each call must run a graph that the backend compiled.

    Args:
        name: lower-case identifier, not taken yet.
        backend: the name of a backend, or a function from a graph and its examples to a callable.

    Returns:
        The new mode, as `register_mode` returns it.

    Raises:
        UsageError: the name is malformed or taken, or the backend is neither a name nor callable.

    >>> from conformance.axes import MODES
    >>> register_backend("captured", lambda graph, examples: graph.forward).compiles
    True
    >>> del MODES["captured"]
    """
    if not isinstance(backend, str) and not callable(backend):
        raise UsageError(f"backend {name!r}: want the name of a backend or a function, got {backend!r}")
    return register_mode(name, partial(compiled_by, name, backend), needs_cpp=backend == "inductor")


def compiled_by(name: str, backend: str | Compiler, model: Any) -> Prepared:
    """A model under a backend of `torch.compile`, with the proof that its graphs ran."""
    runs = Runs(f"a graph of {name}")
    return runs.prepared(torch.compile(model, backend=runs.compiler(backend), dynamic=False))


class ResultDtypes:
    """Makes a callable in which named ops must give a dtype, such as the matrix products of a bfloat16 mode.

    It sees the ops that torch dispatches in forward. It does not see inside a compiled graph or an operator in C++.

    Args:
        dtype: the dtype that all results of these ops must have.
        ops: names of ATen ops without overload, such as "mm" and "addmm". Every call must run one of them.

    >>> mode = ResultDtypes(torch.bfloat16, ("mm",)).prepared(lambda x: (x.bfloat16() @ x.bfloat16()).float())
    >>> mode.call(torch.ones(2, 2)).dtype, mode.proof()
    (torch.float32, {'mm in bfloat16': 1})
    >>> ResultDtypes(torch.bfloat16, ("mm",)).prepared(lambda x: x @ x).call(torch.ones(2, 2))
    Traceback (most recent call last):
    conformance.errors.NotProvenError: mm must give bfloat16, and call 1 gave float32 from mm
    """

    def __init__(self, dtype: torch.dtype, ops: Collection[str]) -> None:
        if isinstance(ops, str) or not ops:
            raise of_model(ValueError(f"ops must be a tuple of names of ops, got {ops!r}"))
        self._dtype, self._ops = dtype, tuple(ops)

    def prepared(self, call: Callable[..., Any], parameters_of: Any = None) -> Prepared:
        """The callable of the mode. Each call is checked; it raises `NotProvenError` if the dtype is another one.

        Args:
            call: takes the arguments of the model.
            parameters_of: see `Prepared`.
        """
        wanted, names = str(self._dtype).removeprefix("torch."), " and ".join(self._ops)
        calls, total = 0, 0

        def checked(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls, total
            calls += 1
            with _ResultsSeen() as seen:
                returned = call(*args, **kwargs)
            found = Counter({pair: count for pair, count in seen.results.items() if pair[0] in self._ops})
            others = [f"{dtype} from {op}" for op, dtype in found if dtype != wanted]
            if others:
                raise NotProvenError(f"{names} must give {wanted}, and call {calls} gave {', '.join(others)}")
            if not found:
                ran = ", ".join(list(dict.fromkeys(op for op, _ in seen.results))[:MOST_NAMED]) or "no op"
                raise NotProvenError(f"{names} must give {wanted}, and call {calls} ran none of them; it ran {ran}")
            total += sum(found.values())
            return returned

        def proof() -> dict[str, Any]:
            if not calls:
                raise NotProvenError(f"{names} must give {wanted}, and there was no call")
            return {f"{names} in {wanted}": total}

        return Prepared(checked, proof, parameters_of, unchecked_call=call)


class _ResultsSeen(internals.TorchDispatchMode):  # type: ignore[misc]
    """Counts results by name of the op and name of the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.results: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for leaf in internals.tree_leaves(returned):
            if isinstance(leaf, torch.Tensor):
                self.results[func.overloadpacket.__name__, str(leaf.dtype).removeprefix("torch.")] += 1
        return returned
