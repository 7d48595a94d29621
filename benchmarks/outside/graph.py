"""Networks of graphs and sets: sums, softmaxes and maxima over the neighbours."""

import torch
from spec_parts import classes, drawn, hurried, normals
from torch import Tensor, nn

NODES, EDGES = 9, 24


class GraphConvolution(nn.Module):
    def __init__(self, inputs: int = 5, width: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        degree = torch.ones(x.shape[0]).index_add(0, target, torch.ones(target.shape[0]))
        h = self.linear(x)
        weight = (degree[source] * degree[target]).rsqrt().unsqueeze(1).to(h.dtype)
        gathered = torch.zeros_like(h).index_add(0, target, h[source] * weight)
        return torch.tanh(gathered + h / degree[:, None].to(h.dtype))


class GraphAttention(nn.Module):
    """A softmax over the incoming edges of each node."""

    def __init__(self, inputs: int = 5, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width, bias=False)
        self.a = nn.Parameter(torch.randn(2, width))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h = self.linear(x).float()
        score = nn.functional.leaky_relu((h[source] * self.a[0]).sum(1) + (h[target] * self.a[1]).sum(1), 0.2)
        top = torch.full((x.shape[0],), float("-inf")).scatter_reduce(0, target, score, "amax")
        weight = torch.exp(score - top[target])
        total = torch.zeros(x.shape[0]).index_add(0, target, weight)
        return torch.zeros_like(h).index_add(0, target, h[source] * (weight / total[target])[:, None])


class MaxPooling(nn.Module):
    """Each node takes the maximum of its neighbours."""

    def __init__(self, inputs: int = 5, width: int = 6) -> None:
        super().__init__()
        self.pool, self.join = nn.Linear(inputs, width), nn.Linear(inputs + width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        near = torch.sigmoid(self.pool(x))[edges[0]]
        best = torch.zeros(x.shape[0], near.shape[1], dtype=near.dtype)
        best = best.scatter_reduce(0, edges[1][:, None].expand_as(near), near, "amax")
        return self.join(torch.cat([x.to(best.dtype), best], dim=1))


class Messages(nn.Module):
    """Two rounds of messages from a network of edges, with a GRU cell that updates the nodes."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width + 2, 8), nn.SiLU(), nn.Linear(8, width))
        self.update = nn.GRUCell(width, width)

    def forward(self, x: Tensor, edges: Tensor, features: Tensor) -> Tensor:
        for _ in range(2):
            sent = self.message(torch.cat([x[edges[0]], x[edges[1]], features], dim=-1)).to(x.dtype)
            x = self.update(torch.zeros_like(x).index_add(0, edges[1], sent), x).to(x.dtype)
        return x


class Chebyshev(nn.Module):
    """A polynomial of the graph's Laplacian."""

    def __init__(self, inputs: int = 4, width: int = 3, degree: int = 3) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(inputs, width) * 0.5) for _ in range(degree)])

    def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
        adjacency = torch.sigmoid(adjacency + adjacency.t())
        scale = adjacency.sum(1).rsqrt()
        laplacian = torch.eye(adjacency.shape[0]) - scale[:, None] * adjacency * scale[None]
        before, now = x, laplacian @ x
        y = before @ self.weights[0] + now @ self.weights[1]
        return y + (2 * laplacian @ now - before) @ self.weights[2]


class DeepSets(nn.Module):
    """The mean and the maximum of each set's elements, of sets of several sizes in one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor, owner: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x)).float()
        count = torch.bincount(owner, minlength=3).clamp(min=1)
        mean = torch.zeros(3, 6).index_add(0, owner, h) / count[:, None]
        most = torch.zeros(3, 6).index_reduce(0, owner, h, "amax", include_self=False)
        return self.outer(torch.cat([mean, most], 1))


def _graph(g: torch.Generator) -> tuple[Tensor, Tensor]:
    inward = torch.cat([torch.arange(NODES), classes(g, NODES, EDGES - NODES)])  # every node has an edge
    return torch.randn(NODES, 5, generator=g), torch.stack([classes(g, NODES, EDGES), inward])


def _graph_with_features(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    return *_graph(g), torch.randn(EDGES, 2, generator=g)


CONVOLUTION = hurried("graph_convolution", "normalised sums of neighbours", GraphConvolution, drawn(_graph))
ATTENTION = hurried("graph_attention", "a softmax over incoming edges", GraphAttention, drawn(_graph))
MAXIMUM = hurried("graph_max", "the maximum of the neighbours", MaxPooling, drawn(_graph))
MESSAGES = hurried("graph_messages", "messages along edges", Messages, drawn(_graph_with_features))
CHEBYSHEV = hurried("chebyshev", "a polynomial of the Laplacian", Chebyshev, normals((6, 6), (6, 4)))
SETS = hurried(
    "deep_sets",
    "means and maxima of sets",
    DeepSets,
    drawn(lambda g: (torch.randn(8, 4, generator=g), torch.tensor([0, 0, 1, 2, 2, 2, 1, 0]))),
)
