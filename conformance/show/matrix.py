"""Draws a run as text: the matrix, every red cell on one line, the declared divergences as footnotes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance import axes, errors
from conformance.figures.speed import SPEED, Speed, completed_speeds
from conformance.figures.speed import speeds as known_speeds
from conformance.judging import resuming
from conformance.records import measurements, tasks
from conformance.records.cell import KEPT_SINCE, SMALLEST, STATUSES, SizedModel, Verdict, mode_of, model_of
from conformance.records.plan import ALL_CASES, Plan, PlannedCell, say_set
from conformance.show.text import SIGNS, WIDTH, speed_text, table, visible, without_speed, wrap
from conformance.store.run_files import Contents
from conformance.verdict import named_failure, worst_measure

LEGEND = """
Speed: eager fp32 shows its time, every other cell its speed-up over eager fp32: {signs}. Timed: {figures}, {size}, on
one thread. {launch_bound}
"""
FIRST_CASE, AT_SIZES = "of the first case", "at the size beside the time, or else of the first case"
LAUNCH_BOUND = "launch-bound"
OF_LAUNCH_BOUND = (
    "Launch-bound: a call takes less than 0.2 ms, so this is the speed of starting the ops, not of what they "
    "compute. It is measured in one process."
)

BREAKS = (
    "breaks: how often torch.compile broke the graph while it compiled the cases; the spec does not claim one_graph."
)
UNPROVEN_SIGN = "○"  # in place of ✓
UNPROVEN = "○ not proven: the proof of the mode is empty, so nothing shows that the mode took effect."

HEAD = "Wrong on purpose. Each must come out as declared; conformance run counterexamples shows their cells."

Footnotes = dict[tuple[str, str, str], int]  # kind, reason and link: number


def line(verdict: Verdict) -> str:
    """A finished cell on one line."""
    status = STATUSES[verdict.status]
    margin = "" if verdict.margin is None else figure(verdict.margin)
    text = f"{status.glyph} {verdict.cell:<44} {verdict.status:<12} {margin:>6} {verdict.seconds:6.2f} s"
    counts = [_count(verdict, name) for name in ("graph", "graph break", "recompile")]
    return f"{text}  {', '.join(counts)}" if all(counts) else text


def measured_line(contents: Contents, job: str) -> str:
    """A finished measurement on one line: the speeds that it completed, or its name; "" for a part of a speed."""
    speeds = "  ".join(f"{speed.cell} {speed_text(speed)}" for speed in completed_speeds(contents, job))
    named = "" if job.startswith(SPEED) else visible(job)
    return f"◷ {speeds or named}" if speeds or named else ""


def render(
    contents: Contents, *, folder: Path | None, seconds: float | None = None, terminal: int | None = None
) -> str:
    """The whole report as text.

    Args:
        contents: contents of the run folder.
        folder: path of the run folder, for the last line; None: it is not kept.
        seconds: wall time of the command; None if it is not known.
        terminal: columns of the terminal; None: it goes elsewhere. Tables are as wide as they are.
    """
    width = min(WIDTH, terminal or WIDTH)
    selected = set(contents.selected)
    cells = [p for p in contents.plan.cells if p.id in selected]
    verdicts = {name: contents.verdicts.get(name, Verdict(name, "NOTRUN", short="not run")) for name in selected}
    devices = dict.fromkeys(p.cell.device for p in cells)
    speeds = known_speeds(contents) if contents.plan.measure else {}
    notes: Footnotes = {}
    parts = [header(contents.plan)]
    for device in devices:
        shown = [p for p in cells if p.cell.device == device]
        judged = [verdicts[p.id] for p in shown]
        if all(v.status == "SKIPPED" for v in judged):
            parts.append(f"{device}: {errors.counted(len(judged), 'cell')} skipped, {visible(judged[0].text)}")
        else:
            wrong = [p for p in shown if contents.plan.models[p.cell.model].wrong_on_purpose]
            right = [p for p in shown if p not in wrong] or shown  # with nothing beside them, they have the table
            drawn = _matrix(contents.plan, right, verdicts, speeds, notes)
            parts.append(f"{device}\n{drawn}" if len(devices) > 1 else drawn)
            parts.append(_wrong_on_purpose(wrong, verdicts) if right != shown else "")
    ordered = [verdicts[p.id] for p in cells]
    parts.append(wrap(left_out(contents.plan, cells), width))
    marked = {why for verdict in ordered for why in marks(verdict).values()}
    explained = "\n".join(why for why in (BREAKS, UNPROVEN) if why in marked)
    parts += [wrap(legend(speeds, contents.plan), width), wrap(explained, width)]
    red = "\n".join(_red_lines(ordered))
    parts.append(wrap(red, terminal) if terminal else red)
    footnotes = [
        wrap(f"({number}) {kind}: {visible(reason)}", width) + (f"\n    {visible(link)}" if link else "")
        for (kind, reason, link), number in notes.items()
    ]
    parts.append("\n".join(footnotes))
    said = remarks(contents.plan, ordered, speeds)
    said += (
        [*_kept_references(ordered), *_kept_verdicts(ordered)] if folder else []
    )  # `conformance.check` has no --fresh
    parts.append(wrap("\n".join(said), width))
    parts.append(totals(contents, folder=folder, seconds=seconds))
    return "\n\n".join(part for part in parts if part)


def header(plan: Plan) -> str:
    """The machine and the versions of a run, on one line."""
    known = plan.environment
    gpus, switches = "".join(f" · {name}" for name in dict.fromkeys(known.gpus)), say_set(known.variables)
    return visible(
        f"torch {known.torch} · Python {known.python} · {known.threads_per_cell} thread per cell · "
        f"{known.cpu} {known.cpu_capability}{gpus} · seed {plan.seed}{f' · {switches}' * bool(switches)}"
    )


def _matrix(
    plan: Plan,
    cells: Sequence[PlannedCell],
    verdicts: dict[str, Verdict],
    speeds: dict[str, Speed],
    notes: Footnotes,
) -> str:
    """The table of one device. A model's candidates stand in columns after the modes, each with its name."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    modes: dict[str, None] = {}
    replaced: set[int] = set()  # the places that candidates have among those of their models
    for planned in cells:
        cell, own = planned.cell, plan.models[planned.cell.model].candidates
        square = _square(verdicts[planned.id], speeds.get(planned.id), plan.working_size(cell), notes)
        row = rows.setdefault((cell.model, cell.precision), {})
        if cell.mode in own:
            replaced.add(own.index(cell.mode))
            row[f"candidate {own.index(cell.mode)}"] = f"{cell.mode} {square}"
        else:
            modes[cell.mode] = None
            row[cell.mode] = square
    columns = [*modes, *(f"candidate {place}" for place in sorted(replaced))]
    body, last = [], ""
    for (model, precision), row in rows.items():
        body.append(["" if model == last else model, precision, *(row.get(name, "") for name in columns)])
        last = model
    return table(body, ["model", "precision", *modes, *("candidate" for _ in replaced)])


