"""The references of a run: each is made once, by whoever asks first."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from conformance.cache.references import References
from conformance.errors import MachineError
from conformance.records.cell import Observation
from conformance.records.tasks import MadeReference

AT_ONCE = 4


class Maker:
    """Writes reference files and counts them."""

    def __init__(self, folder, refused=None):
        self.made = []
        self.folder = folder
        self.refused = refused

    def __call__(self, model):
        self.made.append(model)
        References(self.folder).path(model).write_text(f"{len(self.made)}")
        return MadeReference(float(len(self.made)), self.refused)


def test_of_several_that_ask_at_a_time_one_makes_it(tmp_path):
    make, ready = Maker(tmp_path), Barrier(AT_ONCE)

    def ask(_):
        ready.wait()
        return References(tmp_path).of("net", make)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(ask, range(AT_ONCE)))
    assert found == [MadeReference(1.0)] * AT_ONCE
    assert make.made == ["net"]


def test_a_refusal_is_kept_for_others_too(tmp_path):
    refused = Observation("invalid", message="gradcheck in float64: no")
    make = Maker(tmp_path, refused)
    assert References(tmp_path).of("net", make).refused == refused
    assert References(tmp_path).of("net", make).refused == refused
    assert make.made == ["net"]


def test_a_damaged_reference_is_made_again_once(tmp_path):
    make = Maker(tmp_path)
    one, other = References(tmp_path), References(tmp_path)
    damaged = one.of("net", make)
    assert other.of("net", make) == damaged
    one.forget("net", damaged)
    assert one.of("net", make) == MadeReference(2.0)
    other.forget("net", damaged)  # it is there anew already
    assert other.of("net", make) == MadeReference(2.0)
    assert make.made == ["net", "net"]


def test_a_reference_whose_making_failed_is_tried_again(tmp_path):
    def fail(_):
        raise MachineError("no process could be started")

    references = References(tmp_path)
    for _ in range(2):
        with pytest.raises(MachineError, match=r"^no process could be started$"):
            references.of("net", fail)
    assert references.of("net", Maker(tmp_path)).seconds == 1.0
