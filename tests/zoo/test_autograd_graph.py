"""The autograd graph as text and as a file: its functions, leaves, results, names and saved tensors."""

import re
import shutil
import xml.etree.ElementTree as ET

import pytest
import torch
from torch.autograd.function import once_differentiable

from zoo.autograd_graph import draw_graph, write_graph
from zoo.counterexamples.sinh import sinh_gradients_ignored, sinh_kept_on_ctx, sinh_non_differentiable
from zoo.functions.cube import cube
from zoo.functions.exp import exp
from zoo.functions.sinh import sinh
from zoo.functions.square import square


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
    assert [text.count(f'"output {i}\\n(3)"') for i in range(5)] == [1, 1, 0, 1, 0]
    # arrows: two to sin and cos, two from them to exp, one from exp to x, which is a result too
    assert text.count("->") == 5


def arrows(text):
    """The arrows of a picture, each as the names at its ends."""
    names = dict(re.findall(r'(n\d+) \[shape=\w+, label="(.*?)(?:\\n.*)?"\]', text))
    return {f"{names[start]} → {names[end]}" for start, end in re.findall(r"(n\d+) -> (n\d+);", text)}


def dotted(text):
    """The arrows of a picture to saved tensors, each as the labels at its ends."""
    labels = dict(re.findall(r'(n\d+) \[shape=\w+, label="(.*?)"\]', text))
    return sorted(f"{labels[a]} → {labels[b]}" for a, b in re.findall(r"(n\d+) -> (n\d+) \[style=dotted\];", text))


def test_results_and_intermediate_tensors_have_their_names():
    x, weight = ones(2, 3), ones(3, 4)
    hidden = x @ weight
    out = hidden.relu()
    text = draw_graph(out, {"x": x, "weight": weight, "hidden": hidden, "out": out})
    assert arrows(text) == {
        "out → ReluBackward0",
        "ReluBackward0 → hidden",
        "hidden → MmBackward0",
        "MmBackward0 → x",
        "MmBackward0 → weight",
    }
    assert '[shape=plaintext, label="hidden\\n(2, 4)"]' in text
    assert "output" not in text


def test_a_result_on_the_way_of_another_is_drawn_there():
    x = ones(3)
    first = x.exp()
    assert arrows(draw_graph((first, first.sin()), {"x": x})) == {
        "output 0 → ExpBackward0",
        "output 1 → SinBackward0",
        "SinBackward0 → output 0",
        "ExpBackward0 → x",
    }


def test_each_output_of_a_function_has_its_own_name():
    x = ones(2, 3)
    top, bottom = x.unbind()
    assert arrows(draw_graph(top * bottom, {"x": x, "top": top, "bottom": bottom})) == {
        "output → MulBackward0",
        "MulBackward0 → top",
        "MulBackward0 → bottom",
        "top → UnbindBackward0",
        "bottom → UnbindBackward0",
        "UnbindBackward0 → x",
    }


def test_no_name_is_lost_where_a_tensor_has_two():
    x = ones(3)
    y = x.exp()
    assert arrows(draw_graph(y, {"x": x, "again": x, "y": y, "result": y})) == {
        "y, result → ExpBackward0",
        "ExpBackward0 → x, again",
    }
    assert '"output 0, output 1\\n(3)"' in draw_graph((y, y))
    assert '[shape=plaintext, label="data\\n(3)"]' in draw_graph((y, data := y.detach()), {"data": data})


def test_names_may_be_left_out_and_are_escaped():
    x = ones(3)
    assert arrows(draw_graph(x.exp())) == {"output → ExpBackward0", "ExpBackward0 → (3)"}
    assert r'label="a\"b\\N&amp;lt;\nc\n(3)"' in draw_graph(x, {'a"b\\N&lt;\nc': x})
    (gradient,) = torch.autograd.grad(x.exp(), x, torch.randn(3))  # without a graph
    assert draw_graph(gradient, {"x": x}) == 'digraph autograd {\n    n0 [shape=plaintext, label="output\\n(3)"];\n}\n'


def test_saved_tensors_are_shown_on_request():
    x, y = ones(2, 3), ones(3, 4)
    out = (x @ y).exp()
    names = {"x": x, "y": y, "out": out}
    assert dotted(draw_graph(out, names)) == []
    assert dotted(draw_graph(out, names, show_saved=True)) == [
        "ExpBackward0 → out\\n(2, 4)",
        "MmBackward0 → x\\n(2, 3)",  # torch calls them self and mat2
        "MmBackward0 → y\\n(3, 4)",
    ]
    unnamed = draw_graph(out.sin(), {"x": x}, show_saved=True)
    assert '[shape=note, label="self\\n(2, 4)"]' in unnamed
    assert unnamed.count("shape=note") == 1  # sin saves it as self, exp as result
    assert arrows(unnamed) == arrows(draw_graph(out.sin(), {"x": x}))
    x, row = ones(4), torch.tensor([0, 2])  # which is saved in a list
    assert dotted(draw_graph(x[row], {"row": row}, show_saved=True)) == ["IndexBackward0 → row\\n(2)"]


