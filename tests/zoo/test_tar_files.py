"""Reading an archive: every truncation and every damaged header is an error, and no file is lost silently."""

import gzip
import os
import tarfile
import tracemalloc
from itertools import islice

import pytest
from archive_cases import write_tar

from zoo.data.tar_files import tar_files

LONG = "folder/" + "x" * 120 + ".png"
FILES = [("a.png", b"first" * 50), (LONG, b""), ("b.png", bytes(range(256)) * 3)]
FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def walk(path):
    return [(name, read()) for name, read in tar_files(path)]


def walk_until_error(path):
    """Return the files before the error, and the text of the error, which is empty if there is none."""
    seen = []
    try:
        for name, read in tar_files(path):
            seen.append((name, read()))
    except ValueError as error:
        return seen, str(error)
    return seen, ""


@pytest.fixture(params=FORMATS)
def archive(request, tmp_path):
    return write_tar(tmp_path / "shard.tar", FILES, FORMATS[request.param])


def overwrite(path, at, byte):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([byte]))


def end_of_data(path):
    """Return the position of the two blocks of zeros."""
    with tarfile.open(path) as tar:
        tar.getmembers()
        return tar.offset


def places(path, seen):
    """Return the possible starts of an error after these members: it names the last of them or the next."""
    after = (
        f"is cut or damaged after member {seen[-1]!r}: "
        if seen
        else "does not start as an uncompressed tar archive does: "
    )
    inside = [f"is cut or damaged in member {name!r}" for name, _ in FILES[len(seen) :][:1]]
    return tuple(f"tar_files: {path} {place}" for place in [after, *inside])


def test_files_come_in_the_archives_order_even_two_of_one_name_or_none(archive, tmp_path):
    assert walk(archive) == FILES
    for files in ([("a", b"old"), ("a", b"new")], []):
        assert walk(write_tar(tmp_path / "x.tar", files)) == files


def test_folders_are_skipped(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a").write_bytes(b"1")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "deep", "deep")
    assert walk(tmp_path / "x.tar") == [("deep/er/a", b"1")]


def test_a_cut_at_any_byte_is_an_error_unless_the_archive_is_complete(archive):
    complete = end_of_data(archive) + 1024
    raw = archive.read_bytes()
    cut = archive.with_name("cut.tar")
    cut.write_bytes(raw)
    for length in reversed(range(complete + 2)):  # zeros alone follow
        os.truncate(cut, length)
        seen, error = walk_until_error(cut)
        assert seen == FILES[: len(seen)]
        if length >= complete:
            assert (len(seen), error) == (3, "")
        else:
            assert error.startswith(places(cut, [name for name, _ in seen])), (length, error)


def test_a_cut_is_named_where_pythons_tarfile_loses_members_without_an_error(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a", b"1"), ("b", b"2" * 600)])
    for length, place in ((1536 + 550, "in member 'b'"), (1024 + 100, "after member 'a': bad header")):
        os.truncate(path, length)
        assert walk_until_error(path) == ([("a", b"1")], f"tar_files: {path} is cut or damaged {place}")
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["a"]


def test_a_missing_end_is_an_error(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a", b"1")])
    for blocks in (2, 3):  # without a block of zeros, and with one
        os.truncate(path, 512 * blocks)
        assert walk_until_error(path)[1].endswith("after member 'a': no end-of-archive blocks")
        path.write_bytes(path.read_bytes() + bytes(1024))
        assert walk(path) == [("a", b"1")]


def test_a_changed_byte_of_a_header_loses_nothing_silently(tmp_path):
    files = [("a", b"1"), ("b", b"2"), ("c", b"3")]
    path = write_tar(tmp_path / "x.tar", files)
    raw = path.read_bytes()
    errors = 0
    for header in (0, 1024, 2048, 3072):  # the last one is the first block of the end
        for at in range(header, header + 512):
            overwrite(path, at, raw[at] ^ 0x15)
            seen, error = walk_until_error(path)
            overwrite(path, at, raw[at])
            errors += bool(error)
            assert error or seen == files
    assert errors > 4 * 500  # all bytes except those after the digits of the checksum


def test_zeros_in_the_middle_are_no_end(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a", b"1"), ("b", b"2"), ("c", b"3")])
    raw = path.read_bytes()
    path.write_bytes(raw[:1024] + bytes(1024) + raw[2048:])
    assert walk_until_error(path)[1].endswith("after member 'a': data behind the end-of-archive blocks")
    path.write_bytes(raw * 2)  # two archives, chained
    assert walk_until_error(path)[1].endswith("data behind the end-of-archive blocks")


NO_TAR = {"nothing": b"", "text": b"no tar" * 500, "gzip": gzip.compress(bytes(5000)), "half a block": bytes(511)}


@pytest.mark.parametrize("data", NO_TAR.values(), ids=NO_TAR)
def test_a_file_that_is_not_an_uncompressed_archive_is_an_error(tmp_path, data):
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.tar does not start as an uncompressed tar archive does: "):
        walk(tmp_path / "x.tar")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"V"])
def test_links_and_the_like_are_refused_by_name(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        header = tarfile.TarInfo("odd")
        header.type, header.linkname = kind, "a"
        tar.addfile(header)
    with pytest.raises(ValueError, match=r"x\.tar: member 'odd' is neither a file nor a folder"):
        walk(tmp_path / "x.tar")


def test_a_negative_size_does_not_lead_back_to_the_same_header(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a", b"1"), ("b", b"2")])
    header = tarfile.TarInfo("b")
    header.size = -512
    raw = path.read_bytes()
    path.write_bytes(raw[:1024] + header.tobuf(tarfile.GNU_FORMAT) + raw[1536:])
    with pytest.raises(ValueError, match=r"x\.tar is cut or damaged"):
        list(islice(tar_files(path), 10))


def test_earlier_files_are_not_kept(tmp_path):
    path = write_tar(tmp_path / "x.tar", [(f"{number}.png", b"") for number in range(3000)])
    tracemalloc.start()
    try:
        assert sum(1 for _ in tar_files(path)) == 3000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 500_000  # bytes; 3000 headers would take about 3 MB


def test_nothing_is_read_ahead(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a", bytes(1 << 20)), ("b", b"2")])  # larger than a file's buffer
    files = tar_files(path)
    assert next(files)[0] == "a"
    with path.open("r+b") as file:
        file.seek(512 + (1 << 20))
        file.write(b"no header of a tar archive")
    with pytest.raises(ValueError, match=r"after member 'a': bad header$"):
        next(files)


def test_a_path_is_a_path_or_a_string(archive):
    assert walk(str(archive)) == walk(archive)
    for bad, came in ((None, "None"), ([archive], "list"), (3, "int")):
        with pytest.raises(TypeError, match=f"^tar_files: archive must be a path, got {came}$"):
            next(tar_files(bad))
    with pytest.raises(FileNotFoundError, match=r"no\.tar"):
        next(tar_files("no.tar"))
