"""What a model says and returns is looked at in bounded time."""

import time

import pytest
from harness.oracles import reference_of

from conformance.derivatives import gradients
from conformance.errors import one_line
from conformance.evaluate import error_text
from conformance.show import text

LENGTH = 100_000
SECONDS = 1.0  # of the processor, for each; they took up to a minute
PIECES = {  # of texts, whose repetitions the patterns look at again and again unless they are told where to begin
    "a": "a",
    "blanks": " ",
    "lines": "\n",
    "blank lines": "\n ",
    "advice": "CUDA error: ",
    "memory": " Of the allocated memory",
    "fake": "when making fake tensor call Explanation: ",
    "got": ": got a('",
    "processes": " Process 1 has 1",
    "addresses": " at 0x",
    "callers": "\n\nAt:\n  (1): ",
    "places": '\n File "a/',
    "code": '\n File "a", line 1\n    x\n    ~~~',
    "parts": "a (",
    "marks": "✓ a #_|",
    "errors": "aError",
    "surrogates": "\ud800",
}


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("begin", ["", "\n", "x when making fake tensor call\nExplanation: ", '\n File "a", line 1'])
def test_no_text_takes_long(name, begin):
    said = begin + PIECES[name] * (LENGTH // len(PIECES[name]))
    for look in (error_text.describe_error, one_line, text.visible, text.printable, error_text.without_hints):
        began = time.process_time()
        look(ValueError(said) if look is error_text.describe_error else said)
        assert time.process_time() - began < SECONDS, look


class Many:
    """A model with many outputs that counts its calls."""

    def __init__(self, outputs):
        self.outputs, self.calls = outputs, 0

    def __call__(self, x):
        self.calls += 1
        return tuple(x * (number + 1) for number in range(self.outputs))


def test_a_model_with_many_outputs_is_not_called_once_more_for_each(monkeypatch):
    monkeypatch.setattr(gradients, "MOST_UNDEFINED", 30)  # as many as take little time
    models = [Many(30), Many(31), Many(60)]
    cases = [reference_of(lambda model=model: model) for model in models]
    few, many, more = (model.calls for model in models)
    assert few >= many + 30  # else the test sees nothing
    assert more <= many
    assert [gradients.UNDEFINED in case.assumed for case in cases] == [False, True, True]
