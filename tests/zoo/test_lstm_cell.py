"""The LSTM cell that is written out, beside torch's."""

import pytest
import torch
from torch import nn

from zoo.models.lstm_cell import LSTMCell, Recurrence


def state(batch=3, hidden=6, **options):
    """Return a hidden state and a cell state."""
    return torch.randn(batch, hidden, **options), torch.randn(batch, hidden, **options)


def test_a_state_dict_fits_both_cells_and_a_layer_of_torch():
    torch.manual_seed(0)
    cell, native, layer = LSTMCell(4, 6).double(), nn.LSTMCell(4, 6).double(), nn.LSTM(4, 6).double()
    native.load_state_dict(cell.state_dict())
    layer.load_state_dict({f"{name}_l0": tensor for name, tensor in cell.state_dict().items()})
    x, (h, c) = torch.randn(5, 3, 4, dtype=torch.float64), state(dtype=torch.float64)
    torch.testing.assert_close(cell(x[0], (h, c)), native(x[0], (h, c)))
    outputs, last_h, last_c = Recurrence(cell)(x, h, c)
    wanted, (wanted_h, wanted_c) = layer(x, (h[None], c[None]))
    torch.testing.assert_close((outputs, last_h, last_c), (wanted, wanted_h[0], wanted_c[0]))


def test_an_open_forget_gate_keeps_the_cell_state():
    cell = LSTMCell(4, 2)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.bias_ih.copy_(torch.tensor([-99.0, -99.0, 99.0, 99.0, 0.0, 0.0, 0.0, 0.0]))  # input shut, forget open
    c = torch.tensor([[1.5, -2.5]])
    h, after = cell(torch.ones(1, 4), (torch.zeros(1, 2), c))
    assert torch.equal(after, c)
    torch.testing.assert_close(h, torch.tanh(c) / 2)


def test_the_state_stays_in_float32_under_autocast():
    model, (h, c) = Recurrence(LSTMCell(4, 6)), state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {t.dtype for t in model(torch.randn(5, 3, 4), h, c)} == {torch.float32}


def test_the_loop_compiles_into_one_graph():
    graphs, (h, c) = [], state()
    model = Recurrence(LSTMCell(4, 6))

    def backend(graph, _example):
        graphs.append(graph)
        return graph.forward

    torch.compile(model, backend=backend, fullgraph=True)(torch.randn(5, 3, 4), h, c)
    assert len(graphs) == 1


@pytest.mark.parametrize("scripted", [False, True])
def test_bad_shapes_and_dtypes_get_one_line(scripted):
    cell, model = LSTMCell(4, 6), Recurrence(LSTMCell(4, 6))
    if scripted:
        cell, model = torch.jit.script(cell), torch.jit.script(model)
    value, kind = (torch.jit.Error,) * 2 if scripted else (ValueError, TypeError)
    h, c = state()
    with pytest.raises(value, match=r"LSTMCell: x must have shape \(batch, 4\), got \[3, 5\]"):
        cell(torch.ones(3, 5), (h, c))
    with pytest.raises(value, match=r"LSTMCell: h and c must have shape \[3, 6\], got \[3, 6\] and \[2, 6\]"):
        cell(torch.ones(3, 4), (h, c[:2]))
    with pytest.raises(kind, match=r"LSTMCell: x, h and c must have a floating dtype, got"):
        cell(torch.ones(3, 4), (h, c.long()))
    with pytest.raises(value, match=r"Recurrence: x must have shape \(steps, batch, input_size\) with at least one"):
        model(torch.ones(0, 3, 4), h, c)
    with pytest.raises(value, match=r"Recurrence: x must have shape .*, got \[3, 4\]"):
        model(torch.ones(3, 4), h, c)


def test_what_is_no_tensor_no_size_or_no_cell_is_named():
    h, c = state()
    for x, pair, message in [
        ([1.0], (h, c), "LSTMCell: x must be a tensor, got list"),
        (torch.ones(3, 4), (h, None), "LSTMCell: c must be a tensor, got None"),
        (torch.ones(3, 4), h, "LSTMCell: state must be a pair of tensors, got Tensor"),
        (torch.ones(3, 4), None, "LSTMCell: state must be a pair of tensors, got None"),
    ]:
        with pytest.raises(TypeError, match=f"^{message}$"):
            LSTMCell(4, 6)(x, pair)
    with pytest.raises(ValueError, match=r"^LSTMCell: hidden_size must be at least 1, got -6$"):
        LSTMCell(4, -6)
    with pytest.raises(TypeError, match=r"^Recurrence: cell must be a module, got None$"):
        Recurrence(None)
    with pytest.raises(TypeError, match=r"^Recurrence: h must be a tensor, got None$"):
        Recurrence(LSTMCell(4, 6))(torch.ones(5, 3, 4), None, c)
