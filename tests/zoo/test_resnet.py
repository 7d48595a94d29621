"""The small residual network: shapes, in-place ReLUs, statistics and bad input."""

import pytest
import torch
from torch import nn

import zoo
from zoo.models.resnet import BasicBlock, ResNet


def test_only_a_block_that_changes_the_shape_has_a_projection():
    assert isinstance(BasicBlock(16, 16).downsample, nn.Identity)
    assert len(BasicBlock(16, 32).downsample) == len(BasicBlock(16, 16, stride=2).downsample) == 2


@pytest.mark.parametrize(("side", "half"), [(8, 4), (7, 4), (1, 1)])
def test_a_stride_of_two_halves_the_image(side, half):
    assert BasicBlock(16, 32, stride=2)(torch.randn(2, 16, side, side)).shape == (2, 32, half, half)


def test_each_width_is_a_block():
    model = ResNet(in_channels=1, widths=(4, 6, 8), num_classes=5)
    assert [block.conv2.out_channels for block in model.blocks] == [4, 6, 8]
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 5)


@pytest.mark.parametrize("mode", [lambda model: model, torch.jit.script])
def test_the_relus_in_place_leave_the_images_alone(mode):
    model = ResNet()
    images = torch.randn(4, 3, 8, 8, requires_grad=True)
    before = images.detach().clone()
    logits = mode(model)(images)
    assert torch.equal(images, before)
    torch.autograd.grad(logits, [images, *model.parameters()], torch.randn_like(logits))


def test_training_moves_the_statistics_and_eval_does_not():
    model, images = ResNet(), torch.randn(4, 3, 8, 8)
    model(images)
    moved = model.stem[1].running_mean.clone()
    assert moved.abs().max() > 0
    model.eval()(images)
    assert torch.equal(model.stem[1].running_mean, moved)


def test_in_eval_mode_an_image_is_classified_alone():
    spec, images = zoo.get_spec("resnet_eval"), torch.randn(4, 3, 8, 8)
    torch.manual_seed(0)
    model = spec.build()
    with torch.no_grad():
        spec.initialise(model)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


def test_it_learns():
    torch.manual_seed(0)
    model, images, labels = ResNet(), torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("scripted", [False, True])
def test_bad_images_get_one_line(scripted):
    model = torch.jit.script(ResNet()) if scripted else ResNet()
    value, kind = (torch.jit.Error,) * 2 if scripted else (ValueError, TypeError)
    for shape in ([3, 8, 8], [2, 1, 8, 8], [2, 3, 0, 8]):
        with pytest.raises(value, match=r"ResNet: images must have shape \(batch, 3, h, w\) with at least one pixel"):
            model(torch.ones(shape))
    with pytest.raises(kind, match=r"ResNet: images must have a floating dtype, got"):
        model(torch.ones(2, 3, 8, 8, dtype=torch.uint8))


def test_what_is_no_tensor_and_no_size_is_named():
    for build, error, message in [
        (lambda: ResNet()([1.0]), TypeError, "images must be a tensor, got list"),
        (lambda: ResNet(num_classes=-1), ValueError, "num_classes must be at least 1, got -1"),
        (lambda: ResNet(widths=16), TypeError, "widths must be a list or tuple, got int"),
        (lambda: ResNet(widths=()), ValueError, "widths must not be empty"),
        (lambda: ResNet(widths=(16, 0)), ValueError, r"widths\[1\] must be at least 1, got 0"),
        (lambda: ResNet(widths=None), TypeError, "widths must be a list or tuple, got None"),
    ]:
        with pytest.raises(error, match=f"^ResNet: {message}$"):
            build()
    with pytest.raises(ValueError, match=r"^BasicBlock: stride must be at least 1, got 0$"):
        BasicBlock(16, 16, stride=0)
