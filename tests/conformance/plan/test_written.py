"""The file and line at which each planned model is written."""

import pytest
from harness.spec_files import planned

HEAD = """import torch
from zoo import Case, Spec

CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))


def spec(name):
    return Spec(name=name, summary="s", source="a test", build=lambda: lambda x: x * 2, cases=(CASE,), dtypes="input")


"""
LINE = len(HEAD.splitlines()) + 1


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('NET = spec("net")\n', LINE),
        ("# net\n\nNET = spec('net')\n", LINE + 2),
        ('OTHER = "net"\nNETS = (\n    spec(\n        name="net",\n    ),\n)\n', LINE + 3),
        ('\nNET = spec("n" + "et")\n', LINE + 1),
        ('\n\nNETS: tuple = (spec("n" + "et"),)\n', LINE + 2),
        ('globals()["NET"] = spec("n" + "et")\n', 1),
    ],
)
def test_a_spec_is_written_where_its_source_names_it(tmp_path, source, line):
    path = tmp_path / "nets.py"
    path.write_text(HEAD + source)
    (model,) = planned(str(path), modes=("eager",), devices=("cpu",)).models.values()
    place = model.written
    assert (place.file, place.line) == (str(path), line)


def test_a_model_at_a_size_is_written_where_the_model_is():
    models = planned("mlp", "mlp@64", modes=("eager",), devices=("cpu",)).models
    places = {name: model.written for name, model in models.items()}
    assert places["mlp"] == places["mlp@64"]
    assert places["mlp"].line > 1
    assert places["mlp"].file.endswith("zoo/models/mlp.py")
