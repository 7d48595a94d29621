"""What a command cannot do: exit code 4 or 5, one line that names the fault, and no run folder left behind."""

import pytest
from harness.command import FP32, conformance, run_folder

from conformance import __version__, cli
from conformance.errors import ExitCode, UsageError

NETS = """
import torch
from zoo import Case, Spec

CASE = Case(name="typical", inputs=lambda g: (torch.randn(4, 3, generator=g),))
DOUBLING = Spec(name="doubling", summary="s", source="a test", build=lambda: lambda x: x * 2, cases=(CASE,))
"""


@pytest.fixture
def nets(tmp_path):
    """A folder with a file of one model."""
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def stored_runs(folder):
    return list((folder / ".conformance" / "runs").glob("*"))


def check_usage(folder, arguments, message):
    """The command ends with 4 and one line that has the message, and stores nothing."""
    code, output = conformance(folder, *arguments)
    assert code == ExitCode.USAGE, output
    assert message in output
    assert output.startswith("conformance: ")
    assert len(output.splitlines()) == 1
    assert stored_runs(folder) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "merg"), "conformance: no model named 'merg'; did you mean merge"),
        (("run", "none.py"), "conformance: no file none.py"),
        (("run", "merge", "--mode", "compield"), "conformance: unknown mode 'compield'; did you mean compiled?"),
        (("run", "merge", "--mode", "xyz"), "conformance: unknown mode 'xyz'; known: eager"),
        (("run", "merge", "--device", "tpu"), "conformance: unknown device 'tpu'; did you mean cpu?"),
        (("probes", "double_forward"), "no probe named 'double_forward'; did you mean double_backward"),
    ],
)
def test_what_cannot_be_done_is_four_in_one_line(tmp_path, arguments, message):
    check_usage(tmp_path, arguments, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND; conformance --help lists the options"),
        (("frobnicate",), "unknown command 'frobnicate'; known: run, bench"),
        (("check", "merge"), "unknown command 'check'; did you mean run?"),
        (("mrege", "a"), "unknown command 'mrege'; did you mean merge?"),
        (("expect", "recrd", "a", "b"), "unknown action 'recrd'; did you mean record?"),
        (("run", "--seed", "x"), "807, got 'x'; conformance run --help lists the options"),
        (("run", "--seed=-1"), "argument --seed: want a whole number from 0 to 9223372036854775807, got '-1'"),
        (("run", f"--seed={2**63}"), "argument --seed: want a whole number from 0 to 9223372036854775807, got '92"),
        (("run", "--timeout=soon"), "argument --timeout: want a number of seconds above 0, at most 1e+07, got 'soon'"),
        (("run", "--timeout=nan"), "argument --timeout: want a number of seconds above 0, at most 1e+07, got 'nan'"),
        (("bench", "--timeout=-1"), "argument --timeout: want a number of seconds above 0, at most 1e+07, got '-1'"),
        (("probes", "--timeout=inf"), "argument --timeout: want a number of seconds above 0, at most 1e+07, got 'inf'"),
        (("run", "-n", "-1"), "argument -n: want a number of processes from 0 to 1024, got '-1'"),
        (("run", "-n", "x"), "argument -n: want a number of processes from 0 to 1024, got 'x'"),
        (("run", "-n", "1e9"), "argument -n: want a number of processes from 0 to 1024, got '1e9'"),
        (("run", "-p"), "argument -p: expected one argument"),
        (("run", "--mode"), "argument --mode: expected one argument"),
        (("show",), "the following arguments are required: run; conformance show --help lists the options"),
        (("run", "--resume", "nowhere"), "is no run folder: it has no plan.json"),
        (("show", "nowhere"), "is no run folder: it has no plan.json"),
        (("run", "--mode=eager", "--resume", "nowhere"), "leave out axes"),
        (("run", "--every-tensor", "--resume", "nowhere"), "leave out --every-tensor"),
        (("run", "--full", "--resume", "nowhere"), "leave out --full"),
        (("run", "--strict", "--resume", "nowhere"), "leave out --strict"),
        (("probes", "--mode=eager"), "probes: unknown option --mode=eager"),
        (("show", "nowhere", "-k", "merge"), "show: unknown option -k"),
        (("probes", "--devce=cpu"), "probes: unknown option --devce=cpu; did you mean --device?"),
        (("run", "--shard=3"), "argument --shard: want a shard such as 1/4, got '3'"),
        (("run", "--shard=a/b"), "argument --shard: want a shard such as 1/4, got 'a/b'"),
        (("run", "--shard=1/2/3"), "argument --shard: want a shard such as 1/4, got '1/2/3'"),
        (("run", "--shard=0/4"), "argument --shard: want a shard such as 1/4, got '0/4'"),
        (("run", "--shard=5/4"), "argument --shard: want a shard such as 1/4, got '5/4'"),
        (("run", "--shard=1/99999999"), "argument --shard: want a shard such as 1/4"),
        (("run", "--shard=1/2", "-k", "x"), "it does not take -k"),
        (("run", "--shard=1/2", "--resume", "x"), "it does not take --resume"),
        (("run", "--balance=x"), "--balance is about shards, and there is no --shard"),
        (("merge", "a"), "the following arguments are required: --into"),
        (("merge", "--into", "a"), "the following arguments are required: RUN"),
        (("merge", "nowhere", "--into", "a"), "nowhere is no run folder: it has no plan.json"),
        (("diff", "a"), "the following arguments are required: B"),
        (("diff", "a", "b", "--jsn=x"), "diff: unknown option --jsn=x; did you mean --json?"),
        (("compat",), "the following arguments are required: RUN"),
    ],
)
def test_what_cannot_be_read_is_four_in_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(list(arguments)) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.startswith("conformance: ")
    assert message in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_ends_the_planning_process_is_four_with_the_ending(nets):
    (nets / "nets.py").write_text("import os\nos._exit(3)\n")
    check_usage(nets, ("run", "nets.py"), "conformance: planning nets.py: left with exit code 3 and no answer")
    check_usage(nets, ("list", "nets.py"), "conformance: reading the models: left with exit code 3 and no answer")


