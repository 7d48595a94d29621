"""The simulator of runs on a cluster: what holds whatever the seconds are."""

import sys
from dataclasses import replace

import pytest
from harness.whole_runs import plan_of_zoo, write

from benchmarks import simulate
from benchmarks.simulate import Cluster, Job, Session
from conformance.store import run_files

PLAN = plan_of_zoo()
JOBS = {one.id: Job(2.0, 1.0, 1.0 if one.cell.mode == "compiled" else None) for one in PLAN.cells}
BARE = Cluster(1, record=0.0, start=0.0, compiler=0.0, handing=0.0)  # nothing but the jobs takes time
SUM = 3 * 2.0 + 27 * 1.0


def played(nodes=1, seed=0, jobs=JOBS, **others):
    return Session(simulate.order_of(PLAN, jobs, nodes), jobs, replace(BARE, nodes=nodes, **others), seed).play()


def test_the_jobs_are_what_a_run_has_recorded(tmp_path):
    assert simulate.of_run(run_files.read(write(tmp_path / "run", PLAN))) == (PLAN, JOBS)


def test_one_judge_takes_the_sum():
    assert played().seconds == SUM
    assert played(start=2.0, handing=0.5, record=0.1).seconds == pytest.approx(SUM + 2.0 + 27 * 0.6)


def test_two_nodes_take_at_least_half_and_make_few_references_twice():
    assert SUM / 2 <= played(2).seconds <= (SUM + 2.0) / 2 + 1.0


def test_judges_of_one_node_wait_for_its_reference_and_another_node_makes_it_again():
    jobs = {
        "gate[eager-fp32-cpu]": Job(2.0, 1.0),
        "net[eager-fp32-cpu]": Job(6.0, 1.0),
        "net[scripted-fp32-cpu]": Job(6.0, 1.0),
    }
    assert Session([*jobs][1:], jobs, replace(BARE, judges=2)).play().seconds == 6.0 + 1.0
    assert Session([*jobs], jobs, replace(BARE, nodes=2)).play().seconds == (2.0 + 1.0) + (6.0 + 1.0)


def test_what_a_node_compiles_first_is_cold():
    jobs = {name: replace(job, cold=5.0 if job.cold else None) for name, job in JOBS.items()}
    assert played(jobs=jobs).seconds == SUM + 3 * 4.0
    assert played(jobs=jobs, compiler=7.0).seconds == SUM + 3 * 4.0 + 7.0


def test_the_process_that_stores_is_the_bound():
    assert played(30, record=10.0).seconds == pytest.approx(27 * 10.0 + 3.0)  # the first verdict needs its reference


def test_a_node_that_dies_costs_time_and_loses_no_cell():
    with_deaths = played(2, seed=1, life=20.0, back=5.0)
    assert with_deaths.deaths > 0
    assert with_deaths.given_up == 0
    assert with_deaths.seconds > played(2).seconds


def test_a_cell_whose_judges_always_die_is_given_up():
    assert played(life=0.1).given_up == 27


def test_the_same_seed_gives_the_same_run():
    assert played(2, seed=3, life=20.0) == played(2, seed=3, life=20.0) != played(2, seed=4, life=20.0)
    plans = [simulate.drawn(PLAN, JOBS, 100, seed)[0] for seed in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    assert len({one.cell.model for one in plans[0].cells}) == 100


def test_whole_models_take_as_long_as_their_cells():
    plan, jobs = simulate.whole(PLAN, JOBS, 0.5)
    assert [job.records for job in jobs.values()] == [9, 9, 9]
    whole = Session(simulate.order_of(plan, jobs, 1), jobs, replace(BARE, handing=0.5)).play()
    assert whole.seconds == pytest.approx(played(handing=0.5).seconds)


def test_the_command_prints_a_row_for_each_size(tmp_path, monkeypatch, capsys):
    words = [str(write(tmp_path / "run", PLAN)), "--models", "0", "40", "--nodes", "1", "3", "--whole", "10"]
    monkeypatch.setattr(sys, "argv", ["simulate.py", *words])
    simulate.main()
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [["3", "1"], ["3", "3"], ["40", "1"], ["40", "3"]]
