"""The file of divergences that people declare outside the code."""

import pytest

from conformance.errors import UsageError
from conformance.judging import declarations
from conformance.records.plan import Declared

DTYPE = Declared("net", "dtype", "promotes", modes=("scripted",), tensor="output", dtype="float32")
QUOTED = Declared("net@64", "refuses", 'says "no"', error="RuntimeError", match=r"at \(0x\d+\) \\ é")


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "known.toml"
    declarations.append(path, [(DTYPE, "first")])
    declarations.append(path, [(QUOTED, "second")])
    assert declarations.read(path) == (DTYPE, QUOTED)
    text = path.read_text()
    assert text.count("# Divergences of models") == 1
    assert text.index("# first\n[[net]]") < text.index('# second\n[["net@64"]]')


def test_a_recorded_entry_needs_a_reason_before_it_is_read(tmp_path):
    path = tmp_path / "known.toml"
    declarations.append(path, [(Declared("net", "FAIL"), "why?")])
    with pytest.raises(UsageError, match="entry 1 of net has no reason; say in a sentence why it diverges"):
        declarations.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("net", "is no TOML file: "),
        ("net = 3", r"net must be a list of tables; write \[\[net\]\] above each"),
        ("[net]\noutcome = 'FAIL'", "net must be a list of tables"),
        ("[[net]]\noutcom = 'FAIL'", "entry 1 of net has an unknown field 'outcom'; did you mean outcome"),
        ("[[net]]\nreason = 'so'", "entry 1 of net has no outcome"),
        ("[[net]]\noutcome = 'FAIL'\nreason = 3", "reason must be a text, got 3"),
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
        declarations.append(tmp_path / "none" / "known.toml", [(DTYPE, "")])
