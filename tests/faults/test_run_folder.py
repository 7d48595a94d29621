"""Every cut and every flipped bit of every file of a run folder is refused or said; so are dropped and moved parts."""

import json
import zlib
from dataclasses import replace

import pytest
from harness.stored_runs import NAMES, cell, plan_of, verdict, write

from conformance.commands import stored
from conformance.errors import UsageError
from conformance.records.convert import to_json
from conformance.records.measurements import Footprint
from conformance.records.observation import Discrepancy, Measure, Observation
from conformance.run import bounded, documents, sealed, store


@pytest.fixture
def folder(tmp_path):
    """A complete run of three cells and a measurement."""
    return complete_run(tmp_path / "run", *NAMES)


def complete_run(run, *names):
    """A complete run, with the note of its writer, which stays behind if it is killed."""
    store.create(run, plan_of(*names))
    write(run, *names)
    writer = store.Writer(run)
    writer.add_result("count", Footprint(saved=8))
    owner = (run / store.OWNER).read_bytes()
    writer.close()
    (run / store.OWNER).write_bytes(owner)
    return run


FILES = (store.PLAN, store.LINES, store.DONE, store.OWNER)


def refusal(folder):
    """The message with which the folder is refused, or what is said of it; "" if it is read without a word."""
    try:
        contents = store.read(folder)
    except UsageError as problem:
        return str(problem)
    return f"{store.LINES}: torn" if contents.torn_bytes else "" if contents.complete else f"{store.DONE}: missing"


def test_the_files_are_all_that_a_run_keeps(folder):
    assert {path.name for path in folder.iterdir()} == {*FILES, store.LOCK}
    assert (folder / store.LOCK).read_bytes() == b""
    assert refusal(folder) == ""


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_refused(tmp_path, name):
    folder = complete_run(tmp_path / "small", "a")
    path = folder / name
    data = path.read_bytes()
    silent = []
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found = refusal(folder)
        if name not in found or "\n" in found:
            silent.append((bit, found))
    assert silent == []


@pytest.mark.parametrize("name", FILES)
def test_every_cut_is_refused(folder, name):
    path = folder / name
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert name in refusal(folder), length


def test_without_its_sums_every_cut_of_the_lines_is_said_or_leaves_a_cell_out(folder):
    (folder / store.DONE).unlink()
    path = folder / store.LINES
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        contents = store.read(folder)
        assert contents.torn_bytes == len(data[:length].rpartition(b"\n")[2])
        assert contents.torn_bytes or contents.missing or not contents.results


@pytest.mark.parametrize("number", range(4))
def test_a_dropped_line_is_noticed(folder, number):
    path = folder / store.LINES
    kept = path.read_bytes().splitlines(keepends=True)
    del kept[number]
    path.write_bytes(b"".join(kept))
    assert refusal(folder)
    (folder / store.DONE).unlink()
    if number < 3:
        assert f"line {number + 1}" in refusal(folder)


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 1, 2, 3), (0, 2, 1, 3), (0, 1, 2, 3, 3)])
def test_moved_and_doubled_lines_are_noticed(folder, order):
    path = folder / store.LINES
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number] for number in order))
    (folder / store.DONE).unlink()
    assert "its checksum does not match" in refusal(folder)


@pytest.mark.parametrize("complete", [True, False])
def test_another_plan_is_noticed(folder, tmp_path, complete):
    """So a plan from which cells were dropped does not show green."""
    if not complete:
        (folder / store.DONE).unlink()
    documents.write_plan(folder / store.PLAN, plan_of("a", "b"))
    assert "its plan is another" in refusal(folder)


def test_lines_and_sums_of_another_run_are_noticed(folder, tmp_path):
    other = tmp_path / "other"
    store.create(other, replace(plan_of(*NAMES), seed=9))
    write(other, *NAMES)
    (folder / store.DONE).write_bytes((other / store.DONE).read_bytes())
    assert "is not the plan that run.json counts" in refusal(folder)


