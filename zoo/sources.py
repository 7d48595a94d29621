"""The texts that the zoo's models come from: title and address for each name that a `Spec.source` uses."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.arguments import want_string
from zoo.case import SpecError


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

    def __post_init__(self) -> None:
        for field, value in vars(self).items():
            if not isinstance(value, str):
                raise SpecError(f"source: {field} must be a string, got {value!r}")


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
    "arXiv:1607.06450": Source(
        "Layer Normalization, Ba, Kiros and Hinton 2016",
        "https://arxiv.org/abs/1607.06450",
    ),
    "arXiv:1910.07467": Source(
        "Root Mean Square Layer Normalization, Zhang and Sennrich 2019",
        "https://arxiv.org/abs/1910.07467",
    ),
    "arXiv:2104.09864": Source(
        "RoFormer: Enhanced Transformer with Rotary Position Embedding, Su et al. 2021",
        "https://arxiv.org/abs/2104.09864",
    ),
    "arXiv:1706.03762": Source(
        "Attention Is All You Need, Vaswani et al. 2017",
        "https://arxiv.org/abs/1706.03762",
    ),
    "arXiv:1608.05859": Source(
        "Using the Output Embedding to Improve Language Models, Press and Wolf 2017",
        "https://arxiv.org/abs/1608.05859",
    ),
    "arXiv:2302.13971": Source(
        "LLaMA: Open and Efficient Foundation Language Models, Touvron et al. 2023",
        "https://arxiv.org/abs/2302.13971",
    ),
}


def cited(text: str) -> dict[str, Source]:
    """Return the known sources that a `Spec.source` names, by the name it uses, in the order of the text.

    Args:
        text: the source of a spec.

    Raises:
        TypeError: `text` is no string.

    >>> list(cited("Effective PyTorch, numerical stability; articles on automatic mixed precision"))
    ['Effective PyTorch', 'articles on automatic mixed precision']
    >>> cited("dropout written by hand")
    {}
    """
    want_string("cited", text=text)
    return {name: SOURCES[name] for name in sorted(SOURCES, key=text.find) if name in text}
