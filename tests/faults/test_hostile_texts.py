"""No text that a stored run holds commands a terminal or forges a line of a report."""

import dataclasses
import sys
import unicodedata
from dataclasses import replace

import pytest
from harness.made_by_hand import ENVIRONMENT, NOWHERE, plan_for, with_models

from conformance.commands import output, stored
from conformance.records.cell import STATUSES, Cell, Discrepancy, Measure, Observation, Verdict
from conformance.records.measurements import Reason
from conformance.show import matrix
from conformance.store.run_files import Contents

OWN = Cell("net", "eager", "fp32", "cpu")
MEASURE = Measure("norm", 0.1, 2.5, "at (0, 1)")
SEEN = Discrepancy("typical", "gradient of x", "rounded", "bfloat16", "float32", (MEASURE,))
OBSERVATION = Observation(
    ending="raised",
    phase="call",
    error="ValueError",
    message="a line",
    discrepancies=(replace(SEEN, accepted=("a zero",), weak=("a sign",), left_to="fp32"),),
    facts={"graphs": 2, "cache": "hit", "left aside": "a text"},
    cases=("typical",),
    said=("a last line",),
)
WORDS = {"text": "a text", "short": "1.2", "reason": "it is known", "link": "https://issue", "notes": ("a note",)}
HOSTILE = "\x1b]0;gone\x07\x1b[2J\r\n✓ b[eager-fp32-cpu]  PASS\u202e\u2028\x85\ud800\x00\x7f"


def texts(record):
    """The record with hostile text in every field of free text, also inside other records."""

    def changed(value):
        if dataclasses.is_dataclass(value):
            return texts(value)
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        return f"{value}{HOSTILE}" if isinstance(value, str) else value

    names = {"model", "mode", "precision", "device", "cell", "status", "figure", "outcome", "ending", "measure"}
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return replace(record, **{name: changed(value) for name, value in fields.items() if name not in names})


def control_characters(text):
    """What a terminal may take for a command, but line breaks."""
    return {c for c in text.replace("\n", "") if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("measure", ["speed", "bench"])
def test_no_text_of_a_run_commands_the_terminal_or_forges_a_line(capsys, tmp_path, status, measure):
    plain = Verdict(OWN.id, status, margin=1.2, observation=OBSERVATION, **WORDS)
    bare = replace(plan_for(OWN, measure=measure), environment=replace(ENVIRONMENT, gpus=("a GPU",), cuda="12.8"))
    job = "speed gradient net[fp32-cpu] #"

    def printed(change):
        verdict = change(plain)
        plan = replace(bare, environment=change(bare.environment))
        plan = with_models(plan, {"net": {"location": change(NOWHERE.location)}})
        results = {f"{job}{i}": change(Reason("no figure", "a detail")) for i in (0, 1)}
        contents = Contents(plan, (OWN.id,), {OWN.id: verdict}, results)
        folder = tmp_path / (HOSTILE.replace("\x00", "").replace("\ud800", "") if change is texts else "run")
        output.tell(stored.report(contents, folder))
        output.tell(matrix.line(verdict))
        output.tell(matrix.measured_line(contents, f"{job}1"))
        output.say(verdict.text)
        output.progress(verdict.text.replace("\n", " "))
        done = capsys.readouterr()
        return done.out + done.err

    hostile = printed(texts)
    assert control_characters(hostile) == set()
    assert "\n✓ b[" not in hostile
    assert "\x1b" not in hostile
    printed(lambda record: record)


def test_no_code_point_that_commands_a_terminal_is_printed(capsys):
    for start in range(0, sys.maxunicode, 4096):
        text = "".join(map(chr, range(start, min(start + 4096, sys.maxunicode + 1))))
        output.say(text)
        output.tell(text)
        output.progress(text)
        done = capsys.readouterr()
        assert control_characters(done.out + done.err) == set()
        assert done.err.count("\n") == 2 + ("\n" in text)
