"""Numbers and words as every report prints them."""

import pytest

from conformance.figures.speed import Speed
from conformance.records.measurements import Ratio, Reason
from conformance.show.text import duration, ratio_text, speed_text, table, visible, without_speed, wrap

TWO = {"eager fp32": Ratio(2.0, 1.9, 2.1, 99), "eager": Ratio(3.0, 2.9, 3.1, 99)}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Speed("a", "gradient", 2.5e-4), "250 µs"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(1.32, 1.3, 1.349, 99)}), "▲1.32 [1.30, 1.35]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(0.5, 0.49, 0.51, 99)}), "▼0.50 [0.49, 0.51]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(1.0, 0.99, 1.01, 99)}), "=1.00 [0.99, 1.01]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(1.04, 1.0, 1.1, 99)}), "~1.04 [1.00, 1.10]"),
        (Speed("a", "gradient", 1e-3, {"b": Ratio(104.2, 99.5, 1234.0, 99)}), "▲104 [99.5, 1234]"),
        (Speed("a", "gradient", 1e-3, TWO), "▲2.00 [1.90, 2.10]"),
        (Speed("a", reason=Reason("too slow", "2 s a call")), "too slow"),
        (Speed("a", reason=Reason("Odd\x1bError")), "Odd\\u001bError"),
        (Speed("a"), ""),
    ],
)
def test_a_speed_is_a_time_its_first_ratio_or_a_reason(found, text):
    assert speed_text(found) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.994, "9.99"), (10.0, "10"), (99.96, "100"), (999.4, "999"), (1000.0, "1000"), (12345.6, "12346")],
)
def test_a_ratio_has_three_digits_and_all_before_the_point(value, text):
    assert ratio_text(Ratio(value, value, value, 99)) == f"▲{text} [{text}, {text}]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(123.4, "123 s"), (1.0, "1 s"), (0.25, "250 ms"), (1e-3, "1 ms"), (2.5e-4, "250 µs"), (4.2e-8, "42 ns")],
)
def test_a_duration_has_the_unit_that_reads_best(seconds, text):
    assert duration(seconds) == text


def test_each_reason_for_a_missing_figure_is_printed_once_and_a_red_verdict_not_at_all():
    reasons = {
        "a": Reason("too slow", "2 s a call"),
        "b": Reason("too noisy"),
        "c": Reason("too slow", "3 s a call"),
        "d": Reason("FAIL", "only a cell that passes has a speed"),
    }
    speeds = {name: Speed(name, reason=reason) for name, reason in reasons.items()}
    assert without_speed("forward", speeds | {"e": Speed("e", "gradient", 1e-3)}) == [
        "· no forward, too slow: a and 1 more (2 s a call)",
        "· no forward, too noisy: b",
    ]


def test_long_lines_are_wrapped_at_100_columns_and_words_stay_whole():
    lines = wrap("· " + "word-with-hyphens " * 20).splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 100 for line in lines)
    assert all(line.startswith("    word") for line in lines[1:])
    assert set(" ".join(lines).split()) == {"·", "word-with-hyphens"}
    assert wrap("x" * 200) == "x" * 200


def test_control_characters_are_spelt_out_and_a_table_keeps_numbers_as_they_are_written():
    assert visible("a\x1b[2Jb\u202ec\nd\u2028é▲") == "a\\u001b[2Jb\\u202ec\\u000ad\\u2028é▲"
    assert table([["a", "1.50"]], ["name", "ratio"]).splitlines()[-1].split() == ["a", "1.50"]
    assert table([], ["name"]) == ""
