"""Every record survives the way to JSON and back; what is no such record is refused by record and field."""

import ast
import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import string
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from conformance import records
from conformance.errors import RecordError
from conformance.process.child_side import ChildProcess
from conformance.records.cell import Cell, Measure, Status, Verdict
from conformance.records.convert import ABOVE_ZERO, Digits, Limit, Name, Rounded, from_json, to_json
from conformance.records.measurements import CellTiming, Footprint, Ratio, Reason, Result, Timing
from conformance.records.plan import Plan, PlannedCell
from conformance.records.schema import definitions, reference
from conformance.records.tasks import PlanRequest, Target
from zoo.expect import ENDINGS, OUTCOMES, Expect

NO_RECORDS = {Digits, Limit, Target, Status}  # of Python alone; they are never stored or sent
CELL, REASON = Cell("merge", "eager", "fp32", "cpu"), Reason("no graph", "it breaks at a print")
THOROUGH = settings(
    max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


FILES = [
    importlib.import_module(found.name) for found in pkgutil.walk_packages(records.__path__, f"{records.__name__}.")
]
TARGETS = {name: value for file in FILES for name, value in vars(file).items() if isinstance(value, Target)}


def classes():
    """Every dataclass of the package."""
    for module in FILES:
        for cls in vars(module).values():
            if inspect.isclass(cls) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__:
                yield cls


@dataclass(frozen=True)
class Odd:
    """Every kind of field that the converter knows, also those that no record has."""

    plain: float = 0.0
    rounded: Rounded = 0.0
    pair: tuple[Annotated[float, Digits(2)], int] = (0.0, 0)
    maybe: Rounded | None = None
    either: Cell | Reason | None = None
    many: Mapping[str, tuple[Cell | Reason, ...]] = dataclasses.field(default_factory=dict)
    flag: bool = False
    anything: Any = None


RECORDS = [*(cls for cls in classes() if cls not in NO_RECORDS), Expect, Odd]
each_record = pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)

# Values of any declared type, within its limits.

TEXT = st.text(max_size=8)
SOME_TEXT = st.text(min_size=1, max_size=8)
TEXTS = st.lists(TEXT, max_size=2).map(tuple)
SCALARS = st.none() | st.booleans() | st.integers() | TEXT | st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2), max_leaves=4
)
LEAVES = {str: TEXT, int: st.integers(), bool: st.booleans(), float: st.floats(allow_nan=False), Any: ANYTHING}
EXPECTS = st.builds(
    Expect,
    outcome=st.sampled_from(OUTCOMES + ENDINGS),
    **dict.fromkeys(("reason", "tensor", "dtype", "error"), SOME_TEXT),
    **dict.fromkeys(("link", "gate", "case", "probe"), TEXT),
    **dict.fromkeys(("modes", "precisions", "devices"), TEXTS),
    torch=st.sampled_from(("", ">=2.6,<2.15")),
    match=st.sampled_from((r"at \(0x\d+\)", "takes no")),
)


@cache
def values(hint):  # noqa: PLR0911 -- one for each kind of type
    """The values that a field of a declared type may have."""
    if hint in LEAVES:
        return LEAVES[hint]
    if hint is Expect:
        return EXPECTS
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{name: values(declared) for name, declared in hints.items()})
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return limited(*inside)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(st.none() if member is types.NoneType else values(member) for member in inside)
    if origin is Mapping:
        return st.dictionaries(TEXT, values(inside[1]), max_size=2)
    if inside[1:] == (Ellipsis,):
        return st.lists(values(inside[0]), max_size=2).map(tuple)
    return st.tuples(*map(values, inside))


def limited(bare, *extras):
    for extra in extras:
        if isinstance(extra, Limit) and extra.wanted.startswith("one of "):
            return st.sampled_from(ast.literal_eval(f"{extra.wanted.removeprefix('one of ')},"))
    if typing.get_args(Name)[1] in extras:
        return st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=8)
    found = values(bare)
    if ABOVE_ZERO in extras:
        found = st.integers(1, 9999) if bare is int else st.floats(1e-300, 1e300)
    digits = [extra.count for extra in extras if isinstance(extra, Digits)]
    return found.map(lambda number: float(f"{number:.{digits[0]}g}")) if digits else found


def sent(value, hint=None):
    """What arrives of a value's JSON form."""
    return json.loads(json.dumps(to_json(value, hint), allow_nan=False))


def crossed(value):
    return from_json(type(value), sent(value))


def default_of(field):
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__name__)
def test_every_record_is_frozen_and_has_a_docstring(cls):
    assert cls.__dataclass_params__.frozen
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # what dataclass writes where nobody did