def test_saved_tensors_that_are_gone_raise():
    x = ones(3)
    for function in (torch.exp, square):
        out = function(x)
        out.backward(torch.ones(3))
        with pytest.raises(
            RuntimeError, match=r"^draw_graph: show_saved cannot read what \w+ saved: Trying to backward"
        ):
            draw_graph(out, show_saved=True)
        assert "→" in str(arrows(draw_graph(out)))


def test_a_picture_changes_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout())
    out = model(torch.ones(4, 3))
    names = {**dict(model.named_parameters()), **dict(model.named_buffers()), "out": out}
    before = {key: (value.clone(), value._version) for key, value in names.items()}
    generator = torch.get_rng_state()
    assert draw_graph(out, names, show_saved=True) == draw_graph(out, names, show_saved=True)
    assert all(torch.equal(names[key], value) and names[key]._version == n for key, (value, n) in before.items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training
    assert [parameter.grad for parameter in model.parameters()] == [None] * 4
    out.backward(torch.ones_like(out))  # its graph is whole
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_deep_graph_needs_no_recursion():
    x = y = ones(1)
    for _ in range(20_000):
        y = y * 2
    text = draw_graph(y, {"x": x})
    assert text.count("MulBackward0") == 20_000
    assert text.count("->") == 20_001


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


TWICE = {  # from the gradient to x and to its cotangent, then from the result to x
    square: "grad_x → MulBackward0, MulBackward0 → MulBackward0, MulBackward0 → cotangent, MulBackward0 → x, "
    "out → SquareBackward, SquareBackward → x",
    exp: "grad_x → MulBackward0, MulBackward0 → cotangent, MulBackward0 → out, out → ExpBackward, ExpBackward → x",
    sinh: "grad_x → SubBackward0, SubBackward0 → AddBackward0, SubBackward0 → MulBackward0, "
    "AddBackward0 → DivBackward0, AddBackward0 → MulBackward0, DivBackward0 → MulBackward0, "
    "MulBackward0 → cotangent, MulBackward0 → AddBackward0, MulBackward0 → SinhBackward, "
    "AddBackward0 → SinhBackward, out → SinhBackward, SinhBackward → x",
    sinh_kept_on_ctx: "grad_x → MulBackward0, MulBackward0 → cotangent, "
    "out → SinhKeptOnCtxBackward, SinhKeptOnCtxBackward → x",
    cube: "grad_x → CubeBackwardBackward, CubeBackwardBackward → cotangent, CubeBackwardBackward → x, "
    "out → CubeBackward, CubeBackward → x",
}


@pytest.mark.parametrize("function", TWICE, ids=lambda function: function.__name__)
def test_the_five_pictures_of_double_backward(function):
    x, cotangent = ones(3), ones(3)
    out = function(x)
    (grad_x,) = torch.autograd.grad(out, x, cotangent, create_graph=True)
    text = draw_graph((grad_x, x, out), {"grad_x": grad_x, "x": x, "out": out, "cotangent": cotangent})
    assert arrows(text) == set(TWICE[function].split(", "))
    assert "output" not in text


@pytest.mark.parametrize(
    ("function", "reaches_x", "stops_at"),
    [
        (sinh, True, None),
        (sinh_kept_on_ctx, False, None),
        (sinh_gradients_ignored, True, None),  # its path to x carries no gradient
        (sinh_non_differentiable, False, None),
        (SinhOnce.apply, False, '"Error"'),
    ],
    ids=["sinh", "kept on ctx", "gradients ignored", "non-differentiable", "once differentiable"],
)
def test_where_the_graph_of_a_gradient_stops(function, reaches_x, stops_at):
    x, cotangent = ones(3), torch.randn(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x), x, cotangent, create_graph=True)
    text = draw_graph(gradient, {"x": x, "cotangent": cotangent})
    assert ('"x\\n(3)"' in text) is reaches_x
    assert ('"cotangent\\n(3)"' in text) is (stops_at is None)
    assert stops_at is None or stops_at in text


# the picture as a file: SVG by Graphviz, or text without it


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


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_itself_shows_names_unchanged(tmp_path):
    x = ones(3)
    name = 'größe "of\\N x" &lt; <b> {a|b}'
    written = write_graph(tmp_path / "graph.svg", x.exp(), {name: x})
    assert written.suffix == ".svg"
    texts = [text.text for text in ET.parse(written).iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(texts) == sorted(["output", "(3)", "ExpBackward0", name, "(3)"])
