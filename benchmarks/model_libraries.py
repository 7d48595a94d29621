"""Judges architectures of torchvision, timm and transformers, and writes docs/model-libraries.md.

    python -m benchmarks.model_libraries FOLDER [--mode MODE …]

It takes many hours, on several machines if need be. So what the page shows is not judged again, nor is what FOLDER has
a run of. To judge all of it anew, delete the page; to judge a part, empty its cells. It needs three packages more:
pip install torchvision timm transformers.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from conformance.axes import PRECISIONS, exists, usual
from conformance.errors import ExitCode, counted
from conformance.records.cell import Verdict
from conformance.show.ci import code
from conformance.show.text import markdown_table
from conformance.store import run_files

PAGE = Path(__file__).parent.parent / "docs" / "model-libraries.md"
TRAINING = ("eval", "train")
REFUSED = ".refused"  # what the command says of an architecture that it does not judge
MODES = ("eager", "scripted", "compiled")
CHECKED = tuple(name for name in usual(PRECISIONS) if exists(PRECISIONS[name], "cpu"))
SECONDS = 1800  # that a cell may take: the C++ compiler needs minutes for a network of fifty layers on one core
TORCHVISION = """
    deeplabv3_mobilenet_v3_large densenet121 efficientnet_b0 googlenet lraspp_mobilenet_v3_large mc3_18?size=32
    mnasnet0_5 mnasnet0_75 mnasnet1_0 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small r2plus1d_18?size=32
    regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    squeezenet1_0 squeezenet1_1
"""
TIMM = """
    convnext_atto?size=64 convnextv2_atto?size=64 cpubone_nano?size=64 cs3darknet_focus_s?size=64 dla46_c?size=64
    edgenext_x_small?size=64 edgenext_xx_small?size=64 efficientvit_b0?size=64 ese_vovnet19b_slim?size=64
    fasternet_t0?size=64 fastvit_t8?size=64 ghostnet_050?size=64 inception_next_atto?size=64 lcnet_035?size=64
    levit_128s mixnet_s?size=64 mnasnet_050?size=64 mobilenetv2_035?size=64 mobilenetv3_small_050?size=64
    mobilenetv4_conv_small?size=64 mobilenetv4_conv_small_035?size=64 mobilevit_xxs?size=64 mobilevitv2_050?size=64
    pit_ti_224 poolformer_s12?size=64 pvt_v2_b0?size=64 regnetx_002?size=64 regnety_002?size=64 repvgg_a0?size=64
    resnet10t?size=64 rexnet_100?size=64 semnasnet_050?size=64 starnet_s050?size=64 swiftformer_xs?size=64
    test_byobnet test_coatnet test_convnext test_convnext2 test_convnext3 test_efficientnet test_efficientnet_evos
    test_efficientnet_gn test_efficientnet_ln test_mambaout test_maxvit test_nfnet test_resnet test_vit test_vit2
    test_vit3 test_vit4 test_vit_relpos tinynet_e?size=64 xcit_nano_12_p16_224
"""
TRANSFORMERS = """
    albert apertus arcee bart beit bert big_bird?attention_type=original_full biogpt bitnet blenderbot bloom
    camembert clip_text_model cohere convbert data2vec-text data2vec-vision deberta deberta-v2 deit diffllama dinov2
    dinov3_vit distilbert dpt electra ernie esm exaone4 falcon falcon_mamba fnet gemma gemma2 gemma3_text glm gpt2
    gpt_bigcode gpt_neox gptj?rotary_dim=4 granite granitemoe ibert imagegpt jetmoe llama longformer m2m_100 mamba
    marian mbart mistral mixtral mobilebert modernbert mpnet mpt mt5 nemotron nystromformer olmo olmo2 opt persimmon
    phi phi3 qwen2 qwen3 recurrent_gemma rembert roberta roformer rwkv segformer siglip_vision_model splinter
    stablelm starcoder2 swiftformer t5 vit vit_mae xlm yoso
