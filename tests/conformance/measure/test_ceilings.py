"""The ceilings of a machine: how samples are taken, and the form of the result; the numbers are the machine's."""

import contextlib

from conformance.axes import PRECISIONS
from conformance.measure import ceilings
from conformance.process import machine_lock
from conformance.process.child_side import WAITING, ChildProcess
from conformance.records.tasks import CeilingsTask


def test_the_best_sample_counts(monkeypatch):
    seconds = iter([9.0, 9.0, 4.0, 5.0, 2.0, 1.0, 8.0, 8.0])  # two to warm up, then pairs
    moments = iter([0.0, 0.1, 0.9, 1.1])
    monkeypatch.setattr(ceilings, "BURST", 1.0)
    monkeypatch.setattr(ceilings, "_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(ceilings.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(ceilings.policy, "switch_tf32", lambda _: None)
    assert ceilings._best(PRECISIONS["fp32"], [(8.0, None), (1.0, None)], "cpu") == 4.0


def test_the_measurement_has_a_rate_for_each_precision_and_size_and_the_machine_to_itself(monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 0.01)
    monkeypatch.setattr(ceilings, "BURST", 0.001)
    monkeypatch.setattr(ceilings, "SIDES", {"cpu": (16, 32)})
    monkeypatch.setattr(ceilings, "_last_cache", lambda _: 2**14)
    monkeypatch.setattr(ceilings.policy, "set_policy", lambda: None)  # it would change this process for good
    switched, phases, alone = [], [], []
    monkeypatch.setattr(ceilings.policy, "switch_tf32", lambda precision: switched.append(precision.name))

    @contextlib.contextmanager
    def lock():
        alone.append(len(switched))
        yield
        alone.append(len(switched))

    monkeypatch.setattr(machine_lock, "alone", lock)
    seen = ceilings.observe(CeilingsTask("cpu", ("tf32", "amp_bf16")), ChildProcess(phases.append))
    assert phases == [WAITING, "start", "prepare", "measure"]
    assert alone == [0, len(switched)]
    assert switched[:5] == ["fp32", "tf32", "amp_bf16", "fp32", "tf32"]  # to make the products, then burst by burst
    assert set(seen.flop_rates) == {"tf32", "amp_bf16"}
    assert all(rate > 0 for rate in seen.flop_rates.values())
    assert [size for size, _ in seen.byte_rates] == [2**14, 2**16]
    assert all(rate > 0 for _, rate in seen.byte_rates)


def test_sizes_reach_several_times_the_last_cache_whose_size_is_read_or_guessed(monkeypatch, tmp_path):
    for name, size in (("index0", "32K"), ("index3", "1024K")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "size").write_text(size + "\n")
    monkeypatch.setattr(ceilings, "CPU_CACHES", tmp_path)
    assert ceilings._last_cache("cpu") == 2**20
    monkeypatch.setattr(ceilings, "CPU_CACHES", tmp_path / "absent")
    assert ceilings._last_cache("cpu") == 2**26
    assert [ceilings._sizes(size) for size in (1, 2**16)] == [[2**14], [2**14, 2**16, 2**18]]
    assert ceilings._sizes(2**25)[-1] == 2**28


def test_a_slow_first_call_does_not_keep_larger_products_out(monkeypatch):
    """It loads kernels: on a GPU, the first product took longer than the largest one."""
    called = []

    def product(a, _):
        return lambda: called.append(len(a))

    def seconds(call, _):
        call()
        return 1.0 if called.count(called[-1]) == 1 else 0.001

    monkeypatch.setattr(ceilings, "SIDES", {"cpu": (2, 4, 8)})
    monkeypatch.setattr(ceilings, "_product", product)
    monkeypatch.setattr(ceilings, "_seconds", seconds)
    monkeypatch.setattr(ceilings.policy, "switch_tf32", lambda _: None)
    assert [amount for amount, _ in ceilings._products(PRECISIONS["fp32"], "cpu")[1]] == [16.0, 128.0, 1024.0]
