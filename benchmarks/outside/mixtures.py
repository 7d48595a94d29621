"""Mixtures: experts with hard and soft routing, and mixtures of densities."""

import math

import torch
from spec_parts import classes, drawn, hurried, normal, normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class OneExpert(nn.Module):
    """Each row goes to its best expert; the gate's probability scales the result."""

    def __init__(self, width: int = 6, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = torch.where(chosen == i)[0]
            y = y.index_add(0, rows, (expert(x[rows]) * weight[rows, None]).to(y.dtype))
        return y


class TwoExperts(nn.Module):
    """The two best experts, with their weights normalised; all experts as one tensor."""

    def __init__(self, width: int = 6, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 8) * 0.4)
        self.down = nn.Parameter(torch.randn(experts, 8, width) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).topk(2, dim=-1)
        weights = weights.softmax(-1)
        h = F.silu(torch.einsum("bd,bkdh->bkh", x, self.up[chosen]))
        return (torch.einsum("bkh,bkhd->bkd", h, self.down[chosen]) * weights[..., None]).sum(1)


class Dense(nn.Module):
    """Every expert sees every row."""

    def __init__(self, width: int = 5, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(width, 7), nn.Tanh()) for _ in range(experts)])

    def forward(self, x: Tensor) -> Tensor:
        stacked = torch.stack([expert(x) for expert in self.experts], 1)
        return torch.einsum("be,bed->bd", torch.softmax(self.gate(x), 1), stacked)


class SoftSlots(nn.Module):
    """Slots are soft mixtures of the rows, and rows are soft mixtures of the slots."""

    def __init__(self, width: int = 6, slots: int = 4) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.randn(width, slots) * 0.5)
        self.weight = nn.Parameter(torch.randn(slots, width, width) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        logits = x @ self.phi
        slots = torch.einsum("bts,btd->bsd", logits.softmax(1), x)
        return torch.einsum("bts,bsd->btd", logits.softmax(2), torch.einsum("bsd,sde->bse", slots, self.weight).tanh())


class Density(nn.Module):
    """The negative log likelihood of a mixture of Gaussians."""

    def __init__(self, parts: int = 3) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3 * parts)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight, mean, log_std = self.net(x).chunk(3, -1)
        logp = -0.5 * ((y - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(weight.log_softmax(-1) + logp, -1)


class ByToken(nn.Module):
    """The token's number chooses the expert."""

    def __init__(self, words: int = 8, width: int = 5) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.weight = nn.Parameter(torch.randn(2, width, width))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return torch.bmm((x + self.table(ids))[:, None], self.weight[ids % 2])[:, 0]


class Balanced(nn.Module):
    """The loss that keeps experts evenly busy: counts times mean probabilities."""

    def __init__(self, width: int = 6, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.gate(x).float().softmax(-1)
        share = F.one_hot(p.argmax(-1), p.shape[-1]).float().mean(0)
        return p.shape[-1] * (share * p.mean(0)).sum(), share


ONE = hurried("one_expert", "hard routing to one expert", OneExpert, normal(10, 6))
TWO = hurried("two_experts", "the two best experts", TwoExperts, normal(8, 6))
DENSE = hurried("dense_experts", "every expert for every row", Dense, normal(6, 5))
SLOTS = hurried("soft_slots", "soft routing through slots", SoftSlots, normal(2, 7, 6))
DENSITY = hurried("mixture_density", "a mixture of Gaussians", Density, normals((6, 4), (6, 1)))
TOKEN = hurried(
    "by_token", "the token chooses", ByToken, drawn(lambda g: (classes(g, 8, 7), torch.randn(7, 5, generator=g)))
)
BALANCED = hurried("balanced", "the loss of uneven routing", Balanced, normal(12, 6))
