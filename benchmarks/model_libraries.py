"""Judges architectures of torchvision, timm and transformers, and writes docs/model-libraries.md.

    python -m benchmarks.model_libraries FOLDER [--mode MODE …] [--training eval …] [-k TEXT] [OPTION …]

It takes many hours, on several machines if need be. FOLDER keeps the runs, and docs/model-libraries.json what they
found. What one of the two has is not judged again: to judge it anew, take it out of both. Other options go to
`conformance run`, such as `-n 2` or `--on ray`. It needs three packages more: torchvision, timm and transformers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.axes import PRECISIONS, exists, usual
from conformance.records.cell import Verdict
from conformance.show.ci import code
from conformance.show.text import markdown_table
from conformance.store import run_files

PAGE = Path(__file__).parent.parent / "docs" / "model-libraries.md"
TRAINING = ("eval", "train")
# the mode that makes programs of a library
PROGRAMS = {"torchvision": "scripted", "timm": "scripted", "transformers": "exported"}
COLUMNS = {"eager": ("eager",), "program": ("scripted", "exported"), "compiled": ("compiled",)}  # with their modes
CHECKED = tuple(name for name in usual(PRECISIONS) if exists(PRECISIONS[name], "cpu"))
COMPILED = ("fp32", "amp_bf16")  # a third less to compile
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
EXPLAINED = {  # why, by cell and text of a verdict, a regular expression
    r"^longformer\[exported.*data-dependent": "`torch.export` cannot follow a branch on the numbers of a tensor",
    r"^deberta\[.*value cannot be converted to type c10::(Half|BFloat16) without overflow": (
        "in plain torch too: under autocast, it fills a low-precision tensor with the smallest number of float32"
    ),
    r"^yoso\[.*gradcheck in float64": (
        "the backward of its attention is an estimate by design, so it is not the derivative of forward"
    ),
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
    r"^(lraspp|swiftformer)_\S+\[scripted-amp_.*output.*, case given: float32, should be": (
        "under TorchScript's autocast, a sum of two low-precision tensors is float32; here it is returned"
    ),
    r"^efficientvit_b0\[scripted-amp_fp16.*error nan": (
        "eager leaves autocast for the attention, and a script does not, as timm has it; so gradients overflow in "
        "plain torch too"
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
`conformance run timm:test_vit --eval` is one row. Those of torchvision and timm are scripted. Those of transformers are
exported, for TorchScript takes none of them. A check mark means that the mode passes in fp32 and under both autocast
dtypes, or compiled in fp32 and under bfloat16; the number is the worst error over its budget. A number in brackets
points to a reason below.
`python -m benchmarks.model_libraries FOLDER` writes this page.
"""


Key = tuple[str, str, str]  # the name of an architecture, "eval" or "train", and a mode


