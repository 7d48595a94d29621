"""Child process: makes the reference of a model, before any of its cells runs."""

from pathlib import Path

import torch

from conformance.axes import PRECISIONS
from conformance.cache import sources
from conformance.errors import NoOracleError, RandomError, SelfCheckError
from conformance.evaluate.error_text import is_machine_failure, is_out_of_memory, one_line
from conformance.evaluate.weights import fingerprint
from conformance.float64 import wide
from conformance.one_line import name_of
from conformance.oracle import reference, reference_file
from conformance.plan.find import spec_at
from conformance.process import machine_lock
from conformance.process.child_side import ChildProcess, keep_freed_memory
from conformance.process.forks import Forks
from conformance.records.tasks import ReferenceResult, ReferenceTask
from zoo.case import SpecError

RAISED = "the model raises this in eager, in float64; call it so yourself, as in model.double()"


def make(task: ReferenceTask, process: ChildProcess) -> ReferenceResult:  # noqa: PLR0911 -- one for each ending
    """Write the reference of a model to a file. An exception becomes the ending of the result."""
    process.enter("reference")
    with process.shared():
        torch.set_num_threads(1)
        keep_freed_memory()
        try:
            with sources.note_files() as paths, sources.note_variables() as names:
                spec = spec_at(task.location, task.model)
                twin = spec_at(task.location, spec.twin) if spec.twin else None
                precisions = [PRECISIONS[name] for name in task.precisions]
                forks = Forks(machine_lock.idle, process.give_way)
                if task.for_timing:
                    made = reference.make_for_timing(spec, task.seed, precisions, forks)
                else:
                    made = reference.make(spec, twin, task.seed, precisions, forks)
                print_of_model = fingerprint(spec, task.seed, wide.prepared_model(spec, task.seed))
                files = sources.contents_of_files(paths) | sources.digests_of_imported()
                variables = sources.contents_of_variables(names)
        except (SelfCheckError, SpecError) as problem:
            return ReferenceResult("invalid", one_line(problem))
        except RandomError as problem:
            return ReferenceResult("random", one_line(problem))
        except NoOracleError as problem:
            return ReferenceResult("no oracle", one_line(problem))
        except Exception as problem:  # noqa: BLE001 -- the model's own code may raise anything
            ending = "out of memory" if is_out_of_memory(problem) else "invalid"
            ending = "machine failed" if is_machine_failure(problem) else ending
            where = f"; {RAISED}" if ending == "invalid" else ""
            return ReferenceResult(ending, f"{name_of(problem)}: {one_line(problem)}{where}")
        except BaseException as problem:  # noqa: BLE001 -- KeyboardInterrupt and the like say nothing about the spec
            return ReferenceResult("raised", f"{name_of(problem)}: {one_line(problem)}")
        try:
            reference_file.save(Path(task.path), made)
        except OSError as problem:
            return ReferenceResult("machine failed", f"{task.path} could not be written: {one_line(problem)}")
    return ReferenceResult("ok", files=files, variables=variables, fingerprint=print_of_model)