@each_record
@THOROUGH
@given(data=st.data())
def test_a_record_survives_json_and_its_defaults_are_left_out(cls, data):
    record = data.draw(values(cls))
    assert crossed(record) == record
    for field in dataclasses.fields(cls):
        value, default = getattr(record, field.name), default_of(field)
        assert (field.name in sent(record)) is (type(value) is not type(default) or value != default)


@each_record
@THOROUGH
@given(data=st.data())
def test_a_wrong_or_missing_or_unknown_field_is_refused_by_record_and_name(cls, data):
    there = sent(data.draw(values(cls)))
    with pytest.raises(RecordError, match=f"^{cls.__name__} has an unknown field 'mood'$"):
        from_json(cls, {**there, "mood": 1})
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if hints[field.name] not in (Any, Mapping[str, Any]):
            wrong = 7 if hints[field.name] is str else "seven"
            with pytest.raises(RecordError, match=rf"^{cls.__name__}\.{field.name}: "):
                from_json(cls, {**there, field.name: wrong})
        if default_of(field) is dataclasses.MISSING:
            with pytest.raises(RecordError, match=f"^{cls.__name__} has no {field.name}$"):
                from_json(cls, {name: value for name, value in there.items() if name != field.name})


@cache
def schema_of(cls):
    return Draft202012Validator({**reference(cls.__name__), "$defs": definitions(cls)})


@each_record
@THOROUGH
@given(data=st.data())
def test_the_schema_of_a_record_takes_what_is_sent_and_no_wrong_or_missing_or_unknown_field(cls, data):
    fits = schema_of(cls).is_valid
    there, hints = sent(data.draw(values(cls))), typing.get_type_hints(cls)
    assert fits(there)
    assert not fits({**there, "mood": 1})
    for field in dataclasses.fields(cls):
        if hints[field.name] not in (Any, Mapping[str, Any]):
            assert not fits({**there, field.name: 7 if hints[field.name] is str else "seven"})
        if default_of(field) is dataclasses.MISSING:
            assert not fits({name: value for name, value in there.items() if name != field.name})


def test_a_schema_holds_the_limits_and_defaults_of_fields():
    ratios = ({"middle": number, "low": 1, "high": 1, "pairs": 1} for number in (1.5, 0, "inf"))
    assert [*map(schema_of(Ratio).is_valid, ratios)] == [True, False, False]
    known = definitions(Verdict)
    assert known["Verdict"]["properties"]["observation"]["default"] == {"ending": "none"}
    assert "PASS" in known["Verdict"]["properties"]["status"]["enum"]
    assert known["Measure"]["description"].startswith("One number and its budget.")


def damaged(data, tree):
    """The tree with anything in the place of one of its parts."""
    if isinstance(tree, (dict, list)) and tree and data.draw(st.integers(0, 3)):
        key = data.draw(st.sampled_from([*(tree if isinstance(tree, dict) else range(len(tree)))]))
        copied = tree.copy()
        copied[key] = damaged(data, tree[key])
        return copied
    return data.draw(ANYTHING)


@each_record
@THOROUGH
@given(data=st.data())
def test_whatever_a_file_holds_is_a_record_or_refused(cls, data):
    try:
        record = from_json(cls, damaged(data, sent(data.draw(values(cls)))))
    except RecordError:
        return
    assert crossed(record) == crossed(crossed(record))


@pytest.mark.parametrize(
    ("hint", "data", "message"),
    [
        (Cell, [], "want Cell, got list"),
        (Cell, {**to_json(CELL), "model": None}, "Cell.model: want str, got NoneType"),
        (Cell, {**to_json(CELL), "record": "Reason"}, "want Cell, got Reason"),
        (int, True, "want int, got bool"),
        (int, 1.5, "want int, got float"),
        (float, True, "want a number, got bool"),
        (float, "1.5", "want a number, got str"),
        (float, "NaN", "want a number, got str"),
        (float, 10**400, "want a number, got int"),
        (bool, 1, "want bool, got int"),
        (tuple[int, ...], [1, "2"], "want int, got str"),
        (tuple[int, int], [1, 2, 3], "want 2 items, got 3"),
        (Mapping[str, int], {"a": "b"}, "want int, got str"),
        (PlannedCell, {"cell": {"model": "m"}}, "PlannedCell.cell: Cell has no mode"),
        (Plan, {"seed": 0, "deadline": 1, "environment": {}}, "Plan.environment: Environment has no torch"),
        (PlanRequest, {"sources": "merge"}, "PlanRequest.sources: want list, got str"),
        (Expect, {"outcome": "LATE", "reason": "so"}, "Expect: expectation: outcome 'LATE': want one of dtype, "),
        (Result, {"record": "Cell"}, "want one of Timing, Footprint, CompileCost, Ceilings, Reason, got Cell"),
        (Result, None, "want one of Timing, Footprint, CompileCost, Ceilings, Reason, got NoneType"),
        (Result, {"record": ["Reason"]}, "want one of Timing, Footprint, CompileCost, Ceilings, Reason, got"),
        (Odd, {"either": 1}, "Odd.either: want one of Cell, Reason, got int"),
    ],
)
def test_what_is_wrong_is_named(hint, data, message):
    with pytest.raises(RecordError) as refused:
        from_json(hint, data)
    assert str(refused.value).startswith(message)


