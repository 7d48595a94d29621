"""CUDA graphs as a mode: where none is recorded, the cell proves nothing. What a GPU does is in test_cuda.py."""

from dataclasses import replace

import pytest
import torch
from harness.plans import plan_of
from harness.specs import CORRECT_FILES

from conformance.cell import compiled, modes
from conformance.errors import NotProvenError
from conformance.judging.executor import Executor


def test_compiled_code_that_was_left_without_graphs_is_void(tmp_path):
    plan = replace(plan_of(*CORRECT_FILES), deadline=120.0)
    planned = next(p for p in plan.cells if p.cell.mode == "compiled" and p.cell.precision == "fp32")
    planned = replace(planned, cell=replace(planned.cell, mode="graphed"))
    verdict = Executor(plan, tmp_path).verdict(planned)
    assert verdict.status == "VOID"
    assert verdict.text.startswith("in phase")
    assert "0 CUDA graphs were recorded" in verdict.text


@pytest.mark.parametrize(
    ("graphs", "left_out", "said"),
    [
        (0, 0, "0 CUDA graphs were recorded, 0 compiled graphs were left without"),
        (2, 1, "2 CUDA graphs were recorded, 1 compiled graphs were left without"),
        (2, 0, ""),
    ],
)
def test_the_proof_wants_a_graph_of_everything_compiled(monkeypatch, graphs, left_out, said):
    from torch._dynamo.utils import counters  # noqa: PLC0415 -- heavy

    import zoo  # noqa: PLC0415

    counters.clear()  # an earlier test may have left graph breaks
    monkeypatch.setattr(compiled, "_recorded_graphs", lambda: graphs)
    monkeypatch.setitem(counters["inductor"], "cudagraph_skips", left_out)
    marked = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(True))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    made = modes.BUILDERS["graphed"](zoo.get_spec("sinh"), lambda: torch.sinh)
    assert made.unchecked_call(torch.zeros(2)).tolist() == [0.0, 0.0]
    assert marked == [True]
    if said:
        with pytest.raises(NotProvenError, match=said):
            made.proof()
    else:
        assert made.proof()["CUDA graphs"] == graphs
