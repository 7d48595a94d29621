"""A chain of matrix products: the second and third are of numbers that TF32 does not hold, as its gradients are."""

import torch

from zoo import Case, Spec


def three_products(x, y, z):
    return ((x @ y) @ z) @ x


def _squares(generator):
    return tuple(torch.randn(16, 16, generator=generator) for _ in range(3))


SPEC = Spec(
    name="three_products",
    summary="x y z x",
    source="here",
    build=lambda: three_products,
    cases=(Case(name="typical", inputs=_squares),),
    dtypes="follows",
)
