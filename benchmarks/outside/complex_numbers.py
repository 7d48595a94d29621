"""Complex numbers: weights, Fourier layers, phases, spectrograms, complex inputs."""

import torch
from spec_parts import drawn, function, hurried, normal, normals
from torch import Tensor, nn


class ComplexLinear(nn.Module):
    """Complex weights; real numbers go in, magnitudes come out."""

    def __init__(self, inputs: int = 4, outputs: int = 5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=torch.cfloat) * 0.5)
        self.bias = nn.Parameter(torch.randn(outputs, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight.t() + self.bias).abs()


class FourierLayer(nn.Module):
    """Weights for the lowest frequencies, and a pointwise path."""

    def __init__(self, width: int = 4, modes: int = 3) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) * 0.25)
        self.point = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], torch.view_as_complex(self.weight))
        y = torch.fft.irfft(nn.functional.pad(low, (0, spectrum.shape[-1] - self.modes)), n=x.shape[-1])
        return nn.functional.gelu(y + self.point(x))


class Spectrogram(nn.Module):
    """Log power of short-time Fourier transforms, through a Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(8))
        self.linear = nn.Linear(5, 3)

    def forward(self, wave: Tensor) -> Tensor:
        frames = torch.stft(wave, 8, hop_length=4, window=self.window, center=False, return_complex=True)
        power = frames.real**2 + frames.imag**2
        return self.linear(torch.log1p(power).transpose(1, 2))


class PhaseMask(nn.Module):
    """Learned phases in the plane of a two-dimensional spectrum."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.randn(size, size))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.polar(torch.ones_like(self.phase), self.phase)
        field = torch.fft.ifft2(torch.fft.fft2(x) * mask)
        return field.abs() ** 2


def _complex(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(4, 5, dtype=torch.cfloat, generator=g), torch.randn(5, dtype=torch.cfloat, generator=g)


def _correlated(a: Tensor, b: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(a).conj() * torch.fft.rfft(b), n=a.shape[-1])


def _rotated(x: Tensor) -> Tensor:
    angle = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.5, 0.25, 0.125]))
    return torch.view_as_real(torch.view_as_complex(x) * torch.polar(torch.ones_like(angle), angle)).flatten(2)


LINEAR = hurried("complex_linear", "complex weights", ComplexLinear, normal(6, 4))
FOURIER = hurried("fourier_layer", "a Fourier layer", FourierLayer, normal(2, 4, 10))
SPECTROGRAM = hurried("spectrogram", "a spectrogram", Spectrogram, normal(2, 24))
PHASES = hurried("phase_mask", "learned phases", PhaseMask, normal(2, 6, 6))
PRODUCT = hurried(
    "complex_product", "complex in and out", function(lambda a, b: (a * b.conj(), (a @ b).abs())), drawn(_complex)
)
CORRELATED = hurried("correlated", "circular correlation", function(_correlated), normals((3, 8), (3, 8)))
ROTATED = hurried("rotated_pairs", "pairs rotated by their place", function(_rotated), normal(2, 6, 4, 2))
