"""Draws by probabilities that a model computes: a little more or less of one makes them others."""

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Distribution

from conformance.float64.replacements import without_validation
from conformance.perturb.kinks import MARGIN, NUDGES, KinkWatch

SAMPLERS = {
    "multinomial": lambda p: torch.multinomial(p, 1)[:, 0],
    "bernoulli": torch.bernoulli,
    "poisson": lambda p: torch.poisson(p * 9),
    "categorical": lambda p: Categorical(probs=p).sample(),
    "independent": lambda p: Bernoulli(probs=p).sample(),
}


def probabilities(rows=1000):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows, 4, generator=generator, dtype=torch.float64).softmax(-1).requires_grad_()


def watched(sample, p, rows=0):
    torch.manual_seed(3)
    with KinkWatch(rows) as watch, torch.no_grad():
        drawn = sample(p * 1.0)
    with watch:
        (p.sum(-1) * drawn.reshape(len(p), -1)[:, 0]).sum()
    return watch, drawn


@pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
def test_a_draw_that_meets_a_gradient_is_a_kink(sample):
    watch, _ = watched(sample, probabilities())
    assert watch.kinked
    assert watch.margin in NUDGES


@pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
def test_to_watch_changes_no_draw(sample):
    _, drawn = watched(sample, probabilities())
    after = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(sample(probabilities() * 1.0), drawn)
    assert torch.equal(torch.rand(3), after)


def test_the_rows_that_hang_on_a_little_are_those_that_a_little_changes():
    p = probabilities()
    watch, drawn = watched(SAMPLERS["multinomial"], p, rows=len(p))
    generator = torch.Generator().manual_seed(1)
    changed = torch.zeros(len(p), dtype=torch.bool)
    for _ in range(100):
        torch.manual_seed(3)
        noise = torch.rand(p.shape, generator=generator, dtype=torch.float64) * 2 - 1
        changed |= SAMPLERS["multinomial"]((p * (1 + 2.0**-8 * noise)).detach()) != drawn
    assert bool(changed.any())
    assert float(watch.margins[changed].max()) <= MARGIN
    assert float((watch.margins == float("inf")).double().mean()) > 0.5


def test_a_dropout_is_no_kink():
    p = probabilities()
    assert not watched(lambda p: torch.bernoulli(torch.full_like(p, 0.5)), p)[0].kinked
    assert not watched(lambda p: torch.empty_like(p).bernoulli_(0.5), p)[0].kinked
    assert not watched(lambda p: torch.bernoulli(p, 0.5), p)[0].kinked


@pytest.mark.parametrize("sample", [torch.bernoulli, torch.poisson])
def test_probabilities_of_no_rows(sample):
    with KinkWatch() as watch:
        sample(torch.empty(0, 4))
    assert not watch.kinked


def test_the_checks_of_distributions_are_off_in_a_context(monkeypatch):
    monkeypatch.setattr(Distribution, "_validate_args", True)  # torch.compile turns them off, and not on again
    wrong = torch.tensor([0.3, 0.3])
    with without_validation():
        Bernoulli(probs=wrong * 4)
        with pytest.raises(ValueError, match="probs"):
            Bernoulli(probs=wrong * 4, validate_args=True)
    with pytest.raises(ValueError, match="probs"):
        Bernoulli(probs=wrong * 4)
