"""A valid call of each public function and class that has no spec in its module, for `test_bad_input.py`."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.amp import GradScaler
from torch.utils.data import TensorDataset

import zoo
from zoo.models import merge
from zoo.models.line import Line
from zoo.models.lstm_cell import LSTMCell
from zoo.models.quadratic import Quadratic
from zoo.probe import Seen
from zoo.training import squared_error

X = torch.linspace(0.25, 1, 6).reshape(2, 3)
MERGE = {"in_features1": 5, "in_features2": 6, "out_features": 10}
PAIR = {"in_features": 3, "hidden_features": 4, "out_features": 5}
DECODER = {"embed_dim": 4, "num_heads": 2, "hidden_dim": 6}
TOKENS = {"num_embeddings": 5, "embedding_dim": 3}
CONV_BN = {"conv": nn.Conv2d(3, 4, 2), "norm": nn.BatchNorm2d(4).eval()}
IMAGES, KERNEL, GRAD = torch.ones(2, 3, 5, 5), torch.ones(4, 3, 2, 2), torch.ones(2, 4, 4, 4)


@torch.library.custom_op("torch_conformance::example", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


PICTURE = b"P5 1 1 255 0"  # one grey pixel
NET = nn.Linear(3, 1)
OPTIMIZER, SCALER = torch.optim.SGD(NET.parameters(), lr=0.1), GradScaler("cpu", enabled=False)
BATCH = (X, X[:, :1])
LEARNER = {"model": NET, "loss_fn": squared_error, "optimizer": OPTIMIZER}
STEP = {**LEARNER, "batch": BATCH, "precision": "fp32"}
SQUARE = zoo.get_spec("square")
BOARDS = nn.Conv2d(2, 1, 1)

# What people do not construct: results, which only the zoo itself makes, and a protocol.
RESULTS = {
    *("zoo.dtypes.DtypeRow", "zoo.dtypes.DtypeTrace", "zoo.memory.saved_bytes.SavedBytes"),
    *("zoo.training.several_losses.SeveralSteps", "zoo.training.step.Fit", "zoo.training.step.Step"),
    "zoo.training.checkpoint.Part",
}

# Arguments by name; for a module those of the constructor and, if no spec builds it, those of its call.
EXAMPLES = {
    "zoo.amp.Health": {"function": "train", "scaler": SCALER},
    "zoo.amp.autocast": {"precision": "amp_bf16", "device_type": "cpu"},
    "zoo.amp.backward": {"function": "train", "loss": NET(X).sum(), "scaler": SCALER},
    "zoo.amp.device_of": {"optimizer": OPTIMIZER},
    "zoo.amp.parameters_of": {"optimizer": OPTIMIZER},
    "zoo.amp.unscale_and_step": {"optimizer": OPTIMIZER, "scaler": SCALER},
    "zoo.autograd_graph.draw_graph": {"output": X.clone().requires_grad_().exp(), "params": {}},
    "zoo.autograd_graph.write_graph": {"path": "graph.svg", "output": X.clone().requires_grad_().exp(), "params": {}},
    "zoo.candidate.Candidate": {"name": "fused", "build": dict},
    "zoo.case.Call": {"args": (1,), "kwargs": {"dim": 0}},
    "zoo.case.Case": {"name": "typical", "inputs": tuple},
    "zoo.case.NamedInputs": {"name": "typical", "inputs": tuple},
    "zoo.catalog.get_spec": {"name": "square"},
    "zoo.catalog.home_of": {"name": "square"},
    "zoo.catalog.is_model": {"name": "merge"},
    "zoo.catalog.is_module": {"name": "ops"},
    "zoo.catalog.list_models": {"filter": "soft*"},
    "zoo.catalog.register": {"spec": replace(SQUARE, name="square_again")},
    "zoo.catalog.specs_of": {"module": merge},
    "zoo.family.Family": {"sizes": {"n": (1, 9)}, "inputs": tuple},
    "zoo.claim.Claim": {"text": "fast", "source": "a post", "factor": 2.0, "quantity": "step", "mode": "compiled"},
    "zoo.convention.Convention": {"tensor": "weight", "why": "padding"},
    "zoo.create.create_model": {"name": "square"},
    "zoo.create.create_model_and_inputs": {"name": "square"},
    "zoo.create.example_inputs": {"name": "square"},
    "zoo.custom_ops.map_by_sample": {"operator": operator},
    "zoo.custom_ops.map_elementwise": {"operator": operator},
    "zoo.custom_ops.run_in_autocast": {"name": "example"},
    "zoo.data.image_directory.ImageDirectoryDataset": {"path": Path(__file__).parent, "pattern": "*.py"},
    "zoo.data.pixels.decode_rgb": {"data": PICTURE, "origin": "dot.png"},
    "zoo.data.tar_files.tar_files": {"archive": "shard.tar"},
    "zoo.data.tar_images.TarImageDataset": {"paths": [__file__], "rank": 0, "ranks": 2},
    "zoo.data.transforms.ResizeCenterCrop": {"height": 2, "width": 3},
    "zoo.data.transforms.transformed": {"image": IMAGES[0], "transform": torch.clone, "origin": "dot.png"},
    "zoo.dtypes.trace_dtypes": {"model": torch.exp, "inputs": (X,)},
    "zoo.error_input.ErrorInput": {"name": "scalar", "inputs": tuple, "error": ValueError, "match": "rank"},
    "zoo.expect.Expect": {"outcome": "VOID", "reason": "it falls back to eager"},
    "zoo.expect.check_names": {"where": "modes", "names": ("eager",)},
    "zoo.spec.is_dtype": {"word": "float16"},
    "zoo.probe.processor_has": {"flag": "avx2"},
    "zoo.functions.batch_norm2d.BatchNorm2d": {"x": IMAGES, "eps": 1.0},
    "zoo.functions.batch_norm2d.BatchNorm2dBackward": {"grad": IMAGES, "x": IMAGES, "eps": 1.0},
    "zoo.functions.conv2d.Conv2d": {"x": IMAGES, "weight": KERNEL},
    "zoo.functions.conv2d.Conv2dBackward": {"grad": GRAD, "x": IMAGES, "weight": KERNEL},
    "zoo.functions.cube.Cube": {"x": X},
    "zoo.functions.cube.CubeBackward": {"grad": X, "x": X},
    "zoo.functions.cube_cpp.CubeCpp": {"x": X},
    "zoo.functions.cube_cpp.CubeCppBackward": {"grad": X, "x": X},
    "zoo.functions.cube_numpy.CubeNumpy": {"x": X},
    "zoo.functions.cube_numpy.CubeNumpyBackward": {"grad": X, "x": X},
    "zoo.functions.exp.Exp": {"x": X},
    "zoo.functions.fused_conv_bn2d.FusedConvBN2d": {"x": IMAGES, "weight": KERNEL, "eps": 1.0},
    "zoo.functions.fused_conv_bn2d.FusedConvBN2dBackward": {"grad": GRAD, "x": IMAGES, "weight": KERNEL, "eps": 1.0},
    "zoo.functions.sinh.Sinh": {"x": X},
    "zoo.functions.square.Square": {"x": X},
    "zoo.memory.forbid.forbid_saved_tensor_hooks": {"message": "no hooks here"},
    "zoo.memory.held_bytes.held_bytes": {"fn": dict},
    "zoo.memory.peak_bytes.kept_bytes": {"fn": dict},
    "zoo.memory.peak_bytes.peak_bytes": {"fn": dict},
    "zoo.memory.recompute.recompute": {"fn": dict},
    "zoo.memory.replaced.Replaced": {"name": "rounded", "replace": torch.clone},
    "zoo.memory.saved_bytes.saved_bytes": {"fn": dict},
    "zoo.models.attention.CausalSelfAttention": ({"embed_dim": 4, "num_heads": 2}, None),
    "zoo.models.attention.FusedCausalSelfAttention": ({"embed_dim": 4, "num_heads": 2}, None),
    "zoo.models.autocast_regions.RegionMLP": (PAIR, None),
    "zoo.models.checkerboard.checker": {"width": 4, "height": 4, "freq": 2},
    "zoo.models.checkerboard.grid": {"width": 4, "height": 4},
    "zoo.models.checkerboard.scripted_checkerboard": {"channels": 4},
    "zoo.models.clipped_relu.Clip": {"x": X, "limit": 1.0, "leak": 0.5},
    "zoo.models.clipped_relu.ClippedReLU": ({"limit": 1.0, "leak": 0.5}, {"x": X}),
    "zoo.models.clipped_relu.clipped_layer": {"in_features": 3},
    "zoo.models.conv_bn.ConvNorm": ({"in_channels": 3, "out_channels": 4}, {"x": IMAGES}),
    "zoo.models.conv_bn.FusedConvNorm": ({"in_channels": 3, "out_channels": 4}, {"x": IMAGES}),
    "zoo.models.embedding.TiedBigram": (TOKENS, None),
    "zoo.models.embedding.TokenEmbedding": (TOKENS, None),
    "zoo.models.folded_conv_bn.ConvThenNorm": (CONV_BN, None),
    "zoo.models.folded_conv_bn.FoldedConvNorm": (CONV_BN, None),
    "zoo.models.folded_conv_bn.fold_conv_bn": CONV_BN,
    "zoo.models.layer_norm.LayerNormByHand": ({"normalized_shape": 3}, None),
    "zoo.models.lstm_cell.LSTMCell": (
        {"input_size": 3, "hidden_size": 4},
        {"x": X, "state": (torch.ones(2, 4), torch.ones(2, 4))},
    ),
    "zoo.models.lstm_cell.Recurrence": ({"cell": LSTMCell(3, 4)}, None),
    "zoo.models.merge.Merge": (MERGE, None),
    "zoo.models.merge.MergeTiled": (MERGE, None),
    "zoo.models.mlp.mlp": {"in_features": 3},
    "zoo.models.resnet.BasicBlock": ({"in_channels": 3, "out_channels": 4}, {"x": IMAGES}),
    "zoo.models.rms_norm.RMSNormByHand": ({"normalized_shape": 3}, None),
    "zoo.models.seeded_dropout.seeded_mask": {"x": X, "seed": torch.tensor(7)},
    "zoo.models.transformer.DecoderBlock": (DECODER, {"x": torch.ones(2, 3, 4)}),
    "zoo.models.transformer.DecoderOnlyTransformer": ({**DECODER, "vocab_size": 5, "num_layers": 1}, None),
    "zoo.models.transformer.GatedMLP": ({"embed_dim": 3, "hidden_dim": 4}, {"x": X}),
    "zoo.ops.batch_gather.batch_gather_scripted": {"tensor": X, "index": torch.zeros(2, 1, dtype=torch.int64)},
    "zoo.probe.Probe": {
        "name": "example",
        "summary": "a risk",
        "source": "a post",
        "symptom": "a wrong number",
        "seen": {"cpu": Seen(torch="never", checked=("2.13.0",))},
        "observe": str,
    },
    "zoo.probe.Seen": {"torch": "never", "checked": ("2.13.0",)},
    "zoo.probe.find": {"package": "zoo.probes"},
    "zoo.scale.Scale": {"size_name": "rows", "sizes": (1, 2), "build": dict, "inputs": tuple},
    "zoo.scale.elementwise": {"model": torch.exp},
    "zoo.sources.Source": {"title": "a text", "url": "https://example.org"},
    "zoo.sources.cited": {"text": "Effective PyTorch"},
    "zoo.spec.Spec": {"name": "double", "summary": "twice", "source": "a book", "build": dict, "cases": SQUARE.cases},
    "zoo.trainer.Trainer": ({"model": NET, "fit": print}, {"precision": "fp32"}),
    "zoo.training.activation_checkpointing.normed_net": {"in_features": 3},
    "zoo.training.activation_checkpointing.run_segment": {"segment": torch.exp, "inputs": (X,)},
    "zoo.training.checkerboard.board": {"size": 8},
    "zoo.training.checkerboard.cross_entropy_of_pixels": {"logits": X, "target": X},
    "zoo.training.checkerboard.drawn_by": {"model": BOARDS, "size": 8},
    "zoo.training.checkerboard.fit_checkerboard": {"model": BOARDS, "size": 8, "steps": 1},
    "zoo.training.checkerboard.network": {"channels": 4},
    "zoo.training.checkerboard.save_picture": {"path": Path("boards.png"), "boards": (X,)},
    "zoo.training.checkpoint.Generators": {"loader": [BATCH]},
    "zoo.training.checkpoint.Place": {"loader": [BATCH]},
    "zoo.training.checkpoint.load_checkpoint": {"path": "saved.pt"},
    "zoo.training.checkpoint.save_checkpoint": {"path": "run.pt"},
    "zoo.training.distributed.process_group": {"rank": 0, "world_size": 1, "store": None},
    "zoo.training.distributed.share_of": {"dataset": TensorDataset(X), "batch_size": 1, "rank": 0, "world_size": 2},
    "zoo.training.epochs.train": {**LEARNER, "loader": [BATCH], "epochs": 1, "checkpoint": "train.pt"},
    "zoo.training.gradient_penalty.penalised_step": {**STEP, "penalty": 0.1},
    "zoo.training.line.fit_line": {"model": Line(), "steps": 1},
    "zoo.training.line.line_points": {"generator": torch.Generator()},
    "zoo.training.quadratic.fit_quadratic": {"model": Quadratic(), "steps": 1},
    "zoo.training.quadratic.parabola": {"count": 4, "generator": torch.Generator()},
    "zoo.training.several_losses.several_losses_step": {
        "model": NET,
        "loss_fns": [squared_error],
        "batch": BATCH,
        "optimizers": [OPTIMIZER],
        "precision": "fp32",
    },
    "zoo.training.several_losses.size_of": {"output": X, "target": X},
    "zoo.training.step.backward_by_hand": {
        "parameters": [torch.ones(4, 3), torch.ones(4), torch.ones(1, 4), torch.ones(1)],
        "x": X,
        "y": X[:, :1],
    },
    "zoo.training.step.fit": {**STEP, "steps": 1},
    "zoo.training.step.loss_curve": {**STEP, "steps": 1},
    "zoo.training.step.squared_error": {"output": X, "target": X},
    "zoo.training.step.taught": {"generator": torch.Generator()},
    "zoo.training.step.train_step": STEP,
    "zoo.training.weight_average.averaged": {"model": NET},
}
