"""`conformance list`: prints the models with their summaries and cases."""

from __future__ import annotations

from conformance.commands.output import tell
from conformance.errors import UsageError
from conformance.exit_codes import ExitCode
from conformance.process import child
from conformance.records.tasks import LIST_MODELS, PlanRequest
from conformance.show.text import table, visible

DEADLINE = 300.0


def list_models(sources: tuple[str, ...]) -> ExitCode:
    """Print a table of the models of some sources, or of the whole zoo.

    Raises:
        UsageError: a source is unknown or does not import.
    """
    ending = child.run(LIST_MODELS, PlanRequest(sources), deadline=DEADLINE, method="spawn")
    if ending.result is None:
        raise UsageError(ending.message if ending.kind == "refused" else f"reading the models: {ending.message}")
    rows = [[model.name, visible(model.summary), ", ".join(model.cases)] for model in ending.result.models]
    tell(table(rows, ["model", "summary", "cases"]))
    return ExitCode.OK
