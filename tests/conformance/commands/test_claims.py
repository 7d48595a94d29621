"""Claims, true and false, from the file to the page, and what is planned to test them."""

import re

import pytest
import torch
from test_replication import rows_of

from conformance.commands import claims
from conformance.plan import claims
from conformance.axes import UsageError

SPECS = """
import torch
from zoo.case import Case
from zoo.claim import Claim
from zoo.scale import Scale
from zoo.spec import Spec

def draw(n, generator):
    return (torch.randn(n, 4, generator=generator),)

def repeated(times):
    def model(x):
        for _ in range(times):
            x = x.sin()
        return x
    return model

def spec(name, model, **more):
    scale = Scale(knob="rows", sizes=(64,), build=lambda n: model, inputs=draw)
    case = Case(name="typical", inputs=lambda g: draw(8, g))
    return Spec(
        name=name, summary="s", source="s", build=lambda: model, cases=(case,), dtypes="input",
        **({"scale": scale} | more),
    )

def claim(text, factor, **more):
    return Claim(**({"text": text, "source": "a post", "factor": factor, "quantity": "forward", "baseline": "many"}
                    | more))
"""
TRUE_AND_FALSE = (
    SPECS
    + """
FEW = spec("few", repeated(2), claims=(
    claim("true", 2.0),
    claim("boasting", 1000.0),
    claim("counted", 2.0, quantity="saved"),
    claim("elsewhere", 2.0, device="cuda"),
))
MANY = spec("many", repeated(40), claims=(claim("upside down", 2.0, baseline="few"),))
"""
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The exit code and the rows of a page, by the text of the claim."""
    folder = tmp_path_factory.mktemp("claims")
    (folder / "nets.py").write_text(TRUE_AND_FALSE)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "CONFORMANCE_PRELOAD"):
            patch.setenv(name, "")  # the command sets them; this puts them back
        code = claims.main([str(folder / "nets.py")], folder / "claims.md")
    page = (folder / "claims.md").read_text(encoding="utf-8")
    return code, {line.split("<br>")[0].removeprefix("| "): line for line in rows_of(page)[2:]}


def test_every_claim_gets_a_row_in_the_order_of_the_file(measured):
    code, rows = measured
    assert code == 0
    assert list(rows) == ["true", "boasting", "counted", "elsewhere", "upside down"]


@pytest.mark.parametrize(
    ("text", "figure", "verdict"),
    [("true", "64: ▲", "reproduced"), ("boasting", "64: ▲", "weaker"), ("upside down", "64: ▼", "not reproduced")],
)
def test_a_true_claim_is_reproduced_and_a_false_one_is_not(measured, text, figure, verdict):
    _, rows = measured
    if re.search(r"64: (too noisy|control failed|no steady state) \| no figure \|$", rows[text]):
        pytest.skip("the machine was too busy for the meter to vouch for a figure")
    assert figure in rows[text]
    assert rows[text].endswith(f"| {verdict} |")


def test_the_meter_vouches_for_a_figure_somewhere(measured):
    _, rows = measured
    assert any(sign in rows[text] for text in ("true", "boasting", "upside down") for sign in "▲▼")


def test_bytes_are_counted(measured):
    _, rows = measured
    all_but_the_inputs = "64: ▲39 reproduced"  # each sine saves what it was given
    assert rows["counted"].endswith(f"| on cpu, by rows<br>{all_but_the_inputs} | reproduced |")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_claim_about_cuda_is_not_tested_on_the_cpu(measured):
    _, rows = measured
    assert rows["elsewhere"].endswith("|  | needs CUDA |")


def test_a_red_model_has_no_figure_and_the_command_says_so(tmp_path, capsys, monkeypatch):
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "CONFORMANCE_PRELOAD"):
        monkeypatch.setenv(name, "")
    path = tmp_path / "nets.py"
    path.write_text(
        SPECS
        + """
MANY = spec("many", repeated(40))
RANDOM = spec("random", lambda x: x + torch.rand_like(x), claims=(claim("by chance", 2.0),))
"""
    )
    assert claims.main([str(path)], None) == 1
    (line,) = rows_of(capsys.readouterr().out)[2:]
    assert line.endswith("| on cpu, by rows<br>64: UNSTABLE | no figure |")


def planned(*named):
    return claims.make({"sources": list(named), "seed": 0, "deadline": 1.0}, lambda _: None)


def test_a_plan_holds_each_cell_that_a_claim_compares_once(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(TRUE_AND_FALSE)
    found = planned(str(path))
    assert [(c["model"], c["mode"], c["precision"], c["device"]) for c in found["cells"]] == [
        ("many@64", "eager", "fp32", "cpu"),
        ("few@64", "eager", "fp32", "cpu"),
        ("many@64", "eager", "fp32", "cuda"),
        ("few@64", "eager", "fp32", "cuda"),
    ]
    assert found["models"] == {name: {"module": "", "file": str(path)} for name in ("many@64", "few@64")}


def test_a_claim_that_names_no_device_is_tested_on_each_that_is_here(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    path = tmp_path / "nets.py"
    path.write_text(SPECS + "FEW = spec('few', repeated(2), claims=(claim('t', 2.0, baseline='merge', sizes=(16,)),))")
    assert [claim["device"] for claim in planned(str(path))["claims"]] == ["cpu", "cuda"]


def test_a_claim_about_what_a_device_lacks_is_refused(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(SPECS + "FEW = spec('few', repeated(2), claims=(claim('t', 2.0, baseline='few', mode='graphed'),))")
    assert planned(str(path))["usage"] == "few: claim 't': there is no few[graphed-fp32-cpu]; name a device"


def test_a_baseline_may_live_elsewhere_in_the_zoo(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(SPECS + "FEW = spec('few', repeated(2), claims=(claim('t', 2.0, baseline='merge', sizes=(16,)),))")
    assert planned(str(path))["models"] == {
        "merge@16": {"module": "zoo.models.merge", "file": ""},
        "few@16": {"module": "", "file": str(path)},
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
    assert message in planned(str(tmp_path / "nets.py"))["usage"]


def test_each_source_must_make_a_claim():
    assert planned("batch_gather_vectorised", "merge")["usage"] == "merge makes no claims"


def test_a_path_that_cannot_be_written_is_refused_first(tmp_path):
    with pytest.raises(UsageError, match=r"--write .*nowhere/claims.md: No such file or directory"):
        claims.main(["no_such_model"], tmp_path / "nowhere" / "claims.md")
    with pytest.raises(UsageError, match="no model named 'no_such_model'"):
        claims.main(["no_such_model"], tmp_path / "claims.md")
    assert list(tmp_path.iterdir()) == []
