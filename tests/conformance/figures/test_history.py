"""Cells and probes through torch versions: since when, where it broke, where it was mended."""

import json
from dataclasses import replace

import pytest
from harness.made_by_hand import ENVIRONMENT
from harness.whole_runs import plan_of_zoo, verdict, write

from conformance import cli
from conformance.figures.history import History, State, version_of
from conformance.records.cell import Cell
from conformance.records.probes import ProbeFinding, ProbeRun
from conformance.store import files, run_files

CELL = "net[compiled-fp32-cpu]"
LOW = ("amp_fp16", "amp_bf16")
VERSIONS = ("2.4.1", "2.9.1", "2.10.0", "2.15.0+cpu")
REASON, LINK = "torch | breaks it", "https://github.com/pytorch/pytorch/issues/1"


def declared(status, short):
    return replace(verdict(CELL, status), short=short, reason=REASON, link=LINK)


def compat(tmp_path, *paths):
    """The exit code and the JSON document of some paths."""
    page = tmp_path / "compat.json"
    code = cli.main(["compat", *map(str, paths), "--json", str(page), "--md", str(tmp_path / "compat.md")])
    return code, json.loads(page.read_text())


def row_of(told):
    """What a document says of `CELL`."""
    (found,) = [row for row in told["cells"] if (row["cell"]["mode"], row["cell"]["precision"]) == ("compiled", "fp32")]
    return found


def runs_of(tmp_path, *statuses):
    """A run in each version; one cell has these statuses."""
    found = []
    for version, status in zip(VERSIONS, statuses, strict=False):
        odd = {CELL: status} if status else {}
        found.append(write(tmp_path / version, plan_of_zoo(("net",), torch=version), odd))
    return found


@pytest.mark.parametrize(
    ("statuses", "since", "broke", "mended"),
    [
        (("PASS", "PASS", "PASS", "PASS"), "2.4.1", [], []),
        (("FAIL", "FAIL", "PASS", "PASS"), "2.10.0", [], []),
        (("PASS", "FAIL", "PASS", "PASS"), "2.4.1", ["2.9.1"], ["2.10.0"]),
        (("PASS", "CRASH", "FAIL", "FAIL"), "2.4.1", ["2.9.1"], []),
        (("FAIL", "PASS", "FAIL", "PASS"), "2.9.1", ["2.10.0"], ["2.15.0"]),
        (("FAIL", "FAIL", "FAIL", "FAIL"), "", [], []),
        (("PASS", "SKIPPED", "FAIL", "PASS"), "2.4.1", ["2.10.0"], ["2.15.0"]),
    ],
)
def test_a_cell_through_versions(tmp_path, statuses, since, broke, mended):
    runs = runs_of(tmp_path, *statuses)
    code, told = compat(tmp_path, *reversed(runs))
    assert code == 0
    assert told["versions"] == ["2.4.1", "2.9.1", "2.10.0", "2.15.0"]
    assert len(told["cells"]) == 9
    found = row_of(told)
    assert (found["since"], found["broke"], found["mended"]) == (since, broke, mended)


def test_a_declared_dtype_works_and_a_declared_failure_does_not(tmp_path, capsys):
    runs = runs_of(
        tmp_path, declared("UNSUPPORTED", "refused"), declared("EXPECTED", "FAIL"), declared("EXPECTED", "float32"), ""
    )
    _, told = compat(tmp_path, *runs)
    found = row_of(told)
    assert [(span["versions"], span["state"]["kind"]) for span in found["spans"]] == [
        (["2.4.1"], "does not work"),
        (["2.9.1"], "does not work"),
        (["2.10.0"], "another dtype"),
        (["2.15.0"], "works"),
    ]
    assert found["since"] == "2.10.0"
    out = capsys.readouterr().out
    assert f"(1) {REASON}  {LINK}" in out
    row = next(line for line in out.splitlines() if line.startswith("net  "))
    assert row.split() == "net compiled fp32 cpu – – ≠ ✓ 2.10.0 (1)".split()
    assert "8 of 9 cells, of 1 models, work in each of the 4 versions that judged them." in out
    assert "torch &#124; breaks it" in (tmp_path / "compat.md").read_text()


def test_modes_and_precisions_with_the_same_history_stand_in_one_row(tmp_path, capsys):
    low = {f"net[{mode}-{precision}-cpu]": "FAIL" for mode in ("eager", "scripted") for precision in LOW}
    red = {**low, CELL: "CRASH"}
    compat(
        tmp_path, *(write(tmp_path / v, plan_of_zoo(("net",), torch=v), o) for v, o in (("2.4.1", low), ("2.9.1", red)))
    )
    told = capsys.readouterr().out
    changed, same = told.split("What is the same in every version that judged it:")
    rows = [[line.split() for line in part.splitlines() if line.startswith("net")] for part in (changed, same)]
    assert rows == [
        ["net compiled fp32 cpu ✓ ✗ 2.4.1 2.9.1".split()],
        ["net eager, scripted amp_fp16, amp_bf16 cpu ✗".split()],
    ]
    assert "4 of 9 cells, of 1 models, work in each of the 2 versions that judged them." in told