"""
ARCHITECTURES = tuple(
    f"{library}:{name}"
    for library, names in (("torchvision", TORCHVISION), ("timm", TIMM), ("transformers", TRANSFORMERS))
    for name in names.split()
)
TORCH = "- torch "  # the beginning of the line with the version of torch
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
    r"^r2plus1d_\S+\[\w+-amp_bf16.*gradient of layer": (
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
    r"^lraspp_\S+\[compiled-amp_.*gradient of classifier": (
        "compiled code reads the gradient of its last interpolation before it has added it up, so the gradients of its "
        "classifier are zero: the probe `scatter_after_its_reader` of [probes.md](probes.md)"
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


Key = tuple[str, str, str]  # the name of an architecture, "eval" or "train", and a mode


@dataclass(frozen=True)
class Shown:
    """What the table shows of an architecture in a mode.

    Attributes:
        text: a check mark with the worst margin, a cross with the precisions that are red if not all are, or a dash if
            the mode refuses the architecture.
        reasons: why, if it does not pass.
    """

    text: str
    reasons: tuple[str, ...] = ()

    @property
    def cells(self) -> int:
        """The number of its cells."""
        return len(CHECKED)

    @property
    def red(self) -> int:
        """The number of its cells that do not pass, though the mode takes the architecture."""
        named = sum(precision in self.text.replace(",", "").split() for precision in CHECKED)
        return (named or self.cells) if self.text.startswith("✗") else 0

    @property
    def refused(self) -> int:
        """The number of its cells in a mode that refuses the architecture."""
        return self.cells if self.text.startswith("–") else 0


def shown(verdicts: Mapping[str, Verdict]) -> Shown:
    """What the table shows of the verdicts of an architecture in a mode, by precision."""
    red = {precision: verdict for precision, verdict in verdicts.items() if verdict.red}
    if not red:
        return Shown(f"✓ {max(verdict.margin or 0.0 for verdict in verdicts.values()):.2f}")
    reasons = tuple(dict.fromkeys(map(_reason, red.values())))
    if len(red) < len(verdicts):
        return Shown(f"✗ {', '.join(red)}", reasons)
    return Shown("–" if all(verdict.status == "ERROR" for verdict in verdicts.values()) else "✗", reasons)


def _reason(verdict: Verdict) -> str:
    """Why a cell is red."""
    said = f"{verdict.cell}  {verdict.text}"
    text = next((why for pattern, why in EXPLAINED.items() if re.search(pattern, said)), "")
    return text or f"not explained: {code(verdict.text)}"


def judge(key: Key, folder: Path) -> None:
    """Judge an architecture in a mode, and keep its run; or what the command says, if it refuses the architecture.

    Raises:
        SystemExit: the run is not complete, so nothing is kept.
    """
    name, training, mode = key
    place = _place(key, folder)
    unfinished = place.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [sys.executable, "-m", "conformance", "run", name, f"--{training}", "--no-speed", "--device=cpu"]
    command += [f"--mode={mode}", f"--timeout={SECONDS}", f"--store={unfinished}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- our own words
    if done.returncode == ExitCode.USAGE and "this machine failed" not in done.stderr:
        place.with_suffix(REFUSED).write_text(done.stderr, encoding="utf-8")
        return
    runs = [run for run in unfinished.glob("runs/*") if run_files.read(run).complete]
    if not runs:
        raise SystemExit(f"{name} was not judged, {' '.join(command)} ended with {done.returncode}: {done.stderr}")
    runs[0].rename(place)
    shutil.rmtree(unfinished)


def judged(key: Key, folder: Path) -> Shown | None:
    """What the folder knows of an architecture in a mode; None if it has no run of it."""
    place = _place(key, folder)
    if place.with_suffix(REFUSED).exists():
        lines = place.with_suffix(REFUSED).read_text(encoding="utf-8").splitlines()
        return Shown("–", (code(lines[-1] if lines else "it could not be judged"),))
    if not place.exists():
        return None
    contents = run_files.read(place)
    cells = [one for one in contents.plan.cells if one.id in contents.verdicts]
    return shown({one.cell.precision: contents.verdicts[one.id] for one in cells})


def _place(key: Key, folder: Path) -> Path:
    """The folder of a run."""
    name, training, mode = key
    return folder / f"{re.sub('[^a-z0-9_]+', '-', name)}-{training}-{mode}"


def page(found: Mapping[Key, Shown], torch: str) -> str:
    """The page, as Markdown.

    Args:
        found: what is known of each architecture in each mode.
        torch: the version of torch that judged them.
    """
    numbers: dict[str, int] = {}
    columns = [(t, m) for t in TRAINING for m in MODES if any(key[1:] == (t, m) for key in found)]
    rows = []
    for name in dict.fromkeys(key[0] for key in found):
        row = [f"`{name}`"]
        for column in columns:
            one = found.get((name, *column), Shown(""))
            row.append(" ".join([one.text, *(f"({numbers.setdefault(why, len(numbers) + 1)})" for why in one.reasons)]))
        rows.append(row)
    head = ["architecture", *(f"{mode}, {training}" for training, mode in columns)]
    parts = [OPENING, "\n".join([*_totals(found), f"{TORCH}{torch}"]), markdown_table(rows, head)]
    parts += ["\n".join(f"{number}. {text}" for text, number in numbers.items())]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _totals(found: Mapping[Key, Shown]) -> Iterator[str]:
    """How many cells were judged, and how many pass."""
    for training in TRAINING:
        of_training = {key: one for key, one in found.items() if key[1] == training}
        if of_training:
            names = {key[0] for key in of_training}
            cells, red, refused = (
                sum(getattr(one, what) for one in of_training.values()) for what in ("cells", "red", "refused")
            )
            yield (
                f"- {training}: {counted(cells, 'cell')} of {counted(len(names), 'architecture')}; "
                f"{cells - red - refused} pass, {red} do not, {refused} in modes that refuse the architecture"
            )


def read(text: str, torch: str) -> dict[Key, Shown]:
    """What a page shows.

    Args:
        text: the page, as `page` has made it.
        torch: the version of torch that it must be of.

    Raises:
        SystemExit: another version of torch judged these architectures.
    """
    lines = text.splitlines()
    versions = [line.removeprefix(TORCH) for line in lines if line.startswith(TORCH)]
    if versions != [torch]:
        raise SystemExit(f"the page is of torch {', '.join(versions)}, and this is torch {torch}: delete it first")
    reasons = dict(line.split(". ", 1) for line in lines if re.match(r"\d+\. ", line))
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|"))
    found = {}
    for name, *cells in rows:
        for column, cell in zip(head[1:], cells, strict=True):
            mode, training = column.split(", ")
            said, *numbers = cell.replace(" (", "(").replace(")", "").split("(")
            if said:
                found[name.strip("`"), training, mode] = Shown(said, tuple(reasons[number] for number in numbers))
    return found


def main() -> None:
    """Judge what is missing, and write the page of all that is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", action="append", choices=MODES, help="all three without it")
    parser.add_argument("--training", action="append", choices=TRAINING, help="both without it")
    parser.add_argument("-k", default="", metavar="TEXT", help="only architectures whose name contains it")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    torch = version("torch")
    known = read(PAGE.read_text(encoding="utf-8"), torch) if PAGE.exists() else {}
    for mode, training, name in itertools.product(asked.mode or MODES, asked.training or TRAINING, ARCHITECTURES):
        key = name, training, mode
        if asked.k in name and key not in known and judged(key, asked.folder) is None:
            judge(key, asked.folder)
            print(*key, flush=True)
    every = {}
    for key in itertools.product(ARCHITECTURES, TRAINING, MODES):
        if one := judged(key, asked.folder) or known.get(key):
            every[key] = one
    PAGE.write_text(page(every, torch), encoding="utf-8")


if __name__ == "__main__":
    main()
