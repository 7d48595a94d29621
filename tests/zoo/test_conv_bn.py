"""The image classifier on convolution and batch norm, in two steps and fused."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from zoo.models.conv_bn import ConvNorm, FusedConvNorm, ImageClassifier

LAYERS = [ConvNorm, FusedConvNorm]


def patterns(count):
    """Return noisy copies of ten fixed patterns, and the number of each copy's pattern."""
    generator = torch.Generator().manual_seed(7)
    originals = torch.randn(10, 1, 8, 8, generator=generator)
    labels = torch.arange(count) % 10
    return originals[labels] + 0.5 * torch.randn(count, 1, 8, 8, generator=generator), labels


def loss_curve(layer, dtype, steps=20):
    torch.manual_seed(0)
    model = ImageClassifier(layer).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    images, labels = patterns(40)
    losses = []
    for _ in range(steps):
        loss = cross_entropy(model(images.to(dtype)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def saved_bytes(layer):
    torch.manual_seed(0)
    model = ImageClassifier(layer, in_channels=3)
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(torch.randn(8, 3, 32, 32))
    assert logits.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def test_both_train_with_the_same_loss_curve():
    two_steps, fused = (loss_curve(layer, torch.float64) for layer in LAYERS)
    assert two_steps[0] > 2.2  # near log 10, the loss of a guess
    assert two_steps[-1] < 1.4
    assert (two_steps.diff() < 0).all()
    torch.testing.assert_close(fused, two_steps, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layer", LAYERS)
def test_float32_stays_with_the_curve_of_float64(layer):
    curve = loss_curve(layer, torch.float32)
    torch.testing.assert_close(curve, loss_curve(ConvNorm, torch.float64), rtol=0, atol=1e-5)


def test_the_fused_layer_does_not_save_the_convolutions_results():
    """The difference is the two results: 8·8·30·30 + 8·16·28·28 numbers of 4 bytes."""
    assert saved_bytes(ConvNorm) == 1_368_544
    assert saved_bytes(FusedConvNorm) == 736_736
    assert 1_368_544 - 736_736 == 4 * (8 * 8 * 30 * 30 + 8 * 16 * 28 * 28)


def test_a_state_dict_fits_both_and_gradients_agree():
    one, other = ImageClassifier(ConvNorm).double(), ImageClassifier(FusedConvNorm).double()
    other.load_state_dict(one.state_dict())
    images = torch.randn(4, 1, 9, 7, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(4, 10, dtype=torch.float64)
    gradients = [torch.autograd.grad(m(images), (images, *m.parameters()), cotangent) for m in (one, other)]
    assert len(gradients[0]) == 5
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients[0])
    for mine, its in zip(*gradients, strict=True):
        torch.testing.assert_close(its, mine, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", LAYERS)
def test_norm_uses_batch_statistics_in_evaluation_too(layer):
    model = ImageClassifier(layer)
    images, _ = patterns(6)
    trained = model.train()(images)
    assert torch.equal(model.eval()(images), trained)
    assert list(model.state_dict()) == ["conv1.weight", "conv2.weight", "linear.weight", "linear.bias"]


@pytest.mark.parametrize("layer", LAYERS)
def test_every_channel_comes_out_with_mean_zero_and_deviation_just_below_one(layer):
    y = layer(3, 16).double()(torch.randn(8, 3, 32, 32, dtype=torch.float64))
    assert y.mean((0, 2, 3)).abs().max() < 1e-12
    deviation = y.std((0, 2, 3))  # s / (s + eps) for a channel with deviation s
    assert deviation.max() < 1
    assert deviation.min() > 0.99


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (1, 8, 8), (4, 1, 4, 8), (4, 1, 8, 4)])
def test_images_of_another_shape_are_named(layer, shape):
    with pytest.raises(ValueError, match=r"ImageClassifier: images must have shape \(batch, 1, h, w\) with h and w"):
        ImageClassifier(layer)(torch.ones(shape))


@pytest.mark.parametrize("layer", LAYERS)
def test_other_dtypes_are_refused(layer):
    with pytest.raises(TypeError, match=r"^ImageClassifier: images must have a floating dtype, got"):
        ImageClassifier(layer)(torch.ones(4, 1, 8, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"weight must have the dtype of x, torch.float64, outside autocast"):
        ImageClassifier(layer)(torch.ones(4, 1, 8, 8, dtype=torch.float64))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_single_value_per_channel_has_no_variance(layer):
    with pytest.raises(ValueError, match="at least 2 values per"):
        ImageClassifier(layer)(torch.ones(1, 1, 5, 5))
