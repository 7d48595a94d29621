"""Judges architectures of torchvision, timm and transformers, and writes docs/model-libraries.md.

    python -m benchmarks.model_libraries FOLDER [--mode MODE …]

FOLDER keeps one run for each architecture and mode, in eval and in train mode. What is there is not judged again, so
the study goes on where it was interrupted. It needs three packages more: pip install torchvision timm transformers.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.counted import counted
from conformance.exit_codes import ExitCode
from conformance.records.verdicts import Verdict
from conformance.run import store
from conformance.run.store import Contents
from conformance.show.markdown import code
from conformance.show.text import markdown_table

PAGE = Path(__file__).parent.parent / "docs" / "model-libraries.md"
TRAINING = ("eval", "train")
REFUSED = ".refused"  # what the command says of an architecture that it does not judge
MODES = ("eager", "scripted", "compiled")
SECONDS = 1800  # that a cell may take: the C++ compiler needs minutes for a network of fifty layers on one core
TORCHVISION = """
    densenet121 efficientnet_b0 googlenet mc3_18?size=32 mnasnet0_5 mnasnet1_0 mobilenet_v2 mobilenet_v3_large
    mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0
    squeezenet1_0 squeezenet1_1 r2plus1d_18?size=32 lraspp_mobilenet_v3_large deeplabv3_mobilenet_v3_large
"""
TIMM = """
    test_byobnet test_coatnet test_convnext test_convnext2 test_convnext3 test_efficientnet test_efficientnet_evos
    test_efficientnet_gn test_efficientnet_ln test_mambaout test_maxvit test_nfnet test_resnet test_vit test_vit2
    test_vit3 test_vit4 test_vit_relpos convnext_atto?size=64 edgenext_xx_small?size=64 fastvit_t8?size=64
    ghostnet_050?size=64 lcnet_035?size=64 levit_128s mixnet_s?size=64 mobilenetv4_conv_small?size=64
    mobilevit_xxs?size=64 pit_ti_224 poolformer_s12?size=64 repvgg_a0?size=64 tinynet_e?size=64 xcit_nano_12_p16_224
"""
TRANSFORMERS = """
    albert bart beit bert bloom clip_text_model deberta-v2 dinov2 distilbert electra falcon gemma gemma2 gpt2
    gpt_bigcode gpt_neox gptj?rotary_dim=4 llama mamba mistral mixtral modernbert mpnet olmo opt phi phi3 qwen2 qwen3
    roberta stablelm starcoder2 t5 vit
"""
ARCHITECTURES = tuple(
    f"{library}:{name}"
    for library, names in (("torchvision", TORCHVISION), ("timm", TIMM), ("transformers", TRANSFORMERS))
    for name in names.split()
)
EXPLAINED = {  # why, by cell and text of a verdict, a regular expression
    "Failed to get source|Could not get name of python class": (
        "TorchScript finds no source of a class that a decorator has made"
    ),
    "a view of a leaf Variable that requires grad is being used in an in-place operation": (
        "in plain torch too, the first call of the script works and the second raises this: once it is optimised, an "
        "in-place activation gets a view of a leaf"
    ),
    r"^(test_(coatnet|convnext|maxvit)|pit_ti)\w*\[eager-amp_.*gradient of \S*(norm\S*|stem\.1)\.(bias|weight), case": (
        "on the CPU, a layer norm adds up the gradients of bias and weight in the low precision itself, and a long sum "
        "of one sign stops growing: the probe `layer_norm_sums_in_low_precision` of [probes.md](probes.md); with sums "
        "in float32, the same gradients are 3 to 70 times closer"
    ),
    r"^levit_\S+\[.*backward through the graph a second time": (
        "in eval mode the model keeps biases with their graph from the first call, so its second backward raises this "
        "in plain torch too"
    ),
    r"^r2plus1d_\S+\[(eager|scripted)-amp_bf16.*gradient of layer": (
        "on processors with AVX-512 BF16, a bfloat16 convolution over two frames does not write all of its weight's "
        "gradient: the probe `convolution_of_two_frames` of [probes.md](probes.md)"
    ),
    r"^googlenet\[scripted.*named tuple GoogLeNetOutputs": (
        "a script of it returns a named tuple in eval mode too, and torchvision warns of that"
    ),
    r"\[scripted.*random generator, case given: forward changed it by drawing": (
        "in plain torch too, a script draws random numbers for a dropout of 0 from its second call on; eager draws none"
    ),
    r"^test_vit_relpos\[scripted.*draws other random numbers than the oracle": (
        "a script draws random numbers for a dropout of 0, so its other dropouts drop other elements than in eager"
    ),
    r"^lraspp_\S+\[scripted-amp_.*output\['out'\], case given: float32, should be": (
        "under TorchScript's autocast, a sum of two low-precision tensors is float32; here it is resized and returned"
    ),
    r"^repvgg_a0\[eager-amp_bf16.*gradient of stages\.2\.6\.conv_1x1\.bn\.bias, case given: error 4": (
        "a false alarm of this project: the roundings of bfloat16 move this gradient by twice its size, and the "
        "perturbed runs do not show that they may move it by four times its size"
    ),
    r"^lcnet_\S+\[\w+-amp_bf16.*output: in no case": (
        "with random weights, the roundings of bfloat16 grow from layer to layer: the output is wrong by 9 % in plain "
        "torch, and roundings of the same size may change half of it, so no check can tell it from a wrong one"
    ),
}
OPENING = """# Architectures of model libraries

