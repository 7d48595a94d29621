"""Judges an observation by the contract of its spec. It takes and returns records, and does not import torch."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from conformance import axes, errors
from conformance.records import cell
from conformance.records.cell import PLACE_OF, PROBED, RAISES, Discrepancy, Measure, Observation, Verdict, case_of
from zoo.expect import Expect

ENDINGS = {
    "not proven": "VOID",
    "no oracle": "INCONCLUSIVE",
    "invalid": "INVALID",
    "random": "UNSTABLE",
    "crashed": "CRASH",
    "timed out": "TIMEOUT",
    "out of memory": "OOM",
    "raised": "ERROR",
}
VALUES = ("norm", "slice", "gain", "pointwise")  # gates whose measure is a size
ORDER = ("structure", "dtype", "class", "exact", *VALUES, "precision", "recompile", "opcheck", RAISES)
IN_WORDS = ("exact", "precision", RAISES)  # gates whose measure is no size
NO_MARGIN = ("precision", RAISES)  # gates whose value over its budget is no measure of an error


def judge(
    cell_id: str, seen: Observation, expectations: Sequence[Expect] = (), *, whole: bool = True, strict: bool = False
) -> Verdict:
    """The verdict on one cell.

    Args:
        cell_id: id of the cell.
        seen: what was observed.
        expectations: the declared divergences that apply to this cell on this torch, from the plan. One that hangs on a
            probe is in force if what was observed says that the probe shows its fault.
        whole: all cases were judged; otherwise a declared divergence that did not happen may hang on the others.
        strict: a mode without a proof is red, and so is a graph break that no spec declares.
    """
    expectations = _in_force(seen, expectations)
    renamed = [e for e in expectations if e.outcome == "dtype"]
    dtypes = {e.tensor: e.dtype for e in renamed}
    verdict = _plain_verdict(cell_id, seen, dtypes)
    doubt = _doubt(seen) if strict and verdict.status == "PASS" else ""
    if doubt:
        verdict = Verdict(cell_id, "VOID", f"strict  {doubt}", short="VOID")
    worst = worst_measure(seen)
    verdict = replace(verdict, margin=worst and worst[1].margin, notes=_remarks(seen), observation=seen)
    refusals = [e for e in expectations if e.outcome == "refuses"]
    others = [e for e in expectations if e.outcome not in ("dtype", "refuses")]
    for expected in refusals:
        if seen.ending == "raised" and _raised(seen, expected):
            return _by(expected, verdict, "UNSUPPORTED", "refused", seen.message)
    declared = _covering(verdict, seen, others, dtypes)
    if declared:
        return _by(declared, verdict, "EXPECTED", declared.outcome, verdict.text)
    if verdict.status != "PASS":
        return verdict
    for expected in not_happened(seen, expectations) if whole else ():
        text = f"declared {expected.outcome} did not happen: {expected.reason}"
        if expected.outcome == "dtype":
            text = f"{expected.tensor} has the contract's dtype again, declared {expected.dtype}"
        return _by(expected, verdict, "STALE", "stale", text)
    for first in (e for e in renamed if not _is_back(seen, e)):
        return _by(first, verdict, "EXPECTED", first.dtype, f"{first.tensor} is {first.dtype}")
    return verdict


def not_happened(seen: Observation, expectations: Sequence[Expect]) -> list[Expect]:
    """The declared divergences that did not happen in a cell which, apart from them, passes: a STALE one."""
    known = sorted(_in_force(seen, expectations), key=lambda e: (e.outcome == "dtype") - (e.outcome == "refuses"))
    return [e for e in known if e.outcome != "dtype" or _is_back(seen, e)]


def _in_force(seen: Observation, expectations: Sequence[Expect]) -> list[Expect]:
    return [e for e in expectations if not e.probe or seen.facts.get(PROBED + e.probe)]


def failed_gate(seen: Discrepancy) -> Measure | None:
    """The measure of the first gate that rejects a tensor; None if all gates accept it.

    The order of the gates is structure, dtype, class, exact, the values, precision, recompile, opcheck, raises.
    """
    for measure in seen.measures:
        if measure.gate == "structure" and not measure.met:
            return measure
    if seen.dtype_asked and seen.dtype != seen.dtype_asked:
        return Measure("dtype", math.inf, 0.0, f"{seen.dtype}, should be {seen.dtype_asked}")
    return next((m for m in seen.measures if not m.met and m.gate != "stable"), None)


def named_gate(seen: Discrepancy) -> Measure | None:
    """The measure that a line names of a tensor that fails: of the values, the one farthest over its budget."""
    first = failed_gate(seen)
    if first is None or first.gate not in VALUES:
        return first
    return max((m for m in seen.measures if m.gate in VALUES), key=lambda m: m.margin)


def named_failure(verdict: Verdict) -> tuple[Discrepancy, Measure] | None:
    """The tensor that the line of a verdict names, and the measure of the gate; None if it names none."""
    for seen in verdict.observation.discrepancies:
        failed = named_gate(seen)
        for measure in [failed] if failed else [m for m in seen.measures if not m.met]:
            if verdict.text.startswith(f"{_place(seen, measure)}:"):
                return seen, measure
    return None


def worst_measure(seen: Observation) -> tuple[Discrepancy, Measure] | None:
    """The measure that is farthest over its budget, or nearest to it, and its tensor; None if nothing was measured."""
    sized = ((d, m) for d in seen.discrepancies for m in d.measures if m.gate not in NO_MARGIN)
    return max(sized, key=lambda found: found[1].margin, default=None)


def _plain_verdict(cell_id: str, seen: Observation, dtypes: Mapping[str, str]) -> Verdict:
    """The verdict if only the expectations on dtypes apply."""
    if seen.ending != "finished":
        status = ENDINGS.get(seen.ending, "ERROR")
        error = f"{seen.error}: " if seen.error and seen.ending == "raised" else ""
        error *= not re.match(r"\w+Error: ", seen.message)  # an error in a script names its own
        where = f"in phase {seen.phase}: " if seen.phase else ""
        return Verdict(cell_id, status, f"{where}{error}{seen.message}", short=status)
    for found in seen.discrepancies:
        for measure in found.measures:
            if measure.gate == "stable" and not measure.met:
                more = f": {measure.detail}" if measure.detail else ""
                text = _line(found, measure, f"a second identical call differs{more}")
                return Verdict(cell_id, "UNSTABLE", text, short="UNSTABLE")
    worst = next(iter(_in_gate_order(seen.discrepancies, dtypes)), None)
    if worst is not None and (said_no := named_gate(worst)) is not None:
        where = _say_where(seen, worst) if said_no.gate in (*VALUES, "class", "exact") else ""
        place = seen.facts.get(PLACE_OF + (VALUES[0] if said_no.gate in VALUES else said_no.gate), "")
        text = "; ".join(filter(None, [_line(worst, said_no), where, place]))
        return Verdict(cell_id, "FAIL", text, short=_short(said_no))
    weakness = next(_weaknesses(seen.discrepancies), "")
    if weakness:
        return Verdict(cell_id, "INCONCLUSIVE", f"power  {weakness}", short="power")
    gap = next(_gaps(seen), "")
    if gap:
        return Verdict(cell_id, "INCONCLUSIVE", f"evidence  {gap}", short="evidence")
    return Verdict(cell_id, "PASS")


def _in_gate_order(found: Sequence[Discrepancy], dtypes: Mapping[str, str]) -> list[Discrepancy]:
    """The discrepancies by gate: conduct, then the case as it is given, then the worst tensor; all values are one gate.

    A declared dtype replaces the contract's.
    """
    held = [replace(d, dtype_asked=d.dtype) if d.dtype == dtypes.get(str(d.tensor)) else d for d in found]

    def rank(d: Discrepancy) -> tuple[int, bool, bool, float]:
        measure = named_gate(d)
        if measure is None:
            return len(ORDER), False, False, 0.0
        position = ORDER.index(VALUES[0] if measure.gate in VALUES else measure.gate)
        return position, d.kind != "conduct", d.case != case_of(d.case), -measure.margin

    return sorted(held, key=rank)


# Says in a few words where a fault lies, from the tensors of a case in the model's own order.

ALONE = {  # what is said if only tensors of this kind are wrong
    "second": "only second derivatives are wrong",
    "vmapped": "only `torch.vmap` is wrong",
    "tangent": "only forward mode is wrong",
    "buffer": "only what forward leaves in buffers is wrong",
    "attribute": "only what forward leaves in attributes is wrong",
}


def _say_where(seen: Observation, worst: Discrepancy) -> str:
    """Where the fault of a case lies, as "forward right; backward wrong from `layers.3` down" says; "" if open."""
    same = [d for d in seen.discrepancies if d.case == worst.case and d.kind != "conduct"]
    wrong = {d.tensor for d in same if failed_gate(d)}
    kinds = {tensor.kind for tensor in wrong}
    if len(kinds) == 1 and (said := ALONE.get(next(iter(kinds)))):
        return said
    gradients = [d.tensor.leaf for d in same if d.tensor.kind == "gradient"]
    if "output" in kinds:
        return "forward wrong, gradients right" if gradients and "gradient" not in kinds else "forward wrong"
    if "gradient" not in kinds or not any(d.tensor.kind == "output" for d in same):
        return ""
    return f"forward right; {_say_where_backward(gradients, {t.leaf for t in wrong if t.kind == 'gradient'})}"


def _say_where_backward(leaves: Sequence[str], wrong: set[str]) -> str:
    """Which gradients are wrong. Backward goes through the leaves, inputs and then parameters, from the last on."""
    modules: dict[str, bool] = {}
    for leaf in leaves:
        module = leaf.rpartition(".")[0]
        modules[module] = modules.get(module, False) or leaf in wrong
    if wrong >= set(leaves):
        return "all gradients wrong" if len(leaves) > 1 else "backward wrong"
    names = {leaf.rpartition(".")[2] for leaf in wrong}
    alike = [leaf for leaf in leaves if leaf.rpartition(".")[2] in names]
    if len(names) == 1 and len(alike) > 1 and wrong >= set(alike):
        return f"only `{names.pop()}` gradients wrong"
    hit = [module for module, is_wrong in modules.items() if is_wrong]
    if len(hit) > 1 and hit == [*modules][: len(hit)]:
        return f"backward wrong from `{hit[-1]}` down"
    return f"gradients wrong of {errors.some([f'`{leaf}`' for leaf in leaves if leaf in wrong], 3)}"


OUT_OF_TIES = (
    "compute it in float32; if it hangs on a near tie (routing, top-k, a threshold), draw inputs whose scores lie "
    "further apart, for example by scaling them; or declare Expect(outcome='INCONCLUSIVE') for this precision"
)
OUT_OF_NOISE = (
    "draw inputs or weights with which it is larger than its rounding errors, or declare "
    "Expect(outcome='INCONCLUSIVE') for this precision"
)


def _weaknesses(found: Sequence[Discrepancy]) -> Iterator[str]:
    """Why a cell that all gates accept proves nothing, one line for each reason."""
    for d in found:
        if d.accepted:
            yield f"{d.tensor}, case {d.case}: the gates accept {errors.some(d.accepted, 2)}; {OUT_OF_NOISE}"
    rounded = [d for d in found if d.kind in ("rounded", "float32")]
    outputs = dict.fromkeys(d.tensor for d in rounded if d.tensor.kind == "output")
    for tensors in ([d for d in rounded if d.tensor == name] for name in outputs):
        if all(d.left_to for d in tensors):
            yield f"{tensors[0].tensor}: in no case can this precision tell it from a wrong one; {OUT_OF_TIES}"
    every = [d for d in found if d.kind in ("rounded", "float32", "exact") and d.tensor.kind == "output"]
    if every and not outputs and all(d.left_to for d in every):
        yield f"{every[0].tensor}: rounding may change every element in this precision; {OUT_OF_TIES}"
    compared = [*rounded, *(d for d in found if d.kind == "remainder")]
    gradients = [d for d in compared if d.tensor.kind == "gradient"]
    if gradients and all(d.left_to or d.kind == "remainder" for d in gradients):
        yield (
            f"{gradients[0].tensor} and all others: in no case can this precision tell a gradient from a wrong one; "
            "see `independent_samples` and `initialise` of a Spec"
        )


def _gaps(seen: Observation) -> Iterator[str]:
    """Why a cell that all gates accept has judged nothing, one line for each reason.

    Each case needs an output whose values were compared, by gates that rejected a wrong one. A case whose outputs are
    all empty is judged by their shapes and dtypes, if another case has values.
    """
    if not seen.cases:
        yield "no case was called, so nothing was judged"
    judged = {case: any(d.rejected or d.left_to for d in seen.outputs(case)) for case in seen.cases}
    for case in (case for case in seen.cases if not judged[case]):
        outputs = seen.outputs(case)
        if not outputs:
            yield (
                f"case {case}: the model returns no tensor and no number, so nothing was judged; if its forward lacks "
                "a `return`, add it; if it writes its inputs, name them in `mutates`"
            )
        elif any(d.kind != "empty" for d in outputs):
            yield f"case {case}: {outputs[0].tensor}: its values were not judged, because no wrong tensor was rejected"
        elif not any(judged.values()):
            yield f"case {case}: every output is empty, so no value was judged; add a case with elements"


def _doubt(seen: Observation) -> str:
    """Why a strict run does not believe that a cell has run in its mode; "" if it does."""
    if seen.facts.get(axes.NOT_PROVEN):
        return f"{OF_FACTS[axes.NOT_PROVEN]}; let `prepare` return a Prepared whose proof returns a fact"
    if why := seen.facts.get(axes.BROKEN_GRAPH):
        breaks = errors.counted(int(seen.facts["graph breaks"]), "graph break")
        return f"{breaks} that no spec declares by `one_graph=False`: {why}"
    return ""


def _raised(seen: Observation, expected: Expect) -> bool:
    return seen.error == expected.error and re.search(expected.match, seen.message) is not None


def _covering(
    verdict: Verdict, seen: Observation, expectations: Sequence[Expect], dtypes: Mapping[str, str]
) -> Expect | None:
    """The first expectation that came true; None unless they cover the verdict, the failures of a FAIL together."""
    same = [one for one in expectations if one.outcome == verdict.status]
    if verdict.status == "ERROR":
        return next((one for one in same if _raised(seen, one)), None)
    if verdict.status != "FAIL":
        return next((one for one in same if re.search(one.match, verdict.text)), None)
    failures = [(d, by) for d in _in_gate_order(seen.discrepancies, dtypes) if (by := failed_gate(d))]
    by_failure = [[one for one in same if _is_declared(found, by, one)] for found, by in failures]
    return by_failure[0][0] if all(by_failure) else None


def _is_declared(found: Discrepancy, measure: Measure, expected: Expect) -> bool:
    """Whether the expectation covers this failure. It must not hide the failure of another tensor, case or gate.

    Its gate is the first one that rejects the tensor, or the one that the line of the cell names.
    """
    tensor, named = str(found.tensor), named_gate(found)
    if found.kind == "conduct" and (expected.tensor, expected.gate) != (tensor, measure.gate):
        return False
    return (
        (not expected.tensor or tensor == expected.tensor)
        and (not expected.case or case_of(found.case) == expected.case)
        and (not expected.gate or expected.gate in (measure.gate, named and named.gate))
    )


def _is_back(seen: Observation, expected: Expect) -> bool:
    """Whether a tensor has the dtype of the contract although another one is declared."""
    tensors = [d for d in seen.discrepancies if str(d.tensor) == expected.tensor]
    return all(d.dtype_asked in ("", d.dtype) for d in tensors)  # "": only its values are asked for


def _by(expected: Expect, verdict: Verdict, status: str, short: str, text: str) -> Verdict:
    """The verdict after an expectation was applied to it."""
    return replace(verdict, reason=expected.reason, link=expected.link, status=status, short=short, text=text)


def _place(found: Discrepancy, measure: Measure) -> str:
    return f"{measure.gate}  {found.tensor}, case {found.case}"


def _line(found: Discrepancy, measure: Measure, what: str = "") -> str:
    place = _place(found, measure)
    if what:
        return f"{place}: {what}"
    if math.isinf(measure.value) or measure.gate in IN_WORDS:
        return f"{place}: {measure.detail or 'not finite'}"
    where = f", {measure.detail}" if measure.detail else ""
    return f"{place}: error {measure.value:.2g}, budget {measure.budget:.2g}{where}"


def _short(measure: Measure) -> str:
    finite = math.isfinite(measure.margin) and measure.gate in VALUES
    return f"{measure.gate} {measure.margin:.2g}" if finite else measure.gate


# What a report remarks of a cell that passes. A remark is a sentence that many cells may share, and what is this cell's
# own of it in brackets at the end.

WHY_LEFT = {
    cell.FP32: "this precision cannot tell a wrong value from a right one",
    cell.FP32_REDRAWN: "a unit near its kink may change as much as a wrong value",
}
OF_FACTS = {  # what is said of a cell with a fact
    "drawn in float32": (
        "the CPU draws other random numbers in this precision, so they were drawn in float32 and rounded"
    ),
    "gradients hooked": "what a hook makes of a gradient counts as meant",
    "second order refused": "second derivatives raise an error",
    "vmap refused": "the mode does not take vmap",
    "forward mode refused": "the mode does not take forward mode",
    "left out with other weights": (
        "the float64 model does not run with other weights, so nothing shows what the mode keeps"
    ),
    cell.AS_MADE_ANEW: (
        "with other numbers in its attributes, the mode differs from eager even if it is made anew, so nothing shows "
        "what it keeps of them"
    ),
    "graph breaks": "compiled with graph breaks",
    axes.NOT_PROVEN: "the proof of the mode is empty, so nothing shows that the mode took effect",
}
OF_FACTS_TOLD = {  # the same, with what the fact tells behind it
    cell.LEFT_ASIDE: "results that are no tensors are left aside",
    cell.ASKED_OTHERWISE: "the call raises an error if it is asked otherwise",
    cell.UNCLAIMED: "not claimed by the spec, and tried in float64",
    cell.DRAWN_OTHERWISE: "it draws other random numbers than the oracle, so nothing is compared",
    cell.STOPPED: "what forward detaches, or computes under no_grad, counts as a constant of its gradients",
}


def _remarks(seen: Observation) -> tuple[str, ...]:
    """What a report says of a cell that passes: what was not judged in it, and what is unusual."""
    notes = []
    empty = [case for case in seen.cases if all(d.kind == "empty" for d in seen.outputs(case))]
    if empty:
        notes.append(f"every output of a case is empty, so only shapes and dtypes were judged ({', '.join(empty)})")
    if any(d.weak for d in seen.discrepancies):
        notes.append("some parts of a tensor are too small to judge on their own here")
    for judge, why in WHY_LEFT.items():
        lost = sorted({str(d.tensor) for d in seen.discrepancies if d.left_to == judge})
        notes += [f"{why}, so only {judge} judges a tensor ({errors.some(lost, 2)})"] * bool(lost)
    left = sorted({str(d.tensor) for d in seen.discrepancies if d.kind == "remainder"})
    if left:
        notes.append(
            "larger terms cancel, and float32 holds little of what is left, so only its size is judged "
            f"({errors.some(left, 2)})"
        )
    notes += [f"{said} ({seen.facts[fact]})" for fact, said in OF_FACTS_TOLD.items() if seen.facts.get(fact)]
    notes += [said for fact, said in OF_FACTS.items() if seen.facts.get(fact)]
    others = [d.case for d in seen.discrepancies for m in d.measures if m.gate == RAISES and m.value and m.met]
    notes += [f"an error input raises another error than in eager ({errors.some(others, 2)})"] * bool(others)
    if seen.facts.get(axes.SYMBOLIC, 1) == 0:
        notes.append("no graph has symbolic sizes, so each shape was compiled by itself")
    return tuple(notes)
