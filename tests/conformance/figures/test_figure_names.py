"""One list names the figures that can be timed, and gives them their titles."""

import ast
from pathlib import Path

import conformance
from conformance.records.measurements import FIGURES

FOLDER = Path(conformance.__file__).parent


def constants(nodes):
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def lists_of_figures(source):
    """The texts of every literal list that has two figures or more: collections, keys of tables, split texts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            found = constants(node.elts)
        elif isinstance(node, ast.Dict):
            found = constants(node.keys)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = node.value.split()
            found = found if set(found) <= set(FIGURES) else []
        else:
            continue
        if len(set(found) & set(FIGURES)) > 1:
            yield found


def test_the_search_finds_every_form_of_a_list():
    for text in ("('forward', 'step')", "{'forward': 1, 'x': 2, 'fit': 3}", "'forward gradient'", "['step', x, 'fit']"):
        assert list(lists_of_figures(text)), text
    assert not list(lists_of_figures("('forward', 'both'), 'forward and backward, of a training step'"))


def test_no_other_module_lists_the_figures():
    found = {
        str(path.relative_to(FOLDER)): lists
        for path in sorted(FOLDER.rglob("*.py"))
        if (lists := list(lists_of_figures(path.read_text(encoding="utf-8"))))
    }
    assert found == {
        "records/measurements.py": [list(FIGURES)],
        "measure/timed_cell.py": [list(FIGURES)],  # what to call for each of them
    }


def test_no_other_module_repeats_a_title():
    titles = {title for name, title in FIGURES.items() if title != name}
    assert len(titles) == 3
    for path in sorted(FOLDER.rglob("*.py")):
        if path.relative_to(FOLDER) != Path("records/measurements.py"):
            found = constants(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            assert titles.isdisjoint(found), path
