"""Child process: writes a script of torch alone that shows why a cell is red, for an issue tracker.

The script builds the model, calls it in the mode and precision of the cell, in eager beside it and in float64, and
compares the one tensor that the verdict names.
"""

import contextlib
import ctypes
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from conformance.cell import proofs
from conformance.cell.otherwise import LOSS_SCALE, SCALED
from conformance.cell.session import CellSession, open_task
from conformance.cell.source import NotWrittenError, Source, literal
from conformance.errors import UsageError, describe_error
from conformance.evaluate import evaluation, inputs, process_state, weights
from conformance.evaluate.evaluation import Question
from conformance.float64 import copies, wide
from conformance.gates.budget import TensorReference
from conformance.oracle.draws import Redraw
from conformance.oracle.reference import CaseReference
from conformance.own.spec import attribute
from conformance.plan import find
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Discrepancy, TensorName, case_of
from conformance.records.tasks import ReproResult, ReproTask
from conformance.seeds import seed_of
from conformance.verdict import VALUES

MOST_LINES = 80
ENOUGH = 0.25  # of the bound: nearer to the oracle, a plain call in float64 is right
ABSOLUTE = "absolute"  # a word in the detail of a measure that is not relative
SMALL = 8  # elements: such a tensor is written as numbers
TENSORS, MODEL = ".safetensors", ".pt"
MODES = {
    "eager": "lambda model: model",
    "scripted": "torch.jit.script",
    "compiled": "lambda model: torch.compile(model, dynamic=False{options})",
    "compiled_dynamic": "lambda model: torch.compile(model, dynamic=True{options})",
    "exported": "lambda model: lambda *a, **k: torch.export.export(model, a, k, strict=False).module()(*a, **k)",
}
CONTEXTS = {"under no_grad": "torch.no_grad()", "under inference_mode": "torch.inference_mode()"}
FROZEN, WEIGHTS_ALONE = "with frozen weights", "for the weights alone"
WAYS = (*CONTEXTS, FROZEN, WEIGHTS_ALONE, SCALED.text)
FORMATS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
HEAD = """\
# {cell}: {verdict}
# Written by torch-conformance, with torch {torch}. Exit code 1: the fault is there; 0: it is not."""
NUMBERS = """\
def numbers(seed, *shape):  # which bfloat16 and float16 hold; those below one stay there
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    rounded = drawn.bfloat16().half().float()
    return rounded.clamp(-0.99609375, 0.99609375).where(drawn.abs() < 1, rounded)"""
READING = """\
def data(name):  # from the file beside this one, in the format of safetensors
    content = pathlib.Path(__file__).with_suffix(".safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entry = json.loads(content[8:start])[name]
    begin, end = (start + offset for offset in entry["data_offsets"])
    dtype = {{{dtypes}}}[entry["dtype"]]
    return torch.frombuffer(bytearray(content[begin:end]), dtype=dtype).view(entry["shape"])"""
RAISED = """\
try:
    run({prepare})
except BaseException as problem:
    print(f"{{type(problem).__name__}}: {{problem}}")
    sys.exit(type(problem).__name__ == "{error}")
print("no error")"""
GRADCHECK = """\
model = {made}
given = {{n: t.double(){asks} if t.is_floating_point() else t for n, t in INPUTS.items()}}
leaves = [*(t for t in given.values() if t.requires_grad){parameters}]
try:
    torch.autograd.gradcheck(lambda *_: model({arguments}), leaves)
except RuntimeError as problem:
    print(f"{{type(problem).__name__}}: {{problem}}".splitlines()[0])
    sys.exit(1)
print("the backward is the derivative of the forward")"""
IN_A_CHILD = """\
if len(sys.argv) == 1:  # what follows may end the process
    code = subprocess.run([sys.executable, __file__, "child"]).returncode
    print(f"the process ended with {code}")
    sys.exit(code not in (0, 1))"""


