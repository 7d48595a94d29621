"""The autograd graph as text and as SVG."""

import shutil
import xml.etree.ElementTree as ET

import pytest
import torch
from torch.autograd.function import once_differentiable

from zoo.autograd_graph import draw_graph, write_graph
from zoo.functions.sinh import sinh


def ones(*shape):
    return torch.ones(shape, requires_grad=True)


def test_a_graph_shows_functions_leaves_and_result():
    x, weight = ones(2, 3), ones(3, 4)
    assert draw_graph((x @ weight).sum(), {"x": x, "weight": weight, "unused": ones(1)}) == (
        "digraph autograd {\n"
        '    n0 [shape=plaintext, label="output\\n()"];\n'
        '    n1 [shape=ellipse, label="SumBackward0"];\n'
        '    n2 [shape=ellipse, label="MmBackward0"];\n'
        '    n3 [shape=box, label="x\\n(2, 3)"];\n'
        '    n4 [shape=box, label="weight\\n(3, 4)"];\n'
        "    n0 -> n1;\n"
        "    n1 -> n2;\n"
        "    n2 -> n3;\n"
        "    n2 -> n4;\n"
        "}\n"
    )


def test_tuples_of_outputs_share_their_nodes():
    x = ones(3)
    shared = x.exp()
    text = draw_graph((shared.sin(), [shared.cos(), x, shared.detach()]), {"x": x})
    assert text.count("ExpBackward0") == 1
    assert text.count('"x\\n(3)"') == 1
    assert [text.count(f'"output {i}\\n(3)"') for i in range(5)] == [1, 1, 1, 1, 0]
    # arrows: two to sin and cos, two from them to exp, one from exp to x, one from the output x to its leaf
    assert text.count("->") == 6


def test_a_deep_graph_needs_no_recursion():
    x = y = ones(1)
    for _ in range(20_000):
        y = y * 2
    text = draw_graph(y, {"x": x})
    assert text.count("MulBackward0") == 20_000
    assert text.count("->") == 20_001


def test_a_module_names_its_parameters():
    model = torch.nn.Linear(3, 2)
    text = draw_graph(model(torch.ones(5, 3)), dict(model.named_parameters()))
    assert '"weight\\n(2, 3)"' in text
    assert '"bias\\n(2)"' in text


def test_a_leaf_without_a_name_has_its_shape_only():
    assert '[shape=box, label="(7)"]' in draw_graph(ones(7).exp(), {})


def test_names_are_escaped():
    x = ones(1)
    assert r'label="a\"b\\N&amp;lt;\nc\n(1)"' in draw_graph(x, {'a"b\\N&lt;\nc': x})


def test_equal_graphs_give_equal_text():
    def text():
        x = ones(4)
        return draw_graph((x.exp() * x).unbind(), {"x": x})

    assert text() == text()


class SinhOnce(torch.autograd.Function):
    """sinh, which can be differentiated once."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sinh()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cosh()


class SinhKept(torch.autograd.Function):
    """sinh with its intermediates on ctx, so the graph of the gradient does not contain them."""

    @staticmethod
    def forward(ctx, x):
        ctx.rising, ctx.falling = x.exp(), (-x).exp()
        return (ctx.rising - ctx.falling) / 2

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.rising + ctx.falling) / 2


@pytest.mark.parametrize(
    ("function", "reaches_x", "stops_at"),
    [(sinh, True, None), (SinhKept.apply, False, None), (SinhOnce.apply, False, '"Error"')],
    ids=["sinh", "kept on ctx", "once differentiable"],
)
def test_where_the_graph_of_a_gradient_stops(function, reaches_x, stops_at):
    x, cotangent = ones(3), torch.randn(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x), x, cotangent, create_graph=True)
    text = draw_graph(gradient, {"x": x, "cotangent": cotangent})
    assert ('"x\\n(3)"' in text) is reaches_x
    assert ('"cotangent\\n(3)"' in text) is (stops_at is None)
    assert stops_at is None or stops_at in text


def test_a_gradient_without_a_graph_has_no_arrow():
    x = ones(3)
    (gradient,) = torch.autograd.grad(x.exp(), x, torch.randn(3))
    assert draw_graph(gradient, {"x": x}) == 'digraph autograd {\n    n0 [shape=plaintext, label="output\\n(3)"];\n}\n'


def test_a_value_that_is_not_a_tensor_raises():
    with pytest.raises(TypeError, match="draw_graph: output must hold a tensor, got float"):
        draw_graph(1.0, {})
    with pytest.raises(TypeError, match=r"draw_graph: params\['x'\] must be a tensor, got int"):
        draw_graph(ones(1), {"x": 3})


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
