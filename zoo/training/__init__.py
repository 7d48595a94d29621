"""Training steps and fits that run in every precision; their specs check the loss curves."""

from zoo.training.activation_checkpointing import normed_net, run_segment
from zoo.training.checkerboard import board, cross_entropy_of_pixels, drawn_by, fit_checkerboard, network, save_picture
from zoo.training.checkpoint import CheckpointError, Generators, Part, Place, load_checkpoint, save_checkpoint
from zoo.training.distributed import process_group, share_of
from zoo.training.epochs import train
from zoo.training.gradient_penalty import penalised_step
from zoo.training.line import fit_line, line_points
from zoo.training.quadratic import fit_quadratic, parabola
from zoo.training.several_losses import SeveralSteps, several_losses_step, size_of
from zoo.training.step import Fit, Step, backward_by_hand, fit, loss_curve, squared_error, taught, train_step
from zoo.training.weight_average import averaged

__all__ = [
    "CheckpointError",
    "Fit",
    "Generators",
    "Part",
    "Place",
    "SeveralSteps",
    "Step",
    "averaged",
    "backward_by_hand",
    "board",
    "cross_entropy_of_pixels",
    "drawn_by",
    "fit",
    "fit_checkerboard",
    "fit_line",
    "fit_quadratic",
    "line_points",
    "load_checkpoint",
    "loss_curve",
    "network",
    "normed_net",
    "parabola",
    "penalised_step",
    "process_group",
    "run_segment",
    "save_checkpoint",
    "save_picture",
    "several_losses_step",
    "share_of",
    "size_of",
    "squared_error",
    "taught",
    "train",
    "train_step",
]
