"""What the zoo offers: names and wildcards, folders and their classes and functions, examples and sources."""

import importlib
import inspect
import pkgutil
from dataclasses import replace

import pytest
from harness.processes import fresh, printed
from harness.sources import ROOT

import conformance
import zoo
from conformance.errors import UsageError
from conformance.plan.find import find
from zoo.case import SpecError
from zoo.catalog import UnknownModelError


def found(*sources):
    return [spec.name for spec, _ in find(sources)[0]]


def test_a_pattern_of_modules_and_one_of_names_mean_the_same_everywhere():
    for pattern in ("models", "ops.soft*", "func*", "counterexamples"):
        assert found(pattern) == zoo.list_models(module=pattern) != []
    for pattern in ("merge*", "*_op", "fit_?ine", "[ab]*"):
        listed = [*zoo.list_models(pattern), *zoo.list_models(pattern, module="counterexamples")]
        assert sorted(found(pattern)) == sorted(listed) != []


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


def test_an_unknown_module_is_refused():
    with pytest.raises(UnknownModelError, match=r"^no folder and no file of the zoo matches 'modles'; did you m"):
        zoo.list_models(module="modles")
    with pytest.raises(UnknownModelError, match=r"^no folder and no file of the zoo matches ''$"):
        zoo.list_models(module="")
    with pytest.raises(UsageError, match=r"^no model, folder or file of the zoo matches 'murge\*'$"):
        found("murge*")


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
    for alias in ("Merge", 3, "a b"):
        with pytest.raises(SpecError, match=r"^spec alias .*: want lower-case letters"):
            replace(zoo.get_spec("merge"), alias=alias)


def test_a_name_that_exists_is_replaced_only_if_that_is_said(monkeypatch):
    monkeypatch.setattr("zoo.catalog._registered", {})
    own = replace(zoo.get_spec("mlp"), name="softmax")
    assert zoo.is_model("softmax")
    assert not zoo.is_model("softmacks")
    for name in ("softmax", "conv_bn_classifier"):  # a name and a second one
        with pytest.raises(
            SpecError, match=f"^'{name}' is already registered; override=True replaces it in this proce"
        ):
            zoo.register(replace(own, name=name))
    zoo.register(own, override=True)
    assert zoo.get_spec("softmax") is own
    assert zoo.list_models("softmax") == ["softmax"]
    assert zoo.create_model("softmax")[0].in_features == 64
    zoo.register(replace(own, name="mine"))
    with pytest.raises(SpecError, match=r"^'mine' is already"):
        zoo.register(replace(own, name="mine"))
    assert zoo.is_model("mine")


# after an import, all that is public and nothing else

FOLDERS = sorted(path.parent.name for path in (ROOT / "zoo").glob("*/__init__.py"))


@pytest.mark.parametrize("package", [zoo, conformance])
def test_dir_lists_what_is_public_and_all_of_it_is_there(package):
    listed = dir(package)
    assert set(package.__all__) <= set(listed)
    assert not [name for name in listed if name.startswith("_") or not hasattr(package, name)]
    assert set(listed) - set(package.__all__) == (set(FOLDERS) if package is zoo else set())
    words = fresh(f"import {package.__name__}; print(*dir({package.__name__}))")
    assert set(package.__all__) <= set(words)


FRESH = f"""
import json, sys, time, torch
before, compiler = {{*sys.modules}}, {{"torch._dynamo", "torch._inductor", "torch._functorch.config"}}
started = time.process_time()
import zoo
seconds = time.process_time() - started
told = [seconds < 0.05, [name for name in sys.modules if name.startswith("zoo.") and name.count(".") > 1]]
from zoo.functions import Square, square
from zoo.ops import softmax
told += [[thing.__name__ for thing in (Square, square, softmax, zoo.training.train_step, zoo.models.Merge)]]
told += [zoo.data.__all__, len(zoo.list_models()) > 50, "zoo.probe" in sys.modules, "zoo.probes" in sys.modules]
zoo.get_spec("cube_cpp"), zoo.get_spec("cube_numpy")
told += [[*{{"PIL", "numpy", "setuptools", "torch.utils.cpp_extension"}} & ({{*sys.modules}} - before)]]
known = compiler & {{*sys.modules}}
from zoo.probe import find
told += [len(find()) > 0, [*compiler & {{*sys.modules}} - known], [getattr(zoo, name).__name__ for name in {FOLDERS}]]
print(json.dumps(told))
"""


def test_an_import_brings_what_is_touched_and_a_name_of_a_folder_is_the_function_and_not_its_file():
    assert printed(FRESH) == [
        True,  # in less than 50 ms of the processor
        [],
        ["Square", "square", "softmax", "train_step", "Merge"],
        *(["ImageDirectoryDataset", "ResizeCenterCrop", "TarImage", "TarImageDataset"], True, False, False),
        [],  # neither Pillow nor NumPy nor what compiles C++
        *(True, []),  # to read the probes loads no compiler
        [f"zoo.{name}" for name in FOLDERS],
    ]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = zoo.nothing


# each folder gives the public classes and functions of its files


def defined(module):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not name.isupper()
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    }


@pytest.mark.parametrize("folder", ["models", "ops", "functions", "training"])
def test_a_folder_gives_what_its_files_define(folder):
    package = importlib.import_module(f"zoo.{folder}")
    files = [entry.name for entry in pkgutil.iter_modules(package.__path__) if entry.name != "__main__"]
    wanted = {name for file in files for name in defined(importlib.import_module(f"zoo.{folder}.{file}"))}
    assert set(package.__all__) == wanted
    assert all(callable(getattr(package, name)) for name in wanted)


# every public function and class has an example; pytest runs them as doctests

MODULES = [
    entry.name
    for entry in pkgutil.walk_packages(zoo.__path__, "zoo.")
    if not entry.ispkg
    and ".probes." not in entry.name  # a probe is its own example
    and entry.name != "zoo.internals"  # of this project alone
]


def is_shown(thing):
    """Return whether a public function, or a class or one of its members, has an example."""
    parts = [thing, *(vars(thing).values() if inspect.isclass(thing) else ())]
    return any(">>>" in (getattr(part, "__doc__", None) or "") for part in parts)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_have_an_example(name):
    module = importlib.import_module(name)
    public = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
        and not (inspect.isclass(value) and issubclass(value, BaseException))
        and not getattr(value, "_is_protocol", False)  # nothing to call
    }
    functions = [key for key, value in public.items() if hasattr(value, "apply") and hasattr(value, "backward")]
    missing = [key for key, value in public.items() if key not in functions and not is_shown(value)]
    assert missing == [], f"{name}: {', '.join(missing)} without an example"