def test_a_device_that_is_absent_and_was_asked_for_is_four(tmp_path):
    code, output = conformance(tmp_path, "run", "merge", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert code == ExitCode.USAGE
    assert "device 'cuda' was asked for, but torch sees no CUDA device" in output


def test_a_mistyped_option_names_its_neighbour_and_leaves_no_run(nets):
    code, output = conformance(nets, "run", "nets.py", *FP32, "--modee=eager")
    assert code == ExitCode.USAGE, output
    assert output == "conformance: unknown option --modee=eager; did you mean --mode, --device, --seed?\n"
    assert stored_runs(nets) == []


def test_an_option_of_pytest_is_passed_on(nets):
    code, output = conformance(nets, "run", "nets.py", *FP32, "-n", "1", "--durations=1", "--durations-min=0")
    assert code == ExitCode.OK, output
    assert "slowest 1 durations" in output


def test_a_choice_of_nothing_is_five_and_one_that_cannot_be_read_is_four_and_neither_leaves_a_run(nets):
    code, output = conformance(nets, "run", "nets.py", *FP32, "-n", "1", "-k", "nobody")
    assert code == ExitCode.NOTHING_SELECTED, output
    assert output.splitlines()[-1] == "conformance: no cell is selected by -k 'nobody'"
    assert stored_runs(nets) == []
    code, output = conformance(nets, "run", "nets.py", *FP32, "-n", "1", "-k", "and and")
    assert code == ExitCode.USAGE, output
    assert stored_runs(nets) == []


def test_a_resumed_run_stays_whatever_is_chosen_from_it(nets):
    code, output = conformance(nets, "run", "nets.py", *FP32, "-n", "1", "--collect-only")
    assert code == ExitCode.RED, output  # nothing was judged
    (stored,) = stored_runs(nets)
    assert run_folder(output) == stored
    code, output = conformance(nets, "run", "nets.py", "--resume", str(stored), "-n", "1", "-k", "nobody")
    assert code == ExitCode.NOTHING_SELECTED, output
    code, output = conformance(nets, "run", "nets.py", "--resume", str(stored), "-n", "1", "--modee=eager")
    assert code == ExitCode.USAGE, output
    code, output = conformance(nets, "run", "nets.py", "--resume", str(stored), "-n", "1")
    assert code == ExitCode.OK, output
    assert "1 cell: 1 pass" in output


def test_the_device_that_torchs_libraries_read_is_the_default(monkeypatch):
    def devices(*words):
        return cli._request(cli.parser().parse_args(["run", "merge", *words])).devices

    assert devices() == ()
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    assert devices() == ("cpu",)
    assert devices("--device=cuda") == ("cuda",)
    assert devices("--resume=a") == ()  # its cells are known
    monkeypatch.setenv("TORCH_DEVICE", "tpu")
    with pytest.raises(UsageError, match=r"^TORCH_DEVICE: unknown device 'tpu'; did you mean cpu\?$"):
        devices()
    assert cli.main(["probes"]) == ExitCode.USAGE


def test_version_and_help_are_no_errors(tmp_path):
    assert conformance(tmp_path, "--version") == (0, f"conformance {__version__}\n")
    code, output = conformance(tmp_path, "run", "--help")
    assert code == ExitCode.OK
    assert "--fresh" in output


def test_exit_codes_are_those_of_pytest():
    names = ("OK", "TESTS_FAILED", "INTERRUPTED", "INTERNAL_ERROR", "USAGE_ERROR", "NO_TESTS_COLLECTED")
    assert [int(pytest.ExitCode[name]) for name in names] == [int(code) for code in ExitCode]