Small architectures of torchvision, timm and transformers, with random weights, judged without any declaration:
`conformance run timm:test_vit --eval` is one row. A check mark means that the mode passes in fp32 and under both
autocast dtypes; the number is the worst error over its budget. A number in brackets points to a reason below.
`python -m benchmarks.model_libraries FOLDER` writes this page.
"""


@dataclass(frozen=True)
class Judged:
    """One architecture in one mode, in eval or train mode.

    Attributes:
        name: the architecture, such as "timm:test_vit".
        training: "eval" or "train".
        mode: "eager", "scripted" or "compiled".
        contents: its run; None if it could not be judged.
        problem: why not.
    """

    name: str
    training: str
    mode: str
    contents: Contents | None
    problem: str = ""

    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by precision; none if it could not be judged."""
        if self.contents is None:
            return {}
        cells = [one for one in self.contents.plan.cells if one.id in self.contents.verdicts]
        return {one.cell.precision: self.contents.verdicts[one.id] for one in cells}


class Reasons:
    """Numbers reasons as they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, verdict: Verdict) -> str:
        """The number of a verdict's reason, in brackets."""
        said = f"{verdict.cell}  {verdict.text}"
        text = next((why for pattern, why in EXPLAINED.items() if re.search(pattern, said)), "")
        text = text or f"not explained: {code(verdict.text)}"
        return f"({self.numbers.setdefault(text, len(self.numbers) + 1)})"