def write(task: ReproTask, process: ChildProcess) -> ReproResult:
    """Write the script of a cell, and what seeds do not give beside it.

    Raises:
        UsageError: no script can show the verdict; the message says why.
    """
    session = open_task(task.cell, process)
    session.eager = session.build()
    session.dtypes = {name: t.dtype for name, t in weights.state_of(session.eager).items()}
    why, path = "", Path(task.script)
    for inlines in (True, False):
        try:
            script = _Script(task, session, Source(inlines=inlines))
            text = script.text()
            if text.count("\n") > MOST_LINES:
                text = re.sub(r"\n\n(?= )", "\n", text)  # no blank lines inside a definition
        except NotWrittenError as problem:
            why = why or str(problem)
            continue
        lines = text.count("\n")
        if lines <= MOST_LINES:
            path.write_text(text, encoding="utf-8")
            if script.data:
                _write_tensors(path.with_suffix(TENSORS), script.data)
            return ReproResult("" if inlines else why)
        why = f"with its source it has {lines} lines, more than {MOST_LINES}" if inlines else f"it has {lines} lines"
    raise UsageError(f"no script shows {task.cell.cell.id}: {why}")


class _Script:
    """The parts of a script, each one or more lines."""

    def __init__(self, task: ReproTask, session: CellSession, source: Source) -> None:
        self.task, self.session, self.source, self.fault = task, session, source, task.fault
        self.data: dict[str, torch.Tensor] = {}
        self.draws = False
        self.case = session.spec.case(case_of(task.fault.case)) if task.fault else session.spec.cases[0]
        self.way = task.fault.case.removeprefix(self.case.name).removeprefix(", ") if task.fault else ""
        self.known, self.first = session.known(self.case), session.question(self.case, session.eager)
        self.redraw: Redraw | None = None
        self.question = self._asked()
        names = self.question.names
        asked = self.question.differentiate and self.way not in CONTEXTS
        constants = (*names, "") if self.way == WEIGHTS_ALONE else (*self.question.constants, *self.question.mutates)
        self.leaves = [n for n, t in names.items() if asked and inputs.is_rounded(t) and n not in constants]
        self.backward = asked and (task.fault is None or task.fault.tensor.kind == "gradient")

    def _asked(self) -> Question:
        if self.session.spec.fit is not None or self.first.states:
            raise NotWrittenError("it is a training, or keeps a state in attributes")
        if self.session.precision.low_dtype and process_state.DRAWS in self.first.changes_state:
            raise NotWrittenError("it draws random numbers, of which a low precision has others")
        for redraw, there in self.known.changed:
            if redraw.text == self.way and not redraw.changes_module:
                self.redraw, self.known = redraw, there.of_call(self.session.precision)
                call = self.session.place(redraw.inputs(self.case, self.session.seed))
                return redraw.question(self.first, call, self.session.eager)
        if self.way and self.way not in WAYS:
            raise NotWrittenError(f"the fault shows only {self.way}")
        scale = self.first.scale * (LOSS_SCALE if self.way == SCALED.text else 1.0)
        return replace(self.first, scale=scale)

    def text(self) -> str:
        """The script."""
        if self.task.wrong_backward:
            parts = [self._builder(), *self._given("", self.question, self.known, ()), self._gradcheck()]
        else:
            prepare = self._prepare()
            parts = [self._builder(), *self._run(), self._shown(prepare)]
        parts[:0] = [NUMBERS] * self.draws
        if self.data:
            dtypes = {FORMATS[t.dtype]: t.dtype for t in self.data.values()}
            parts.insert(0, READING.format(dtypes=", ".join(f'"{name}": {dtype}' for name, dtype in dtypes.items())))
        body = "\n\n".join([*self.source.definitions, *parts])
        head = HEAD.format(cell=self.task.cell.cell.id, verdict=self.task.verdict, torch=torch.__version__)
        modules = [name for name in ("json", "pathlib", "subprocess", "sys") if re.search(rf"\b{name}\.", body)]
        return "\n".join([head, *self.source.head(modules), "", body, ""])

    def _tensor(self, name: str, tensor: torch.Tensor, seed: int | None = None) -> str:
        """An expression for a tensor; what no seed gives is kept in the file."""
        tensor, shape = tensor.detach().cpu(), tuple(tensor.shape)
        if tensor.layout != torch.strided or tensor.dtype not in FORMATS:
            raise NotWrittenError(f"{name} is a tensor of {tensor.layout} and {tensor.dtype}")
        if seed is not None and tensor.dtype == torch.float32 and torch.equal(_numbers(seed, shape), tensor):
            self.draws = True
            text = f"numbers({', '.join(map(str, (seed, *shape)))})"
        elif not tensor.numel():
            text = f"torch.empty({shape}, dtype={tensor.dtype})"
        elif tensor.numel() <= SMALL and bool(tensor.isfinite().all()) and not tensor.is_complex():
            text = f"torch.tensor({tensor.tolist()}, dtype={tensor.dtype})"
        else:
            self.data[name], text = tensor.contiguous(), f'data("{name}")'
        if not tensor.is_contiguous():
            text = f"torch.empty_strided({shape}, {tensor.stride()}, dtype={tensor.dtype}).copy_({text})"
        return text

    # The model, and the callable of the mode.

    def _builder(self) -> str:
        """The function that builds the model: with the weights that its seed gives, or with those of the file."""
        eager, made = self.session.eager, self._made()
        place = ".cuda()" * (self.session.cell.device == "cuda")
        if not isinstance(eager, torch.nn.Module) or MODEL in made:
            return f"def build():\n    return {made}{place * isinstance(eager, torch.nn.Module)}"
        torch.manual_seed(self.session.seed)
        plain: Any = self.session.spec.build()
        flags, own = ([m.training for m in model.modules()] for model in (eager, plain))
        if flags != own and len(set(flags)) > 1:
            raise NotWrittenError("parts of it are in train mode, and others in eval mode")
        inputs.round_weights(plain)
        seeded, state = (
            weights.state_of(model) for model in (plain, wide.prepared_model(self.session.spec, self.session.seed))
        )
        lines = [f"model = {made}" + f".train({eager.training})" * (flags != own), "with torch.no_grad():"]
        if state and all(torch.equal(tensor, seeded[name]) for name, tensor in state.items()):
            lines.insert(0, f"torch.manual_seed({self.session.seed})")
            lines += [
                "    for tensor in filter(torch.is_floating_point, [*model.parameters(), *model.buffers()]):",
                "        tensor.copy_(tensor.bfloat16().half())  # numbers that every precision holds",
            ]
        else:
            self.data |= {f"model.{name}": tensor.contiguous() for name, tensor in state.items()}
            lines += [
                "    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:",
                '        tensor.copy_(data(f"model.{name}"))',
            ]
        return "\n    ".join(["def build():", *(lines if state else lines[:1]), f"return model{place}"])

    def _made(self) -> str:
        """An expression for the model as it is built."""
        location = self.task.cell.location
        own, module = location.own, find.module_of(location)
        if own is None:
            try:
                return self.source.made_by(self.session.spec.build)
            except NotWrittenError:
                return self._pickled()
        thing = attribute(module, own.thing) if own.thing else None
        if thing is None or isinstance(thing, torch.nn.Module):
            return self._pickled()
        if location.module == "torch":
            return f"torch.{own.thing}"
        builds = isinstance(thing, type) or isinstance(self.session.eager, torch.nn.Module)
        is_function = isinstance(thing, type) and issubclass(thing, torch.autograd.Function)
        return self.source.name(thing) + (".apply" if is_function else "()" * builds)

    def _pickled(self) -> str:
        """The model itself in a file, with its classes as those of the script."""
        model, main = wide.prepared_model(self.session.spec, self.session.seed), sys.modules["__main__"]
        path = Path(self.task.script).with_suffix(MODEL)
        given = f"pathlib.Path(__file__).with_suffix({MODEL!r})"
        if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
            torch.jit.save(model, str(path))
            return f"torch.jit.load({given})"
        own = {type(m) for m in model.modules()} if isinstance(model, torch.nn.Module) else set()
        with contextlib.ExitStack() as stack:
            for thing in own:
                if self.source.holds(thing) and self.source.name(thing):
                    stack.callback(setattr, thing, "__module__", thing.__module__)
                    thing.__module__ = main.__name__
                    setattr(main, thing.__name__, thing)
            try:
                torch.save(model, path)
            except Exception as problem:  # whatever is in it may refuse with what it likes
                raise NotWrittenError(f"the model cannot be pickled: {describe_error(problem)}") from problem
        return f"torch.load({given}, weights_only=False)"

    def _prepare(self) -> str:
        session, mode = self.session, self.session.mode
        if mode.name == "scripted" and session.spec.scripted is not None:
            return f"lambda model: {self.source.made_by(session.spec.scripted)}"
        if mode.prepare is None:
            if mode.name not in MODES:
                raise NotWrittenError(f"it is in the mode {mode.name}")
            draws = process_state.DRAWS in session.spec.changes_state
            return MODES[mode.name].replace("{options}", ', options={"fallback_random": True}' * draws)
        if backend := self._backend():
            named = repr(backend) if isinstance(backend, str) else self._registered(backend)
            return f"lambda model: torch.compile(model, backend={named}, dynamic=False)"
        return self._registered(mode.prepare)

    def _registered(self, thing: Any) -> str:
        """An expression for what registers the mode: its name, or what its source says, as of what a function makes."""
        try:
            return self.source.name(thing)
        except NotWrittenError:
            return self.source.registered(self.session.mode.name, find.load(self.task.cell.sources[0]))

    def _backend(self) -> Any:
        """The backend of `torch.compile` of a mode that `register_backend` has registered; None of another mode."""
        prepare = self.session.mode.prepare
        is_backend = isinstance(prepare, partial) and prepare.func is proofs.compiled_by
        return prepare.args[1] if is_backend else None  # type: ignore[union-attr]

    # The call.

    def _run(self) -> tuple[str, str]:
        """The inputs and cotangents, and the function that calls the model and returns the tensor."""
        session, redraw = self.session, self.redraw
        is_module = isinstance(session.eager, torch.nn.Module)
        roots = [leaf for leaf, asks in self.known.requires_grad.items() if asks] if self.backward else []
        given = self._given("", self.first if redraw else self.question, self.session.known(self.case), roots)
        if redraw:
            given += [*self._given("other ", self.question, self.known, roots), self._other_weights(redraw)]
        made = "build().double() if wide else build()" + f".to({session.cast})" * bool(session.cast)
        run = [f"model = {made if is_module else 'build()'}"]
        if self.source.stands_in or not (self.source.inlines or session.mode.prepare is None or self._backend()):
            either = 'getattr(made, "call", made), getattr(made, "parameters_of", None) or model'
            run += ["made = prepare(model)", f"call, owner = {either}"]
        else:
            is_script = session.mode.name == "scripted"  # which owns what it writes
            run += ["call = owner = prepare(model)" if is_script else "call, owner = prepare(model), model"]
        call = self._call(roots, is_module=is_module)
        times = 1 + session.mode.warm_calls
        if times > 1 or redraw:
            rounds = f"[(INPUTS, COTANGENTS, {{}})] * {times} + [(OTHER_INPUTS, OTHER_COTANGENTS, OTHER_WEIGHTS)]"
            loop = f"for inputs, cotangents, weights in {rounds}:" if redraw else f"for _ in range({times}):"
            if is_module and (redraw or weights.buffers_of(session.eager)):
                state = "[*owner.named_parameters(), *owner.named_buffers()]"
                run += [f"state = {{name: tensor.detach().clone() for name, tensor in {state}}}"]
                value = "weights.get(name, state[name])" if redraw else "state[name]"
                call = [f"for name, tensor in {state}:", f"    tensor.data.copy_({value})", *call]
            call = [loop, *(f"    {line}" for line in call)]
        run += [*call, f"return {self._result(self.fault)}"] if self.fault else call
        return "\n".join(given), "\n    ".join(["def run(prepare, wide=False):", *run])

    def _call(self, roots: Sequence[str], *, is_module: bool) -> list[str]:
        """The lines of one call, forward and backward."""
        question, device, low = self.question, self.session.cell.device, self.session.precision.autocast
        given, cotangents = ("inputs", "cotangents") if self.redraw else ("INPUTS", "COTANGENTS")
        every = all(t.is_floating_point() for t in question.names.values() if isinstance(t, torch.Tensor))
        wide_if = "wide" if every else "wide and t.is_floating_point()"
        place = ".cuda()" * (device == "cuda")
        asked = [n for n, t in question.names.items() if isinstance(t, torch.Tensor)] == self.leaves
        tensor = f"(t.double() if {wide_if} else t.clone()){place}" + ".requires_grad_()" * asked
        lines = [f"given = {{n: {tensor} for n, t in {given}.items()}}"]
        if self.leaves and not asked:
            lines += [f"for name in {self.leaves}:", "    given[name].requires_grad_()"]
        lines += ["for parameter in owner.parameters():", "    parameter.requires_grad_(False)"] * (self.way == FROZEN)
        lines += ["torch.manual_seed(0)"] * (process_state.DRAWS in question.changes_state)
        contexts = [text for way, text in CONTEXTS.items() if way == self.way]
        contexts += [f'torch.autocast("{device}", torch.{low}, enabled=not wide)'] * bool(low)
        call = f"output = call({self._arguments()})"
        lines += [f"with {', '.join(contexts)}:", f"    {call}"] if contexts else [call]
        if roots:
            named = "{**given, **dict(owner.named_parameters())}" if is_module else "given"
            scale = f" * {question.scale}" if question.scale != 1.0 else ""
            outputs = f"[{', '.join(roots)}]"
            lines += [
                f"leaves = {{name: leaf for name, leaf in {named}.items() if leaf.requires_grad}}",
                f"weighted = [c.to(y){scale} for c, y in zip({cotangents}, {outputs})]",
                f"found = torch.autograd.grad({outputs}, [*leaves.values()], weighted, allow_unused=True)",
            ]
        return lines

    def _result(self, fault: Discrepancy) -> str:
        """An expression for the tensor that the verdict names."""
        kind, leaf = fault.tensor.kind, fault.tensor.leaf
        where = f"given[{leaf!r}]" if leaf in self.question.names else f"dict(owner.named_parameters())[{leaf!r}]"
        scale = f" / {self.question.scale}" if self.question.scale != 1.0 and fault.dtype != "None" else ""
        found = {
            "output": leaf,
            "gradient": f"dict(zip(leaves, found))[{leaf!r}]{scale}",
            "buffer": f"dict(owner.named_buffers())[{leaf!r}]",
            "after": f"{where}.detach()",
        }
        if kind not in found:
            raise NotWrittenError(f"the verdict is on {fault.tensor}")
        return found[kind]

    def _given(self, which: str, question: Question, known: CaseReference, roots: Sequence[str]) -> list[str]:
        """The lines with the inputs and cotangents of a draw; "other " is the second one."""
        seed = seed_of(self.session.seed, self.case.name, known.picks) if type(known.picks) is int else None
        tensors = {leaf: t for leaf, t in question.names.items() if isinstance(t, torch.Tensor)}
        held = [f"{leaf!r}: {self._tensor(which + leaf, t, seed)}" for leaf, t in tensors.items()]
        cotangents = []
        for leaf in roots:
            raw = self._reference(TensorName("output", leaf), known).oracle.raw
            like = torch.empty(raw.shape, dtype=torch.complex64 if raw.is_complex() else torch.float32)
            seed, tensor = seed_of(*question.seed, leaf), inputs.cotangent(leaf, like, question.seed)
            cotangents.append(self._tensor(f"{which}cotangent of {leaf}", tensor, seed))
        name = which.upper().replace(" ", "_")
        lines = [f"{name}INPUTS = {{{', '.join(held)}}}"]
        return lines + [f"{name}COTANGENTS = [{', '.join(cotangents)}]"] * bool(roots or self.redraw)

    def _other_weights(self, redraw: Redraw) -> str:
        state = weights.state_of(self.session.eager)
        other = redraw.state(state, self.session.seed)
        held = (f"{name!r}: {self._tensor(f'other {name}', t)}" for name, t in other.items())
        return f"OTHER_WEIGHTS = {{{', '.join(held)}}}"

    def _reference(self, name: TensorName, known: CaseReference) -> TensorReference:
        known = known.without_gradients(self.session.precision) if self.way in CONTEXTS else known
        found = known.tensors.get(name)
        if found is None:
            raise NotWrittenError(f"the oracle has no {name}")
        return found

    def _arguments(self) -> str:
        call = self.question.call
        names = {id(t): name for name, t in self.question.names.items()}
        given = [_expression(value, names) for value in call.args]
        return ", ".join([*given, *(f"{name}={_expression(value, names)}" for name, value in call.kwargs.items())])

    # The comparison.

    def _shown(self, prepare: str) -> str:
        """The lines that compare, print, and leave with the exit code."""
        eager = [] if self.session.is_eager else ["run(lambda model: model)"]
        if self.fault is None and not self.task.error:
            return f"{IN_A_CHILD}\nrun({prepare})"
        if self.fault is None:
            raised = RAISED.format(prepare=prepare, error=self.task.error)
            return "\n".join([*(f"{call}  # it raises nothing in eager" for call in eager), raised])
        shown = _shown_of(self.fault)
        lines = [f"found = run({prepare})", *(f"eager = {call}" for call in eager)]
        if "truth" in f"{shown.expression} {shown.right}":
            lines.append(f"truth = {self._truth(self.fault)}")
        told = f"{self.session.cell.mode} {{shown(found){shown.form}}}"
        told += f", eager {{shown(eager){shown.form}}}" * bool(eager)
        lines += [f"shown = lambda y: {shown.expression}  # {shown.what}"]
        lines += [f'print(f"{self.fault.tensor}: {shown.what}: {told}, {shown.right}")', f"sys.exit({shown.wrong})"]
        return "\n".join(lines)

    def _gradcheck(self) -> str:
        """The lines that compare the gradients in float64 with finite differences."""
        is_module = isinstance(self.session.eager, torch.nn.Module)
        made = "build().double()" if is_module else "build()"
        of_model = ", *model.parameters()" * is_module
        asks = ".requires_grad_()" * bool(self.leaves)
        return GRADCHECK.format(made=made, asks=asks, parameters=of_model, arguments=self._arguments())

    def _truth(self, fault: Discrepancy) -> str:
        """The call in float64; the oracle's tensor where the model itself, called so, does not give it."""
        if fault.measures[0].gate in VALUES and not self._is_plain(fault):
            self.data["float64"] = self._reference(fault.tensor, self.known).oracle.raw.contiguous()
            return 'data("float64")  # as the judge computes it: called in float64, the model itself gives another'
        return "run(lambda model: model, wide=True)"

    def _is_plain(self, fault: Discrepancy) -> bool:
        """Whether the model that is called in float64 without further ado gives what the oracle gives."""
        session, measure = self.session, fault.measures[0]
        truth = self._reference(fault.tensor, self.known).oracle.raw
        try:
            model = wide.prepared_model(session.spec, session.seed)
            if isinstance(model, torch.nn.Module):
                model = copies.copy_model(model).double()
                if self.redraw:
                    weights.reset(model, self.redraw.state(weights.state_of(session.eager), session.seed))
            question = self.question.of_call(wide.wide_call(self.question.pristine), model)
            process_state.seed_draws(session.spec.changes_state, model)
            asked = replace(question, precision=None, device="cpu", differentiate=self.backward)
            found = evaluation.evaluate(model, model, asked).tensors[fault.tensor]
        except Exception:  # noqa: BLE001 -- a model may refuse float64 with what it likes
            return False
        size = 1.0 if ABSOLUTE in measure.detail else float(truth.norm())
        return found is not None and float((found - truth).norm()) <= ENOUGH * measure.budget * size


