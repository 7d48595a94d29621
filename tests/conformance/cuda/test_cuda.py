"""What only a GPU can show of the parts: that processes, clock, switches and counts do what they say.

Nothing here touches CUDA in pytest's own process: every test asks a child of the fork server, as cells are.
"""

import pytest
import torch
from harness import cuda_targets
from harness.cuda_targets import MEBIBYTE, target_of
from harness.processes import printed

from conformance.process import child

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="torch sees no CUDA device")

PATIENCE = 120.0
SERVE = """
import json
from harness.cuda_targets import multiply, target_of
from conformance.process import child

ending = child.run(target_of(multiply), {}, deadline=120.0)
print(json.dumps([ending.kind, ending.result, ending.message]))
"""


def result(function, deadline=PATIENCE):
    """What a target returns from a child."""
    ending = child.run(target_of(function), {}, deadline=deadline)
    assert ending.kind == "answered", f"in phase {ending.phase}: {ending.message}"
    return ending.result


def test_a_child_of_the_fork_server_uses_cuda_though_the_compiler_was_imported_before():
    kind, told, message = printed(SERVE, CONFORMANCE_COMPILES_FOR="cuda")
    assert (kind, message) == ("answered", "")
    assert told == [True, [[5.0, 14.0], [14.0, 50.0]]]


def test_a_cell_killed_at_its_deadline_gives_the_memory_back():
    ending = child.run(target_of(cuda_targets.hold_most_of_the_memory), {}, deadline=15.0)
    assert (ending.kind, ending.phase) == ("timed out", "working"), ending.message
    assert result(cuda_targets.take_most_of_the_memory) > 0


def test_float32_products_keep_what_tf32_would_round():
    (product, convolution), with_tf32 = result(cuda_targets.product_and_convolution)
    assert product == 0.0
    assert convolution < 2**-16  # not zero: an algorithm may go through sums of its own
    assert with_tf32 == pytest.approx([2**-12, 2**-12], rel=0.01)


def test_an_overflow_halves_the_scale_and_skips_the_step():
    assert result(cuda_targets.two_steps) == [[2.0**9, True, False], [2.0**9, False, True]]


def test_torchscript_fuses_a_chain_on_cuda_and_rounds_like_float32():
    fused, error = result(cuda_targets.fused_chain)
    assert fused
    assert error < 64 * 2**-24


def test_the_device_clock_sees_how_long_the_device_slept():
    empty, nap, longer = result(cuda_targets.sleeping)
    assert empty < nap
    assert 1.5 < longer / nap < 2.5


def test_bytes_on_cuda_are_those_asked_for():
    counted, numbers = result(cuda_targets.bytes_counted), 4 * 1025
    assert 4 * numbers <= counted.pop("peak with backward")["cuda"] <= 6 * numbers  # on the CPU it is 5
    assert counted == {
        "peak": [{"cuda": 5 * MEBIBYTE}, {"cuda": 2 * numbers}, {"cuda": 3}],
        "kept": [{}, {"cuda": numbers}],
        "held": {"cuda": numbers},
        "saved": numbers,
    }
