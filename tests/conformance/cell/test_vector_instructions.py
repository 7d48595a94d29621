"""Vector instructions that one process has found to work are not looked for by the next one."""

import pytest
from harness.processes import printed

LIST = """
import json
from conformance.cell import compiler
from zoo import internals

looked, check = [], getattr(internals.Instructions, "check_build", None)

def counted(instructions, program):
    looked.append(str(instructions))
    return {answer}

if check is not None:
    internals.Instructions.check_build = counted
compiler.find_instructions()
print(json.dumps([[str(one) for one in internals.find_instructions()], looked]))
"""


@pytest.fixture(name="found")
def _found(tmp_path):
    """What a fresh process finds, and what it had to look for, if torch answers so."""

    def found(answer):
        return printed(LIST.format(answer=answer), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))

    return found


def test_what_works_is_noted_and_what_fails_is_tried_again(found):
    instructions, looked = found("False")
    if not looked:
        pytest.skip("torch tries no instructions on this processor, or compiles the trial by itself")
    assert instructions == []
    works, looked_again = found("check(instructions, program)")
    assert looked_again[0] == looked[0]
    assert works, "the compiler of this machine makes no vector instructions"
    assert found("False")[0] == works
