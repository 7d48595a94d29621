"""Every spec of the zoo has the texts that its page needs, and is consistent."""

import pytest
import torch

import zoo

NAMES = [*zoo.list_models(), *zoo.list_models(module="counterexamples")]


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_has_all_its_texts(name):
    spec = zoo.get_spec(name)
    for text in (spec.summary, spec.formula, spec.shapes, spec.source):
        assert text
        assert text == " ".join(text.split())
    assert "→" in spec.shapes


@pytest.mark.parametrize("name", NAMES)
def test_every_case_draws_inputs_of_fixed_shapes(name):
    spec = zoo.get_spec(name)
    for case in spec.cases:
        one, two = zoo.example_inputs(name, case.name, seed=1), zoo.example_inputs(name, case.name, seed=1)
        assert len(one) == len(two)
        assert [getattr(x, "shape", x) for x in one] == [getattr(x, "shape", x) for x in two]


@pytest.mark.parametrize("name", [n for n in NAMES if zoo.get_spec(n).error_inputs])
def test_every_error_input_raises_its_error(name):
    spec = zoo.get_spec(name)
    for given in spec.error_inputs:
        call = given.draw(torch.Generator().manual_seed(0))
        with pytest.raises(Exception) as raised:  # noqa: PT011 -- the next line looks at it
            spec.build()(*call.args, **call.kwargs)
        assert given.describes(raised.value, str(raised.value)), f"{raised.value!r}, not {given.wanted}"


@pytest.mark.parametrize("name", [n for n in NAMES if zoo.get_spec(n).expectations])
def test_an_expectation_has_a_reason_and_a_link(name):
    for expected in zoo.get_spec(name).expectations:
        assert expected.reason
        assert not expected.link or expected.link.startswith("https://")


@pytest.mark.parametrize("name", zoo.list_models(module="counterexamples"))
def test_a_counterexample_declares_what_is_wrong(name):
    assert zoo.get_spec(name).expectations
