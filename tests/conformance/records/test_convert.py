"""Every record survives the way to JSON and back; what is no such record is refused by record and field."""

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from harness.record_examples import CELL, COMPILE_COST, EXAMPLES, FOOTPRINT, REASON, TIMING

from conformance import records
from conformance.errors import RecordError
from conformance.records.cell import Cell
from conformance.records.convert import AboveZero, Digits, Matching, OneOf, Rounded, from_json, to_json
from conformance.records.measurements import Ceilings, CellTiming, Footprint, Ratio, Reason, Result, Timing
from conformance.records.observation import Measure, Observation
from conformance.records.plan import Plan, PlannedCell
from conformance.records.tasks import PlanRequest, Target
from conformance.records.verdicts import Status, Verdict
from zoo.expect import Expect

NO_RECORDS = {Digits, AboveZero, Matching, OneOf, Target, Status}  # of Python alone; they are never stored or sent


def classes():
    """Every dataclass of the package."""
    for found in pkgutil.walk_packages(records.__path__, f"{records.__name__}."):
        module = importlib.import_module(found.name)
        for cls in vars(module).values():
            if inspect.isclass(cls) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__:
                yield cls


def sent(value, hint=None):
    """What arrives of a value's JSON form."""
    return json.loads(json.dumps(to_json(value, hint), allow_nan=False))


def crossed(value):
    return from_json(type(value), sent(value))


def name_of(value):
    return type(value).__name__


@dataclass(frozen=True)
class Odd:
    """Fields of every kind of number, and unions."""

    plain: float = 0.0
    rounded: Rounded = 0.0
    pair: tuple[Annotated[float, Digits(2)], int] = (0.0, 0)
    maybe: Rounded | None = None
    either: Cell | Reason | None = None
    many: Mapping[str, tuple[Cell | Reason, ...]] = field(default_factory=dict)
    flag: bool = False
    anything: Any = None


def test_every_record_has_an_example():
    assert {type(example) for example in EXAMPLES} == {*classes(), Expect} - NO_RECORDS
    assert len({type(example) for example in EXAMPLES}) == len(EXAMPLES)


@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__name__)
def test_every_record_is_frozen_and_has_a_docstring(cls):
    assert cls.__dataclass_params__.frozen
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # what dataclass writes where nobody did


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_no_field_of_an_example_has_its_default(example):
    for declared in dataclasses.fields(example):
        default = declared.default
        if declared.default_factory is not dataclasses.MISSING:
            default = declared.default_factory()
        assert getattr(example, declared.name) != default, declared.name


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_a_record_survives_json(example):
    assert crossed(example) == example
    assert set(sent(example)) == {declared.name for declared in dataclasses.fields(example)}


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_defaults_are_left_out_and_come_back(example):
    required = {
        declared.name: getattr(example, declared.name)
        for declared in dataclasses.fields(example)
        if declared.default is declared.default_factory is dataclasses.MISSING
    }
    least = type(example)(**required)
    assert set(sent(least)) == set(required)
    assert crossed(least) == least


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_unknown_field_is_refused_by_record_and_name(example):
    with pytest.raises(RecordError, match=f"^{name_of(example)} has an unknown field 'mood'$"):
        from_json(type(example), {**sent(example), "mood": 1})


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_a_missing_field_is_refused_by_record_and_name(example):
    for declared in dataclasses.fields(example):
        data = sent(example)
        del data[declared.name]
        if declared.default is declared.default_factory is dataclasses.MISSING:
            with pytest.raises(RecordError, match=f"^{name_of(example)} has no {declared.name}$"):
                from_json(type(example), data)
        else:
            assert from_json(type(example), data) != example


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_a_value_of_another_type_is_refused_by_record_and_field(example):
    hints = inspect.get_annotations(type(example), eval_str=True)
    for name in hints:
        if name == "facts":  # of any type
            continue
        is_text = isinstance(getattr(example, name), str)
        with pytest.raises(RecordError, match=rf"^{name_of(example)}\.{name}: "):
            from_json(type(example), {**sent(example), name: 7 if is_text else "seven"})


