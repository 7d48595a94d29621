"""The two controls that test the meter itself."""

import pytest

from conformance.errors import NotMeasuredError
from conformance.figures.controls import check_controls
from conformance.records.measurements import Ratio

SAME, SLOWER = Ratio(1.0, 0.99, 1.01, 100), Ratio(0.91, 0.9, 0.92, 100)


def test_a_sound_meter_passes():
    check_controls(same=SAME, slower=SLOWER)


def test_copies_that_are_too_noisy_to_tell_apart_raise_no_false_alarm():
    check_controls(same=Ratio(1.0, 0.9, 1.1, 100), slower=SLOWER)


@pytest.mark.parametrize("same", [Ratio(1.1, 1.04, 1.2, 100), Ratio(0.9, 0.8, 0.96, 100)])
def test_a_difference_between_two_copies_voids_the_figures(same):
    with pytest.raises(NotMeasuredError, match="control failed: two copies of one model came out") as raised:
        check_controls(same=same, slower=SLOWER)
    assert raised.value.short == "control failed"


@pytest.mark.parametrize("slower", [SAME, Ratio(0.93, 0.88, 0.98, 100), Ratio(1.1, 1.05, 1.2, 100)])
def test_added_work_that_the_meter_does_not_see_voids_the_figures(slower):
    with pytest.raises(NotMeasuredError, match="too noisy: the meter could not see 10 % more work") as raised:
        check_controls(same=SAME, slower=slower)
    assert raised.value.short == "too noisy"
