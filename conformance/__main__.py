"""`python -m conformance` runs the command `conformance`."""

import sys

from conformance.cli import main

sys.exit(main())
