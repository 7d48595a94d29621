"""Training steps and fits that run in every precision; their specs check the loss curves.

One step of a model of yours is `train_step`, here in float16 and with clipped gradients. A batch is a tuple of tensors:
first the inputs, last the target. One scaler serves all steps.

```python
>>> import torch
>>> from zoo.training import squared_error, train, train_step
>>> model = torch.nn.Linear(8, 1)  # and .to("cuda") on a GPU, as the tensors of the batch
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)  # or "cuda"
>>> batch = torch.randn(32, 8), torch.randn(32, 1)
>>> step = train_step(model, squared_error, batch, optimizer, "amp_fp16", scaler, clip=1.0)
>>> step.loss.shape, step.skipped
(torch.Size([]), False)

```

The precision is "fp32", "amp_fp16" or "amp_bf16"; only "amp_fp16" needs a scaler. `train` takes a DataLoader, or a list
of batches, and makes the scaler itself:

```python
>>> data = torch.utils.data.TensorDataset(*batch)
>>> loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
>>> train(model, squared_error, loader, optimizer, epochs=3, precision="amp_fp16").losses.shape
torch.Size([12])

```

An entry of the zoo trains its own model on its own data. `create_model` gives a `zoo.Trainer`: each call trains
`trainer.model` on, and returns the loss before each step.

```python
>>> import zoo
>>> trainer = zoo.create_model("fit_line", seed=0)
>>> x, y = zoo.example_inputs("fit_line")
>>> losses = trainer(x, y, precision="amp_bf16")
>>> losses.shape, bool(losses[-1] < losses[0])
(torch.Size([8]), True)

```
"""

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