@dataclass(frozen=True)
class Shown:
    """What the page shows of an architecture in a mode.

    Attributes:
        text: a check mark with the worst margin, a cross with the precisions that are red if not all are, or a dash if
            the mode refuses the architecture.
        cells, red: how many there are, and how many do not pass.
        seen: the torch, the day and the revision that judged it.
        reasons: why, if it does not pass.
    """

    text: str
    cells: int
    red: int
    seen: str
    reasons: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the mode refuses the architecture."""
        return self.text == "–"


def shown(verdicts: Mapping[str, Verdict], seen: str) -> Shown:
    """What the page shows of the verdicts of an architecture in a mode, by precision."""
    red = {precision: verdict for precision, verdict in verdicts.items() if verdict.red}
    if not red:
        text = f"✓ {max(verdict.margin or 0.0 for verdict in verdicts.values()):.2f}"
    elif len(red) < len(verdicts):
        text = f"✗ {', '.join(red)}"
    else:
        text = "–" if all(verdict.status == "ERROR" for verdict in verdicts.values()) else "✗"
    return Shown(text, len(verdicts), len(red), seen, tuple(dict.fromkeys(map(_reason, red.values()))))


def _reason(verdict: Verdict) -> str:
    """Why a cell is red."""
    said = f"{verdict.cell}  {verdict.text}"
    text = next((why for pattern, why in EXPLAINED.items() if re.search(pattern, said)), "")
    return text or f"not explained: {code(verdict.text)}"


def judge(names: Iterable[str], training: str, mode: str, folder: Path, words: Iterable[str]) -> None:
    """Judge architectures in a mode, in one run.

    Raises:
        SystemExit: the run is not complete.
    """
    command = [sys.executable, "-m", "conformance", "run", *names, f"--{training}", "--no-speed", "--device=cpu"]
    command += [f"--precision={precision}" for precision in (COMPILED if mode == "compiled" else CHECKED)]
    command += [f"--mode={mode}", f"--timeout={SECONDS}", f"--store={folder}", *words]
    done = subprocess.run(command, check=False)  # noqa: S603 -- our own words
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")


def judged(folder: Path) -> dict[Key, Shown]:
    """What the runs of a folder found, of each architecture and mode of which all cells were judged."""
    found = {}
    for run in sorted(folder.glob("runs/*")):
        contents = run_files.read(run)
        plan, verdicts = contents.plan, defaultdict[Key, dict[str, Verdict | None]](dict)
        for planned in plan.cells:
            cell, own = planned.cell, plan.models[planned.cell.model].location.own
            if own is not None:
                key = own.library, own.training, cell.mode
                verdicts[key][cell.precision] = contents.verdicts.get(planned.id)
        seen = f"torch {plan.environment.torch}, {plan.judge.day}, {plan.judge.revision}"
        for key, known in verdicts.items():
            if whole := {precision: verdict for precision, verdict in known.items() if verdict is not None}:
                found |= {key: shown(whole, seen)} if len(whole) == len(known) else {}
    return found


def page(found: Mapping[Key, Shown]) -> str:
    """The page, as Markdown, of what is known of each architecture in each mode."""
    numbers: dict[str, int] = {}
    columns = [(t, c) for t in TRAINING for c in COLUMNS if any(k[1] == t and k[2] in COLUMNS[c] for k in found)]
    rows = []
    for name in dict.fromkeys(key[0] for key in found):
        row = [f"`{name}`"]
        for training, column in columns:
            ones = [found[key] for mode in COLUMNS[column] if (key := (name, training, mode)) in found]
            row += [_cell(ones[-1], numbers) if ones else ""]
        rows.append(row)
    head = ["architecture", *(f"{' or '.join(COLUMNS[column])}, {training}" for training, column in columns)]
    totals = markdown_table([*_totals(found)], ["mode", "architectures", "cells", "pass", "red", "refused", "seen"])
    parts = [OPENING, totals, markdown_table(rows, head)]
    parts += ["\n".join(f"{number}. {text}" for text, number in numbers.items())]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _cell(one: Shown, numbers: dict[str, int]) -> str:
    return " ".join([one.text, *(f"({numbers.setdefault(why, len(numbers) + 1)})" for why in one.reasons)])


def _totals(found: Mapping[Key, Shown]) -> Iterator[list[str]]:
    """How many cells were judged, how many pass, and when, by mode."""
    by_mode = defaultdict[str, list[Shown]](list)
    for (_, training, mode), one in found.items():
        by_mode[f"{mode}, {training}"].append(one)
    for mode, ones in sorted(by_mode.items()):
        cells, red = sum(one.cells for one in ones), sum(one.red for one in ones)
        refused = sum(one.cells for one in ones if one.refused)
        seen = sorted(Counter(one.seen for one in ones).items())
        yield [
            mode,
            *map(str, (len(ones), cells, cells - red, red - refused, refused)),
            "; ".join(f"{text}: {count}" for text, count in seen),
        ]


def read(file: Path) -> dict[Key, Shown]:
    """What `write` has kept."""
    rows = json.loads(file.read_text(encoding="utf-8"))
    return {tuple(key): Shown(**one | {"reasons": tuple(one["reasons"])}) for *key, one in rows}


def write(found: Mapping[Key, Shown], file: Path) -> None:
    """Keep what is known, a line for each architecture in a mode."""
    rows = (json.dumps([*key, asdict(one)], ensure_ascii=False) for key, one in found.items())
    file.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def main() -> None:
    """Judge what is missing, and write the page of all that is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", action="append", choices=COLUMNS, help="a column of the page; all without it")
    parser.add_argument("--training", action="append", choices=TRAINING, help="both without it")
    parser.add_argument("-k", default="", metavar="TEXT", help="only architectures whose name contains it")
    asked, words = parser.parse_known_args()
    file = PAGE.with_suffix(".json")
    known = read(file) | judged(asked.folder)
    for column, training, program in itertools.product(
        asked.mode or COLUMNS, asked.training or TRAINING, dict.fromkeys(PROGRAMS.values())
    ):
        mode = program if column == "program" else column
        names = [name for name in ARCHITECTURES if PROGRAMS[name.partition(":")[0]] == program and asked.k in name]
        if missing := [name for name in names if (name, training, mode) not in known]:
            judge(missing, training, mode, asked.folder, words)
    found = known | judged(asked.folder)
    order = itertools.product(ARCHITECTURES, TRAINING, itertools.chain(*COLUMNS.values()))
    found = {key: found[key] for key in order if key in found}
    write(found, file)
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
