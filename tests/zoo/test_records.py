"""Records of the zoo: what a convention, an error input and a claim accept, and what they refuse."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import zoo
from zoo import Convention
from zoo.case import Call, Case, SpecError
from zoo.error_input import ErrorInput


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tensor": "", "why": "w"}, "name of a tensor"),
        ({"tensor": "x", "why": ""}, "needs a reason"),
        ({"tensor": "x", "why": "w", "rows": (-1,)}, "rows must be"),
        ({"tensor": "x", "why": "w", "rows": [1]}, "rows must be"),
    ],
)
def test_a_malformed_convention_is_refused(fields, complaint):
    with pytest.raises(SpecError, match=complaint):
        Convention(**fields)


def test_only_a_star_is_a_pattern():
    assert Convention(tensor="encoder.*", why="w").concerns("encoder.0.weight")
    assert Convention(tensor="output[1]", why="w").concerns("output[1]")
    assert not Convention(tensor="output[1]", why="w").concerns("output1")


@pytest.mark.parametrize("reference", [nn.Identity, partial(nn.Linear, 3, 4), lambda: nn.Linear(3, 4)])
def test_a_builder_is_a_trusted_implementation(reference):
    assert replace(zoo.get_spec("square"), reference=reference).trusts_model


@pytest.mark.parametrize("reference", [lambda _, x: x, lambda *inputs: inputs, max])
def test_a_function_of_the_model_is_a_formula(reference):
    assert not replace(zoo.get_spec("square"), reference=reference).trusts_model


def test_a_module_is_no_reference():
    with pytest.raises(SpecError, match="want its class"):
        replace(zoo.get_spec("square"), reference=nn.Identity())


# error inputs


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


# claims: each can be measured


CLAIMS = [(name, claim) for name in zoo.list_models() for claim in zoo.get_spec(name).claims]
IDS = [f"{name}-{claim.quantity}-{claim.factor}" for name, claim in CLAIMS]


def claim_of(name, factor):
    (found,) = [claim for claim in zoo.get_spec(name).claims if claim.factor == factor]
    return found


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=IDS)
def test_model_and_baseline_have_the_same_scale(name, claim):
    scale, baseline = zoo.get_spec(name).scale, zoo.get_spec(claim.baseline or name).scale
    assert (scale.size_name, scale.sizes) == (baseline.size_name, baseline.sizes)
    assert all(size > 0 for size in claim.sizes)


@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=IDS)
def test_a_claim_names_its_source_and_machine(name, claim):
    assert claim.text == " ".join(claim.text.split())
    assert "not named" in claim.source or "NVIDIA" in claim.source, f"{name}: on which machine?"


def test_the_fused_peak_is_the_ratio_of_two_published_peaks():
    claim = claim_of("fused_conv_bn", 1.72)
    assert round(2.68 / 1.56, 2) == claim.factor
    assert "RTX 3070" in claim.source


def test_the_smallest_gain_of_rms_norm_is_seven_percent_of_the_time():
    assert round(1 / (1 - 0.07), 3) == claim_of("rms_norm_native", 1.075).factor
