"""The file of divergences that people declare outside the code."""

import pytest

from conformance.errors import UsageError
from conformance.judging import declarations
from zoo.expect import Expect

DTYPE = Expect(outcome="dtype", reason="promotes", modes=("scripted",), tensor="output", dtype="float32")
QUOTED = Expect(outcome="refuses", reason="promotes", error='says "no"', match=r"at \(0x\d+\) \\ é")


def test_what_is_written_is_read_again_once_a_person_has_given_the_reasons(tmp_path):
    path = tmp_path / "known.toml"
    declarations.append(path, [("net", DTYPE, "first")])
    declarations.append(path, [("net@64", QUOTED, "second")])
    with pytest.raises(UsageError, match="entry 1 of net has no reason; say in a sentence why it diverges"):
        declarations.read(path)
    path.write_text(path.read_text().replace('reason = ""', 'reason = "promotes"'))
    assert declarations.read(path) == {"net": (DTYPE,), "net@64": (QUOTED,)}
    text = path.read_text()
    assert text.count("# Divergences of models") == 1
    assert text.index("# first\n[[net]]") < text.index('# second\n[["net@64"]]')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net", "is no TOML file: "),
        ("net = 3", r"net must be a list of tables; write \[\[net\]\] above each"),
        ("[net]\noutcome = 'FAIL'", "net must be a list of tables"),
        ("[[net]]\noutcom = 'FAIL'", "entry 1 of net has an unknown field 'outcom'; did you mean outcome"),
        ("[[net]]\nreason = 'so'", "entry 1 of net has no outcome"),
        ("[[net]]\noutcome = 'FAIL'\nreason = 3", "reason must be a text, got 3"),
        ("[[net]]\noutcome = 'LATE'\nreason = 'so'", "entry 1 of net: .*'LATE': want one of dtype, "),
        ("[[net]]\nmodes = 'eager'", "modes must be a list of texts, got 'eager'"),
        ("[[net]]\nmodes = ['eager', 1]", "modes must be a list of texts"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        declarations.read(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_no_file_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="no file"):
        declarations.read(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        declarations.append(tmp_path / "none" / "known.toml", [("net", DTYPE, "")])
