"""Claims: the rule in numbers, the page in words, and true and false claims from the file to the page."""

import re

import pytest
import torch

from conformance import claims, published, replication
from conformance.axes import UsageError
from conformance.curve import Point
from conformance.interval import Ratio
from conformance.replication import Published, Replica, figure, word

TEXT = "a|b pays"


def ratio(middle, low, high):
    return Ratio(middle, low, high, pairs=20, processes=3)


HOLDS, SOME, NONE, LOSS, NOISE = (
    ratio(2.0, 1.9, 2.1),
    ratio(1.5, 1.4, 1.6),
    ratio(1.0, 0.99, 1.01),
    ratio(0.5, 0.4, 0.6),
    ratio(1.0, 0.8, 1.3),
)


def claim(**changes):
    told = {"model": "new", "knob": "rows", "sizes": (8, 64), "text": TEXT, "source": "a post", "factor": 2.0}
    told |= {"quantity": "forward", "baseline": "old", "device": "cpu"}
    told |= {"mode": "eager", "precision": "fp32", "baseline_mode": "eager", "baseline_precision": "fp32"}
    return Published(**(told | changes))


@pytest.mark.parametrize(
    ("found", "factor", "expected"),
    [
        (ratio(2.0, 1.80, 2.2), 2.0, "reproduced"),
        (ratio(2.0, 1.79, 2.2), 2.0, "weaker"),
        (ratio(90.0, 80.2, 99.0), 100.0, "reproduced"),
        (ratio(90.0, 80.1, 99.0), 100.0, "weaker"),
        (ratio(9.0, 8.9, 9.1), 2.0, "reproduced"),
        (ratio(1.025, 1.02, 1.03), 1.02, "same"),
        (ratio(1.03, 1.028, 1.04), 1.02, "too noisy"),
        (NONE, 1.5, "same"),
        (LOSS, 1.5, "worse"),
        (NOISE, 1.5, "too noisy"),
    ],
)
def test_four_fifths_of_a_published_gain_reproduce_it(found, factor, expected):
    assert word(found, factor) == expected


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ((HOLDS, HOLDS), "reproduced"),
        ((SOME, SOME), "weaker"),
        ((HOLDS, SOME), "size-dependent"),
        ((HOLDS, NONE), "size-dependent"),
        ((LOSS, SOME), "size-dependent"),
        ((NONE, NONE), "not reproduced"),
        ((LOSS, NONE), "not reproduced"),
        ((HOLDS, NOISE), "reproduced"),
        ((HOLDS, None), "reproduced"),
        ((NONE, None), "not reproduced"),
        ((NOISE, None), "no figure"),
        ((None, None), "no figure"),
    ],
)
def test_the_verdict_over_sizes_is_that_of_those_with_a_clear_answer(found, verdict):
    points = tuple(Point(size, r, "" if r else "too slow: 9 s") for size, r in zip((8, 64), found, strict=True))
    assert Replica(claim(), points).verdict == verdict


def test_a_figure_without_a_ratio_is_the_reason_in_short():
    assert figure(Point(8, None, "FAIL: new@8, gate norm"), 2.0) == "FAIL"
    assert figure(Point(8, NOISE), 2.0) == "~1.00 [0.80, 1.30] too noisy"
    assert figure(Point(8, ratio(1.5, 1.5, 1.5)), 2.0) == "▲1.50 weaker"


def rows_of(page):
    return [line for line in page.splitlines() if line.startswith("|")]


def row(replica):
    return rows_of(replication.page("here", [replica]))[2]


def test_a_row_has_claim_published_factor_measured_sizes_and_verdict():
    expected = (
        "| a\\|b pays<br>`new[eager-fp32]` against `old[eager-fp32]`, forward | 2×: a post "
        "| on cpu, by rows<br>8: ▲2.00 [1.90, 2.10] reproduced<br>64: ▲2.00 [1.90, 2.10] reproduced | reproduced |"
    )
    assert row(Replica(claim(), (Point(8, HOLDS), Point(64, HOLDS)))) == expected


def test_a_row_where_sizes_disagree_says_from_where_on_it_pays():
    assert row(Replica(claim(), (Point(8, LOSS), Point(64, HOLDS)))).endswith(
        "8: ▼0.50 [0.40, 0.60] worse<br>64: ▲2.00 [1.90, 2.10] reproduced | size-dependent: pays from rows 64 on |"
    )


def test_a_row_with_a_gain_at_every_size_says_where_it_is_the_published_one():
    assert row(Replica(claim(), (Point(8, SOME), Point(64, HOLDS)))).endswith(
        "| size-dependent: a gain everywhere, reproduced at rows 64 |"
    )


def test_a_row_of_an_absent_device_has_no_sizes():
    one = claim(device="cuda", mode="compiled", precision="amp_fp16", baseline="new", quantity="peak", factor=1.25)
    assert row(Replica(one, is_absent=True)) == (
        "| a\\|b pays<br>`new[compiled-amp_fp16]` against `new[eager-fp32]`, peak bytes of forward and backward "
        "| 1.25×: a post |  | needs CUDA |"
    )


def test_missing_figures_are_explained_once_under_the_table():
    replica = Replica(claim(), (Point(8, HOLDS), Point(64, None, "too slow: 9 s a call")))
    page = replication.page("torch 9 · 1 thread", [replica, replica])
    assert "\ntorch 9 · 1 thread\n" in page
    assert rows_of(page)[0] == "| claim | published | measured | verdict |"
    assert page.endswith("Why figures are missing:\n\n- `new@64[eager-fp32-cpu]`: too slow: 9 s a call\n")
    assert len(rows_of(page)) == 4


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
    return published.make({"sources": list(named), "seed": 0, "deadline": 1.0}, lambda _: None)


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
