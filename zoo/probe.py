"""Records of known faults of torch: the risk, the symptom, and the torch versions that show it.

A probe is a few lines of plain torch that check one thing a user may rely on. `observe` returns "" if torch does
it right, and a fixed sentence, the symptom, if it does not. `conformance probes` runs all probes on a device,
each in its own process, and reports the faults of the installed torch. Each file of `zoo/probes/` holds one
probe; its docstring says what to do instead.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from zoo.case import NAME, SpecError
from zoo.expect import check_names

NEVER = "never"
EVERY_MINOR = (  # the last of each minor version, of those on which all probes were run
    "2.4.1",
    "2.5.1",
    "2.6.0",
    "2.7.1",
    "2.8.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
    "2.15.0",
)


class Unavailable(Exception):  # noqa: N818 -- it reports a missing feature, not an error
    """The installed torch does not have the feature that a probe checks."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The torch versions that show a fault on one device.

    Attributes:
        torch: the versions that show the fault, in the form of PEP 440, such as ">=2.6,<2.15"; `NEVER` if no
            version in `checked` does. Only the versions in `checked` were run, so a bound names the nearest of
            them, not the exact version of the change. A missing bound means that the first or last of them
            shows the fault.
        checked: the versions on which the probe was run, ascending.

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
        if not all(isinstance(version, str) for version in self.checked):
            raise SpecError(f"Seen: checked: want a tuple of versions, got {self.checked!r}")
        try:
            SpecifierSet("" if self.torch == NEVER else self.torch)
            known = [Version(version) for version in self.checked]
        except (InvalidSpecifier, InvalidVersion) as problem:
            raise SpecError(f"Seen: {problem}") from problem
        if known != sorted(set(known)):
            raise SpecError(f"Seen: checked: want rising versions, got {', '.join(self.checked)}")

    def shows_in(self, torch_version: str) -> bool:
        """Return whether the range contains this torch version; a local part such as "+cpu" is ignored.

        Raises:
            TypeError: `torch_version` is not a str.
        """
        if not isinstance(torch_version, str):
            raise TypeError(f"Seen.shows_in: torch_version must be a str, got {type(torch_version).__name__}")
        version = torch_version.split("+", maxsplit=1)[0]
        return self.torch != NEVER and SpecifierSet(self.torch).contains(version, prereleases=True)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One known risk of torch, and a function that checks for it.

    Attributes:
        name: the name of its file, without the suffix.
        summary: the risk in one line.
        issue: link to the report; "" if there is none, in which case `source` is required.
        source: a document or code that explains the risk; optional beside an issue.
        symptom: the exact text that `observe` returns if torch shows the fault. For a fault that kills the
            process it is the way the process ended, such as "killed by SIGSEGV".
        devices: the device types to which the probe applies; empty means all.
        seen: the versions that show the fault, by device type. A missing device type was never tried.
        observe: called with the device type to run on; returns "" if torch is right and `symptom` if it is not.

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
        for text in ("issue", "source"):
            if not isinstance(getattr(self, text), str):
                raise SpecError(f"probe {self.name}: {text}: want a text, got {getattr(self, text)!r}")
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
        """Return whether the probe applies to a device type."""
        return not self.devices or device in self.devices


def processor_has(flag: str) -> bool:
    """Return whether the system says that the processor has some instructions, such as "amx_tile" (Linux).

    Raises:
        TypeError: `flag` is not a str.

    >>> from zoo.probe import processor_has
    >>> processor_has("no_such_instructions")
    False
    """
    if not isinstance(flag, str):
        raise TypeError(f"processor_has: flag must be a str, got {type(flag).__name__}")
    try:
        return flag in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False


def find(package: str = "zoo.probes") -> list[Probe]:
    """Return the probes of a package, the `PROBE` of each file, sorted by name.

    Raises:
        TypeError: `package` is not a str.
        SpecError: a file does not import or defines no `PROBE`, or the probe's name is not the name of the file.

    >>> from zoo.probe import find
    >>> "double_backward" in [probe.name for probe in find()]
    True
    """
    if not isinstance(package, str):
        raise TypeError(f"find: package must be a str, got {type(package).__name__}")
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
