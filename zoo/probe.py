"""Known faults of torch itself: what is at risk, what shows it, and on which versions it was seen.

A probe is a few lines of plain torch that ask for one thing a user may rely on. Where torch gives it,
`observe` returns nothing; where it does not, a fixed sentence, the symptom. `conformance probes` runs them
all on a device, each in a process of its own, and says which faults the installed torch has. They stand in
`zoo/probes/`, one to a file; the file's docstring says what to do instead.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from zoo.case import NAME, SpecError
from zoo.expect import check_names

NEVER = "never"


class Unavailable(Exception):  # noqa: N818 -- raised to say so, not to report an error
    """What a probe asks about is not there in this torch."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Where a fault was seen on one device.

    Attributes:
        torch: versions in which it shows, in the form of PEP 440, such as ">=2.6,<2.15"; `NEVER` where none
            of those tried does. Only the versions in `checked` were run: a bound says that the fault is
            there, or not, in the nearest of them, and an open end that the outermost one has it.
        checked: the versions it was run on, in order.

    >>> from zoo.probe import Seen
    >>> seen = Seen(torch=">=2.6,<2.15", checked=("2.4.1", "2.6.0", "2.15.0"))
    >>> seen.shows_in("2.13.0+cpu"), seen.shows_in("2.15.0")
    (True, False)
    """

    torch: str
    checked: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.torch, str) or not self.torch:
            raise SpecError(f"Seen: torch: want a range of versions, or {NEVER!r}, got {self.torch!r}")
        if not isinstance(self.checked, tuple) or not self.checked:
            raise SpecError(f"Seen: checked: want a tuple of versions, got {self.checked!r}")
        try:
            SpecifierSet("" if self.torch == NEVER else self.torch)
            known = [Version(version) for version in self.checked]
        except (InvalidSpecifier, InvalidVersion) as problem:
            raise SpecError(f"Seen: {problem}") from problem
        if known != sorted(set(known)):
            raise SpecError(f"Seen: checked: want rising versions, got {', '.join(self.checked)}")

    def shows_in(self, torch_version: str) -> bool:
        """Whether the fault is declared for this torch; a local part such as "+cpu" does not matter."""
        version = torch_version.split("+", maxsplit=1)[0]
        return self.torch != NEVER and SpecifierSet(self.torch).contains(version, prereleases=True)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One upstream risk, and a function that looks for it.

    Attributes:
        name: that of its file.
        summary: what is at risk, one line.
        issue: link to the report; "" where none is known, and then `source` says where the risk shows.
        source: a document or code that explains it; optional beside an issue.
        symptom: what `observe` returns where torch shows the fault, to the letter. A fault that kills the
            process has the words of its death, such as "killed by SIGSEGV".
        devices: the types of device that the question makes sense on; empty: all.
        seen: by type of device, where the fault was seen. A device that is missing was never tried.
        observe: called with the type of device to run on; returns "" where torch does right, `symptom` where
            it does not.

    >>> from zoo.probe import Probe, Seen
    >>> probe = Probe(
    ...     name="integer_ones",
    ...     summary="torch.ones returns integers",
    ...     source="an example",
    ...     symptom="ones are integers",
    ...     seen={"cpu": Seen(torch="never", checked=("2.13.0",))},
    ...     observe=lambda device: "" if torch.ones(2, device=device).is_floating_point() else "ones are integers",
    ... )
    >>> import torch
    >>> probe.observe("cpu"), probe.seen["cpu"].shows_in("2.13.0"), "cuda" in probe.seen
    ('', False, False)
    """

    name: str
    summary: str
    issue: str = ""
    source: str = ""
    symptom: str
    devices: tuple[str, ...] = ()
    seen: Mapping[str, Seen]
    observe: Callable[[str], str]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise SpecError(f"probe name {self.name!r}: want lower-case letters, digits and '_'")
        for text in ("summary", "symptom"):
            value = getattr(self, text)
            if not isinstance(value, str) or not value or "\n" in value:
                raise SpecError(f"probe {self.name}: {text}: want one line of text, got {value!r}")
        if not self.issue and not self.source:
            raise SpecError(f"probe {self.name}: want an issue, or a source where there is none")
        if self.issue and not self.issue.startswith("https://"):
            raise SpecError(f"probe {self.name}: issue: want a link, got {self.issue!r}")
        if not callable(self.observe):
            raise SpecError(f"probe {self.name}: observe must be a function, got {self.observe!r}")
        self._check_devices()

    def _check_devices(self) -> None:
        check_names(f"probe {self.name}: devices", self.devices)
        if not isinstance(self.seen, Mapping) or not all(isinstance(seen, Seen) for seen in self.seen.values()):
            raise SpecError(f"probe {self.name}: seen: want a Seen for each device, got {self.seen!r}")
        strange = [device for device in self.seen if not self.concerns(device)]
        if strange:
            raise SpecError(f"probe {self.name}: seen on {', '.join(strange)}, which devices leaves out")

    def concerns(self, device: str) -> bool:
        """Whether the question makes sense on a type of device."""
        return not self.devices or device in self.devices


def find(package: str = "zoo.probes") -> list[Probe]:
    """The probes of a package, one `PROBE` in each file, sorted by name.

    Raises:
        SpecError: a file does not import, holds no `PROBE`, or one whose name is not the file's; so no two
            probes share a name.

    >>> from zoo.probe import find
    >>> "double_backward" in [probe.name for probe in find()]
    True
    """
    found = []
    for entry in sorted(pkgutil.iter_modules(importlib.import_module(package).__path__), key=lambda m: m.name):
        home = f"{package}.{entry.name}"
        try:
            probe = getattr(importlib.import_module(home), "PROBE", None)
        except Exception as problem:
            raise SpecError(f"{home} does not import: {type(problem).__name__}: {problem}") from problem
        if not isinstance(probe, Probe):
            raise SpecError(f"{home} defines no PROBE")
        if probe.name != entry.name:
            raise SpecError(f"{home}: its probe is named {probe.name!r}, want {entry.name!r}")
        found.append(probe)
    return found