def judge(name: str, training: str, mode: str, folder: Path) -> None:
    """Judge an architecture in a mode, and keep its run; or what the command says, if it refuses the architecture.

    Raises:
        SystemExit: the run is not complete, so nothing is kept.
    """
    place = _place(name, training, mode, folder)
    unfinished = place.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [sys.executable, "-m", "conformance", "run", name, f"--{training}", "--no-speed", "--device=cpu"]
    command += [f"--mode={mode}", f"--timeout={SECONDS}", f"--store={unfinished}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- our own words
    if done.returncode == ExitCode.USAGE and "this machine failed" not in done.stderr:
        place.with_suffix(REFUSED).write_text(done.stderr, encoding="utf-8")
        return
    runs = [run for run in unfinished.glob("runs/*") if store.read(run).complete]
    if not runs:
        raise SystemExit(f"{name} was not judged, {' '.join(command)} ended with {done.returncode}: {done.stderr}")
    runs[0].rename(place)
    shutil.rmtree(unfinished)


def judged(name: str, training: str, mode: str, folder: Path) -> Judged | None:
    """What is known of an architecture in a mode; None if it was not judged yet."""
    place = _place(name, training, mode, folder)
    if place.with_suffix(REFUSED).exists():
        lines = place.with_suffix(REFUSED).read_text(encoding="utf-8").splitlines()
        return Judged(name, training, mode, None, lines[-1] if lines else "it could not be judged")
    return Judged(name, training, mode, store.read(place)) if place.exists() else None


def _place(name: str, training: str, mode: str, folder: Path) -> Path:
    """The folder of a run."""
    return folder / f"{re.sub('[^a-z0-9_]+', '-', name)}-{training}-{mode}"


def page(found: Sequence[Judged]) -> str:
    """The page of all runs, as Markdown."""
    reasons, rows = Reasons(), []
    columns = [(t, m) for t in TRAINING for m in MODES if any((one.training, one.mode) == (t, m) for one in found)]
    for name in dict.fromkeys(one.name for one in found):
        of_name = {(one.training, one.mode): one.verdicts() for one in found if one.name == name}
        rows.append([f"`{name}`", *(_cell(of_name.get(column, {}), reasons) for column in columns)])
    head = ["architecture", *(f"{mode}, {training}" for training, mode in columns)]
    parts = [OPENING, "\n".join(_totals(found)), markdown_table(rows, head)]
    parts += ["\n".join(f"{number}. {text}" for text, number in reasons.numbers.items())]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _cell(verdicts: Mapping[str, Verdict], reasons: Reasons) -> str:
    """What the table shows of an architecture in a mode, from its verdicts by precision."""
    red = {precision: verdict for precision, verdict in verdicts.items() if verdict.red}
    if not verdicts:
        return ""
    if not red:
        return f"✓ {max(verdict.margin or 0.0 for verdict in verdicts.values()):.2f}"
    numbers = " ".join(dict.fromkeys(map(reasons.number, red.values())))
    if len(red) == len(verdicts):
        return f"{'–' if _is_refused(verdicts) else '✗'} {numbers}"
    return f"✗ {', '.join(red)} {numbers}"


def _is_refused(verdicts: Mapping[str, Verdict]) -> bool:
    """Whether a mode raises an error in every precision."""
    return all(verdict.status == "ERROR" for verdict in verdicts.values())


def _totals(found: Sequence[Judged]) -> Iterator[str]:
    """How many cells were judged, how many pass, and what could not be judged."""
    versions = {one.contents.plan.environment.torch for one in found if one.contents}
    for training in TRAINING:
        names = {one.name for one in found if one.training == training and one.contents}
        modes = [one.verdicts() for one in found if one.training == training]
        if names:
            cells = sum(map(len, modes))
            refused = sum(len(verdicts) for verdicts in modes if _is_refused(verdicts))
            red = sum(verdict.red for verdicts in modes for verdict in verdicts.values()) - refused
            yield (
                f"- {training}: {counted(cells, 'cell')} of {counted(len(names), 'architecture')}; "
                f"{cells - red - refused} pass, {red} do not, {refused} in modes that refuse the architecture"
            )
    for one in found:
        if one.contents is None:
            yield f"- `{one.name}`, {one.mode}, {one.training}: {code(one.problem)}"
    yield f"- torch {', '.join(sorted(versions))}"


def main() -> None:
    """Judge what is missing, and write the page of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", action="append", choices=MODES, help="all three without it")
    parser.add_argument("--training", action="append", choices=TRAINING, help="both without it")
    parser.add_argument("-k", default="", metavar="TEXT", help="only architectures whose name contains it")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in ARCHITECTURES if asked.k in name]
    for mode, training, name in itertools.product(asked.mode or MODES, asked.training or TRAINING, chosen):
        if judged(name, training, mode, asked.folder) is None:
            judge(name, training, mode, asked.folder)
        print(name, training, mode, flush=True)
    every = [judged(*one, asked.folder) for one in itertools.product(ARCHITECTURES, TRAINING, MODES)]
    PAGE.write_text(page([one for one in every if one is not None]), encoding="utf-8")


if __name__ == "__main__":
    main()