def resealed(folder, change):
    """Change the plan's JSON, and put a right sum under it: damage that no sum can show."""
    path = folder / store.PLAN
    fields = sealed.unseal(path.read_bytes())
    change(fields)
    path.write_bytes(sealed.seal(fields))
    for name in (store.LINES, store.DONE):
        (folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["plan"]["cells"].append(f["plan"]["cells"][0]), "is planned twice"),
        (lambda f: f["plan"]["models"].pop("a"), "no location or no figures"),
        (lambda f: f["plan"].update(measure="everything"), "Plan.measure: want one of"),
        (lambda f: f["plan"].update(deadline="nan"), "Plan.deadline: want a finite number above 0"),
        (lambda f: f["plan"].update(mood=1), "Plan has an unknown field 'mood'"),
        (lambda f: f["plan"]["cells"][0]["cell"].update(model="../../x"), "Cell.model: want a name"),
        (lambda f: f["plan"]["cells"][0]["cell"].update(device="c\x1b[2J"), "Cell.device: want a name"),
        (lambda f: f["plan"]["cells"][0]["cell"].update(mode="x" * 300), "Cell.mode: want a name"),
        (lambda f: f.update(more=1), "want the fields"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_in_one_line(folder, change, message):
    resealed(folder, change)
    assert store.PLAN in refusal(folder)
    assert message in refusal(folder)
    assert "\n" not in refusal(folder)


def append(folder, text):
    """A line with a right sum, whatever it holds."""
    (folder / store.DONE).unlink(missing_ok=True)
    path = folder / store.LINES
    last = int(path.read_bytes().splitlines()[-1][:8], 16)
    with path.open("ab") as lines:
        lines.write(b"%08x %s\n" % (zlib.crc32(text, last), text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "levels"),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "levels"),
        (b'{"verdict": {"observation": {"facts": {"x": ' + b"[" * 70 + b"]" * 70 + b"}}}}", "levels"),
        (b'{"job": "j", "result": ' + b"9" * 5000 + b"}", "a whole number of 5000 digits"),
        (b'{"job": "j", "job": "k"}', "the key 'job' twice"),
        (b'{"selected": ["a", NaN]}', "NaN"),
        (b'{"selected": ["\xc3\xa4"]}', "no JSON"),
        (b'{"verdict": {"cell": "a", "status": "' + b"x" * 300_000 + b'"}}', "at most 200000"),
        (json.dumps({"verdict": {"cell": cell("a"), "status": "NOT A STATUS"}}).encode(), "Verdict.status: want one"),
        (json.dumps({"verdict": {"cell": "z[eager-fp32-cpu]", "status": "PASS"}}).encode(), "the plan has no cell"),
    ],
)
def test_a_hostile_line_is_refused_in_one_line_that_names_it(folder, text, message):
    append(folder, text)
    assert "cells.jsonl, line 5: " in refusal(folder)
    assert message in refusal(folder)
    assert "\n" not in refusal(folder)
    assert len(refusal(folder)) < 500


def test_results_that_contradict_the_plan_are_no_traceback(folder, capsys):
    bench = replace(plan_of(*NAMES), measure="bench")
    documents.write_plan(folder / store.PLAN, bench)
    (folder / store.LINES).unlink()
    (folder / store.DONE).unlink()
    write(folder, *NAMES)
    timing = {"record": "Timing", "figure": "gradient", "cells": {}}
    for index in (0, 1):
        append(folder, json.dumps({"job": f"speed gradient a[fp32-cpu] #{index}", "result": timing}).encode())
    with pytest.raises(UsageError, match="its records contradict each other, so there is no report: KeyError"):
        stored.show(store.read(folder), folder)


def large(tensors, size=10, facts=None):
    """A verdict on so many tensors; only the last one fails."""
    found = tuple(
        Discrepancy(
            "case", f"t{n}", "rounded", "float32", "", (Measure("norm", float(n == tensors - 1), 0.5, "x" * size),)
        )
        for n in range(tensors)
    )
    return replace(verdict("a", "FAIL"), observation=Observation("finished", discrepancies=found, facts=facts or {}))


@pytest.mark.parametrize(
    "found",
    [
        large(5000),
        large(3, size=400_000),
        large(1, facts={"graphs": 1, "text": "ä" * 300_000}),
        large(1, facts={str(n): "y" * 1000 for n in range(5000)}),
        replace(verdict("a", "FAIL"), text="\ud800" * 10_000_000, notes=("n" * 100_000,) * 100),
        replace(verdict("a", "FAIL"), observation=Observation("raised", "call", "E" * 10**6, "m" * 10**6)),
    ],
)
def test_a_long_record_is_shortened_and_keeps_its_verdict(tmp_path, found):
    run = tmp_path / "long"
    store.create(run, replace(plan_of("a"), every_tensor=True))
    writer = store.Writer(run)
    writer.add(to_json(found))
    writer.close()
    assert (run / store.LINES).stat().st_size <= bounded.RECORD_BYTES
    kept = store.read(run).verdicts[cell("a")]
    assert (kept.status, kept.margin, kept.text) == (found.status, found.margin, found.text[:2000])
    assert "was shortened" in kept.notes[-1]
    if len(found.observation.discrepancies) == 5000:
        assert kept.observation.discrepancies[0].tensor == "t4999"  # the one that fails
        assert "of 5000 compared tensors" in kept.notes[-1]


def test_a_record_that_could_not_be_read_again_is_shortened(tmp_path):
    deep = []
    for _ in range(200):
        deep = [deep]
    run = tmp_path / "deep"
    store.create(run, plan_of("a"))
    writer = store.Writer(run)
    writer.add(to_json(large(1, facts={"deep": deep, "graphs": 1})))
    writer.close()
    kept = store.read(run).verdicts[cell("a")]
    assert kept.observation.facts == {"graphs": 1}
    assert "64 levels" in kept.notes[-1]


def test_a_result_that_is_too_long_is_a_reason(tmp_path):
    run = tmp_path / "long"
    store.create(run, plan_of("a"))
    writer = store.Writer(run)
    writer.add_result("j", bounded.Reason("r", "x" * 2**23))
    writer.close()
    assert store.read(run).results["j"].short == "record too long"
