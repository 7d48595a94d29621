"""CUDA graphs as a mode: where none is recorded, the cell proves nothing. What a GPU does is in test_cuda.py."""

from pathlib import Path

import pytest
import torch
from planning import plan_of

from conformance.cell import modes
from conformance.run.executor import Execution


def test_compiled_code_that_was_left_without_graphs_is_void(tmp_path):
    plan = {**plan_of("correct_models.py"), "deadline": 120.0}
    planned = next(c for c in plan["cells"] if c["mode"] == "compiled" and c["precision"] == "fp32")
    verdict = Execution(plan, Path(tmp_path)).verdict({**planned, "mode": "graphed"})
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

    monkeypatch.setattr(modes, "_recorded_graphs", lambda: graphs)
    monkeypatch.setitem(counters["inductor"], "cudagraph_skips", left_out)
    marked = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(True))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    made = modes.BUILDERS["graphed"](zoo.get_spec("sinh"), lambda: torch.sinh)
    assert made.bare(torch.zeros(2)).tolist() == [0.0, 0.0]
    assert marked == [True]
    if said:
        with pytest.raises(modes.NotProvenError, match=said):
            made.proof()
    else:
        assert made.proof()["CUDA graphs"] == graphs
