"""Names of models are listed and found by wildcard patterns, and an unknown name is an error."""

from dataclasses import replace

import pytest

import zoo
from conformance.errors import UsageError
from conformance.plan.find import find
from zoo.case import SpecError
from zoo.catalog import UnknownModelError


def found(*sources):
    return [spec.name for spec, _ in find(sources)[0]]


@pytest.mark.parametrize("pattern", ["models", "ops.soft*", "func*", "counterexamples"])
def test_a_module_pattern_means_the_same_everywhere(pattern):
    assert found(pattern) == zoo.list_models(module=pattern) != []


def test_a_name_with_a_dot_is_a_module_of_python(tmp_path, monkeypatch):
    """A package `models` is common: its own file is meant, not the zoo's."""
    package = tmp_path / "models"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "merge.py").write_text(
        "from dataclasses import replace\nimport zoo\nSPEC = replace(zoo.get_spec('merge'), name='merge_of_my_own')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert found("models.merge") == ["merge_of_my_own"]
    assert found("zoo.models.merge") == zoo.list_models(module="models.merge")


@pytest.mark.parametrize("pattern", ["merge*", "*_op", "fit_?ine", "[ab]*"])
def test_a_name_pattern_means_the_same_everywhere(pattern):
    listed = [*zoo.list_models(pattern), *zoo.list_models(pattern, module="counterexamples")]
    assert sorted(found(pattern)) == sorted(listed) != []


def test_an_unknown_module_is_refused():
    with pytest.raises(UnknownModelError, match=r"^no folder and no file of the zoo matches 'modles'; did you m"):
        zoo.list_models(module="modles")
    with pytest.raises(UnknownModelError, match=r"^no folder and no file of the zoo matches ''$"):
        zoo.list_models(module="")
    with pytest.raises(UsageError, match=r"^no model, folder or file of the zoo matches 'murge\*'$"):
        found("murge*")


@pytest.mark.parametrize(("arguments", "named"), [((None,), "filter"), (([3],), "filter")])
def test_a_pattern_is_a_string(arguments, named):
    with pytest.raises(TypeError, match=rf"^list_models: {named} must be a string, got "):
        zoo.list_models(*arguments)
    with pytest.raises(TypeError, match=r"^list_models: module must be a string, got int$"):
        zoo.list_models(module=3)


def test_models_that_are_wrong_on_purpose_are_listed_only_by_their_folder():
    everything = zoo.list_models(module="*")
    assert everything == zoo.list_models()
    assert not set(everything) & set(zoo.list_models(module="counterexamples"))
    assert zoo.list_models(module="counterexamples.sinh")


def test_a_second_name_means_the_same_model():
    """`batch_norm2d` is not torch's, and `conv_bn` is a whole classifier."""
    for name, alias in (("batch_norm2d", "batch_norm2d_eps_outside"), ("conv_bn", "conv_bn_classifier")):
        assert zoo.get_spec(alias) is zoo.get_spec(name)
        assert found(alias) == [name]
        assert alias not in zoo.list_models()
    assert zoo.get_spec("conv_bn_classifier@4").name == "conv_bn@4"
    with pytest.raises(UnknownModelError, match=r"did you mean .*conv_bn_classifier"):
        zoo.get_spec("conv_bn_clasifier")


@pytest.mark.parametrize("alias", ["Merge", 3, "a b"])
def test_an_alias_is_a_name(alias):
    with pytest.raises(SpecError, match=r"^spec alias .*: want lower-case letters"):
        replace(zoo.get_spec("merge"), alias=alias)
