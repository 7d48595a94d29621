"""`conformance.check`: a model of one's own in one call."""

import json

import jsonschema
import pytest
import torch
from harness import own_models as nets
from harness.command import conformance, python
from harness.sources import ROOT

import conformance as public
from conformance.errors import UsageError
from conformance.evaluate import inputs
from conformance.evaluate.weights import fingerprint
from conformance.own import spec
from zoo import Call, Convention, Expect, Spec

pytestmark = pytest.mark.filterwarnings("ignore:Sparse ")  # torch warns of formats that are new

FAST = {"modes": "eager", "precisions": "fp32"}
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def report():
    """A report on a network in two modes."""
    return public.check(nets.Net().eval(), X, modes=("eager", "scripted"))


def test_a_report_on_two_modes_and_three_precisions_as_text_json_and_html(report):
    assert [cell.cell for cell in report.cells][:2] == ["net[eager-fp32-cpu]", "net[scripted-fp32-cpu]"]
    assert {cell.status for cell in report.cells} == {"PASS"}
    assert len(report.cells) == 6
    assert report.ok
    report.raise_if_failed()
    assert "the model is in eval mode, as it is" in report.assumed
    assert "assumed of net" in str(report)
    assert "run stored" not in str(report)
    assert repr(report) == "<Report on net: 6 cells, 0 red>"
    assert len(repr(report.cells)) < 60 * len(report.cells)
    drawn = report._repr_html_()
    assert drawn.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert len(drawn) < 50_000  # a notebook keeps every output
    assert "script" not in drawn.replace("scripted", "").replace("script-src", "")
    assert report.to_html().startswith("<!doctype html>")
    told = json.loads(report.to_json())
    jsonschema.validate(told, json.loads((ROOT / "docs" / "run.schema.json").read_text(encoding="utf-8")))
    assert told["ok"]
    assert [verdict["status"] for verdict in told["verdicts"]] == ["PASS"] * 6
    assert [row["margin"] for row in report.to_records()] == [cell.margin for cell in report.cells]


def test_a_written_report_is_a_run_folder(report, tmp_path):
    folder = report.write(tmp_path / "kept")
    code, output = conformance(tmp_path, "show", str(folder))
    assert code == 0, output
    with pytest.raises(UsageError, match="exists; name a folder that does not"):
        report.write(folder)


