"""Recurrent networks: written as loops, by torch's own layers, and as a parallel scan."""

import torch
from spec_parts import hurried, normal, normals, tokens
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class Elman(nn.Module):
    def __init__(self, inputs: int = 5, width: int = 7) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(inputs, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.h.in_features)
        states = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.x(x[:, t]) + self.h(h))
            states.append(h)
        return torch.stack(states, 1)


class LstmByHand(nn.Module):
    def __init__(self, inputs: int = 4, width: int = 6) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Linear(inputs + width, 4 * width)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h = torch.zeros(x.shape[0], self.width, device=x.device, dtype=x.dtype)
        c = torch.zeros_like(h)
        outs = []
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat((step, h), 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs, 1), (h, c)


class GruCharacters(nn.Module):
    """Characters, an embedding, two layers of GRU, logits."""

    def __init__(self, alphabet: int = 11) -> None:
        super().__init__()
        self.table = nn.Embedding(alphabet, 6)
        self.gru = nn.GRU(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, alphabet)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.gru(self.table(ids))
        return self.head(states)


class BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(5, 4, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0].mean(1))


class MinimalGru(nn.Module):
    """h_t = (1 − z_t) h_{t−1} + z_t v_t with gates of the input alone, as a scan of logarithms."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        k = self.gate(x)
        keep, take = -F.softplus(k).cumsum(1), -F.softplus(-k)
        value = F.softplus(self.value(x)).log()
        return torch.exp(keep + torch.logcumsumexp(take + value - keep, dim=1))


class Highway(nn.Module):
    """A simple recurrent unit: products over all steps at once, then a light loop."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        v, f, r = self.mix(x).chunk(3, -1)
        f, r = f.sigmoid(), r.sigmoid()
        outs = []
        for t in range(x.size(1)):
            c = f[:, t] * c + (1 - f[:, t]) * v[:, t]
            outs.append(r[:, t] * c.tanh() + (1 - r[:, t]) * x[:, t])
        return torch.stack(outs, dim=1), c


class ConvLstm(nn.Module):
    def __init__(self, channels: int = 2, width: int = 3) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Conv2d(channels + width, 4 * width, 3, padding=1)

    def forward(self, frames: Tensor) -> Tensor:
        b, t, _, rows, cols = frames.shape
        h = frames.new_zeros(b, self.width, rows, cols)
        c = h
        for i in range(t):
            gates = self.conv(torch.cat([frames[:, i], h], dim=1))
            a, f, o, g = gates.split(self.width, dim=1)
            c = f.sigmoid() * c + a.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


ELMAN = hurried("elman", "a tanh network as a loop", Elman, normal(3, 6, 5), normal(1, 1, 5, name="one-step"))
LSTM = hurried("lstm_by_hand", "an LSTM written out", LstmByHand, normal(3, 5, 4))
GRU = hurried("gru_characters", "characters through two GRU layers", GruCharacters, tokens(11, 3, 6))
BOTH = hurried("both_ways", "a bidirectional RNN", BothWays, normal(4, 5, 5))
MINIMAL = hurried("minimal_gru", "a GRU as a scan of logarithms", MinimalGru, normal(2, 8, 6))
HIGHWAY = hurried("highway_unit", "a simple recurrent unit", Highway, normals((2, 5, 6), (2, 6)))
CONV_LSTM = hurried("conv_lstm", "an LSTM of images", ConvLstm, normal(2, 3, 2, 5, 5))
