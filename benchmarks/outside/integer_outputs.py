"""Models with integer or boolean outputs: classes, indices, codes, counts, masks."""

import torch
from spec_parts import classes, drawn, function, hurried, normal, normals, tokens
from torch import Tensor, nn

from zoo import Convention


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(x)
        return logits, logits.argmax(-1)


class Codebook(nn.Module):
    """The nearest code of each row, and the loss that draws both together."""

    def __init__(self, codes: int = 6, width: int = 4) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, width))
        self.encoder = nn.Linear(5, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        index = torch.cdist(z.float(), self.codes).argmin(dim=1)
        return index, (z - self.codes[index]).pow(2).mean(1)


class BeamStep(nn.Module):
    """One step of a beam search over two beams."""

    def __init__(self, words: int = 7) -> None:
        super().__init__()
        self.words = words
        self.table, self.head = nn.Embedding(words, 6), nn.Linear(6, words)

    def forward(self, last: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logp = self.head(self.table(last)).log_softmax(-1) + scores[..., None]
        best, flat = logp.flatten(1).topk(2, dim=1)
        return best, torch.div(flat, self.words, rounding_mode="floor"), flat % self.words


class Accuracy(nn.Module):
    """Loss, hits and a table of confusions."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.count, self.linear = count, nn.Linear(5, count)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits = self.linear(x)
        guess = logits.argmax(1)
        table = torch.bincount(y * self.count + guess, minlength=self.count**2).view(self.count, self.count)
        loss = nn.functional.cross_entropy(logits, y)
        return {"loss": loss, "hits": guess == y, "table": table}


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    codes = torch.round(x / scale).to(torch.int8)
    return codes, codes.float() * scale.detach()


def _ranked(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, order = x.sort(dim=-1, descending=True)
    return values.cumsum(-1), order, order.argsort(-1)


def _bucketed(x: Tensor) -> Tensor:
    return torch.bucketize(x, torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0]))


def _kept(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The overlap of each box with the best one, and which boxes to keep."""
    low, high = boxes[:, :2], boxes[:, :2] + 1 + boxes[:, 2:].exp()
    best = scores.argmax()
    inner = (torch.minimum(high, high[best]) - torch.maximum(low, low[best])).clamp(min=0).prod(1)
    area = (high - low).prod(1)
    overlap = inner / (area + area[best] - inner)
    return overlap, overlap < 0.5


CLASSIFIER = hurried("classifier", "logits and the best class", Classifier, normal(7, 6))
CODEBOOK = hurried("codebook", "the nearest code", Codebook, normal(6, 5))
BEAM = hurried(
    "beam_step",
    "one step of a beam search",
    BeamStep,
    drawn(lambda g: (classes(g, 7, 3, 2), torch.randn(3, 2, generator=g))),
)
ACCURACY = hurried(
    "accuracy", "loss, hits, confusions", Accuracy, drawn(lambda g: (torch.randn(9, 5, generator=g), classes(g, 4, 9)))
)
QUANTISED = hurried(
    "quantised",
    "eight-bit codes",
    function(_quantised),
    normal(4, 8),
    conventions=(Convention(tensor="output[1]", why="the scale of the codes is not trained"),),
)
RANKED = hurried("ranked", "sorted values and ranks", function(_ranked), normal(4, 7))
BUCKETED = hurried("bucketed", "numbers of buckets", function(_bucketed), normal(4, 6))
BOXES = hurried("kept_boxes", "overlaps, and which to keep", function(_kept), normals((6, 4), (6,)))
SHIFTED = hurried(
    "shifted_tokens",
    "integers alone",
    function(lambda ids: (torch.roll(ids, 1, -1).masked_fill(ids == 0, -100), (ids != 0).sum(-1))),
    tokens(9, 3, 6),
)
