"""Words on one line: any text and any exception, bounded, so that every file and terminal can hold it; and counts.

A model may raise what it likes: a text of 10 MB, half of a surrogate pair, escape sequences, or an exception that
cannot say what it is.
"""

from collections.abc import Sequence

HEAD, TAIL = 120, 280  # TorchScript puts the cause at the end of a long traceback
FIRST_LOOK = 2**16  # characters of each end of a text that are looked at
NAME_LENGTH = 80


def one_line(said: object, length: int = HEAD + TAIL) -> str:
    r"""The text of a value on one line, with every sign escaped that is not printable. A long one loses its middle.

    Args:
        said: a text, an exception, or anything else; `str` of it may raise.
        length: the most characters of the line.

    >>> one_line(ValueError("no\nline\x1b[31m \ud800")), one_line("abcdefghijkl", 10)
    ('no line\\x1b[31m \\ud800', 'ab … hijkl')
    """
    if type(said) is str and len(said) <= length and said.isprintable():
        return said
    line = " ".join(text_of(said).split())
    line = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)
    if len(line) <= length:
        return line
    head = length * HEAD // (HEAD + TAIL) - 1
    return f"{line[:head]} … {line[len(line) - (length - head - 3) :]}"


def describe_error(problem: BaseException) -> str:
    """The type of an exception and its text, on one line.

    >>> describe_error(KeyError("x"))
    "KeyError: 'x'"
    """
    text = one_line(problem)
    return f"{name_of(problem)}: {text}" if text else name_of(problem)


def name_of(problem: BaseException) -> str:
    """The name of an exception's type, on one line."""
    return one_line(type.__dict__["__name__"].__get__(type(problem)), NAME_LENGTH)


def text_of(said: object, most: int = FIRST_LOOK) -> str:
    """The text of a value, without the middle of a very long one; if `str` raises, what it raises."""
    try:
        text = said if type(said) is str else str.__str__(str(said))
    except BaseException as fault:  # noqa: BLE001 -- `str` runs the model's code
        return f"(its text raises {name_of(fault)})"
    return text if len(text) <= 2 * most else f"{text[:most]} … {text[-most:]}"


def counted(number: int, what: str) -> str:
    """A number and its noun, in the plural unless it is one.

    >>> counted(1, "cell"), counted(0, "cell")
    ('1 cell', '0 cells')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def some(names: Sequence[str], most: int = 1) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c"]), some(["a", "b", "c"], 2), some(["a"])
    ('a and 2 more', 'a, b and 1 more', 'a')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
