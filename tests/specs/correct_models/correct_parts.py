"""What the files of correct models share. This file is no source of a run; the sources beside it import it."""

from __future__ import annotations

from typing import Any

import torch

from zoo import Case, Expect, Spec

PRECISIONS = ("fp32", "amp_fp16", "amp_bf16")
Cells = list[tuple[str, str, str]]


def rows(*shape: int, name: str = "typical", rowwise: bool = False) -> Case:
    return Case(name=name, inputs=lambda g: (torch.randn(*shape, generator=g),), independent_samples=rowwise)


def drawn(draw: Any) -> Case:
    return Case(name="typical", inputs=draw)


def green(
    cells: Cells,
    name: str,
    build: Any,
    *cases: Case,
    precisions: tuple[str, ...] = PRECISIONS,
    also: dict[str, tuple[str, ...]] | None = None,
    **fields: Any,
) -> Spec:
    """Make a spec and note its cells: eager in `precisions`, other modes as `also` says; compiling takes long."""
    for mode, chosen in {"eager": precisions, **(also or {})}.items():
        cells.extend((name, mode, precision) for precision in chosen)
    cases = cases or (rows(6, 8),)
    return Spec(name=name, summary=name, source="a right model", build=build, cases=cases, **fields)


def function(function: Any) -> Any:
    return lambda: function


def scripted_dtype(precision: str, dtype: str) -> Expect:
    return Expect(
        outcome="dtype",
        modes=("scripted",),
        precisions=(precision,),
        tensor="output",
        dtype=dtype,
        reason="TorchScript's autocast pass has rules of its own",
    )
