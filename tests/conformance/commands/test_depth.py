"""What a run judges and times if nobody says more: less of the whole zoo than of models that are named."""

import pytest
from harness.made_by_hand import with_models
from harness.whole_runs import plan_of_zoo

from conformance.commands import run
from conformance.figures.speed import HEART
from conformance.records.plan import SpecLocation
from conformance.records.tasks import PlanRequest
from conformance.store import run_files

ZOO, OWN = SpecLocation("zoo.models.merge"), SpecLocation(file="/nets.py")
ALL = ("fp32", "amp_fp16", "amp_bf16")
PLACES = {"merge": ZOO, "mlp": ZOO, "mine": OWN}
PLAN = with_models(plan_of_zoo(tuple(PLACES)), {name: {"location": place} for name, place in PLACES.items()})


@pytest.fixture
def planned_run(tmp_path, monkeypatch):
    """Returns a function that makes a run folder; it returns what is asked of the planner, and the stored plan."""

    def make(*sources, measure=None, full=False):
        asked = []
        monkeypatch.setattr(run.planning, "make_plan", lambda request: asked.append(request) or PLAN)
        options = run.RunOptions(PlanRequest(sources), measure, None, tmp_path, full=full)
        folder = run._new_run(options)
        return asked[0], run_files.read(folder).plan

    return make


def timed(plan):
    """The precisions in which each model is timed; None for all."""
    return {name: model.timed for name, model in plan.models.items()}


@pytest.mark.parametrize(
    ("sources", "full", "first_case", "in_precisions"),
    [
        ((), False, True, {"merge": ("fp32",), "mlp": (), "mine": ()}),
        ((), True, False, dict.fromkeys(PLACES)),
        (("merge", "mlp", "nets.py"), False, False, {"merge": ALL, "mlp": ALL, "mine": ()}),
    ],
    ids=["the whole zoo", "the whole zoo in full", "models that are named"],
)
def test_less_is_judged_and_timed_of_the_whole_zoo(planned_run, sources, full, first_case, in_precisions):
    asked, plan = planned_run(*sources, full=full)
    assert "merge" in HEART
    assert asked.first_case is first_case
    assert (plan.measure, timed(plan)) == ("speed", in_precisions)


@pytest.mark.parametrize("sources", [(), ("nets.py",)])
def test_who_asks_for_speeds_gets_all_and_who_asks_for_none_gets_none(planned_run, sources):
    _, plan = planned_run(*sources, measure="speed")
    assert (plan.measure, timed(plan)) == ("speed", dict.fromkeys(PLACES))
    _, plan = planned_run(*sources, measure="")
    assert plan.measure == ""


def test_a_bench_judges_and_times_everything(planned_run):
    asked, plan = planned_run(measure="bench", full=True)
    assert (asked.first_case, asked.all_sizes) == (False, True)
    assert (plan.measure, timed(plan)) == ("bench", dict.fromkeys(PLACES))
