"""State-space models: diagonal ones by Fourier transforms, selective ones by loops, retention by chunks."""

import torch
from spec_parts import hurried, normal
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


class DiagonalStates(nn.Module):
    """Complex diagonal states per channel; the kernel is applied by FFT."""

    def __init__(self, width: int = 4, states: int = 3) -> None:
        super().__init__()
        self.log_decay = nn.Parameter(torch.rand(width, states) - 1.0)
        self.angle = nn.Parameter(torch.rand(width, states) * 3.0)
        self.c = nn.Parameter(torch.randn(width, states, 2) * 0.5)
        self.d = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        rate = torch.complex(-self.log_decay.exp(), self.angle)
        powers = torch.exp(rate[..., None] * torch.arange(length, device=x.device))
        kernel = torch.einsum("wn,wnl->wl", torch.view_as_complex(self.c), powers).real
        spectrum = torch.fft.rfft(x.float(), n=2 * length) * torch.fft.rfft(kernel.float(), n=2 * length)
        return torch.fft.irfft(spectrum, n=2 * length)[..., :length] + self.d[:, None] * x


class SelectiveScan(nn.Module):
    """Steps, input and output matrices depend on the input."""

    def __init__(self, width: int = 6, states: int = 4) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.step, self.bc = nn.Linear(width, width), nn.Linear(width, 2 * states, bias=False)
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        delta = F.softplus(self.step(x))
        b, c = self.bc(x).chunk(2, dim=-1)
        a = -torch.exp(self.log_a)
        h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], device=x.device)
        out = []
        for t in range(x.shape[1]):
            h = torch.exp(delta[:, t, :, None] * a) * h + delta[:, t, :, None] * b[:, t, None, :] * x[:, t, :, None]
            out.append((h * c[:, t, None, :]).sum(-1))
        return torch.stack(out, dim=1) + x * self.skip


class GatedRecurrence(nn.Module):
    """A real linear recurrence with learned decays, in float32 whatever autocast says."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(width) * 2)
        self.inp, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        u = self.inp(x).float()
        a = torch.sigmoid(self.decay)
        h = torch.zeros_like(u[:, 0])
        hs = []
        for t in range(x.shape[1]):
            h = a * h + torch.sqrt(1 - a**2) * u[:, t]
            hs.append(h)
        return self.out(torch.stack(hs, 1))


class Retention(nn.Module):
    """Attention without softmax, with exponential decay of distance."""

    def __init__(self, width: int = 8, decay: float = 0.875) -> None:
        super().__init__()
        self.decay = decay
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.norm = nn.GroupNorm(2, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).split(w, dim=-1)
        at = torch.arange(t, device=x.device)
        gap = at[:, None] - at
        mask = torch.where(gap >= 0, self.decay ** gap.clamp(min=0).float(), 0.0)
        y = ((q @ k.mT) * mask) @ v.float() if not torch.is_autocast_enabled("cpu") else ((q @ k.mT) * mask) @ v
        return self.norm(y.reshape(b * t, w)).view(b, t, w)


class MovingAverages(nn.Module):
    """Each channel smoothed by a decay of its own, as one product with a Toeplitz matrix."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.linspace(-1, 2, width))
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        gap = (torch.arange(t)[:, None] - torch.arange(t)[None]).to(x.device)
        alpha = self.logit.sigmoid()[:, None, None]
        kernel = torch.tril((1 - alpha) * alpha ** gap.clamp(min=0))
        return F.silu(self.mix(torch.einsum("wts,bsw->btw", kernel, x)))


DIAGONAL = hurried("diagonal_states", "a diagonal state space by FFT", DiagonalStates, normal(2, 4, 9))
SELECTIVE = hurried("selective_scan", "a selective state space by a loop", SelectiveScan, normal(2, 6, 6))
GATED = hurried("gated_recurrence", "a real linear recurrence", GatedRecurrence, normal(3, 7, 8))
RETENTION = hurried("retention", "retention in its parallel form", Retention, normal(2, 6, 8))
AVERAGES = hurried("moving_averages", "learned moving averages", MovingAverages, normal(3, 8, 6))