def _square(verdict: Verdict, speed: Speed | None, size: SizedModel | None, notes: Footnotes) -> str:
    judged = ", ".join([sign(verdict, notes), *marks(verdict)])
    timed = timing(speed, size)
    return f"{judged}  {timed}" if timed else judged


def timing(speed: Speed | None, size: SizedModel | None) -> str:
    """The speed of a cell, with the size at which a baseline was timed; "" if its verdict says why there is none."""
    if speed is None or speed.lacks_verdict:
        return ""
    text = speed_text(speed)
    if speed.ratios:
        return f"{text} {LAUNCH_BOUND}" if speed.is_short else text
    return f"{text} at {visible(size.size_name)} {size.size}" if speed.seconds is not None and size else text


def legend(speeds: dict[str, Speed], plan: Plan) -> str:
    """How to read the speeds, in one paragraph; "" if there are none."""
    timed = {s.figure for s in speeds.values() if s.figure}
    names = ", or ".join(title for figure, title in measurements.FIGURES.items() if figure in timed)
    size = AT_SIZES if any(model.working for model in plan.models.values()) else FIRST_CASE
    short = OF_LAUNCH_BOUND if any(s.is_short and s.ratios for s in speeds.values()) else ""
    text = LEGEND.format(signs=SIGNS, figures=names, size=size, launch_bound=short)
    return " ".join(text.split()) if names else ""


