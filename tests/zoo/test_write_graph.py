"""The picture of an autograd graph as a file: SVG by Graphviz, or text without it."""

import shutil
import xml.etree.ElementTree as ET

import pytest
import torch

from zoo.autograd_graph import draw_graph, write_graph


def ones(*shape):
    return torch.ones(shape, requires_grad=True)


def install_dot(folder, monkeypatch, script):
    """Put a program `dot` first on the path, and keep the folders that the shell needs."""
    program = folder / "bin" / "dot"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_text_where_graphviz_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    x = ones(3)
    written = write_graph(tmp_path / "graph.svg", x.exp(), {"x": x})
    assert written == tmp_path / "graph.dot"
    assert written.read_text(encoding="utf-8") == draw_graph(x.exp(), {"x": x})
    assert not (tmp_path / "graph.svg").exists()


def test_svg_is_the_output_of_dot(tmp_path, monkeypatch):
    install_dot(tmp_path, monkeypatch, 'echo "drawn with $@"; cat; echo "a warning" >&2')
    x = ones(3)
    written = write_graph(str(tmp_path / "graph.svg"), x.exp(), {"größe": x})
    assert written == tmp_path / "graph.svg"
    assert written.read_text(encoding="utf-8") == "drawn with -Tsvg\n" + draw_graph(x.exp(), {"größe": x})


def test_an_error_of_dot_is_raised_and_nothing_written(tmp_path, monkeypatch):
    install_dot(tmp_path, monkeypatch, "cat > /dev/null; echo half; echo 'no layout engine' >&2; exit 3")
    with pytest.raises(RuntimeError, match=r"write_graph: .*dot ended with exit code 3: no layout engine"):
        write_graph(tmp_path / "graph.svg", ones(3), {})
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_only_svg_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"^write_graph: path must be a path, got None$"):
        write_graph(None, ones(3))
    with pytest.raises(ValueError, match=r"write_graph: path must end in '\.svg', got '.*graph\.png'"):
        write_graph(tmp_path / "graph.png", ones(3), {})


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_itself_shows_names_unchanged(tmp_path):
    x = ones(3)
    name = 'größe "of\\N x" &lt; <b> {a|b}'
    written = write_graph(tmp_path / "graph.svg", x.exp(), {name: x})
    assert written.suffix == ".svg"
    texts = [text.text for text in ET.parse(written).iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(texts) == sorted(["output", "(3)", "ExpBackward0", name, "(3)"])
