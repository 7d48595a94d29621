"""The checkerboard network, its two builds and its data."""

import pytest
import torch

from zoo.models.checkerboard import Checkerboard, checker, grid, scripted_checkerboard


def test_grid_holds_column_then_row_below_one():
    coordinates = grid(4, 2)
    assert coordinates.shape == (2, 2, 4)
    assert coordinates[0, 0].tolist() == [0, 0.25, 0.5, 0.75]
    assert coordinates[1, :, 0].tolist() == [0, 0.5]


def test_checker_alternates_and_starts_with_zero():
    assert checker(4, 4, 2)[0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert checker(24, 24, 3).mean() == pytest.approx(4 / 9)


def test_squares_have_their_edges_where_whole_numbers_put_them():
    """Test widths where float32 is wrong: column 3 of 37 would be 2.9999998 squares from the left."""
    assert checker(37, 1, 37).flatten().tolist() == [0, 1] * 18 + [0]
    assert checker(22, 22, 22)[0, 13, :2].tolist() == [1, 0]


def test_sizes_must_be_positive_integers():
    with pytest.raises(ValueError, match=r"^grid: width must be at least 1, got 0$"):
        grid(0, 4)
    with pytest.raises(ValueError, match=r"^checker: height must be at least 1, got -1$"):
        checker(4, -1, 2)
    with pytest.raises(TypeError, match=r"^checker: freq must be an integer, got float$"):
        checker(4, 4, 2.0)
    with pytest.raises(ValueError, match=r"^scripted_checkerboard: channels must be at least 1, got -8$"):
        scripted_checkerboard(-8)


@pytest.mark.parametrize("build", [Checkerboard, scripted_checkerboard])
def test_bad_coordinates_are_named(build):
    model = build(8)
    wrong_value, wrong_type = (ValueError, TypeError) if build is Checkerboard else (torch.jit.Error, torch.jit.Error)
    for shape in ((1, 3, 4, 4), (2, 4, 4)):
        with pytest.raises(wrong_value, match=r"coordinates must have shape \(batch, 2, h, w\), got \[\d, \d, 4"):
            model(torch.ones(shape))
    with pytest.raises(wrong_type, match="coordinates must have a floating dtype, got"):
        model(torch.ones(1, 2, 4, 4, dtype=torch.int64))
    with pytest.raises(wrong_value, match="Expected more than 1 value per channel"):
        model(torch.ones(1, 2, 1, 1))


def test_a_list_for_coordinates_is_named():
    with pytest.raises(TypeError, match=r"^Checkerboard: coordinates must be a tensor, got list$"):
        Checkerboard(8)([[0.0, 0.5]])


def test_default_is_256_channels_and_one_logit():
    model = Checkerboard()
    assert [tuple(p.shape[:2]) for n, p in model.named_parameters() if p.dim() == 4] == [
        (256, 2),
        (256, 256),
        (256, 256),
        (1, 256),
    ]
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