class _Shown(NamedTuple):
    """What a script shows of a tensor y: in words and as an expression; when it is wrong, what is right, its format."""

    what: str
    expression: str
    wrong: str = "shown(found) != shown(truth)"
    right: str = "float64 {shown(truth)}"
    form: str = ""


def _shown_of(fault: Discrepancy) -> _Shown:
    """What shows that a gate rejects a tensor; NotWrittenError if no simple expression does."""
    gate, budget, detail = fault.measures[0].gate, fault.measures[0].budget, fault.measures[0].detail
    narrow, asked = "float16" if " float16" in detail else "bfloat16", f"torch.{fault.dtype_asked}"
    others = {
        "dtype": _Shown("dtype", "y.dtype", f"found.dtype != {asked}", f"right {asked}"),
        "class": _Shown("how many are infinite, and NaN", "(int(y.isinf().sum()), int(y.isnan().sum()))"),
        "exact": _Shown("elements that differ", "int((y != truth.to(y.dtype)).sum())", "shown(found) > 0", "right 0"),
        "precision": _Shown(
            f"share of elements that {narrow} holds",
            f"float((y == y.to(torch.{narrow}).to(y.dtype)).double().mean())",
            f"shown(found) > {budget!r}",
            f"bound {budget:.0%}",
            ":.0%",
        ),
        "requires_grad": _Shown("requires_grad", "y.requires_grad"),
        "shape": _Shown("shape", "None if y is None else tuple(y.shape)"),
    }
    if gate in VALUES:
        return _Shown(*_error(gate, detail), f"not shown(found) <= {budget!r}", f"bound {budget:.3g}", ":.3g")
    if gate == "structure":
        gate = "requires_grad" if "requires_grad" in detail else "shape" if detail.startswith(("shape", "None")) else ""
    if gate not in others:
        raise NotWrittenError(f"the verdict is not on a tensor alone: {detail}")
    return others[gate]


