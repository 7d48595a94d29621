"""The specs under `tests/specs` that a run judges, and the verdicts that they must get.

Each folder's files are sources of one run: they name each other's models and modes.
"""

from harness.plans import material

MINIATURE_FILES = tuple(
    f"miniatures/{name}.py"
    for name in """
    values conduct side_effects random_numbers returned staleness replacements transforms refusals
    self_checks endings untrue_specs expectations askings
    """.split()
)
CORRECT_FILES = tuple(
    f"correct_models/{name}.py"
    for name in """
    casts_and_gradients conduct inputs networks low_precisions random_numbers transforms
    self_checks resampling ties tables_and_parts
    """.split()
)

MINIATURES = tuple(case for file in MINIATURE_FILES for case in material(file).MINIATURES)
HANGING = tuple(case for file in MINIATURE_FILES for case in getattr(material(file), "HANGING", ()))
GRANDCHILD = material("miniatures/endings.py").GRANDCHILD
CORRECT_CELLS = tuple(cell for file in CORRECT_FILES for cell in material(file).CELLS)
