"""The texts that the zoo's models come from: title and address for each name that a `Spec.source` uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One text.

    Attributes:
        title: its title, with its author if the text is a person's.
        url: its address.

    >>> Source("PyTorch documentation", "https://docs.pytorch.org/docs/stable/index.html").title
    'PyTorch documentation'
    """

    title: str
    url: str


TUTORIALS = "https://docs.pytorch.org/tutorials/intermediate"

SOURCES = {
    "Effective PyTorch": Source("Effective PyTorch, Vahid Kazemi", "https://github.com/vahidk/EffectivePyTorch"),
    "Double backward with custom functions": Source(
        "Double Backward with Custom Functions, PyTorch tutorials",
        f"{TUTORIALS}/custom_function_double_backward_tutorial.html",
    ),
    "Fusing convolution and batch norm": Source(
        "Fusing Convolution and Batch Norm using Custom Function, PyTorch tutorials",
        f"{TUTORIALS}/custom_function_conv_bn_tutorial.html",
    ),
    # The articles have no title of record. This is the documentation that they retell.
    "articles on automatic mixed precision": Source(
        "Automatic Mixed Precision package, torch.amp, PyTorch documentation",
        "https://docs.pytorch.org/docs/stable/amp.html",
    ),
    "PyTorch documentation": Source("PyTorch documentation", "https://docs.pytorch.org/docs/stable/index.html"),
    "PyTorch 2.0 announcement": Source("PyTorch 2.0", "https://pytorch.org/get-started/pytorch-2.0/"),
}


def cited(text: str) -> dict[str, Source]:
    """Return the known sources that a `Spec.source` names, by the name it uses, in the order of the text.

    Args:
        text: the source of a spec.

    >>> list(cited("Effective PyTorch, numerical stability; articles on automatic mixed precision"))
    ['Effective PyTorch', 'articles on automatic mixed precision']
    >>> cited("dropout written by hand")
    {}
    """
    return {name: SOURCES[name] for name in sorted(SOURCES, key=text.find) if name in text}