def test_what_is_not_finite_survives_wherever_a_number_may_be():
    odd = Odd(plain=math.inf, rounded=-math.inf, pair=(math.nan, 1), maybe=math.nan)
    assert sent(odd) == {"plain": "inf", "rounded": "-inf", "pair": ["nan", 1], "maybe": "nan"}
    again = crossed(odd)
    assert (again.plain, again.rounded) == (math.inf, -math.inf)
    assert all(map(math.isnan, (again.pair[0], again.maybe)))
    assert not crossed(Measure("norm", math.nan, 1.0)).met
    assert sent(Odd(rounded=1.7976e308)) == {"rounded": "inf"}  # four digits of it are more than a float can hold


def test_a_whole_number_is_a_number_equal_is_no_default_of_another_type_and_no_default_is_shared():
    assert from_json(Odd, {"plain": 3}) == Odd(plain=3.0)
    assert isinstance(from_json(float, 3), float)
    assert sent(Odd(flag=False, anything=0)) == {"anything": 0}
    assert sent(Odd(plain=0, maybe=0.0)) == {"plain": 0, "maybe": 0.0}
    assert sent(Footprint(saved=0)) == {"saved": 0}
    first, second = (from_json(Timing, {"figure": "forward", "cells": {}}) for _ in range(2))
    first.seconds["x"] = 1.0
    assert second.seconds == {}


@pytest.mark.parametrize(
    ("value", "kept"),
    [(1.23456789, 1.235), (123456.789, 123500.0), (1.23456e-30, 1.235e-30), (-0.00098764, -0.0009876), (1.0, 1.0)],
)
def test_digits_are_rounded_where_the_field_declares_it(value, kept):
    assert sent(Odd(plain=value, rounded=value, maybe=value)) == {"plain": value, "rounded": kept, "maybe": kept}


def test_each_item_of_a_tuple_and_each_field_has_its_own_digits():
    assert sent(Odd(pair=(1.2345, 12345)))["pair"] == [1.2, 12345]
    assert sent(Ratio(1.234567, 1.0, 2.0, 9))["middle"] == 1.2346
    verdict = Verdict("a", "PASS", seconds=1.23456, margin=0.123456)
    assert sent(verdict) == {"cell": "a", "status": "PASS", "margin": 0.1235, "seconds": 1.235}
    assert sent(CellTiming(seconds=0.123456789)) == {"seconds": 0.123456789}


def test_a_value_of_a_union_carries_the_name_of_its_record():
    assert sent(REASON, Result) == {"record": "Reason", **sent(REASON)}
    odd = Odd(either=REASON, many={"a": (REASON, CELL)})
    assert [item["record"] for item in (sent(odd)["either"], *sent(odd)["many"]["a"])] == ["Reason", "Reason", "Cell"]
    assert sent(CellTiming(reason=REASON)) == {"reason": sent(REASON)}  # an optional record needs no name
    assert (str(REASON), str(Reason("too slow"))) == ("no graph: it breaks at a print", "too slow")


@THOROUGH
@given(value=values(Result))
def test_a_value_of_a_union_survives_json(value):
    assert from_json(Result, sent(value, Result)) == value


# Both ends of a child process agree: each target names a function with exactly its task and its result.


def test_no_two_targets_name_one_function():
    assert len({target.function for target in TARGETS.values()}) == len(TARGETS) >= 11


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_names_a_function_with_its_task_and_result_that_takes_its_process(target):
    module, _, name = target.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    hints = typing.get_type_hints(function)
    assert (hints["task"], hints["process"], hints["return"]) == (target.task, ChildProcess, target.result)
    needed = [name for name, p in inspect.signature(function).parameters.items() if p.default is p.empty]
    assert needed == ["task", "process"]
