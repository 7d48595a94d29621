"""The pages that studies write: what they hold is what the study would write, but for measured numbers."""

import re
from string import Formatter

import pytest

from benchmarks import loading, meters, saved_tensors

FORK = "ignore:.* use of fork\\(\\) may lead to deadlocks:DeprecationWarning"  # from Python 3.12 on
STUDY = re.compile(f"{meters.OPENING}\n(.*)\n{meters.CLOSING}", re.DOTALL)


def prose(text):
    """The parts of a format text between its fields."""
    return [literal for literal, *_ in Formatter().parse(text) if literal.strip()]


def in_order(parts, text):
    """The first part that does not follow the one before it in a text; None if all do."""
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return part
        at += len(part)
    return None


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (meters.TEXT, STUDY.search(meters.PAGE.read_text(encoding="utf-8"))[1]),
        (saved_tensors.TEXT, saved_tensors.PAGE.read_text(encoding="utf-8")),
        (loading.TEXT, loading.PAGE.read_text(encoding="utf-8")),
    ],
    ids=["measurement", "memory", "data"],
)
def test_a_page_has_the_prose_that_its_study_writes(text, page):
    assert len(prose(text)) > 4
    assert in_order(prose(text), page) is None


def test_the_page_on_measurement_has_the_rules_of_every_meter():
    assert f"\n\n{meters.rules()}\n\n" in meters.PAGE.read_text(encoding="utf-8")


def test_the_page_on_memory_is_what_the_study_writes_around_its_tables():
    page = saved_tensors.PAGE.read_text(encoding="utf-8")
    tools, fused = (table.rstrip("\n") for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE))
    written = saved_tensors.page("cpu", 80, tools=tools, fused=fused)
    environment = re.compile(r"Measured with torch \S+ on one thread of: .*\.")
    assert environment.sub("", written) == environment.sub("", page)


@pytest.mark.filterwarnings(FORK)
def test_the_start_of_the_page_on_data_runs(tmp_path, monkeypatch):
    loading._written(tmp_path, 8)
    (tmp_path / "shards").mkdir()
    for archive in tmp_path.glob("*.tar"):
        archive.rename(tmp_path / "shards" / archive.name)
    (tmp_path / "photos").symlink_to(tmp_path)
    (start,) = re.findall(r"```python\n(.*?)```", loading.PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    monkeypatch.chdir(tmp_path)
    exec(start, names)
    assert names["images"].shape[1:] == (3, 224, 224)
    assert len(names["photos"]) == 8


def test_the_study_of_loading_loads_each_image_in_every_way(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "WORKERS", (0,))
    paths = loading._written(tmp_path, 8)
    seconds = loading._measured(tmp_path, paths, 8, 2)
    assert {way: len(rounds) for (way, _), rounds in seconds.items()} == dict.fromkeys(
        (loading.FOLDER, loading.IMAGES, loading.OWN), 2
    )
    with pytest.raises(RuntimeError, match=r"^9 images were written, 8 loaded$"):
        loading._seconds(loading.DataLoader(loading.TarImageDataset(paths), 1), 9)
    assert re.findall(r"\|  +2 \|  +(\d) \|", loading._table_of_reads(paths)) == ["4", "1"]


def test_a_missing_part_of_the_prose_is_noticed():
    assert in_order(["one ", " three"], "one two three") is None
    assert in_order([" three", "one "], "one two three") == "one "
