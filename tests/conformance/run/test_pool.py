"""Measurements run in batches: all of one prepare together, and none of the next begins before they are done."""

import threading
from functools import partial

from conformance.run import pool


def test_a_batch_runs_together_and_the_next_one_begins_when_it_is_done():
    together, seen = threading.Barrier(pool.BATCH, timeout=60.0), []

    def work(batch):
        together.wait()
        seen.append(batch)
        return batch

    batches = [{(batch, job): partial(work, batch) for job in range(pool.BATCH)} for batch in range(3)]
    assert dict(pool.measure([*batches, {}])) == {name: name[0] for batch in batches for name in batch}
    assert seen == sorted(seen)
