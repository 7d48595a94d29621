"""Draws the cells of a run as CSV, for a spreadsheet or a table of pandas."""

import csv
import io
from dataclasses import asdict

from conformance.figures.speed import speeds
from conformance.records.cell import Cell
from conformance.show.text import visible
from conformance.store.run_files import Contents

HEAD = "model mode precision device verdict margin text reason link seconds figure call_seconds faster low high".split()


def draw(contents: Contents) -> str:
    """One line for each cell that has a verdict.

    `margin` is the worst error over its budget, and `seconds` the time that judging took. `figure` says what was timed,
    `call_seconds` is the median of its calls, and `faster` how many times faster that is than eager fp32, with its
    interval from `low` to `high`.
    """
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(HEAD)
    timed = speeds(contents) if contents.plan.measure == "speed" else {}
    for planned in contents.plan.cells:
        found = contents.verdicts.get(planned.id)
        if found is None:
            continue
        row = [*asdict(planned.cell).values(), found.status, found.margin]
        row += [visible(text) for text in (found.text, found.reason, found.link)] + [found.seconds]
        speed = timed.get(planned.id)
        ratio = speed and speed.ratios.get(Cell(planned.cell.model, "eager", "fp32", planned.cell.device).id)
        row += [speed.figure, speed.seconds] if speed else []
        row += [ratio.middle, ratio.low, ratio.high] if ratio else []
        writer.writerow([*row, *[""] * (len(HEAD) - len(row))])
    return file.getvalue()
