"""The page of probes, drawn from declarations made by hand."""

from conformance.records.tasks import ProbeInfo, SeenOn
from conformance.show import probes

CPU = SeenOn(">=2.4", ("2.4.1", "2.13.0"))
CUDA = SeenOn(">=2.6,<2.9", ("2.6.0",))


def probe(name, seen, issue="https://github.com/pytorch/pytorch/issues/123", source=""):
    return ProbeInfo(
        name, f"{name} is at risk", issue, source, "wrong numbers", ("cpu",), seen, concerns=True, declared=True
    )


def rows_of(page):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def test_a_row_links_file_and_issue_and_has_the_versions_of_every_device():
    head, rule, row = rows_of(probes.page([probe("one", {"cpu": CPU, "cuda": CUDA})]))
    assert head[4:] == ["CPU: shows in", "CPU: run with", "CUDA: shows in", "CUDA: run with"]
    assert rule == ["---"] * 8
    assert row == [
        "[one](../zoo/probes/one.py)",
        "one is at risk",
        "wrong numbers",
        "[pytorch#123](https://github.com/pytorch/pytorch/issues/123)",
        "`>=2.4`",
        "2.4.1, 2.13.0",
        "`>=2.6,<2.9`",
        "2.6.0",
    ]


def test_a_probe_without_an_issue_names_its_source():
    (_, _, row) = rows_of(probes.page([probe("one", {"cpu": CPU}, issue="", source="a post")]))
    assert row[3] == "a post"


def test_a_probe_that_was_not_run_on_a_device_has_no_versions_there():
    rows = rows_of(probes.page([probe("one", {"cpu": CPU}), probe("two", {"cuda": CUDA})]))
    assert [row[4:] for row in rows[2:]] == [["`>=2.4`", "2.4.1, 2.13.0", "", ""], ["", "", "`>=2.6,<2.9`", "2.6.0"]]


def test_a_device_on_which_no_probe_was_run_is_named_above_the_table():
    page = probes.page([probe("one", {"cpu": CPU})])
    assert "No probe was run on CUDA yet." in page
    assert "No probe was run on CPU yet." not in page
    assert not any("CUDA" in cell for cell in rows_of(page)[0])
