"""Says what a report remarks of a cell that passes: what was not judged in it, and what is unusual.

A remark is a sentence that many cells may share, and what is this cell's own of it in brackets at the end.
"""

from conformance.axes import NOT_PROVEN, SYMBOLIC
from conformance.one_line import some
from conformance.records.observation import FP32, LEFT_ASIDE, OTHER_WEIGHTS, RAISES, Observation

WHY_LEFT = {
    FP32: "this precision cannot tell a wrong value from a right one",
    OTHER_WEIGHTS: "a unit near its kink may change as much as a wrong value",
}
OF_FACTS = {  # what is said of a cell with a fact
    "drawn in float32": (
        "the CPU draws other random numbers in this precision, so they were drawn in float32 and rounded"
    ),
    "gradients stopped": "what forward detaches, or computes under no_grad, counts as a constant of its gradients",
    "gradients hooked": "what a hook makes of a gradient counts as meant",
    "second order refused": "second derivatives raise an error",
    "vmap refused": "the mode does not take vmap",
    "forward mode refused": "the mode does not take forward mode",
    "another number of rows refused": "another number of rows raises an error",
    "another order in memory refused": "another order in memory raises an error",
    "left out with other weights": (
        "the float64 model does not run with other weights, so nothing shows what the mode keeps"
    ),
    "graph breaks": "compiled with graph breaks",
    NOT_PROVEN: "the proof of the mode is empty, so nothing shows that the mode took effect",
}


def remarks(seen: Observation) -> tuple[str, ...]:
    """What a report says of a cell that passes.

    Args:
        seen: what was observed in the cell, with every tensor.
    """
    notes = []
    empty = [case for case in seen.cases if all(d.kind == "empty" for d in seen.outputs(case))]
    if empty:
        notes.append(f"every output of a case is empty, so only shapes and dtypes were judged ({', '.join(empty)})")
    if any(d.weak for d in seen.discrepancies):
        notes.append("some parts of a tensor are too small to judge on their own here")
    for judge, why in WHY_LEFT.items():
        lost = sorted({str(d.tensor) for d in seen.discrepancies if d.left_to == judge})
        notes += [f"{why}, so only {judge} judges a tensor ({some(lost, 2)})"] * bool(lost)
    left = sorted({str(d.tensor) for d in seen.discrepancies if d.kind == "remainder"})
    if left:
        notes.append(
            "larger terms cancel, and float32 holds little of what is left, so only its size is judged "
            f"({some(left, 2)})"
        )
    if aside := seen.facts.get(LEFT_ASIDE):
        notes.append(f"results that are no tensors are left aside ({aside})")
    notes += [said for fact, said in OF_FACTS.items() if seen.facts.get(fact)]
    others = [d.case for d in seen.discrepancies for m in d.measures if m.gate == RAISES and m.value and m.met]
    notes += [f"an error input raises another error than in eager ({some(others, 2)})"] * bool(others)
    if seen.facts.get(SYMBOLIC, 1) == 0:
        notes.append("no graph has symbolic sizes, so each shape was compiled by itself")
    return tuple(notes)
