"""A valid call of each public function and class that has no spec in its module, for `test_bad_input.py`."""

import torch

import zoo
from zoo.probe import Seen

X = torch.linspace(0.25, 1, 6).reshape(2, 3)
MERGE = {"in_features1": 5, "in_features2": 6, "out_features": 10}
IMAGES, KERNEL = torch.ones(2, 3, 5, 5), torch.ones(4, 3, 2, 2)


@torch.library.custom_op("torch_conformance::example", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


# Results, which only the zoo itself makes.
RESULTS = {
    "zoo.memory.saved_bytes.SavedBytes",
    "zoo.training.step.Fit",
    "zoo.training.step.Step",
}

# Arguments by name; for a module those of the constructor and, if no spec builds it, those of its call.
EXAMPLES = {
    "zoo.autograd_graph.draw_graph": {"output": X.clone().requires_grad_().exp(), "params": {}},
    "zoo.candidate.Candidate": {"name": "fused", "build": dict},
    "zoo.case.Call": {"args": (1,), "kwargs": {"dim": 0}},
    "zoo.case.Case": {"name": "typical", "inputs": tuple},
    "zoo.catalog.create_model": {"name": "square"},
    "zoo.catalog.example_inputs": {"name": "square"},
    "zoo.catalog.get_spec": {"name": "square"},
    "zoo.catalog.home_of": {"name": "square"},
    "zoo.catalog.list_models": {"filter": "soft*"},
    "zoo.claim.Claim": {"text": "fast", "source": "a post", "factor": 2.0, "quantity": "step", "mode": "compiled"},
    "zoo.convention.Convention": {"tensor": "weight", "why": "padding"},
    "zoo.custom_ops.map_by_sample": {"operator": operator},
    "zoo.custom_ops.map_elementwise": {"operator": operator},
    "zoo.custom_ops.run_in_autocast": {"name": "example"},
    "zoo.expect.Expect": {"outcome": "VOID", "reason": "it falls back to eager"},
    "zoo.expect.check_names": {"where": "modes", "names": ("eager",)},
    "zoo.expect.is_dtype": {"word": "float16"},
    "zoo.functions.batch_norm2d.BatchNorm2d": {"x": IMAGES, "eps": 1.0},
    "zoo.functions.batch_norm2d.BatchNorm2dBackward": {"grad": IMAGES, "x": IMAGES, "eps": 1.0},
    "zoo.functions.conv2d.Conv2d": {"x": IMAGES, "weight": KERNEL},
    "zoo.functions.conv2d.Conv2dBackward": {"grad": torch.ones(2, 4, 4, 4), "x": IMAGES, "weight": KERNEL},
    "zoo.functions.cube.Cube": {"x": X},
    "zoo.functions.cube.CubeBackward": {"grad": X, "x": X},
    "zoo.functions.cube_cpp.CubeCpp": {"x": X},
    "zoo.functions.cube_cpp.CubeCppBackward": {"grad": X, "x": X},
    "zoo.functions.cube_numpy.CubeNumpy": {"x": X},
    "zoo.functions.cube_numpy.CubeNumpyBackward": {"grad": X, "x": X},
    "zoo.functions.exp.Exp": {"x": X},
    "zoo.functions.fused_conv_bn2d.FusedConvBN2d": {"x": IMAGES, "weight": KERNEL, "eps": 1.0},
    "zoo.functions.fused_conv_bn2d.FusedConvBN2dBackward": {
        "grad": torch.ones(2, 4, 4, 4),
        "x": IMAGES,
        "weight": KERNEL,
        "eps": 1.0,
    },
    "zoo.functions.sinh.Sinh": {"x": X},
    "zoo.functions.square.Square": {"x": X},
    "zoo.memory.forbid.forbid_saved_tensor_hooks": {"message": "no hooks here"},
    "zoo.memory.held_bytes.held_bytes": {"fn": dict},
    "zoo.memory.peak_bytes.kept_bytes": {"fn": dict},
    "zoo.memory.peak_bytes.peak_bytes": {"fn": dict},
    "zoo.memory.recompute.recompute": {"fn": dict},
    "zoo.memory.replaced.Replaced": {"name": "rounded", "replace": torch.clone},
    "zoo.memory.saved_bytes.saved_bytes": {"fn": dict},
    "zoo.models.clipped_relu.Clip": {"x": X, "limit": 1.0, "leak": 0.5},
    "zoo.models.clipped_relu.ClippedReLU": ({"limit": 1.0, "leak": 0.5}, {"x": X}),
    "zoo.models.clipped_relu.clipped_layer": {"in_features": 3},
    "zoo.models.conv_bn.ConvNorm": ({"in_channels": 3, "out_channels": 4}, {"x": IMAGES}),
    "zoo.models.conv_bn.FusedConvNorm": ({"in_channels": 3, "out_channels": 4}, {"x": IMAGES}),
    "zoo.models.merge.Merge": (MERGE, None),
    "zoo.models.merge.MergeTiled": (MERGE, None),
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
    "zoo.spec.Spec": {
        "name": "double",
        "summary": "twice x",
        "source": "arithmetic",
        "build": dict,
        "cases": zoo.get_spec("square").cases,
    },
    "zoo.training.checkerboard.board": {"size": 8},
    "zoo.training.line.noisy_line": {"count": 4, "generator": torch.Generator()},
    "zoo.training.quadratic.parabola": {"count": 4, "generator": torch.Generator()},
    "zoo.training.step.squared_error": {"output": X, "target": X},
}

# What still fails, with the reason. An entry that passes fails the test until it is deleted.
OPEN = dict.fromkeys(
    (
        "zoo.autograd_graph.draw_graph",
        "zoo.autograd_graph.write_graph",
        "zoo.catalog.specs_of",
        "zoo.catalog.register",
        "zoo.catalog.list_models",
        "zoo.catalog.get_spec",
        "zoo.catalog.home_of",
        "zoo.catalog.create_model",
        "zoo.catalog.example_inputs",
        "zoo.data.image_directory.ImageDirectoryDataset",
        "zoo.data.pixels.decode_rgb",
        "zoo.data.tar_files.tar_files",
        "zoo.data.tar_images.TarImageDataset",
        "zoo.models.checkerboard.Checkerboard",
        "zoo.models.checkerboard.scripted_checkerboard",
        "zoo.models.checkerboard.grid",
        "zoo.models.checkerboard.checker",
        "zoo.models.merge.Merge",
        "zoo.models.merge.MergeTiled",
        "zoo.models.mlp.mlp",
        "zoo.models.quadratic.Quadratic",
        "zoo.spec.Spec",
        "zoo.training.checkerboard.board",
        "zoo.training.checkerboard.fit_checkerboard",
        "zoo.training.checkerboard.pixel_loss",
        "zoo.training.checkerboard.save_picture",
        "zoo.training.checkerboard.main",
        "zoo.training.line.noisy_line",
        "zoo.training.line.fit_line",
        "zoo.training.quadratic.parabola",
        "zoo.training.quadratic.fit_quadratic",
        "zoo.training.step.train_step",
        "zoo.training.step.fit",
        "zoo.training.step.squared_error",
        "zoo.training.step.loss_curve",
    ),
    "its checks come with the change of its own file",
)
