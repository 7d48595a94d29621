"""Writes the seconds of each model of the zoo, which balance shards.

    python -m benchmarks.zoo_seconds RUN

RUN is a stored run of the whole zoo, best with an empty compile cache, as a new machine has it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from conformance.run import shards, store

PAGE = Path(shards.__file__).with_name(shards.ZOO_SECONDS)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    seconds = shards.seconds_of(store.read(parser.parse_args().run))
    PAGE.write_text(json.dumps({model: round(taken, 1) for model, taken in sorted(seconds.items())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
