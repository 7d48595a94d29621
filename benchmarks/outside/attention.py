"""Attention: causal, masked, grouped, biased, linear, rotary, crossed and local."""

import math

import torch
from spec_parts import drawn, hurried, normal, normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class CausalAttention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(b, t, self.heads, w // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, w // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, w // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


class MaskedAttention(nn.Module):
    """One head, written out, with a triangular buffer as mask."""

    def __init__(self, width: int = 12, longest: int = 16) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(longest, longest)))

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        scores = scores.masked_fill(self.mask[:t, :t] == 0, float("-inf"))
        return torch.softmax(scores, dim=-1) @ self.v(x)


class GroupedQueries(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q = self.q(x).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, self.groups, self.size).unbind(2)
        k = k.transpose(1, 2).repeat_interleave(self.heads // self.groups, dim=1)
        v = v.transpose(1, 2).repeat_interleave(self.heads // self.groups, dim=1)
        weights = torch.softmax(q @ k.transpose(2, 3) * self.size**-0.5, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(b, t, w)


class DistanceBias(nn.Module):
    """Attention whose scores fall with distance, with a slope for each head."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.slope = nn.Parameter(torch.tensor([0.5, 0.25]))

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 3, 0, 1, 4).unbind(0)
        at = torch.arange(t, device=x.device)
        distance = (at[:, None] - at[None, :]).abs()
        scores = torch.einsum("hbid,hbjd->hbij", q, k) / math.sqrt(w // self.heads)
        weights = (scores - self.slope[:, None, None, None] * distance).softmax(-1)
        return torch.einsum("hbij,hbjd->bihd", weights, v).reshape(b, t, w)


class LinearAttention(nn.Module):
    """Causal attention with the feature map elu + 1, as running sums."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = (k[..., :, None] * v[..., None, :]).cumsum(1)
        norm = (q * k.cumsum(1)).sum(-1, keepdim=True)
        return torch.einsum("btd,btde->bte", q, state) / (norm + 1e-6)


def rotated(x: Tensor, base: float = 100.0) -> Tensor:
    half = x.shape[-1] // 2
    speed = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)


class RotaryAttention(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rotated(self.q(x)), rotated(self.k(x)), self.v(x)
        scores = torch.einsum("bid,bjd->bij", q, k.to(q.dtype)) / x.shape[-1] ** 0.5
        return scores.softmax(-1).to(v.dtype) @ v


class CrossAttention(nn.Module):
    """Queries look at a memory; padded places of the memory are left out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor, padded: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, memory, memory, key_padding_mask=padded)


class LocalAttention(nn.Module):
    """Every place looks at itself and the two places before it."""

    def __init__(self, width: int = 8, window: int = 3) -> None:
        super().__init__()
        self.window = window
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        k, v = F.pad(self.kv(x), (0, 0, self.window - 1, 0)).unfold(1, self.window, 1).chunk(2, dim=2)
        scores = torch.einsum("btd,btdw->btw", self.q(x), k) * x.shape[-1] ** -0.5
        return torch.einsum("btw,btdw->btd", torch.softmax(scores, -1), v)


def _memory(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    padded = torch.zeros(2, 6, dtype=torch.bool)
    padded[1, 4:] = True
    return torch.randn(2, 4, 8, generator=g), torch.randn(2, 6, 8, generator=g), padded


CAUSAL = hurried(
    "causal_attention", "causal attention", CausalAttention, normal(2, 7, 16), normal(1, 1, 16, name="one")
)
MASKED = hurried("masked_attention", "attention with a mask as buffer", MaskedAttention, normal(3, 6, 12))
GROUPED = hurried("grouped_queries", "four query heads, two key heads", GroupedQueries, normal(2, 5, 16))
DISTANCE = hurried("distance_bias", "scores fall with distance", DistanceBias, normal(2, 6, 16))
LINEAR = hurried("linear_attention", "linear attention by running sums", LinearAttention, normal(2, 9, 8))
ROTARY = hurried("rotary_attention", "rotary positions", RotaryAttention, normal(2, 6, 8))
CROSS = hurried("cross_attention", "a memory with padding", CrossAttention, drawn(_memory))
LOCAL = hurried("local_attention", "windows of three places", LocalAttention, normal(2, 8, 8))
PLAIN = hurried(
    "plain_attention",
    "attention of given queries, keys and values",
    lambda: lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v,
    normals((2, 5, 8), (2, 7, 8), (2, 7, 4)),
)
