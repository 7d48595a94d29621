"""Models with buffers: running statistics, caches, counters, queues, power iterations."""

import torch
from spec_parts import hurried, normal, normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class RunningNorm(nn.Module):
    """Normalises by running statistics that it updates in training."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.75).add_(0.25 * x.mean(0))
                self.var.mul_(0.75).add_(0.25 * x.var(0, unbiased=False))
        return (x - self.mean) / torch.sqrt(self.var + 1e-5) * self.scale


class Spectral(nn.Module):
    """Divides the weight by its largest singular value, by a power iteration whose vector is a buffer."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))
        self.register_buffer("u", F.normalize(torch.randn(width), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            v = F.normalize(self.weight.t().mv(self.u), dim=0)
            u = F.normalize(self.weight.mv(v), dim=0)
            self.u.copy_(u)
        sigma = torch.dot(u, self.weight.mv(v))
        return F.linear(x, self.weight / sigma)


class KeyCache(nn.Module):
    """Writes keys and values at its position, and attends to all that it has seen."""

    def __init__(self, width: int = 6, longest: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("keys", torch.zeros(2, longest, width))
        self.register_buffer("values", torch.zeros(2, longest, width))
        self.register_buffer("at", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        place = self.at + torch.arange(x.shape[1])
        keys = self.keys.index_copy(1, place, k.to(self.keys.dtype))
        values = self.values.index_copy(1, place, v.to(self.values.dtype))
        seen = torch.arange(keys.shape[1])[None] <= place[:, None]
        scores = torch.einsum("btd,bsd->bts", q.to(keys.dtype), keys).masked_fill(~seen, float("-inf"))
        with torch.no_grad():
            self.keys.copy_(keys)
            self.values.copy_(values)
            self.at.add_(x.shape[1])
        return scores.softmax(-1).to(values.dtype) @ values


class WarmUp(nn.Module):
    """Counts its calls; the scale grows with the count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) * torch.clamp(self.calls.float() / 10.0, max=1.0)


class Queue(nn.Module):
    """Contrast with a queue of old keys; the batch replaces the oldest."""

    def __init__(self, width: int = 5, length: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, width)
        self.register_buffer("queue", F.normalize(torch.randn(length, width), dim=1))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.encoder(x), dim=1)
        logits = q @ self.queue.clone().t() / 0.5
        with torch.no_grad():
            where = (self.head + torch.arange(x.shape[0])) % self.queue.shape[0]
            self.queue[where] = q.detach().to(self.queue.dtype)
            self.head.copy_((self.head + x.shape[0]) % self.queue.shape[0])
        return logits


class MomentumTeacher(nn.Module):
    """A teacher whose weights, as buffers, follow the student's."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.student = nn.Linear(width, width)
        self.register_buffer("teacher", self.student.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.lerp_(self.student.weight, 0.125)
            target = x @ self.teacher.t()
        return ((self.student(x) - target) ** 2).mean(-1)


class Standardise(nn.Module):
    """Constants as buffers, one of them not in the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.25, 0.375]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.25, 0.5, 0.25]).view(1, 3, 1, 1), persistent=False)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv((x - self.mean) / self.std).mean((2, 3))


RUNNING = hurried("running_norm", "running statistics by hand", RunningNorm, normal(8, 6))
SPECTRAL = hurried("spectral", "a power iteration", Spectral, normal(5, 6))
CACHE = hurried("key_cache", "a cache of keys and values", KeyCache, normal(2, 3, 6))
WARM = hurried("warm_up", "a counter that scales", WarmUp, normal(4, 5))
QUEUE = hurried("queue", "a queue of keys", Queue, normal(3, 4))
TEACHER = hurried("momentum_teacher", "a moving average of weights", MomentumTeacher, normal(4, 5))
STANDARD = hurried("standardise", "constants as buffers", Standardise, normal(2, 3, 5, 5))
TRAINED = hurried("batch_norm_train", "batch norm in training", lambda: nn.BatchNorm1d(6), normals((9, 6)))
FIXED = hurried(
    "batch_norm_eval",
    "convolution and batch norm in eval mode",
    lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Hardswish()).eval(),
    normal(3, 2, 6, 6),
)
