"""Keeps sources of runs out of pytest's imports; gives every test the same modes and random numbers in any order.

It marks the tests that compile or start commands as slow, file by file. One file of each kind is not among them.
"""

from pathlib import Path

import pytest
import torch

from conformance.axes import MODES

collect_ignore = [
    "specs",  # sources of conformance runs; they register modes
    "conformance/cuda/stand_in",  # turns CUDA into the CPU for the whole process
]


TESTS = Path(__file__).parent
SLOW = """
benchmarks/test_calibration.py benchmarks/test_pages.py
check/test_libraries.py check/test_own_tests.py
ci/test_recipes.py ci/test_sessions.py ci/test_steps.py ci/test_without_github.py
conformance/cell/test_compiled_dynamic.py conformance/cell/test_packaged.py conformance/cell/test_vector_instructions.py
conformance/cell/test_verdicts.py
conformance/commands/test_bisect.py conformance/commands/test_expect.py
conformance/commands/test_github.py conformance/commands/test_kept.py
conformance/commands/test_listing.py conformance/commands/test_probes.py conformance/commands/test_shards.py
conformance/commands/test_usage.py conformance/commands/test_repro.py
conformance/cuda/test_stand_in.py conformance/figures/test_timed_run.py conformance/gates/test_certainty.py
conformance/measure/test_footprint.py
conformance/derivatives/test_stopped_gradients.py
conformance/process/test_forks.py conformance/judging/test_probed.py conformance/show/test_bench_run.py
conformance/cell/test_preload.py conformance/show/test_page_in_browser.py
faults/test_around_the_run.py faults/test_caches.py faults/test_channel.py faults/test_compiler.py
faults/test_exceptions.py faults/test_failpoints.py faults/test_interrupts.py faults/test_orphans.py
faults/test_output.py faults/test_processes.py faults/test_resume.py faults/test_run_folder.py
faults/test_sources_apart.py faults/test_terminal.py faults/test_workers.py
zoo/test_counterexamples.py zoo/test_distributed.py zoo/test_tar_images.py
""".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the files in `SLOW`."""
    slow = {TESTS / name for name in SLOW}
    for item in items:
        if item.path in slow:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def built_in_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the modes that another test or its material has registered: `conformance.check` would judge them."""
    for name in [name for name, mode in MODES.items() if mode.prepare]:
        monkeypatch.delitem(MODES, name)
