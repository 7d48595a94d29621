"""Formats numbers and words as every report prints them."""

import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence

import tabulate

from conformance.errors import some
from conformance.figures.speed import Speed
from conformance.records.measurements import FASTER, NOISY, SAME, SLOWER, Ratio, Reason

WIDTH = 100  # of a paragraph, unless a terminal is narrower
ARROWS = {FASTER: "▲", SLOWER: "▼", SAME: "=", NOISY: "~"}
PLAIN = str.maketrans(
    dict(zip("✓○✗≠–·▲▼µ◷×−‖²§…─⟨⟩", "+ox#-.^vu@x-|2S.-<>", strict=True)) | {"≤": "<=", "≥": ">=", "±": "+-"}
)  # signs of the reports in ASCII, for encodings that lack them
MARKDOWN = re.compile(r"[|<>&`*\[\]@]|(?<!\w)#|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # what starts something; not a_b#c
COLOURS = {"✓": 32, "○": 33, "✗": 31, "?": 31, "≠": 33, "–": 2, "·": 2}  # of a sign and the words behind it
MARKED = re.compile(r"(?<!\S)([✓○✗?≠–](?!\S)|·(?= not run))(?: \S+)*", re.MULTILINE)
SIGNS = "▲ faster, ▼ slower, = the same within 3 %, ~ too noisy to say, with the 99 % interval in brackets"


def ratio_text(ratio: Ratio) -> str:
    """A ratio with the sign of its verdict and with its interval.

    >>> ratio_text(Ratio(1.5, 1.4, 1.6, pairs=20))
    '▲1.50 [1.40, 1.60]'
    """
    middle, low, high = (_digits(value) for value in (ratio.middle, ratio.low, ratio.high))
    return f"{ARROWS[ratio.verdict]}{middle} [{low}, {high}]"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: PLR2004


def duration(seconds: float) -> str:
    """Seconds in s, ms, µs or ns.

    >>> duration(12.0), duration(0.00025)
    ('12 s', '250 µs')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def speed_text(speed: Speed) -> str:
    """The ratio to the first baseline; the time of the baseline itself; or the reason why there is no figure."""
    if speed.seconds is None:
        return visible(speed.reason.short) if speed.reason else ""
    if not speed.ratios:
        return duration(speed.seconds)
    return ratio_text(next(iter(speed.ratios.values())))


def without_speed(figure: str, speeds: Mapping[str, Speed]) -> list[str]:
    """Why cells that pass have no figure of that name, each reason once."""
    why: dict[str, list[tuple[str, Reason]]] = {}
    for speed in speeds.values():
        if speed.reason and not speed.lacks_verdict:
            why.setdefault(speed.reason.short, []).append((speed.cell, speed.reason))
    lines = []
    for short, cells in why.items():
        detail = cells[0][1].detail
        more = f" ({visible(detail)})" if detail else ""
        lines.append(f"· no {figure}, {visible(short)}: {some([cell for cell, _ in cells])}{more}")
    return lines


def wrap(text: str, width: int = WIDTH) -> str:
    """Paragraphs of at most so many columns, indented from their second line on."""
    fill = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(line, width, **fill) for line in text.split("\n"))  # type: ignore[arg-type]


def paint(text: str) -> str:
    r"""A report in colours: green what is right, red what is wrong, yellow what is as declared.

    >>> paint("✓ 0.10  ✗ norm 88  –")
    '\x1b[32m✓ 0.10\x1b[0m  \x1b[31m✗ norm 88\x1b[0m  \x1b[2m–\x1b[0m'
    """
    return MARKED.sub(lambda found: f"\x1b[{COLOURS[found[1]]}m{found[0]}\x1b[0m", text)


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """A table as plain text; "" if it has no rows."""
    return tabulate.tabulate(rows, head, tablefmt="simple", disable_numparse=True) if rows else ""


def markdown_table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    r"""A table that Markdown and people can read.

    >>> print(markdown_table([["a|b"]], ["name"]))
    | name   |
    |--------|
    | a\|b   |
    """
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return tabulate.tabulate(body, head, tablefmt="github", disable_numparse=True)


def escape(text: str) -> str:
    r"""Text in a cell of a Markdown table: it starts no column, no tag, no link and no emphasis.

    >>> escape("batch_gather <b> _x_")
    'batch_gather &#60;b&#62; &#95;x&#95;'
    """
    return MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", visible(text).replace("\\", "\\\\"))


def visible(text: str) -> str:
    r"""Text in which codes replace control and direction characters, so that a terminal cannot take it for a command.

    >>> visible("beep\a")
    'beep\\u0007'
    """
    if text.isprintable():  # which most are, and then this is quick
        return text
    return "".join(
        c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else f"\\u{ord(c):04x}" for c in text
    )


def printable(text: str) -> str:
    r"""A report as it may be printed: `visible`, but for its line breaks.

    >>> printable("beep\a\nbeep")
    'beep\\u0007\nbeep'
    """
    return "\n".join(map(visible, text.split("\n")))


def plain(text: str) -> str:
    r"""Text in ASCII: plain signs for the signs of the reports, codes for everything else.

    >>> plain("✓ 12 µs, é")
    '+ 12 us, \\xe9'
    """
    return text.translate(PLAIN).encode("ascii", "backslashreplace").decode("ascii")
