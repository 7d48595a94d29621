"""Writes the seconds of each model of the zoo, which balance shards and tell how long a run will take.

    python -m benchmarks.zoo_seconds RUN...

RUN is a stored run of the zoo with an empty compile cache, as a new machine has it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from conformance.records.convert import to_json
from conformance.store import durations, run_files

PAGE = Path(durations.__file__).with_name(durations.ZOO_SECONDS)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a later one replaces the models of others")
    seconds = {}
    for run in parser.parse_args().runs:
        seconds |= durations.of_run(run_files.read(run))
    lines = [f' "{model}": {json.dumps(to_json(taken))}' for model, taken in sorted(seconds.items())]
    PAGE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