def test_the_same_model_has_its_reference_already(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = []
    for seed in (0, 0, 1):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = nets.Net().eval()
        (cell,) = public.check(net, X, **FAST).cells
        found.append("kept reference" in cell.observation.seconds)
    assert found == [False, True, False]


def test_a_custom_function_is_wrapped_for_scripting_and_a_wrong_operator_is_red_and_escaped():
    assert public.check(nets.Cube, X, 3.0, modes=("eager", "scripted"), precisions="fp32").ok
    red = public.check(nets.negate, X, **FAST)
    assert [cell.short for cell in red.cells] == ["opcheck"]
    assert any("no gradients, because backward raises" in line for line in red.assumed)
    with pytest.raises(public.NotConformingError, match="test_faketensor"):
        red.raise_if_failed()


def test_saved_models_have_their_own_modes(tmp_path):
    torch.jit.save(torch.jit.script(nets.Net()), tmp_path / "net.pt")
    scripted = public.check(tmp_path / "net.pt", X)
    assert {cell.cell.partition("[")[2].partition("-")[0] for cell in scripted.cells} == {"scripted"}
    assert scripted.ok
    torch.jit.save(torch.jit.freeze(torch.jit.script(nets.Net().eval())), tmp_path / "frozen.pt")
    assert public.check(tmp_path / "frozen.pt", X, precisions="fp32").ok
    assert public.check(torch.jit.trace(nets.Net(), X), X, precisions="fp32").ok
    exported = torch.export.export(nets.Net(), (X,))
    assert public.check(exported, X, **FAST).ok
    with pytest.raises(UsageError, match="TorchScript, without a spec"):
        public.check(tmp_path / "net.pt", X, modes="compiled")


def straight_through(x):
    return x + (torch.round(x * 8) / 8 - x).detach()


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return torch.round(x * 8) / 8

    @staticmethod
    def backward(_, gradient):
        return gradient


def test_what_forward_detaches_is_meant_and_a_gradient_that_is_no_derivative_by_design_is_declared():
    found = public.check(straight_through, X, **FAST)
    assert found.ok
    told = " ".join(str(found).split())
    assert "what forward detaches, or computes under no_grad, counts as a constant of its gradients" in told
    found = public.check(StraightThrough, X, **FAST)
    assert [cell.status for cell in found.cells] == ["INVALID"]
    assert 'Convention(tensor="x"' in str(found)
    declared = [Convention(tensor="*", why="straight-through estimator")]
    assert public.check(StraightThrough, X, **FAST, expect=declared).ok
    with pytest.raises(UsageError, match="expectations must be a tuple of Expect records, got"):
        public.check(StraightThrough, X, **FAST, expect=["nothing"])


def test_train_expect_and_keywords():
    expect = [Expect(outcome="FAIL", tensor="output", gate="norm", reason="a divergence that does not happen")]
    found = public.check(nets.Net, kwargs={"x": X}, train=False, expect=expect, modes="scripted", precisions="fp32")
    assert "the model is in eval mode, as asked" in found.assumed
    assert [cell.status for cell in found.cells] == ["STALE"]


SCRIPT = """
import torch, conformance
with open("ran", "a") as file:
    file.write("once ")
WIDTH = 4
TABLE = torch.arange(4.0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(x) + TABLE

report = conformance.check(Net(), torch.randn(3, 4), modes=("eager", "scripted"), precisions="fp32")
print(report.ok, *(cell.status for cell in report.cells))
"""


def printed(folder, source):
    """What a script prints, run in a folder."""
    (folder / "script.py").write_text(source)
    return python(folder, "script.py")


def test_a_script_without_a_guard_runs_once(tmp_path):
    assert "False PASS ERROR" in printed(tmp_path, SCRIPT)  # a script knows no global tensors
    assert (tmp_path / "ran").read_text() == "once "


START = """
import sys, torch, conformance
sys.addaudithook(lambda event, _: event == "subprocess.Popen" and print("conformance.own.capture" in sys.modules))
conformance.check(torch.nn.ReLU(), torch.randn(3), modes="eager", precisions="fp32")
"""


def test_the_fork_server_starts_before_this_process_imports_the_rest(tmp_path):
    assert printed(tmp_path, START).split()[0] == "False"


MODES = """
import torch
import conformance

def mine(graph, examples):
    return graph.forward

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)

def halved(model):
    return lambda x: model(x) / 2

for _ in range(2):  # a notebook's cell may run again
    conformance.register_backend("mine", mine)
conformance.register_mode("halved", halved, compiles=False)
report = conformance.check(Net(), torch.randn(3, 4), modes=("mine", "halved"), precisions="fp32")
print([(cell.cell, cell.status) for cell in report.cells])
report = conformance.check(Net(), torch.randn(3, 4), precisions="fp32")
print([cell.cell.partition("[")[2].partition("-")[0] for cell in report.cells])
for wrong in ({"modes": "mein"}, {"precisions": "fp31"}, {"device": "gpu"}):
    try:
        conformance.check(Net(), torch.randn(3, 4), **wrong)
    except conformance.UsageError as problem:
        print(problem)
conformance.register_mode("lambda_mode", lambda model: model, compiles=False)
try:
    conformance.check(Net(), torch.randn(3, 4))
except conformance.UsageError as problem:
    print(problem)
"""


def test_modes_that_a_script_registers_are_judged(tmp_path):
    lines = printed(tmp_path, f"import sys\nsys.modules['cloudpickle'] = None\n{MODES}").splitlines()
    assert lines[0] == "[('net[mine-fp32-cpu]', 'PASS'), ('net[halved-fp32-cpu]', 'FAIL')]"
    assert lines[1] == "['eager', 'scripted', 'compiled', 'mine', 'halved']"
    assert lines[2:4] == [
        "unknown mode 'mein'; did you mean mine?",
        "unknown precision 'fp31'; did you mean fp32, fp16?",
    ]
    assert lines[4].startswith("unknown device 'gpu'")
    assert lines[5].startswith("check: the mode 'lambda_mode' cannot be sent to another process: ")
    assert "at the top of a module, a script or a notebook's cell, or install cloudpickle" in lines[5]


NOTEBOOK = """
import linecache, sys
CELLS = [
    "import torch, conformance",
    "class Net(torch.nn.Module):\\n    def forward(self, x):\\n        return torch.sin(x)\\n",
    "report = conformance.check(Net(), torch.randn(3, 4), modes='scripted', precisions='fp32')",
    "print(report.ok)",
]
sys.modules["cloudpickle"] = None
main = sys.modules["__main__"]
del main.__file__
for number, cell in enumerate(CELLS):
    name = f"<cell {number}>"
    if {known}:
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), main.__dict__)
"""


def test_a_class_of_a_notebook_travels_by_its_source_and_is_refused_without(tmp_path):
    assert "True" in printed(tmp_path, NOTEBOOK.replace("{known}", "True"))
    assert "its source is not known" in printed(tmp_path, NOTEBOOK.replace("{known}", "False"))


def test_a_module_that_calls_check_when_it_is_imported(tmp_path):
    (tmp_path / "own.py").write_text("import conformance\ndouble = lambda x: 2 * x\nconformance.check(double, 1)\n")
    told = printed(tmp_path, "import conformance, torch\nconformance.check('own:double', torch.randn(2))\n")
    assert "check was called while a child process imported your module" in told


# Sparse tensors as inputs, and results that are no tensors.

ADJACENCY = torch.tensor([[0.5, 0.3, 0.1, 0.0, 0.0, 0.1]]).mul(torch.arange(1.0, 7.0)[:, None])


def repeated():
    """Return a matrix that is not coalesced: an index is there twice."""
    return torch.sparse_coo_tensor([[0, 0, 3], [1, 1, 2]], [0.25, 0.5, 1.0], (6, 6), check_invariants=True)


LAYOUTS = {
    "coo": ADJACENCY.to_sparse,
    "repeated": repeated,
    "csr": ADJACENCY.to_sparse_csr,
    "csc": ADJACENCY.to_sparse_csc,
    "bsr": lambda: ADJACENCY.to_sparse_bsr((2, 2)),
    "bsc": lambda: ADJACENCY.to_sparse_bsc((2, 2)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_values_of_a_sparse_tensor_are_converted(layout):
    sparse = LAYOUTS[layout]()
    placed = inputs.place(Call((sparse, sparse), {}), lambda values: values.double() * 2).args
    assert placed[0] is placed[1]
    assert (placed[0].layout, placed[0].dtype) == (sparse.layout, torch.float64)
    assert torch.equal(placed[0].to_dense(), sparse.to_dense().double() * 2)


@pytest.mark.parametrize("layout", ["coo", "repeated", "csr"])
def test_a_graph_convolution_is_judged(layout):
    report = public.check(nets.Graph(), X, LAYOUTS[layout](), modes=("eager", "scripted"), precisions="fp32")
    assert [cell.status for cell in report.cells] == ["PASS", "ERROR"]  # scripts know no distributions
    assert "results that are no tensors are left aside: " in str(report)
    assert "(Normal)" in str(report)


def normal(x):
    """Return a distribution alone."""
    return torch.distributions.Normal(x, 1.0)


def test_a_model_that_returns_no_tensor_is_refused():
    with pytest.raises(UsageError, match=r"normal: output is of type Normal; a model returns tensors"):
        public.check(normal, X, modes="eager")


def test_the_values_and_places_of_a_sparse_input_tell_references_apart():
    others = [repeated(), repeated() * 2, repeated().t().coalesce().to_sparse()]
    specs = [
        Spec(name="graph", summary="", source="", build=nets.Graph, cases=(spec.case_of(Call((X, matrix), {})),))
        for matrix in others
    ]
    assert len({fingerprint(spec, 0, spec.build().apply(constant)) for spec in specs}) == 3


def constant(module):
    """Fill the parameters of a module with one number."""
    for parameter in module.parameters(recurse=False):
        torch.nn.init.constant_(parameter, 0.5)