def marks(verdict: Verdict) -> dict[str, str]:
    """What the table says of a cell that is not red beside its figure, each with its explanation."""
    breaks = _count(verdict, "graph break").removeprefix("0 graph breaks").replace("graph ", "")
    marks = {breaks: BREAKS, "not proven" if verdict.observation.facts.get(axes.NOT_PROVEN) else "": UNPROVEN}
    return {} if verdict.red else {mark: why for mark, why in marks.items() if mark}


def _count(verdict: Verdict, what: str) -> str:
    """The number of graphs, graph breaks or recompiles of a cell with its word; "" if it was not counted."""
    number = verdict.observation.facts.get(f"{what}s")
    return errors.counted(number, what) if isinstance(number, int) else ""


def sign(verdict: Verdict, notes: Footnotes) -> str:
    """The glyph of a verdict and its few words, with the number of its footnote, which is added to `notes`."""
    status = STATUSES[verdict.status]
    if verdict.status == "PASS":
        glyph = UNPROVEN_SIGN if verdict.observation.facts.get(axes.NOT_PROVEN) else status.glyph
        return f"{glyph} {figure(verdict.margin or 0.0)}"
    note = footnote(verdict)
    mark = f" ({notes.setdefault(note, len(notes) + 1)})" if note else ""
    return f"{status.glyph} {visible(verdict.short)}{mark}"


def footnote(verdict: Verdict) -> tuple[str, str, str] | None:
    """The kind, reason and link of the declared divergence that applied to a cell; None if none did."""
    kind = "unsupported" if verdict.status == "UNSUPPORTED" else "stale" if verdict.red else "expected"
    return (kind, verdict.reason, verdict.link) if verdict.reason else None


def figure(margin: float) -> str:
    """The worst error over its budget in two digits; never 0.00 if it is not zero."""
    if margin == 0.0:
        return "0"
    return f"{margin:.2f}" if 0.005 <= margin < 1000 else f"{margin:.0e}"  # noqa: PLR2004 -- a display range


def remarks(plan: Plan, verdicts: list[Verdict], speeds: dict[str, Speed]) -> list[str]:
    """What was assumed of models, what is to be said of cells that are not red, and why cells have no speed."""
    without = f"· not judged, because they have no family of shapes: {errors.some(plan.shapeless, 2)}"
    said = [*_say_assumed(plan), *_remarks(verdicts), *without_speed("speed", speeds)]
    return [*[without] * bool(plan.shapeless), *said]


def _say_assumed(plan: Plan) -> list[str]:
    """The contracts that were assumed of models without a spec, a line for those of whom the same was assumed."""
    models: dict[str, list[str]] = {}
    for name, model in plan.models.items():
        models.setdefault("; ".join(model.assumed), []).append(name)
    return [f"· assumed of {errors.some(named, 2)}: {visible(text)}" for text, named in models.items() if text]


def _remarks(verdicts: list[Verdict]) -> list[str]:
    """The notes of cells that are not red, a line for each kind, with how many cells it concerns and the first."""
    found: dict[str, list[tuple[str, str]]] = {}  # sentence: cells, each with the detail that it gives
    for verdict in verdicts:
        for note in () if verdict.red else verdict.notes:
            sentence, detail = note, ""
            if note.endswith(")") and " (" in note:  # see `verdict`
                sentence, _, detail = note[:-1].rpartition(" (")
            found.setdefault(sentence, []).append((verdict.cell, f" ({visible(detail)})" if detail else ""))
    lines = []
    for sentence, cells in found.items():
        others = f"{len(cells)} cells of {_models(cell for cell, _ in cells)}, such as " if len(cells) > 1 else ""
        lines.append(f"· {visible(sentence)}: {others}{''.join(cells[0])}")
    return lines


