"""Both ends of a child process agree: each target names a function with exactly its task and its result."""

import importlib
import inspect
import pkgutil
import typing

import pytest

from conformance import records
from conformance.process.child_side import ChildProcess
from conformance.records.tasks import Target

TARGETS = {
    name: value
    for package in pkgutil.walk_packages(records.__path__, f"{records.__name__}.")
    for name, value in vars(importlib.import_module(package.name)).items()
    if isinstance(value, Target)
}


def function_of(target):
    module, _, name = target.function.partition(":")
    return getattr(importlib.import_module(module), name)


def test_no_two_targets_name_one_function():
    assert len({target.function for target in TARGETS.values()}) == len(TARGETS) >= 11


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_names_a_function_with_its_task_and_result(name):
    hints = typing.get_type_hints(function_of(TARGETS[name]))
    assert hints["task"] is TARGETS[name].task
    assert hints["return"] is TARGETS[name].result


@pytest.mark.parametrize("name", TARGETS)
def test_a_function_of_a_child_takes_its_process(name):
    function = function_of(TARGETS[name])
    needed = [name for name, p in inspect.signature(function).parameters.items() if p.default is p.empty]
    assert needed == ["task", "process"]
    assert typing.get_type_hints(function)["process"] is ChildProcess
