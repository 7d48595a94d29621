"""Prepares one cell for timing, and checks one of its timed calls, drawn at random."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from conformance.cell import policy
from conformance.cell.session import CellSession
from conformance.errors import NotMeasuredError
from conformance.evaluate import containers, evaluation, inputs, process_state, weights
from conformance.figures.meter import TimedCall
from conformance.measure.costs import roots_of
from conformance.records.cell import Observation
from conformance.verdict import judge
from zoo import internals
from zoo.training.step import Step, train_step

LEARNING_RATE = 1e-6  # the arithmetic of a step without its effect: the weights hardly move
LOSS_SCALE = 2.0**10  # no step is skipped at first, as some are with torch's default of 2¹⁶


class TimedCell:
    """A cell's callable on the first case, called and proven once; `call` is the call to time.

    Args:
        session: the session of the cell, with its references.
        figure: "forward": forward alone, for which the caller switches gradients off; "gradient": forward and
            backward; "step": forward and backward with loss and optimiser; "fit": the spec's whole training.

    Raises:
        NotMeasuredError: the model has no such figure, or its calls could not be checked.
        Whatever the mode or the model raises.
    """

    def __init__(self, session: CellSession, figure: str) -> None:
        self.session, self._figure = session, figure
        self._random, self._seen, self._kept = random.Random(session.seed), 0, None  # noqa: S311 -- no secret
        spec = session.spec
        policy.switch_tf32(session.precision)
        if (figure == "fit") != (spec.fit is not None):
            raise NotMeasuredError(f"no {figure}", f"{spec.name} is {'a' if spec.fit else 'no'} training")
        eager = session.build()
        made = session.prepare()
        self._owner = made.parameters_of
        self._state = weights.state_of(self._owner)
        asked = session.question(spec.cases[0], eager)
        # there is no figure of second derivatives or transforms, so none are taken
        asked = replace(asked, second=False, stacked=None, forward_mode=False)
        self._question = replace(asked, differentiate=asked.differentiate and figure != "forward")
        with policy.draw_as_the_oracle(spec, session.precision) as drew:
            for _ in range(1 + session.mode.warm_calls):
                evaluation.evaluate(made.call, self._owner, self._question)
                self._restore()
        if drew:
            other = "its timed calls draw other numbers than the oracle and cannot be checked"
            raise NotMeasuredError("other draws", other)
        made.proof()
        self._baseline = None if session.is_eager else session.baseline(eager, self._question)
        self._call, self._given = made.timed_call, inputs.fresh(self._question.call)
        self._leaves = {n: t for n, t in evaluation.leaves_of(self._owner, self._question).items() if t.requires_grad}
        figures = {"forward": self._forward, "gradient": self._gradient, "step": self._step, "fit": self._fit}
        self.call = TimedCall(session.cell.id, figures[figure](), self._before())

    def _restore(self) -> None:
        weights.reset(self._owner, self._state)
        inputs.restore(self._question.call, self._question.pristine)

    def _before(self) -> Callable[[], None] | None:
        """A function that restores the state before each sample; None if a call changes no state."""
        put_back = self._put_back()
        if self.session.cell.device == "cpu":
            return put_back

        def switch_then_call() -> None:
            policy.switch_tf32(self.session.precision)  # another cell of this process may have another precision
            if put_back is not None:
                put_back()

        return switch_then_call

    def _put_back(self) -> Callable[[], None] | None:
        if self._figure == "fit":
            return self._restore
        has_buffers = isinstance(self._owner, torch.nn.Module) and any(True for _ in self._owner.buffers())
        draws = process_state.DRAWS in self._question.changes_state
        contained = inputs.has_containers(self._question.call)
        if not has_buffers and not self._question.mutates and not draws and not contained:
            return None
        parameters = weights.parameters_of(self._owner)
        written = [name for name in self._question.mutates if name in parameters]

        def put_back() -> None:
            process_state.seed_draws(self._question.changes_state, self._owner)
            weights.reset_buffers(self._owner, self._state)
            for name in written:
                parameters[name].data.copy_(self._state[name])  # hidden from autograd, as buffers are
            if self._question.mutates:
                inputs.restore(self._question.call, self._question.pristine)
            if contained:
                self._given = inputs.fresh(self._question.call)

        return put_back

    def _inner_call(self) -> Any:
        return self._call(*self._given.args, **self._given.kwargs)

    def _forward(self) -> Callable[[], Any]:
        """Forward, with the entry into autocast, because every call of the model pays for that too."""
        call = self._inner_call
        if not self.session.precision.autocast:
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
            raise NotMeasuredError("no gradient", "no input and no parameter takes one")

        def forward_and_backward() -> Any:
            returned = forward()
            return returned, torch.autograd.grad(roots(returned), leaves, cotangents, allow_unused=True)

        return forward_and_backward

    def _cotangents(self, returned: Any) -> tuple[Callable[[Any], list[torch.Tensor]], list[torch.Tensor]]:
        """A function that picks the outputs to differentiate, and a cotangent for each."""
        named = roots_of(returned)
        if not named:
            raise NotMeasuredError("no gradient", "no output takes one")
        cotangents = [inputs.cotangent(n, t, self._question.seed) * self._question.scale for n, t in named.items()]
        if isinstance(returned, torch.Tensor):
            return lambda tensor: [tensor], cotangents
        return lambda outputs: list(roots_of(outputs).values()), cotangents

    def _step(self) -> Callable[[], Step]:
        parameters = list(self._owner.parameters()) if isinstance(self._owner, torch.nn.Module) else []
        if not parameters:
            raise NotMeasuredError("no step", "there are no parameters to train")
        roots, cotangents = self._cotangents(self._forward()())
        weights = [c.float() / c.numel() for c in cotangents]
        optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
        device = self.session.cell.device
        scaler = torch.amp.GradScaler(device, init_scale=LOSS_SCALE, enabled=self.session.precision.name == "amp_fp16")
        call = self._inner_call

        def loss(returned: Any, _: torch.Tensor) -> torch.Tensor:
            return torch.stack([(t * w).sum() for t, w in zip(roots(returned), weights, strict=True)]).sum()

        def model(_: torch.Tensor) -> Any:
            return call()

        nothing = torch.empty(0, device=device)
        precision = self.session.precision.for_training
        return partial(train_step, model, loss, (nothing, nothing), optimizer, precision, scaler)

    def _fit(self) -> Callable[[], Any]:
        fit = self.session.spec.fit
        assert fit is not None
        precision = self.session.precision.for_training
        return partial(fit, self._call, self._owner, precision, *self._question.call.args)

    def keep(self, result: Any) -> None:
        """Offer the result of a timed call. One of all results is kept, each with the same probability."""
        self._seen += 1
        if self._figure != "step" and self._random.random() * self._seen < 1:
            self._kept = internals.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), result)

    def wrong_result(self) -> str:
        """What is wrong with the kept result; "" if nothing is, or none was kept."""
        if self._kept is None:
            return ""
        session = self.session
        case = session.spec.cases[0]
        known = session.known(case)
        returned, gradients = self._kept if self._figure == "gradient" else (self._kept, ())
        outputs = containers.tensors_of(returned, device=session.cell.device)
        found = evaluation.Evaluation(evaluation.name_tensors("output", outputs), known.requires_grad)
        for name, gradient in zip(self._leaves if gradients else (), gradients, strict=True):
            leaf = None if gradient is None else inputs.dense(gradient) / self._question.scale
            found.tensors |= evaluation.name_tensors("gradient", {name: leaf})
        timed = {name: tensor for name, tensor in known.tensors.items() if name in found.tensors}
        known = replace(known, tensors=timed)
        seen = tuple(session.compared(case, known, self._question, found, found, self._baseline, drawn={}))
        verdict = judge(session.cell.id, Observation("finished", discrepancies=seen), session.expect)
        return verdict.text if verdict.status == "FAIL" else ""
