"""The page of HTML in a real browser, narrow and wide, light and dark: its layout, filter, keyboard and address."""

import os

import pytest
from harness.browser import CHROMIUM, Browser
from harness.hostile import TEXTS
from harness.pages import drawn, hostile, hostile_atlas, large

from conformance.show import comparisons

HOSTILE = f"{TEXTS[0]} \x1b[31m \u202edlrow \u2066{'ab' * 5_000}"
VIEWS = [(width, dark) for width in (360, 1600) for dark in (False, True)]


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        told = "NOT TESTED: there is no chromium to open the page in; Debian's package chromium has it"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(told)
    with Browser() as opened:
        yield opened
    assert opened.asked == []
    assert opened.errors == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The files of a page full of hostile texts, of a large one, and of versions of torch with hostile texts."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {"hostile": drawn(hostile(HOSTILE)), "large": drawn(large(20))}
    texts["versions"] = comparisons.atlas_html(hostile_atlas(HOSTILE))
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
SHOWN = "[...document.querySelectorAll('.grid tr:not(.none) td[id]:not(.off)')].length"
DRAWER = "document.querySelector('#drawer').hidden ? '' : document.querySelector('#name').textContent"
FOCUS = "document.activeElement.id || document.activeElement.tagName"
LUMINANCE = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"


@pytest.mark.parametrize(("width", "dark"), VIEWS)
@pytest.mark.parametrize("scripts", [True, False])
def test_hostile_texts_stay_inside_the_page_at_every_width(browser, pages, width, dark, scripts):
    browser.look(width, 900, dark=dark, scripts=scripts)
    browser.open(pages["hostile"], "#cell=net_fail[eager-fp32-cpu]")
    browser.look(width, 900, dark=dark)  # without scripts the page has no state; the questions below need them
    assert browser.run(OVERFLOW) <= 0
    assert browser.run("document.querySelectorAll('img, iframe').length") == 0
    assert (browser.run(LUMINANCE) < 200) is dark
    assert browser.run(DRAWER) == ("net_fail[eager-fp32-cpu]" if scripts else "")
    if scripts:
        assert browser.run("(d => d.scrollWidth - d.clientWidth)(document.querySelector('#drawer'))") <= 0
        assert browser.run("document.querySelector('#drawer').innerText.includes('\\\\u202edlrow')")
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert browser.run(OVERFLOW) <= 0


@pytest.mark.parametrize(("page", "address"), [("large", ""), ("large", "#c0"), ("versions", ""), ("versions", "#n2")])
def test_no_width_makes_the_page_itself_scroll_sideways(browser, pages, page, address):
    browser.look()
    browser.open(pages[page], address)
    for width in range(320, 1700, 60):
        browser.look(width)
        assert browser.run(OVERFLOW) <= 0, width


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", 180),
        ("is:red", 18),
        ("is:fail", 18),
        ("is:different", 18),
        ("is:pass mode:compiled", 54),
        ("gate:norm", 18),
        ("gate:none", 0),
        ("model:model_3 precision:amp_fp16", 3),
        ("MODEL_7[", 9),
        ('"error 10,"', 1),
        ("unknown:key", 0),
    ],
)
def test_the_address_and_the_filter_choose_cells(browser, pages, query, shown):
    browser.look()
    browser.open(pages["large"], f"#q={query.replace(' ', '%20')}")
    assert browser.run(SHOWN) == shown
    assert browser.run("document.querySelector('#q').value") == query


def test_the_keyboard_filters_walks_opens_and_closes_and_the_address_follows(browser, pages):
    browser.look()
    browser.open(pages["large"])
    browser.press("/")
    assert browser.run(FOCUS) == "q"
    for key in "is:red":
        browser.press(key)
    assert browser.run("location.hash") == "#q=is:red"
    browser.run("document.querySelector('#c0').focus()")
    browser.run("document.querySelector('.grid tbody th').focus()")
    browser.press("ArrowRight")
    assert browser.run(FOCUS) == "c0"
    browser.press("Enter")
    assert browser.run(DRAWER) == "model_0[eager-fp32-cpu]"
    assert browser.run(FOCUS) == "drawer"
    assert browser.run("location.hash") == "#q=is:red&cell=model_0[eager-fp32-cpu]"
    said = browser.run("document.querySelector('#drawer').textContent")
    assert "conformance run nowhere -k model_0" in said
    assert "conformance explain 'a folder' 'model_0[eager-fp32-cpu]' nowhere" in said
    assert "conformance repro 'a folder' 'model_0[eager-fp32-cpu]'" in said
    browser.press("Escape")
    assert browser.run(DRAWER) == ""
    assert browser.run(FOCUS) == "c0"
    browser.press("ArrowDown")
    assert browser.run(FOCUS) == "c10"  # in the next row with a red cell


def test_a_link_to_a_cell_and_a_click_open_it(browser, pages):
    browser.look()
    browser.open(pages["large"], "#c12")
    assert browser.run(DRAWER) == "model_1[scripted-fp32-cpu]"
    browser.run("document.querySelector('#c4').click()")
    assert browser.run("location.hash") == "#cell=model_0[scripted-amp_fp16-cpu]"
    assert "conformance explain" not in browser.run("document.querySelector('#drawer').textContent")  # it passes