def _models(cells: Iterable[str]) -> str:
    """The model of some cells, or how many models they are of."""
    models = list(dict.fromkeys(map(model_of, cells)))
    return models[0] if len(models) == 1 else f"{len(models)} models"


def _red_lines(verdicts: list[Verdict]) -> Iterator[str]:
    """What is wrong, a line for each cause."""
    for cause in causes(verdicts):
        text = f"{STATUSES[cause.status].glyph} {cause.named}  {cause.status}  {visible(cause.text)}"
        yield errors.with_last_lines(text, map(visible, cause.said))


def left_out(plan: Plan, cells: Sequence[PlannedCell]) -> str:
    """What a run of the whole zoo leaves to --full, in one sentence; "" if nothing."""
    short = [p for p in cells if p.left_out]
    parts = []
    if short:
        mean = 1 + sum(len(p.left_out) for p in short) / len(short)
        modes = " and ".join(dict.fromkeys(p.cell.mode for p in short))
        parts.append(f"{modes}: the first of {mean:.1f} cases on average")
    timed = [model.timed for model in plan.models.values() if model.timed]
    shown = [plan.models[p.cell.model] for p in cells]
    if timed and any(model.location.is_of_zoo and not model.timed for model in shown):
        precisions = " and ".join(dict.fromkeys(p for of in timed for p in of))
        parts.append(f"speeds: {precisions} of {errors.counted(len(timed), 'model')}")
    return f"{'; '.join(parts)}; --full for the rest" if parts else ""


def _kept_references(verdicts: list[Verdict]) -> list[str]:
    seen = [(verdict.cell, verdict.observation) for verdict in verdicts]
    kept = [cell for cell, one in seen if tasks.KEPT in one.seconds and KEPT_SINCE not in one.facts]
    return [f"· references of an earlier run: {_models(kept)} (--fresh makes new ones)"] if kept else []


def _kept_verdicts(verdicts: Iterable[Verdict]) -> list[str]:
    """How many verdicts are of earlier runs in which all that they depend on was as it is now, and of which days."""
    days = [str(seen.facts[KEPT_SINCE]) for v in verdicts if KEPT_SINCE in (seen := v.observation).facts]
    if not days:
        return []
    when = f"{min(days)}{f' to {max(days)}' * (min(days) != max(days))}"
    return [f"· kept verdicts, of inputs that have not changed since: {len(days)} ({when}; --fresh judges all)"]


def totals(contents: Contents, *, folder: Path | None, seconds: float | None = None) -> str:
    """How many cells have which verdict; then where the run is stored, and how it goes on if something is missing.

    Without a folder it is not kept; without seconds, the time of the command is not known.
    """
    plan, verdicts = contents.plan, contents.verdicts
    counts = Counter(verdicts[cell].status if cell in verdicts else "NOTRUN" for cell in contents.selected)
    parts = ", ".join(f"{counts[name]} {name.lower()}" for name in STATUSES if counts[name])
    took = "" if seconds is None else f" · {seconds:.0f} s"
    depth = "" if plan.depth == ALL_CASES else f" · {plan.depth}"
    line = f"{errors.counted(counts.total(), 'cell')}: {parts}{depth}{took}"
    if folder is None:
        return line
    again = resuming.next_step(folder, plan, contents.changed)
    unfinished = f"\nincomplete: {visible(again)}" if counts["NOTRUN"] else ""
    unfinished += f"\nincomplete: {visible(plan.lacks)} missing" if plan.lacks else ""
    return f"{line} · run stored in {visible(str(folder))}{unfinished}"


def _wrong_on_purpose(cells: Sequence[PlannedCell], verdicts: Mapping[str, Verdict]) -> str:
    """A line for each counterexample: the sign of a red cell or of one that is not simply right, and its reason."""
    models: dict[str, list[Verdict]] = {}
    for planned in cells:
        models.setdefault(planned.cell.model, []).append(verdicts[planned.id])
    rows = []
    for model, own in models.items():
        urgent = min(own, key=lambda verdict: (not verdict.red, verdict.status == "PASS"))
        counts = Counter("pass" if verdict.status == "PASS" else visible(verdict.short) for verdict in own)
        said = ", ".join(f"{number} {word}" for word, number in counts.items())
        why = next((verdict.reason for verdict in own if verdict.reason), "")
        rows.append([STATUSES[urgent.status].glyph, model, said, visible(why)])
    return f"{HEAD}\n\n{table(rows, ['', 'model', 'cells', 'why'])}"


