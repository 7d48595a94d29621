"""Error inputs: what a record accepts, what it refuses, and where a spec keeps them."""

from dataclasses import replace

import pytest
import torch

import zoo
from zoo.case import Call, Case, SpecError
from zoo.error_input import ErrorInput


def given(**fields):
    return ErrorInput(
        **{"name": "scalar", "inputs": lambda _: (torch.ones(()),), "error": ValueError, "match": "rank", **fields}
    )


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "Scalar"}, "ErrorInput name 'Scalar': want lower-case"),
        ({"name": 3}, "ErrorInput name 3: want lower-case"),
        ({"inputs": torch.ones(())}, "ErrorInput 'scalar': inputs must be a function"),
        ({"error": ()}, "ErrorInput 'scalar': error must be a type of exception or a tuple of types, got ()"),
        ({"error": "ValueError"}, "error must be a type of exception"),
        ({"error": (ValueError, 3)}, "error must be a type of exception"),
        ({"error": SystemExit}, "error must be a type of exception"),
        ({"match": ""}, "match must be a regular expression for the message, got ''"),
        ({"match": None}, "match must be a regular expression"),
        ({"match": "("}, "match '(': "),
        ({"devices": "cpu"}, "devices must be a tuple of names"),
    ],
)
def test_a_malformed_error_input_is_refused(fields, complaint):
    with pytest.raises(SpecError) as refused:
        given(**fields)
    assert complaint in str(refused.value)


def test_it_draws_as_a_case_does():
    generator = torch.Generator()
    assert given().draw(generator).args == (torch.ones(()),)
    assert given(inputs=lambda _: Call(kwargs={"dim": 3})).draw(generator).kwargs == {"dim": 3}
    with pytest.raises(SpecError, match="ErrorInput 'scalar': inputs must return a tuple of arguments or a Call"):
        given(inputs=lambda _: torch.ones(())).draw(generator)


def test_the_wanted_error_in_words():
    assert given(error=(ValueError, TypeError)).wanted == "ValueError or TypeError matching 'rank'"


def test_a_type_is_told_from_another_also_in_the_text_of_torchscript():
    @torch.jit.script
    def scripted(x: torch.Tensor):
        if x.dim() == 0:
            raise ValueError("the rank is 0")
        return x

    with pytest.raises(torch.jit.Error) as raised:
        scripted(torch.ones(()))
    text = str(raised.value)
    assert given().describes(raised.value, text)
    assert given(error=(TypeError, ValueError)).describes(raised.value, text)
    assert not given(error=TypeError).describes(raised.value, text)
    assert not given(match="the device").describes(raised.value, text)
    assert not given(error=TypeError).describes(ValueError("TypeError: the rank is 0"), "TypeError: the rank is 0")


@pytest.mark.parametrize(
    ("error_inputs", "complaint"),
    [
        ([given()], "error_inputs must be a tuple of ErrorInput records"),
        ((Case(name="scalar", inputs=lambda _: ()),), "error_inputs must be a tuple of ErrorInput records"),
        ((given(), given()), "two error_inputs are named 'scalar'"),
        ((given(name="typical"),), "a case and an error input are named 'typical'"),
    ],
)
def test_a_spec_refuses_what_is_no_tuple_of_them(error_inputs, complaint):
    with pytest.raises(SpecError, match=complaint):
        replace(zoo.get_spec("square"), error_inputs=error_inputs)


def test_an_error_input_is_no_case():
    with pytest.raises(SpecError, match="cases must be a tuple of Case records"):
        replace(zoo.get_spec("square"), cases=(given(),))


def test_a_model_at_a_size_has_none():
    assert replace(zoo.get_spec("square"), error_inputs=(given(),)).at(16).error_inputs == ()
