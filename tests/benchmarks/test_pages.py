"""The page on data: its start runs, and the study behind it loads each image in every way."""

import re

import pytest

from benchmarks import loading

FORK = "ignore:.* use of fork\\(\\) may lead to deadlocks:DeprecationWarning"  # from Python 3.12 on


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
