"""`nox -s matrix` and its relatives: the torch that is judged is the torch asked for, or one line says why not."""

import pytest
from harness import wheels

from conformance.torch_versions import PYTHONS, VERSIONS

BACKENDS = ("uv", "venv")


def last_line(output):
    """The line with which a session ends that does not do what was asked."""
    return next(line for line in output.splitlines() if line.startswith("nox > Session") and "aborted" in line)


def test_each_version_is_a_session_with_an_id_and_a_tag(project):
    code, output = project.nox("--list", "--tags", "matrix")
    assert code == 0
    listed = [line.split(" ")[1] for line in output.splitlines() if line.startswith("* ")]
    assert listed == [*(f"matrix({version})" for version in VERSIONS), f"matrix(python{PYTHONS[-1]}-{VERSIONS[-1]})"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_version_is_judged_and_probed_in_an_environment_that_is_then_removed(project, backend):
    code, output = project.nox("-s", "matrix(2.6.0)", backend=backend)
    assert code == 0, output
    assert output.count("torch is the torch asked for, 2.6.0") == 2
    assert (project.runs, project.environments) == (["2.6.0"], [])
    assert "conformance run --no-speed" in (project.folder / ".conformance/matrix/2.6.0/arguments").read_text()
    assert "judge: probes --write=.conformance/matrix/2.6.0/probes.json" in output


def test_asked_to_keep_it_nox_keeps_the_environment(project):
    assert project.nox("-r", "-s", "matrix(2.6.0)")[0] == 0
    assert project.environments == ["matrix-2-6-0"]
    code, output = project.nox("-r", "-s", "matrix(2.6.0)")
    assert (code, "existing virtual environment at .nox/matrix-2-6-0" in output) == (0, True), output


def test_shards_and_named_models_have_places_of_their_own_and_the_first_shard_probes(project):
    first = project.nox("-r", "-s", "matrix(2.6.0)", "--", "--shard=1/2")
    second = project.nox("-r", "-s", "matrix(2.6.0)", "--", "--shard=2/2")
    named = project.nox("-r", "-s", "matrix(2.6.0)", "--", "merge")
    assert [code for code, _ in (first, second, named)] == [0, 0, 0]
    assert project.runs == ["2.6.0", "2.6.0-1-of-2", "2.6.0-2-of-2"]
    assert ["judge: probes" in output for _, output in (first, second, named)] == [True, False, False]


def test_a_red_run_is_kept_and_probed_and_fails_the_session(project):
    code, output = project.nox("-s", "matrix(2.6.0)", JUDGE_CODE="1")
    assert (code, project.runs, "judge: probes" in output) == (1, ["2.6.0"], True)
    assert "2.6.0: not everything is as declared" in last_line(output)


def test_a_run_that_does_not_come_about_ends_the_session(project):
    code, output = project.nox("-s", "matrix(2.6.0)", JUDGE_CODE="4")
    assert (code, "judge: probes" in output, project.environments) == (1, False, [])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_version_that_does_not_exist_is_one_line(project, backend):
    code, output = project.nox("-s", "conformance", "--", "--torch=9.9.9", backend=backend)
    assert code == 1
    assert "torch==9.9.9 cannot be installed with Python" in last_line(output)
    assert {"uv": "no version of torch==9.9.9", "venv": "from versions: 2.4.1, 2.6.0, 2.13.0"}[backend] in output


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_version_without_a_wheel_for_this_python_is_one_line(project, backend):
    wheels.torch(project.packages, "2.8.0", tag="cp38-cp38-manylinux_2_17_x86_64")
    code, output = project.nox("-s", "matrix(2.8.0)", backend=backend)
    assert (code, project.runs, project.environments) == (1, [], [])
    assert "torch==2.8.0 cannot be installed with Python" in last_line(output)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_version_that_fails_to_install_is_one_line(project, backend):
    wheels.broken_sources(project.packages, "torch", "2.8.0")
    code, output = project.nox("-s", "matrix(2.8.0)", backend=backend)
    assert (code, project.runs, project.environments) == (1, [], [])
    assert "torch==2.8.0 cannot be installed with Python" in last_line(output)
    assert "the sources of this package do not build" in output


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_package_that_moves_torch_is_named(project, backend):
    wheels.wheel(project.packages, "mover", "1.0", requires=["torch>=2.13"])
    wheels.wheel(project.packages, "bystander", "1.0", requires=["torch>=2.4", 'torch<2; extra == "old"'])
    project.requires("torch>=2.4", "mover", "bystander")
    code, output = project.nox("-s", "matrix(2.6.0)", backend=backend)
    assert (code, project.runs) == (1, [])
    moved = "torch 2.6.0 was asked for, and 2.13.0 is installed: mover 1.0 requires torch>=2.13"
    assert moved in last_line(output)


def test_a_torch_that_hides_the_installed_one_is_named(project):
    hidden = project.folder.parent / "elsewhere"
    hidden.mkdir()
    (hidden / "torch.py").write_text('__version__ = "2.9.1"')
    code, output = project.nox("-s", "matrix(2.6.0)", PYTHONPATH=str(hidden))
    assert code == 1
    assert f"torch 2.6.0 is installed, but Python imports 2.9.1 from {hidden / 'torch.py'}" in last_line(output)


def test_a_torch_that_cannot_be_imported_is_said(project):
    wheels.wheel(project.packages, "torch", "2.8.0", modules={"torch": 'raise OSError("libgomp.so.1 is missing")'})
    code, output = project.nox("-s", "matrix(2.8.0)")
    assert code == 1
    assert "torch 2.8.0 is installed, and its import fails: OSError: libgomp.so.1 is missing" in last_line(output)


def test_what_is_no_version_is_said(project):
    code, output = project.nox("-s", "conformance", "--", "--torch=latest")
    assert (code, "torch 'latest': want a version" in last_line(output)) == (1, True)


def test_the_lowest_version_of_every_dependency_is_what_is_judged(project):
    for version in ("3.0", "4.0"):
        wheels.wheel(project.packages, "tool", version)
    project.requires("torch>=2.6", "tool>=3,<5")
    code, output = project.nox("-s", "minimums")
    assert (code, project.runs) == (0, ["minimums"]), output
    assert "torch is the torch asked for, 2.6" in output
    assert "tool==3" in output


def test_the_newest_version_is_judged_and_stays(project):
    code, output = project.nox("-s", "newest")
    assert (code, project.runs) == (0, ["newest"]), output
    assert "torch is the torch asked for, 2.13.0" in output


def index(folder, *files):
    """A package index on disk with files of torch; returns its address."""
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    links = "".join(f'<a href="{file}">{file}</a>' for file in files)
    (folder / "torch" / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return folder.as_uri()


@pytest.mark.parametrize(
    ("version", "code", "told"),
    [
        ("2.16.0.dev20261120", 0, "torch is the torch asked for, 2.16.0.dev20261120"),
        ("2.15.0", 1, "a nightly build of torch was asked for, and TORCH_NIGHTLY_INDEX gave 2.15.0"),
    ],
)
def test_a_nightly_build_comes_from_the_index_of_nightly_builds(project, tmp_path, version, code, told):
    nightly = tmp_path / "nightly"
    address = index(nightly, wheels.torch(nightly / "torch", version))
    ended, output = project.nox("-s", "nightly", TORCH_NIGHTLY_INDEX=address, PIP_NO_INDEX="")
    assert (ended, project.runs) == (code, [] if code else ["nightly"]), output
    assert told in output


def test_without_that_index_nothing_is_installed(project):
    code, output = project.nox("-s", "nightly")
    assert (code, "TORCH_NIGHTLY_INDEX is not set" in last_line(output)) == (1, True)


def test_the_sample_judges_something_of_every_kind_and_a_wrong_model(project):
    code, output = project.nox("-s", "sample(2.6.0)", backend="venv")
    assert code == 0, output
    assert output.count("torch is the torch asked for, 2.6.0") == 3
    assert "judge: run --no-speed mlp merge row_sum cube checkerboard_scripted train_step" in output
    assert "judge: run --no-speed mlp cube --mode=compiled" in output
    assert "judge: a live module" in output
    assert "nothing of timm is judged, it cannot be installed: ERROR" in output
    assert project.environments == []


def test_the_sample_of_the_newest_torch_takes_the_newest_that_can_be_had(project):
    wheels.torch(project.packages, "2.14.1")
    wheels.wheel(project.packages, "timm", "1.0", requires=["torch"])
    code, output = project.nox("-s", "sample(newest)", backend="venv")
    assert code == 0, output
    assert "torch 2.15.0 cannot be installed: ERROR: Could not find a version" in output
    assert output.count("torch is the torch asked for, 2.14.1") == 3
    assert "nothing of timm" not in output


def test_without_a_second_torch_the_sample_fails_and_says_so(project):
    code, output = project.nox("-s", "sample(newest)", backend="venv")
    assert code == 1
    assert "no second torch was judged: none of 2.15.0, 2.14.1 can be installed" in last_line(output)
    assert "judge:" not in output


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WRONG_CODE": "0"}, "is green, and the model is wrong"),
        ({"JUDGE_CODE": "1"}, "Session sample(2.6.0) failed"),
        ({"SAMPLE_CODE": "1"}, "Session sample(2.6.0) failed"),
    ],
)
def test_the_sample_fails_if_something_is_red_or_a_wrong_model_is_green(project, environment, told):
    code, output = project.nox("-s", "sample(2.6.0)", backend="venv", **environment)
    assert (code, told in output) == (1, True), output
