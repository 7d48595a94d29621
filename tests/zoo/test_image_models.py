"""Models of images: the checkerboard, convolution with batch norm (apart, fused, folded), and the residual network."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from zoo.memory import saved_bytes
from zoo.models.checkerboard import Checkerboard, checker, grid, scripted_checkerboard
from zoo.models.conv_bn import ConvNorm, FusedConvNorm, ImageClassifier
from zoo.models.folded_conv_bn import ConvThenNorm, FoldedConvNorm, fold_conv_bn
from zoo.models.resnet import BasicBlock, ResNet

# the checkerboard: its data, and its two builds


def test_grid_holds_column_then_row_below_one():
    coordinates = grid(4, 2)
    assert coordinates.shape == (2, 2, 4)
    assert coordinates[0, 0].tolist() == [0, 0.25, 0.5, 0.75]
    assert coordinates[1, :, 0].tolist() == [0, 0.5]


def test_checker_alternates_and_starts_with_zero():
    """Also at widths where float32 is wrong: column 3 of 37 would be 2.9999998 squares from the left."""
    assert checker(4, 4, 2)[0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert checker(24, 24, 3).mean() == pytest.approx(4 / 9)
    assert checker(37, 1, 37).flatten().tolist() == [0, 1] * 18 + [0]
    assert checker(22, 22, 22)[0, 13, :2].tolist() == [1, 0]


def test_default_is_256_channels_and_one_logit():
    model = Checkerboard()
    filters = [tuple(p.shape[:2]) for p in model.parameters() if p.dim() == 4]
    assert filters == [(256, 2), (256, 256), (256, 256), (1, 256)]
    assert model(grid(3, 5).unsqueeze(0)).shape == (1, 1, 5, 3)


def test_script_module_has_the_same_state_and_learns_the_same():
    plain, scripted = Checkerboard(8), scripted_checkerboard(8)
    assert isinstance(scripted, torch.jit.ScriptModule)
    assert list(scripted.state_dict()) == list(plain.state_dict())
    scripted.load_state_dict(plain.state_dict())
    board = grid(8, 8).unsqueeze(0)
    for _ in range(3):
        torch.testing.assert_close(scripted(board), plain(board))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(scripted.state_dict()[name], value)
    assert plain.state_dict()["net.1.num_batches_tracked"] == 3


def test_training_moves_running_statistics_towards_the_batch():
    model, board = Checkerboard(8).double(), grid(8, 8).double().unsqueeze(0)
    features = model.net[0](board)
    model(board)
    torch.testing.assert_close(model.net[1].running_mean, 0.1 * features.mean((0, 2, 3)))
    torch.testing.assert_close(model.net[1].running_var, 0.9 + 0.1 * features.var((0, 2, 3)))


# the classifier on convolution and batch norm, in two steps and fused

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


def test_both_train_with_the_same_loss_curve_in_float32_too():
    two_steps, fused = (loss_curve(layer, torch.float64) for layer in LAYERS)
    assert two_steps[0] > 2.2  # near log 10, the loss of a guess
    assert two_steps[-1] < 1.4
    assert (two_steps.diff() < 0).all()
    torch.testing.assert_close(fused, two_steps, rtol=0, atol=1e-9)
    for layer in LAYERS:
        torch.testing.assert_close(loss_curve(layer, torch.float32), two_steps, rtol=0, atol=1e-5)


def test_the_fused_layer_does_not_save_the_convolutions_results():
    """The difference is the two results: 8·8·30·30 + 8·16·28·28 numbers of 4 bytes."""
    images = torch.randn(8, 3, 32, 32)
    two_steps, fused = (saved_bytes(ImageClassifier(layer, in_channels=3), images).total for layer in LAYERS)
    assert (two_steps, fused) == (1_368_544, 736_736)
    assert two_steps - fused == 4 * (8 * 8 * 30 * 30 + 8 * 16 * 28 * 28)


@pytest.mark.parametrize("layer", LAYERS)
def test_norm_uses_batch_statistics_in_evaluation_too(layer):
    model = ImageClassifier(layer)
    images, _ = patterns(6)
    trained = model.train()(images)
    assert torch.equal(model.eval()(images), trained)
    assert list(model.state_dict()) == ["conv1.weight", "conv2.weight", "linear.weight", "linear.bias"]


# batch norm folded into a convolution


def settled(channels, **options):
    """Return a norm in eval mode with statistics of its own."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels, **options)
    for _ in range(3):
        norm(torch.randn(8, channels, 4, 4) * torch.arange(1.0, channels + 1).reshape(-1, 1, 1) + 3)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
    return norm.eval()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"groups": 4, "stride": 2, "padding": 1},
        {"dilation": 2, "padding": "same"},
        {"padding": (1, 2), "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_one_convolution_equals_the_two_layers(options, affine, bias):
    conv, norm = nn.Conv2d(4, 8, 3, bias=bias, **options).double(), settled(8, affine=affine).double()
    before = {name: t.clone() for name, t in ConvThenNorm(conv, norm).state_dict().items()}
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    folded = fold_conv_bn(conv, norm)
    assert type(folded) is nn.Conv2d
    assert not folded.training
    torch.testing.assert_close(folded(x), norm(conv(x)))
    torch.testing.assert_close(FoldedConvNorm(conv, norm).eval()(x), norm(conv(x)))
    assert all(torch.equal(t, before[name]) for name, t in ConvThenNorm(conv, norm).state_dict().items())


def test_statistics_in_float32_are_folded_in_float32():
    conv, norm = nn.Conv2d(4, 8, 3).half(), settled(8)
    folded, exact = fold_conv_bn(conv, norm), fold_conv_bn(conv.double(), norm.double())
    assert folded.weight.dtype == folded.bias.dtype == torch.float16
    assert torch.equal(folded.weight, exact.weight.half())  # rounded once
    assert torch.equal(folded.bias, exact.bias.half())
    norm.running_var.zero_()
    assert fold_conv_bn(conv, norm).weight.isfinite().all()


# the residual network


def test_a_block_that_changes_the_shape_has_a_projection_and_each_width_is_a_block():
    assert isinstance(BasicBlock(16, 16).downsample, nn.Identity)
    assert len(BasicBlock(16, 32).downsample) == len(BasicBlock(16, 16, stride=2).downsample) == 2
    for side, half in ((8, 4), (7, 4), (1, 1)):
        assert BasicBlock(16, 32, stride=2)(torch.randn(2, 16, side, side)).shape == (2, 32, half, half)
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


def test_training_moves_the_statistics_and_in_eval_mode_an_image_is_classified_alone():
    model, images = ResNet(), torch.randn(4, 3, 8, 8)
    model(images)
    moved = model.stem[1].running_mean.clone()
    assert moved.abs().max() > 0
    torch.testing.assert_close(model.eval()(images)[:1], model(images[:1]))
    assert torch.equal(model.stem[1].running_mean, moved)


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