@pytest.mark.parametrize(
    ("hint", "data", "message"),
    [
        (Cell, [], "want Cell, got list"),
        (Cell, None, "want Cell, got NoneType"),
        (Cell, {**to_json(CELL), "model": None}, "Cell.model: want str, got NoneType"),
        (int, True, "want int, got bool"),
        (int, 1.5, "want int, got float"),
        (float, True, "want a number, got bool"),
        (float, "1.5", "want a number, got str"),
        (bool, 1, "want bool, got int"),
        (str, 1, "want str, got int"),
        (tuple[int, ...], {}, "want list, got dict"),
        (tuple[int, ...], [1, "2"], "want int, got str"),
        (tuple[int, int], [1], "want 2 items, got 1"),
        (tuple[int, int], [1, 2, 3], "want 2 items, got 3"),
        (Mapping[str, int], [], "want dict, got list"),
        (Mapping[str, int], {"a": "b"}, "want int, got str"),
        (PlannedCell, {"cell": {"model": "m"}}, "PlannedCell.cell: Cell has no mode"),
        (Plan, {"seed": 0, "deadline": 1, "environment": {}}, "Plan.environment: Environment has no torch"),
        (PlanRequest, {"sources": "merge"}, "PlanRequest.sources: want list, got str"),
        (Result, {"record": "Cell"}, "want one of Timing, Footprint, CompileCost, Ceilings, Reason, got Cell"),
        (Result, {"short": "x"}, "want one of Timing, Footprint, CompileCost, Ceilings, Reason, got dict"),
        (Result, None, "want one of Timing, Footprint, CompileCost, Ceilings, Reason, got NoneType"),
        (Result, {"record": "Reason"}, "Reason has no short"),
        (Result, {"record": ["Reason"]}, "want one of Timing, Footprint, CompileCost, Ceilings, Reason, got"),
        (float, [], "want a number, got list"),
        (float, {}, "want a number, got dict"),
        (float, None, "want a number, got NoneType"),
        (Odd, {"either": 1}, "Odd.either: want one of Cell, Reason, got int"),
        (Cell, {**to_json(CELL), "record": "Reason"}, "want Cell, got Reason"),
    ],
)
def test_what_is_wrong_is_named(hint, data, message):
    with pytest.raises(RecordError) as refused:
        from_json(hint, data)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_infinities_survive_wherever_a_number_may_be(number):
    odd = Odd(plain=number, rounded=number, pair=(number, 1), maybe=number)
    assert sent(odd)["plain"] == sent(odd)["maybe"] == str(number)
    assert crossed(odd) == odd
    assert crossed(Measure("norm", number, 1.0)) == Measure("norm", number, 1.0)


def test_a_nan_survives_wherever_a_number_may_be():
    odd = crossed(Odd(plain=math.nan, rounded=math.nan, pair=(math.nan, 1), maybe=math.nan))
    assert all(map(math.isnan, (odd.plain, odd.rounded, odd.pair[0], odd.maybe)))
    assert not crossed(Measure("norm", math.nan, 1.0)).met


@pytest.mark.parametrize("text", ["Infinity", "infinity", "NaN", "1e3", ""])
def test_other_text_is_no_number(text):
    with pytest.raises(RecordError, match="want a number, got str"):
        from_json(float, text)


def test_a_whole_number_is_a_number():
    assert from_json(Odd, {"plain": 3}) == Odd(plain=3.0)
    assert isinstance(from_json(float, 3), float)


@pytest.mark.parametrize(
    ("value", "kept"),
    [(1.23456789, 1.235), (123456.789, 123500.0), (1.23456e-30, 1.235e-30), (-0.00098764, -0.0009876), (1.0, 1.0)],
)
def test_digits_are_rounded_where_the_field_declares_it(value, kept):
    odd = Odd(plain=value, rounded=value, maybe=value)
    data = sent(odd)
    assert (data["plain"], data["rounded"], data["maybe"]) == (value, kept, kept)
    again = sent(crossed(odd))
    assert again == data


def test_each_item_of_a_tuple_has_its_own_digits():
    assert sent(Odd(pair=(1.2345, 12345)))["pair"] == [1.2, 12345]
    assert sent(Ratio(1.234567, 1.0, 2.0, 9))["middle"] == 1.2346
    assert sent(Verdict("a", "PASS", seconds=1.23456, margin=0.123456)) == {
        "cell": "a",
        "status": "PASS",
        "margin": 0.1235,
        "seconds": 1.235,
    }
    assert sent(CellTiming(seconds=0.123456789)) == {"seconds": 0.123456789}


@pytest.mark.parametrize("value", [TIMING, FOOTPRINT, COMPILE_COST, Ceilings({}, ()), REASON], ids=name_of)
def test_a_value_of_a_union_carries_the_name_of_its_record(value):
    data = sent(value, Result)
    assert data["record"] == name_of(value)
    assert from_json(Result, data) == value
    assert "record" not in sent(value)


def test_unions_inside_records_and_collections_are_tagged():
    odd = Odd(either=REASON, many={"a": (REASON, CELL)})
    data = sent(odd)
    assert data["either"] == {"record": "Reason", "short": REASON.short, "detail": REASON.detail}
    assert [item["record"] for item in data["many"]["a"]] == ["Reason", "Cell"]
    assert crossed(odd) == odd


def test_an_optional_record_needs_no_name():
    timing = CellTiming(reason=REASON)
    assert sent(timing) == {"reason": {"short": REASON.short, "detail": REASON.detail}}
    assert crossed(timing) == timing
    assert from_json(CellTiming, {"reason": None, "seconds": None}) == CellTiming()


def test_equal_is_no_default_if_the_type_differs():
    assert sent(Odd(flag=False, anything=0)) == {"anything": 0}
    assert sent(Odd(plain=0)) == {"plain": 0}
    assert sent(Odd(maybe=0.0)) == {"maybe": 0.0}
    assert sent(Footprint(saved=0)) == {"saved": 0}


def test_facts_of_any_type_are_passed_through():
    facts = {"text": "a", "number": 1, "list": [1, {"a": None}], "flag": True}
    assert crossed(Observation("finished", facts=facts)).facts == facts


def test_records_that_were_read_share_no_defaults():
    first, second = (from_json(Timing, {"figure": "forward", "cells": {}}) for _ in range(2))
    first.seconds["x"] = 1.0
    assert second.seconds == {}
    assert sent(second) == {"figure": "forward", "cells": {}}


def test_a_reason_reads_as_one_text():
    assert str(REASON) == "no graph: it breaks at a print"
    assert str(Reason("too slow")) == "too slow"
