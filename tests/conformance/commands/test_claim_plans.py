"""What is planned to test the claims of a file."""

import pytest
import torch
from harness.claim_specs import SPECS, TRUE_AND_FALSE

from conformance.errors import UsageError
from conformance.plan import claims
from conformance.records.cell import Cell
from conformance.records.plan import SpecLocation
from conformance.records.tasks import PlanRequest
from conformance.run.child_side import ChildProcess


def planned(*sources):
    return claims.make(PlanRequest(sources), ChildProcess())


def why_not(*sources):
    """Why the claims of some sources cannot be planned."""
    with pytest.raises(UsageError) as refused:
        planned(*sources)
    return str(refused.value)


def test_a_plan_holds_each_cell_that_a_claim_compares_once(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(TRUE_AND_FALSE)
    found = planned(str(path))
    assert [p.cell for p in found.cells] == [
        Cell("many@64", "eager", "fp32", "cpu"),
        Cell("few@64", "eager", "fp32", "cpu"),
        Cell("many@64", "eager", "fp32", "cuda"),
        Cell("few@64", "eager", "fp32", "cuda"),
    ]
    assert found.models == {name: SpecLocation(file=str(path)) for name in ("many@64", "few@64")}


def test_a_claim_that_names_no_device_is_tested_on_each_that_is_here(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    path = tmp_path / "nets.py"
    path.write_text(SPECS + "FEW = spec('few', repeated(2), claims=(claim('t', 2.0, baseline='merge', sizes=(16,)),))")
    assert [claim.device for claim in planned(str(path)).claims] == ["cpu", "cuda"]


def test_a_claim_about_a_mode_that_a_device_lacks_is_refused(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(SPECS + "FEW = spec('few', repeated(2), claims=(claim('t', 2.0, baseline='few', mode='graphed'),))")
    assert why_not(str(path)) == "few: claim 't': there is no few[graphed-fp32-cpu]; name a device"


def test_a_baseline_may_be_elsewhere_in_the_zoo(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(SPECS + "FEW = spec('few', repeated(2), claims=(claim('t', 2.0, baseline='merge', sizes=(16,)),))")
    assert planned(str(path)).models == {
        "merge@16": SpecLocation("zoo.models.merge"),
        "few@16": SpecLocation(file=str(path)),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FEW = spec('few', repeated(2))", "nets.py makes no claims"),
        ("FEW = spec('few', repeated(2), claims=(claim('t', 2.0),))", "few: claim 't': no model named 'many'"),
        ("FEW = spec('few', repeated(2), scale=None, claims=(claim('t', 2.0),))", "few: claim 't': few has no scale"),
        (
            "FEW = spec('few', repeated(2), claims=(claim('t', 2.0),))\nMANY = spec('many', repeated(9), scale=None)",
            "few: claim 't': many has no scale, so there is no many@64",
        ),
        (
            "FEW = spec('few', repeated(2), claims=(claim('t', 2.0, mode='magic', baseline='few'),))",
            "unknown mode 'magic'",
        ),
    ],
)
def test_a_claim_that_cannot_be_tested_is_named(tmp_path, text, message):
    (tmp_path / "nets.py").write_text(SPECS + text)
    assert message in why_not(str(tmp_path / "nets.py"))


def test_each_source_must_make_a_claim():
    assert why_not("batch_gather_vectorised", "merge") == "merge makes no claims"
