"""Takes the modes that a person has registered in a script, a notebook or a test to the processes of their cells."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from conformance.axes import MODES, Mode
from conformance.own.capture import DEFINITIONS, Definitions, store
from conformance.own.saved import unpickle
from conformance.own.spec import define
from conformance.records.plan import SpecLocation

FILE = "modes.py"
INSTEAD = "Define its functions at the top of a module, a script or a notebook's cell"
SOURCE = """\
# Registers the modes of the process that called `conformance.check`.
from conformance.own import modes

modes.register(__file__)
"""


def store_modes(asked: Collection[str], folder: Path) -> SpecLocation | None:
    """The file that registers modes of this process in another one; None if it has registered none of them.

    Args:
        asked: the names of the modes; empty for all.
        folder: where to store the file, and what it needs; it is made.

    Raises:
        UsageError: a mode cannot be stored; the message names it.
    """
    own = [mode for name, mode in MODES.items() if mode.prepare is not None and (not asked or name in asked)]
    if not own:
        return None
    folder.mkdir()
    definitions = Definitions()
    for number, mode in enumerate(own):
        store(mode, folder / f"{number:02}.pt", definitions, f"the mode {mode.name!r}", INSTEAD)
    if definitions.lines:
        (folder / DEFINITIONS).write_text(definitions.text(), encoding="utf-8")
    (folder / FILE).write_text(SOURCE, encoding="utf-8")
    return SpecLocation(file=str(folder / FILE))


def register(file: str) -> None:
    """Register the modes that are stored beside a file, in their order, also if what defines them has done so.

    Raises:
        UsageError: what they need of the caller's main module cannot be defined again.
    """
    folder = Path(file).parent
    define(str(folder / DEFINITIONS) if (folder / DEFINITIONS).exists() else "")
    modes: list[Mode] = [unpickle(path) for path in sorted(folder.glob("*.pt"))]
    for mode in modes:
        MODES.pop(mode.name, None)
        MODES[mode.name] = mode
