"""A file of specs that make claims, for tests that write it."""

SPECS = """
import torch
from zoo.case import Case
from zoo.claim import Claim
from zoo.scale import Scale
from zoo.spec import Spec

def draw(n, generator):
    return (torch.randn(n, 4, generator=generator),)

def repeated(times):
    def model(x):
        for _ in range(times):
            x = x.sin()
        return x
    return model

def spec(name, model, **more):
    scale = Scale(size_name="rows", sizes=(64,), build=lambda n: model, inputs=draw)
    case = Case(name="typical", inputs=lambda g: draw(8, g))
    return Spec(
        name=name, summary="s", source="s", build=lambda: model, cases=(case,), dtypes="input",
        **({"scale": scale} | more),
    )

def claim(text, factor, **more):
    return Claim(**({"text": text, "source": "a post", "factor": factor, "quantity": "forward", "baseline": "many"}
                    | more))
"""
TRUE_AND_FALSE = (
    SPECS
    + """
FEW = spec("few", repeated(8), claims=(  # two would be too fast to time on a busy machine
    claim("true", 2.0),
    claim("boasting", 1000.0),
    claim("counted", 2.0, quantity="saved"),
    claim("elsewhere", 2.0, device="cuda"),
))
MANY = spec("many", repeated(141), claims=(claim("upside down", 2.0, baseline="few"),))
"""
)
