"""The pytest plugin for people's own tests: a fixture that judges a model, with one test item for each cell.

    def test_net(conformance):
        conformance.check(Net(), torch.randn(8, 16))

is judged as test_net[eager-fp32-cpu], test_net[scripted-fp32-cpu] and so on. Options come from the table
[tool.conformance] of pyproject.toml, and from a marker named like the fixture. Other test suites pay for the import of
this file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.axes import DEVICES, MODES, PRECISIONS, choose, exists, usual
from conformance.errors import UsageError, suggestion

if TYPE_CHECKING:
    from conformance import Report
    from zoo import Convention, Expect

NAME = "conformance"  # of the fixture, of the marker, and of the table
FILE = "pyproject.toml"


@dataclass(frozen=True)
class Options:
    """What the tests of a suite are judged in.

    Attributes:
        modes: names of modes; none: eager, scripted and compiled.
        precisions: names of precisions; none: all of a device.
        devices: names of devices.
        seed: seed of the judge, and of torch's generators before each test.
        expect: path of a file with declared divergences, seen from pytest's root folder; "" for none.
    """

    modes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    seed: int = 0
    expect: str = ""

    def __str__(self) -> str:
        return "-".join((*self.modes, *self.precisions, *self.devices))


class Judge:
    """Judges models in one cell, with one mode, precision and device: the value of the fixture `conformance`."""

    def __init__(self, asked: Options) -> None:
        self._asked = asked
        self.has_judged = False

    def check(  # noqa: PLR0913 -- as of `conformance.check`
        self,
        target: Any,
        *inputs: Any,
        kwargs: Mapping[str, Any] | None = None,
        train: bool | None = None,
        expect: str | os.PathLike[str] | Iterable[Expect | Convention] = (),
        reference: Any = None,
        trust: bool = False,
    ) -> Report:
        """Judge a model in the cell of this test item; arguments are those of `conformance.check`.

        Without `expect`, the file that the options name applies.

        Raises:
            NotConformingError: the cell is red; the message is the report.
            UsageError: the model cannot be sent to another process, or does not take the inputs.
            MachineError: the machine failed, and not the model.
        """
        __tracebackhide__ = True
        from conformance import check  # noqa: PLC0415 -- it imports torch

        self.has_judged, asked = True, self._asked
        report: Report = check(
            target,
            *inputs,
            kwargs=kwargs,
            modes=asked.modes,
            precisions=asked.precisions,
            device=asked.devices[0],
            train=train,
            seed=asked.seed,
            expect=expect or asked.expect or (),
            reference=reference,
            trust=trust,
        )
        if all(cell.status == "SKIPPED" for cell in report.cells):
            pytest.skip(report.cells[0].text)  # a GPU without this precision
        report.raise_if_failed()
        return report


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    text = f"{NAME}(modes, precisions, devices, seed, expect): what the fixture `{NAME}` judges a model in"
    config.addinivalue_line("markers", text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make an item for each cell of a test with the fixture."""
    if NAME not in metafunc.fixturenames:
        return
    try:
        cells = _cells(_options(metafunc))
    except UsageError as problem:
        wrong = str(problem)
    else:
        metafunc.parametrize(NAME, cells, indirect=True, ids=str)
        return
    pytest.fail(f"{metafunc.definition.nodeid}: {wrong}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test with the fixture that passes and has judged nothing."""
    yield
    judge = getattr(item, "funcargs", {}).get(NAME)
    if isinstance(judge, Judge) and not judge.has_judged:
        pytest.fail(f"it has judged nothing; call {NAME}.check(model, x) in it", pytrace=False)


@pytest.fixture
def conformance(request: pytest.FixtureRequest) -> Iterator[Judge]:
    """Judges a model in one cell: `conformance.check(model, x)`.

    torch's generators are seeded, so that each item of a test builds the same model, and are put back after it.
    """
    import torch  # noqa: PLC0415

    asked: Options = request.param
    if "cuda" in asked.devices and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    with torch.random.fork_rng():
        torch.manual_seed(asked.seed)
        yield Judge(asked)


def _options(metafunc: pytest.Metafunc) -> Options:
    """The options of a test: those of the file, of the markers of its module and class, and of its own, in this order.

    Raises UsageError if one of them is wrong.
    """
    options = _of_file(metafunc.config.rootpath / FILE)
    for marker in reversed(list(metafunc.definition.iter_markers(NAME))):
        if marker.args:
            form = f"@pytest.mark.{NAME}(modes=['eager', 'compiled'])"
            raise UsageError(f"the marker takes keywords only, as in {form}, got {marker.args[0]!r}")
        options = _with(options, marker.kwargs, f"the marker {NAME}")
    expect = str(metafunc.config.rootpath / options.expect) if options.expect else ""
    return replace(options, expect=expect)


def _of_file(path: Path) -> Options:
    from conformance.judging import toml_file  # noqa: PLC0415 -- other test suites have no such option

    try:
        table = toml_file.read(path).get("tool", {}).get(NAME, {})
    except FileNotFoundError:
        return Options()
    return _with(Options(), table, f"{path}: [tool.{NAME}]")


def _with(options: Options, given: Mapping[str, Any], where: str) -> Options:
    """The options with those that were given; UsageError if one is unknown, or its value is of another type."""
    known = Options.__dataclass_fields__
    changed: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"{where} has an unknown option {name!r}{suggestion(name, known)}")
        names = (value,) if isinstance(value, str) else value
        if name == "seed":
            fits, wanted = type(value) is int and value >= 0, "a whole number from 0 on"
        elif name == "expect":
            fits, wanted = isinstance(value, str), "the path of a file"
        else:
            fits = isinstance(names, (list, tuple)) and bool(names) and all(isinstance(one, str) for one in names)
            wanted = "a name or a list of names"
        if not fits:
            raise UsageError(f"{where}: {name} must be {wanted}, got {value!r}")
        changed[name] = value if name in ("seed", "expect") else tuple(names)
    return replace(options, **changed)


def _cells(options: Options) -> list[Options]:
    """The options of each cell that exists, in the order of the tables; UsageError if none does, or a name is wrong."""
    modes = choose("mode", tuple(MODES), options.modes, usual(MODES))
    precisions = choose("precision", tuple(PRECISIONS), options.precisions, usual(PRECISIONS))
    cells = [
        replace(options, modes=(mode,), precisions=(precision,), devices=(device,))
        for device in choose("device", DEVICES, options.devices)
        for precision in precisions
        for mode in modes
        if exists(MODES[mode], device) and exists(PRECISIONS[precision], device)
    ]
    if not cells:
        where = f"{', '.join(precisions)} on {', '.join(options.devices)}"
        raise UsageError(f"no device has {', '.join(modes)} in {where}")
    return cells