# Groups the red cells of a run by cause: cells of one model that fail in the same way are one line.


@dataclass(frozen=True)
class Cause:
    """Why cells of one model are red, or of several where the machine lacks something.

    Attributes:
        model: the model, or the first of them.
        text: what the first of them says.
        said: the last lines that its process printed on its error stream, if it crashed.
        cells: their ids.
        named: these cells in a few words. If they are all cells of the model, or all of one mode, it names that;
            otherwise the first of them.
    """

    model: str
    status: str
    text: str
    cells: tuple[str, ...]
    named: str
    said: tuple[str, ...] = ()


def causes(verdicts: Iterable[Verdict]) -> list[Cause]:
    """The causes of the red verdicts, in their order. Cells that were not judged have none.

    One cause is one model, verdict, gate and tensor, or one reason where no gate has failed. What the machine lacks is
    one cause for all models.
    """
    found: dict[tuple[str, str, str], list[Verdict]] = {}
    beside: Counter[str] = Counter()  # by model, and by mode of a model
    for verdict in verdicts:
        model = model_of(verdict.cell)
        if verdict.status != "SKIPPED":
            beside.update([model, f"{model}[{mode_of(verdict.cell)}]"])
        if verdict.red and verdict.status != "NOTRUN":
            whose = "" if verdict.observation.error == errors.NoCompilerError.__name__ else model
            found.setdefault((whose, verdict.status, _reason(verdict)), []).append(verdict)
    return [
        Cause(
            model_of(same[0].cell),
            status,
            same[0].text,
            tuple(v.cell for v in same),
            _name_cells([v.cell for v in same], beside),
            same[0].observation.said,
        )
        for (_, status, _), same in found.items()
    ]


def _name_cells(cells: list[str], beside: Counter[str]) -> str:
    model, modes = model_of(cells[0]), {mode_of(cell) for cell in cells}
    if any(model_of(cell) != model for cell in cells):
        return f"{len(cells)} cells of {_models(cells)}"
    wholes = (model, f"{model}[{modes.pop()}]") if len(modes) == 1 else (model,)
    whole = next((name for name in wholes if len(cells) == beside[name] > 1), None)
    return f"{whole}, all {len(cells)} cells" if whole else errors.some(cells)


def _reason(verdict: Verdict) -> str:
    """Gate and tensor of a failure; otherwise the text of the verdict. Case, error, budget and shape are not part."""
    named = named_failure(verdict)
    return f"{named[1].gate}  {named[0].tensor}" if named else verdict.text.partition(SMALLEST)[0]


# Makes a table of a run for other programs.


def rows(contents: Contents) -> list[dict[str, str | float | None]]:
    """The selected cells in the order of the plan, each as a row of plain values; see `Report.to_records`."""
    speeds = known_speeds(contents) if contents.plan.measure else {}
    chosen = set(contents.selected)
    found = []
    for name, cell in ((p.id, p.cell) for p in contents.plan.cells if p.id in chosen):
        verdict = contents.verdicts.get(name, Verdict(name, "NOTRUN"))
        told = named_failure(verdict) if verdict.red else worst_measure(verdict.observation)
        tensor, measure = told or (None, None)
        ratio = next(iter(speeds[name].ratios.values()), None) if name in speeds else None
        found.append(
            {
                **vars(cell),
                "status": verdict.status,
                "gate": measure and measure.gate,
                "tensor": tensor and str(tensor.tensor),
                "case": tensor and tensor.case,
                "margin": verdict.margin,
                "value": measure and measure.value,
                "budget": measure and measure.budget,
                "text": verdict.text or None,
                "seconds": verdict.seconds,
                "speed_up": ratio and ratio.middle,
                "torch": contents.plan.environment.torch,
            }
        )
    return found
