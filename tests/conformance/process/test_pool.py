"""Measurements run in batches: all of one prepare together, and none of the next begins before they are done."""

import threading
import time
from functools import partial

from conformance.process import pool


def test_a_batch_runs_together_and_the_next_one_begins_when_it_is_done():
    together, seen = threading.Barrier(pool.BATCH, timeout=60.0), []

    def work(batch, job):
        seen.append(batch)
        together.wait()
        time.sleep(0.2 * (job == 0))  # the others of its batch are done long before
        seen.append(batch)
        return batch

    batches = [{(batch, job): partial(work, batch, job) for job in range(pool.BATCH)} for batch in range(3)]
    assert dict(pool.measure([*batches, {}])) == {name: name[0] for batch in batches for name in batch}
    assert seen == sorted(seen)
