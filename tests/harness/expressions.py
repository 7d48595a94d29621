"""The part of GitHub's expressions that our workflows use."""

import json
import re

HOLE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[A-Za-z_][\w-]*(?:\.[\w-]+)*|&&|\|\||==|!=|[!(),])")
WORDS = {"&&": " and ", "||": " or ", "!": " not "}


def filled(text, contexts):
    """A text with each `${{ }}` replaced by its value."""
    return HOLE.sub(lambda hole: shown(evaluated(hole[1], contexts)), text)


def shown(value):
    """A value as GitHub writes it into a text."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def evaluated(expression, contexts):
    """The value of an expression.

    Args:
        expression: the text between the braces.
        contexts: `github`, `matrix`, `steps` and so on, and the functions, such as `cancelled`.
    """
    text = HOLE.sub(lambda hole: hole[1], expression)
    assert not TOKEN.sub("", text).strip(), f"this is no expression: {expression}"
    return eval("".join(_python(token) for token in TOKEN.findall(text)), {"looked_up": _lookup(contexts)})


def _python(token):
    if token.startswith("'"):
        return repr(token[1:-1].replace("''", "'"))
    if re.match(r"[A-Za-z_]", token):
        return f"looked_up({token!r})"
    return WORDS.get(token, token)


def _lookup(contexts):
    def looked_up(path):
        found = contexts
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return "" if found is None else found  # as GitHub compares: nothing equals the empty text

    return looked_up