def _error(gate: str, detail: str) -> tuple[str, str]:
    """What the measure of a gate is in words, and its expression for a tensor y and the truth."""
    gap, part = "(y.to(truth.dtype) - truth)", re.fullmatch(r"slice (\d+) of axis (\d+)", detail)
    if gate == "norm" and ABSOLUTE in detail:
        return "norm of the error", f"float({gap}.norm())"
    if gate == "norm":
        return "relative error in the norm", f"float({gap}.norm() / truth.norm())"
    if part:
        norm = f".select({part[2]}, {part[1]}).norm()"
        return f"relative error of {detail}", f"float({gap}{norm} / truth{norm})"
    if gate == "gain" and not detail:
        return "error along the truth", f"float(({gap} * truth).sum().abs() / truth.square().sum())"
    if gate == "pointwise":
        size = "(truth.abs() + truth.square().mean().sqrt())"
        return "largest error over |truth| + its root mean square", f"float(({gap}.abs() / {size}).max())"
    raise NotWrittenError(f"the gate {gate} measures {detail}")


def _expression(value: Any, names: Mapping[int, str]) -> str:
    """An argument, whose tensors are in `given` by name."""
    if isinstance(value, torch.Tensor):
        if id(value) not in names:
            raise NotWrittenError("an argument is a sparse tensor")
        return f"given[{names[id(value)]!r}]"
    if type(value) in (list, tuple):
        parts = "".join(f"{_expression(part, names)}, " for part in value)
        return f"[{parts}]" if type(value) is list else f"({parts})"
    if type(value) is dict:
        return f"{{{', '.join(f'{literal(key)}: {_expression(part, names)}' for key, part in value.items())}}}"
    return literal(value)


def _numbers(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    """What `numbers` of a script gives."""
    return inputs.representable(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors in the format of safetensors: the length of a head in JSON, the head, and the numbers."""
    head, parts, start = {}, [], 0
    for name, tensor in tensors.items():
        parts.append(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
        offsets = [start, start + tensor.nbytes]
        head[name] = {"dtype": FORMATS[tensor.dtype], "shape": [*tensor.shape], "data_offsets": offsets}
        start = offsets[1]
    text = json.dumps(head).encode()
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
