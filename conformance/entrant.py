"""One cell made ready to be timed, and the judgement of one of its timed calls, drawn by lot."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import SGD
from torch.utils import _pytree as pytree

from conformance import evaluation, inputs, modes, tf32
from conformance.cell import Run
from conformance.evaluation import FIRST, Answer
from conformance.judge import judge
from conformance.records import Observation
from conformance.reference import CaseReference
from conformance.timing import Contestant, NotMeasuredError
from zoo.training.step import Step, train_step

LEARNING_RATE = 1e-6  # a step's arithmetic without its consequences: the weights stay where they are
LOSS_SCALE = 2.0**10  # no step is skipped at first, as some are from torch's own 2¹⁶


class Entrant:
    """A cell's callable on the first case, called and proven once.

    Args:
        run: of the cell.
        known: the reference of the model's first case.
        expect: the expectations that concern the cell.
        figure: `forward` alone, where the caller switches gradients off; `gradient`, which is
            forward and backward; `step`, with loss and optimiser around them; `fit`, the spec's whole training.

    Attributes:
        run: of the cell.
        contestant: to be timed.

    Raises:
        NotMeasuredError: the model has no such figure.
        Whatever the mode or the model raises.
    """

    def __init__(self, run: Run, known: CaseReference, expect: Sequence[Mapping[str, Any]], figure: str) -> None:
        self.run, self._known, self._expect, self._figure = run, known, expect, figure
        self._lot, self._seen, self._kept = random.Random(run.seed), 0, None  # noqa: S311 -- a lot, no secret
        spec = run.spec
        tf32.switch(run.precision)
        if (figure == "fit") != (spec.fit is not None):
            raise NotMeasuredError(f"no {figure}: {spec.name} is {'a' if spec.fit else 'no'} training")
        eager = run.build()
        made = modes.prepare(run.mode, spec, run.build)
        self._owner = made.parameters_of
        run.dtypes = {name: t.dtype for name, t in evaluation.state_of(self._owner).items()}
        self._state = evaluation.state_of(self._owner)
        asked = run.question(spec.cases[0], known, eager)
        # of second derivatives there is no figure, so none are taken
        self._question = replace(asked, second=False, differentiate=asked.differentiate and figure != "forward")
        for _ in range(1 + run.mode.warm_calls):
            evaluation.evaluate(made.call, self._owner, self._question)
            self._restore()
        made.proof()
        self._baseline = None if run.is_eager else run.baseline(eager, self._question)
        self._call = made.call if made.bare is None else made.bare
        self._leaves = {n: t for n, t in evaluation.leaves_of(self._owner, self._question).items() if t.requires_grad}
        self.contestant = Contestant(run.cell.id, getattr(self, f"_{figure}")(), self._before())

    def _restore(self) -> None:
        evaluation.reset(self._owner, self._state)
        inputs.restore(self._question.call, self._question.pristine)

    def _before(self) -> Callable[[], None] | None:
        """What has to be put back before each sample; None where a call leaves nothing behind."""
        put_back = self._put_back()
        if self.run.cell.device == "cpu":
            return put_back

        def switched() -> None:
            tf32.switch(self.run.precision)  # another entrant of this process may have another
            if put_back is not None:
                put_back()

        return switched

    def _put_back(self) -> Callable[[], None] | None:
        if self._figure == "fit":
            return self._restore
        has_buffers = isinstance(self._owner, torch.nn.Module) and any(True for _ in self._owner.buffers())
        if not has_buffers and not self._question.mutates:
            return None

        def put_back() -> None:
            evaluation.reset_buffers(self._owner, self._state)
            if self._question.mutates:
                inputs.restore(self._question.call, self._question.pristine)

        return put_back

    def _forward(self) -> Callable[[], Any]:
        """Entering autocast is part of it, since whoever calls the model pays for that too."""
        call = partial(self._call, *self._question.call.args, **self._question.call.kwargs)
        if not self.run.precision.autocast:
            return call

        def under_autocast() -> Any:
            with evaluation.autocast(self._question):
                return call()

        return under_autocast

    def _gradient(self) -> Callable[[], Any]:
        forward = self._forward()
        roots, cotangents = self._cotangents(forward())
        leaves = list(self._leaves.values())
        if not leaves:
            raise NotMeasuredError("no gradient: no input and no parameter takes one")

        def forward_and_backward() -> Any:
            returned = forward()
            return returned, torch.autograd.grad(roots(returned), leaves, cotangents, allow_unused=True)

        return forward_and_backward

    def _cotangents(self, returned: Any) -> tuple[Callable[[Any], list[torch.Tensor]], list[torch.Tensor]]:
        """What picks the outputs to differentiate, and a cotangent for each."""
        named = inputs.named_leaves(returned, "output")
        named = {n: t for n, t in named.items() if isinstance(t, torch.Tensor) and t.requires_grad}
        if not named:
            raise NotMeasuredError("no gradient: no output takes one")
        cotangents = [inputs.cotangent(n, t, self._question.seed) * self._question.scale for n, t in named.items()]
        if isinstance(returned, torch.Tensor):
            return lambda tensor: [tensor], cotangents
        return _differentiable, cotangents

    def _step(self) -> Callable[[], Step]:
        parameters = list(self._owner.parameters()) if isinstance(self._owner, torch.nn.Module) else []
        if not parameters:
            raise NotMeasuredError("no step: there are no parameters to train")
        roots, cotangents = self._cotangents(self._forward()())
        weights = [c.float() / c.numel() for c in cotangents]
        optimizer = SGD(parameters, lr=LEARNING_RATE)
        device = self.run.cell.device
        half = self.run.precision.name == "amp_fp16"
        scaler = GradScaler(device, init_scale=LOSS_SCALE, enabled=half)
        call = partial(self._call, *self._question.call.args, **self._question.call.kwargs)

        def loss(returned: Any, _: torch.Tensor) -> torch.Tensor:
            return torch.stack([(t * w).sum() for t, w in zip(roots(returned), weights, strict=True)]).sum()

        def model(_: torch.Tensor) -> Any:
            return call()

        nothing = torch.empty(0, device=device)
        return partial(train_step, model, loss, (nothing, nothing), optimizer, self.run.precision.for_training, scaler)

    def _fit(self) -> Callable[[], Any]:
        fit = self.run.spec.fit
        assert fit is not None
        return partial(fit, self._call, self._owner, self.run.precision.for_training, *self._question.call.args)

    def see(self, result: Any) -> None:
        """Keep the result of a timed call, each with the same chance."""
        self._seen += 1
        if self._figure != "step" and self._lot.random() * self._seen < 1:
            self._kept = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), result)

    def objection(self) -> str:
        """What is wrong with the kept result; "" if nothing is, or none was kept."""
        if self._kept is None:
            return ""
        returned, gradients = self._kept if self._figure == "gradient" else (self._kept, ())
        answer = Answer(inputs.named_leaves(returned, "output"), self._known.requires_grad)
        for name, gradient in zip(self._leaves if gradients else (), gradients, strict=True):
            answer.tensors[f"{FIRST} {name}"] = None if gradient is None else gradient / self._question.scale
        timed = {name: bounds for name, bounds in self._known.bounds.items() if name in answer.tensors}
        known = replace(self._known, bounds=timed)
        case = self.run.spec.cases[0]
        found = self.run.compared(case, known, self._question, answer, answer, self._baseline)
        verdict = judge(self.run.cell.id, Observation("finished", discrepancies=tuple(found)), self._expect)
        return verdict.text if verdict.status == "FAIL" else ""


def _differentiable(returned: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(returned) if isinstance(t, torch.Tensor) and t.requires_grad]
