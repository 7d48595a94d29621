"""The record of a model without a spec: how any process gets it, the inputs to try, and what was found out about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from conformance.records.limits import OneOf

LONGEST = 60  # characters of a name that is made of another text
TRAINING = {None: "", True: "train", False: "eval"}  # the words for an argument `train`


@dataclass(frozen=True)
class OwnModel:
    """A model without a spec, as any process can get it.

    Attributes:
        name: name of the model in the run.
        thing: its name in the module or file of its location, such as "Net"; "" if it is saved, or of a library.
        saved: absolute path of a saved model; "" if it is none.
        library: the name of an architecture of a library, such as "timm:convnext_atto"; "" if it is none.
        inputs: the inputs as a person describes them, such as "2,3,64,64"; see `own.spec`. Empty if `call` has
            them, or for those that fit the architecture of a library.
        call: path of the file with the arguments of one call, and with the declared divergences; "" if `inputs`
            describes them.
        definitions: path of the file with what a saved model needs of the caller's main module; "" for nothing.
        training: the mode to put it into, "train" or "eval"; "" for its own.
        without: the built-in modes and precisions that it does not exist in.
        dtype: the narrowest dtype of its floating parameters, or of its inputs if it has none.
        differentiable: whether it has gradients.
        constants: names of the inputs that get no gradient.
        mutates: names of the inputs and parameters that it changes.
        changes_state: what else its call changes, in words of `zoo.states.STATES`.
    """

    name: str = ""
    thing: str = ""
    saved: str = ""
    library: str = ""
    inputs: tuple[str, ...] = ()
    call: str = ""
    definitions: str = ""
    training: Annotated[str, OneOf(("", "train", "eval"))] = ""
    without: tuple[str, ...] = ()
    dtype: Annotated[str, OneOf(("float32", "float16", "bfloat16"))] = "float32"
    differentiable: bool = True
    constants: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    changes_state: tuple[str, ...] = ()


NOTHING_GIVEN = OwnModel()


def name_from(text: str) -> str:
    """The name of a model that a person calls otherwise: lower-case letters, digits and "_".

    >>> name_from("ResNet18"), name_from("my-net.v2"), name_from("3d")
    ('res_net18', 'my_net_v2', 'model_3d')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    name = re.sub(r"[^a-z0-9]+", "_", words)[:LONGEST].strip("_")
    return name if name[:1].isalpha() else f"model_{name}".strip("_")
