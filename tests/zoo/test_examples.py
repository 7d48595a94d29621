"""Every public function and class of the zoo has an example; pytest runs the examples as doctests."""

import importlib
import inspect
import pkgutil

import pytest

import zoo

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
