"""The picture is valid, whole and the same every time; nothing in it overlaps or leaves it."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from conformance.figures.crossover import Point
from conformance.records.measurements import Ratio, Reason
from conformance.show.plot import COLOURS, DASHES, DOTS, INK, draw

SVG = "{http://www.w3.org/2000/svg}"


def point(size, middle, spread=1.1):
    return Point(size, Ratio(middle, middle / spread, middle * spread, pairs=20))


def drawn(curves, title="mlp", size_name="width"):
    return ET.fromstring(draw(title, size_name, curves))


def texts(svg, anchor):
    """(x, y, words) of the texts with an anchor: end for ratios, middle for sizes, start for all else."""
    found = [e for e in svg.iter(f"{SVG}text") if e.get("text-anchor") == anchor]
    return [(float(e.get("x")), float(e.get("y")), e.text) for e in found]


def words(svg, anchor):
    return [text for _, _, text in texts(svg, anchor)]


def paths(svg, colour):
    """Of a curve, in order: lines, then intervals and dots in turn; the legend's line and dot last."""
    return [e.get("d") for e in svg.iter(f"{SVG}path") if colour in (e.get("stroke"), e.get("fill"))]


def luminance(colour):
    """Relative, as the Web Content Accessibility Guidelines define it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_sizes_are_evenly_spaced_by_their_logarithm():
    svg = drawn({"compiled": [point(s, 2.0) for s in (256, 16, 64)]})
    sizes = texts(svg, "middle")
    assert [w for _, _, w in sizes] == ["16", "64", "256", "width"]
    assert sizes[2][0] - sizes[1][0] == pytest.approx(sizes[1][0] - sizes[0][0], abs=0.11)
    assert sizes[1][0] - sizes[0][0] > 250


@pytest.mark.parametrize(
    ("ratios", "ticks"),
    [
        ((1.0, 1.02), ["0.8×", "0.9×", "1×", "1.1×", "1.2×"]),
        ((0.5, 5.0), ["0.5×", "0.7×", "1×", "1.5×", "2×", "3×", "5×"]),
        ((0.1, 45.0), ["0.1×", "0.2×", "0.5×", "1×", "2×", "5×", "10×", "20×", "50×"]),
        ((0.01, 1e4), ["0.01×", "0.1×", "1×", "10×", "100×", "1000×", "10000×"]),
        ((1e-12, 1e12), ["1e-12×", "1e-09×", "1e-06×", "0.001×", "1×", "1000×", "1e+06×", "1e+09×", "1e+12×"]),
    ],
)
def test_ratios_on_the_axis_are_round(ratios, ticks):
    svg = drawn({"compiled": [point(16 * 2**n, ratio) for n, ratio in enumerate(ratios)]})
    assert words(svg, "end") == ticks


def test_the_line_at_one_is_heavy_and_no_other():
    svg = drawn({"compiled": [point(16, 0.5), point(64, 5.0)]})
    heavy = [e for e in svg.iter(f"{SVG}path") if e.get("stroke-width") == "2.5"]
    (one,) = [y for _, y, label in texts(svg, "end") if label == "1×"]
    assert [e.get("d").partition("H")[0] for e in heavy] == [f"M76,{one - 4.5:.1f}"]


def test_a_dot_and_its_interval_lie_at_their_ratios():
    svg = drawn({"compiled": [Point(64, Ratio(2.0, 1.0, 5.0, pairs=20))]})
    level = {label: y - 4.5 for _, y, label in texts(svg, "end")}
    interval, dot, *_ = paths(svg, COLOURS[0])
    assert [float(y) for y in re.findall(r",([\d.]+)h6m-3,0V([\d.]+)", interval)[0]] == [level["1×"], level["5×"]]
    assert dot.startswith(f"M388.0,{level['2×']:.1f}m")


def test_intervals_end_short_of_the_axis():
    svg = drawn({"compiled": [point(16, 0.1), point(64, 20.0)]})
    (axis,) = re.findall(r'd="M76,(\d+)H700" fill="none" stroke="#7a7a7a"/', draw("", "", {}))
    lowest = re.findall(r",([\d.]+)h6", paths(svg, COLOURS[0])[1])[0]
    assert float(axis) - float(lowest) > 5


def test_a_curve_breaks_where_there_is_no_ratio():
    points = [point(16, 1.0), point(32, 1.1), Point(64, None, Reason("out of time")), point(128, 1.2), point(256, 1.3)]
    whole, broken = ([p for p in points if p.ratio], points)
    lines = [[d for d in paths(drawn({"a": curve}), COLOURS[0]) if "L" in d] for curve in (whole, broken)]
    assert [[d.count("L") for d in found] for found in lines] == [[3], [1, 1]]
    assert "64" in words(drawn({"a": broken}), "middle")


def test_a_point_between_gaps_is_still_a_dot():
    svg = drawn({"a": [Point(16, None), point(32, 1.1), Point(64, None)]})
    assert len(paths(svg, COLOURS[0])) == 4  # interval, dot, and the two of the legend


def test_intervals_of_one_size_are_drawn_side_by_side():
    svg = drawn({"a": [point(64, 2.0)], "b": [point(64, 2.0)], "c": [point(64, 2.0)]})
    dots = [float(paths(svg, colour)[1][1:].partition(",")[0]) for colour in COLOURS[:3]]
    assert dots == [384.0, 388.0, 392.0]


def test_every_curve_has_its_own_colour_dashes_and_dot():
    names = [f"curve {n}" for n in range(8)]
    svg = drawn({name: [point(16, 1.0 + n), point(64, 2.0 + n)] for n, name in enumerate(names)})
    looks = {(e.get("stroke"), e.get("stroke-dasharray")) for e in svg.iter(f"{SVG}path") if e.get("stroke-dasharray")}
    assert looks == set(zip(COLOURS, DASHES, strict=True))
    assert len(set(COLOURS)) == len(set(DASHES)) == len(set(DOTS)) == 8
    assert words(svg, "start") == ["mlp", "speedup", *names]


def test_more_curves_than_colours_still_differ():
    svg = drawn({str(n): [point(16, 1.0), point(64, 2.0)] for n in range(20)})
    looks = [(e.get("stroke"), e.get("stroke-dasharray")) for e in svg.iter(f"{SVG}path") if e.get("stroke-dasharray")]
    assert len(looks) == 40  # on the picture and in the legend
    assert len(set(looks)) == 20


@pytest.mark.parametrize("colour", [INK, *COLOURS])
@pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
def test_colours_stand_out_from_light_and_dark_pages(colour, page):
    dark, light = sorted([luminance(colour), luminance(page)])
    assert (light + 0.05) / (dark + 0.05) > 3.5


def test_labels_on_the_axes_keep_apart():
    svg = drawn({"a": [point(2**n, 1.5**n) for n in range(4, 24)] + [point(1000, 1.0), point(1025, 3.0)]})
    levels = [y for _, y, _ in texts(svg, "end")]
    assert min(a - b for a, b in pairwise(levels)) > 20
    sizes = [(x, 8.0 * len(label)) for x, _, label in texts(svg, "middle")[:-1]]
    assert len(sizes) > 3
    assert all(b - a > (m + n) / 2 for (a, m), (b, n) in pairwise(sizes))


@pytest.mark.parametrize("name", ["fp32", "compiled amp_bf16 with a name much longer than most" * 3])
def test_titles_and_names_of_any_length_stay_inside(name):
    svg = drawn({name: [point(64, 2.0)], name + "'": [point(64, 3.0)]}, title="a long title, wrapped " * 20)
    width, height = float(svg.get("width")), float(svg.get("height"))
    for x, y, label in texts(svg, "start"):
        assert x + 7.5 * len(label) < width
        assert y < height
    assert " ".join(words(svg, "start")).startswith(("a long title, wrapped " * 20).strip() + " speedup")


def test_the_description_for_screen_readers_has_title_and_crossovers():
    svg = drawn({"compiled": [point(16, 0.5), point(64, 2.0)], "scripted": []}, title="mlp on cpu")
    assert svg.get("role") == "img"
    assert [e.tag for e in svg][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert svg[0].text == "mlp on cpu"
    assert svg[1].text == (
        "Speedup over width. compiled: pays from width 64 on; scripted: nothing measured: no sizes tried"
    )


def test_text_is_escaped_and_what_xml_cannot_hold_is_replaced():
    svg = drawn({"<b> & \x00": [point(64, 2.0)]}, title='a "b" <c>\x1b', size_name="n&m")
    assert svg[0].text == 'a "b" <c>\ufffd'
    assert words(svg, "start") == ['a "b" <c>\ufffd', "speedup", "<b> & \ufffd"]
    assert words(svg, "middle") == ["64", "n&m"]


@pytest.mark.parametrize("curves", [{}, {"a": []}, {"a": [Point(16, None), Point(64, None, Reason("out of memory"))]}])
def test_a_picture_without_ratios_reads_nothing_measured(curves):
    assert words(drawn(curves, title=""), "middle")[-1] == "nothing measured"


def test_a_picture_with_one_ratio_does_not_read_nothing_measured():
    assert words(drawn({"a": [], "b": [point(64, 2.0)]}), "middle") == ["64", "width"]


def test_the_order_of_points_does_not_change_the_picture():
    points = [point(16, 0.5), point(64, 2.0), Point(128, None), point(256, 3.0)]
    assert draw("mlp", "n", {"a": points}) == draw("mlp", "n", {"a": points[::-1]})


def test_nothing_is_fetched():
    assert re.findall(r"(?:https?:|href|url\(|@import)[^ >]*", draw("mlp", "n", {"a": [point(64, 2.0)]})) == [
        'http://www.w3.org/2000/svg"'
    ]
