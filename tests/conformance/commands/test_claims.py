"""Claims, true and false, from the file to the page."""

import re

import pytest
import torch
from harness.claim_specs import SPECS, TRUE_AND_FALSE

from conformance.commands import claims
from conformance.errors import UsageError
from conformance.exit_codes import ExitCode
from conformance.records.tasks import PlanRequest
from conformance.run import environment


@pytest.fixture(scope="module", autouse=True)
def _environment():
    """What the command sets for its children is undone."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (environment.CACHE, environment.THREADS, environment.COMPILES_FOR):
            patch.setenv(name, "")  # so that it is put back, or removed
            patch.delenv(name)
        yield


def rows_of(page):
    return [line for line in page.splitlines() if line.startswith("|")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The exit code and the rows of a page, by the text of the claim."""
    folder = tmp_path_factory.mktemp("claims")
    (folder / "nets.py").write_text(TRUE_AND_FALSE)
    code = claims.main(PlanRequest((str(folder / "nets.py"),)), folder / "claims.md")
    page = (folder / "claims.md").read_text(encoding="utf-8")
    return code, {line.split("<br>")[0].removeprefix("| "): line for line in rows_of(page)[2:]}


def test_every_claim_gets_a_row_in_the_order_of_the_file(measured):
    code, rows = measured
    assert code == ExitCode.OK
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
    all_but_the_inputs = "64: ▲20 reproduced"  # each sine saves what it was given
    assert rows["counted"].endswith(f"| on cpu, by rows<br>{all_but_the_inputs} | reproduced |")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_claim_about_cuda_is_not_tested_on_the_cpu(measured):
    _, rows = measured
    assert rows["elsewhere"].endswith("|  | needs CUDA |")


def test_a_red_model_has_no_figure_and_makes_the_command_red(tmp_path, capsys):
    path = tmp_path / "nets.py"
    path.write_text(
        SPECS
        + """
MANY = spec("many", repeated(40))
RANDOM = spec("random", lambda x: x + torch.rand_like(x), claims=(claim("by chance", 2.0),))
"""
    )
    assert claims.main(PlanRequest((str(path),)), None) == ExitCode.RED
    (line,) = rows_of(capsys.readouterr().out)[2:]
    assert line.endswith("| on cpu, by rows<br>64: UNSTABLE | no figure |")


def test_a_path_that_cannot_be_written_is_refused_first(tmp_path):
    with pytest.raises(UsageError, match=r"--write .*nowhere/claims.md: No such file or directory"):
        claims.main(PlanRequest(("no_such_model",)), tmp_path / "nowhere" / "claims.md")
    with pytest.raises(UsageError, match="no model named 'no_such_model'"):
        claims.main(PlanRequest(("no_such_model",)), tmp_path / "claims.md")
    assert list(tmp_path.iterdir()) == []
