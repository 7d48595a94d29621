"""Losses: of classes, contrasts, distances, sequences, densities, masks."""

import math

import torch
from spec_parts import classes, drawn, function, hurried, normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name


def _focal(logits: Tensor, target: Tensor) -> Tensor:
    logp = F.log_softmax(logits, -1).gather(1, target[:, None]).squeeze(1)
    return (-((1 - logp.exp()) ** 2) * logp).mean()


def _smoothed(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, label_smoothing=0.1, ignore_index=-100)


def _contrast(a: Tensor, b: Tensor) -> Tensor:
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() / 0.2
    target = torch.arange(a.shape[0])
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def _triplet(a: Tensor, p: Tensor, n: Tensor) -> Tensor:
    return F.softplus((a - p).norm(dim=1) - (a - n).norm(dim=1) + 0.5)


def _gaussian(mean: Tensor, log_var: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (log_var + (y - mean) ** 2 / log_var.exp() + math.log(2 * math.pi)).sum(-1)


def _evidence(mean: Tensor, log_var: Tensor, noise: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The two terms of a variational autoencoder's loss, with its noise as an input."""
    z = mean + (0.5 * log_var).exp() * noise
    kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()
    return F.binary_cross_entropy_with_logits(z, x.sigmoid(), reduction="none").sum(1).mean(), kl


def _overlap(logits: Tensor, mask: Tensor) -> Tensor:
    p = logits.sigmoid()
    inner = (p * mask).sum((1, 2))
    return 1 - (2 * inner + 1) / (p.sum((1, 2)) + mask.sum((1, 2)) + 1)


def _distilled(student: Tensor, teacher: Tensor) -> Tensor:
    t = 2.0
    return F.kl_div(F.log_softmax(student / t, 1), F.softmax(teacher / t, 1), reduction="batchmean") * t * t


def _aligned(logits: Tensor, target: Tensor) -> Tensor:
    lengths = torch.full((2,), 3, dtype=torch.long)
    return F.ctc_loss(F.log_softmax(logits.float(), -1), target, torch.full((2,), 8, dtype=torch.long), lengths)


def _preferred(chosen: Tensor, rejected: Tensor, base: Tensor) -> Tensor:
    return -F.logsigmoid(0.5 * ((chosen - base[0]) - (rejected - base[1])))


class Ranking(nn.Module):
    """A ListNet loss over the scores of a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 1))

    def forward(self, x: Tensor, relevance: Tensor) -> Tensor:
        scores = self.score(x).squeeze(-1)
        return -(relevance.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean()


def _with_ignored(g: torch.Generator) -> tuple[Tensor, Tensor]:
    target = classes(g, 5, 8)
    target[3] = -100
    return torch.randn(8, 5, generator=g), target


FOCAL = hurried(
    "focal", "focal loss", function(_focal), drawn(lambda g: (torch.randn(8, 5, generator=g), classes(g, 5, 8)))
)
SMOOTHED = hurried("smoothed", "smoothed labels, one ignored", function(_smoothed), drawn(_with_ignored))
CONTRAST = hurried("contrast", "both ways, cosines", function(_contrast), normals((6, 5), (6, 5)))
TRIPLET = hurried("triplet", "a soft triplet loss", function(_triplet), normals((5, 4), (5, 4), (5, 4)))
GAUSSIAN = hurried("gaussian_nll", "a Gaussian likelihood", function(_gaussian), normals((4, 3), (4, 3), (4, 3)))
EVIDENCE = hurried("evidence", "reconstruction and divergence", function(_evidence), normals(*[(4, 3)] * 4))
OVERLAP = hurried(
    "overlap",
    "Dice loss",
    function(_overlap),
    drawn(lambda g: (torch.randn(3, 4, 4, generator=g), (torch.rand(3, 4, 4, generator=g) > 0.5).float())),
)
HUBER = hurried("huber", "Huber loss", function(lambda x, y: F.huber_loss(x, y, delta=0.75)), normals((6, 4), (6, 4)))
DISTILLED = hurried("distilled", "a student follows a teacher", function(_distilled), normals((5, 6), (5, 6)))
ALIGNED = hurried(
    "ctc",
    "connectionist temporal classification",
    function(_aligned),
    drawn(lambda g: (torch.randn(8, 2, 5, generator=g), 1 + classes(g, 4, 2, 3))),
)
PREFERRED = hurried("preferred", "a preference loss", function(_preferred), normals((6,), (6,), (2, 6)))
RANKING = hurried("ranking", "a loss of ranked lists", Ranking, normals((3, 5, 4), (3, 5)))