def test_shards_of_one_version_are_one_column(tmp_path):
    first, second = (write(tmp_path / model, plan_of_zoo((model,))) for model in ("net", "gate"))
    code, told = compat(tmp_path, first, second)
    assert (code, told["versions"], len(told["cells"])) == (0, ["2.13.0"], 18)


FINDING = ProbeFinding("lost", "EXPECTED", "a sum is lost", LINK, "two sums", "write it out")


def test_probes_make_an_atlas(tmp_path, capsys):
    paths = []
    for version, status in zip(VERSIONS, ("PASS", "EXPECTED", "FAIL", "UNSUPPORTED"), strict=True):
        found = ProbeRun(replace(ENVIRONMENT, torch=version), "cpu", (replace(FINDING, status=status),))
        paths.append(tmp_path / f"{version}.json")
        files.write_document(paths[-1], "probes", found)
        assert files.decode(paths[-1], paths[-1].read_bytes(), "probes", ProbeRun) == found
    code, told = compat(tmp_path, *paths)
    assert (code, told["cells"]) == (0, [])
    (fault,) = told["faults"]
    assert fault["states"] == {"2.4.1": "correct", "2.9.1": "shows", "2.10.0": "shows", "2.15.0": "UNSUPPORTED"}
    assert (fault["probe"]["link"], fault["probe"]["remedy"], fault["device"]) == (LINK, "write it out", "cpu")
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("lost"))
    assert row.split() == f"lost cpu ✓ ✗ ✗ · 2.9.1, 2.10.0 two sums {LINK}".split()
    page = (tmp_path / "compat.md").read_text()
    assert "write it out" in page
    assert LINK in page


def refused(capsys, *paths):
    assert cli.main(["compat", *map(str, paths)]) == 4
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    return said.err


def test_what_cannot_be_compared_is_four_in_one_line(tmp_path, capsys):
    one, other = (write(tmp_path / name, plan_of_zoo(("net",))) for name in "ab")
    assert f"{one} and {other} both judge net[eager-fp32-cpu] with torch 2.13.0" in refused(capsys, one, other)
    assert "is no run folder" in refused(capsys, one, tmp_path / "nowhere")
    seeded = write(tmp_path / "seeded", plan_of_zoo(("net",), torch="2.15.0", seed=3))
    assert "these runs have different seeds, 0, 3" in refused(capsys, one, seeded)
    built = write(tmp_path / "built", plan_of_zoo(("net",), torch="main"))
    assert "torch 'main' is no version" in refused(capsys, built)
    (other / run_files.DONE).write_bytes((other / run_files.DONE).read_bytes()[:-1])
    assert str(other / run_files.DONE) in refused(capsys, other)


def test_a_damaged_file_of_probes_is_four_in_one_line(tmp_path, capsys):
    path = tmp_path / "probes.json"
    files.write_document(path, "probes", ProbeRun(ENVIRONMENT, "cpu", (FINDING,)))
    assert "probe lost was run twice with torch 2.13.0 on cpu" in refused(capsys, path, path)
    whole = path.read_bytes()
    for data in (whole[:-1], whole.replace(b"two sums", b"two suns"), b"", b"{}", (tmp_path / "x").name.encode()):
        path.write_bytes(data)
        assert f"{path}: its checksum does not match" in refused(capsys, path)


def test_an_incomplete_run_counts_what_it_has(tmp_path, capsys):
    run = write(tmp_path / "run", plan_of_zoo(("net",)), {"net[eager-fp32-cpu]": "SKIPPED"}, left_out=[CELL])
    code, told = compat(tmp_path, run)
    assert (code, len(told["cells"])) == (0, 7)
    assert "7 cells of 8, incomplete" in capsys.readouterr().out


def test_the_build_of_a_torch_is_no_part_of_its_version():
    assert [version_of(name) for name in ("2.15.0+cpu", "2.16.0.dev20261101+cpu")] == ["2.15.0", "2.16.0.dev20261101"]


def test_a_cell_that_never_worked_was_never_mended():
    history = History(Cell("net", "eager", "fp32", "cpu"), {"2.4": State("red", "FAIL"), "2.5": State("red", "ERROR")})
    assert (history.since, history.broke, history.mended) == ("", (), ())
