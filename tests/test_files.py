"""Files are written whole or not at all, and never in place of something that is no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelmap.errors import KernelmapError
from kernelmap.files import whole_file, write_whole


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with whole_file(path, "KM832") as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_failing_block_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), whole_file(path, "KM832") as file:
            file.write(b"half")
            raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_a_placed_error(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(KernelmapError) as caught, whole_file(path, "KM542") as file:
        raise OSError(28, "No space left on device", file.name)
    assert [d.code for d in caught.value.diagnostics] == ["KM542"]
    assert str(path) in caught.value.diagnostics[0].message and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to a pipe"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """Renaming over a device replaces it: as root, that was the null device."""
    place = tmp_path / "place"
    if kind == "folder":
        place.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        place = place if kind == "link to a pipe" else tmp_path / "pipe"
        if kind == "link to a pipe":
            place.symlink_to(tmp_path / "pipe")
    with pytest.raises(KernelmapError, match="something that is no file"):
        write_whole("text", place)
    assert place.is_dir() if kind == "folder" else place.is_fifo()
    assert not list(tmp_path.glob("*.tmp"))


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(KernelmapError, match="cannot write"):
        write_whole("text", tmp_path / "none" / "out.txt")


def test_a_name_that_the_system_refuses(tmp_path: Path) -> None:
    with pytest.raises(KernelmapError, match="File name too long"):
        write_whole("text", tmp_path / ("a" * 5000))


def test_a_text_that_is_no_utf_8_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(KernelmapError, match="no text in UTF-8"):
        write_whole("a\udcff", path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_links_and_modes_are_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "real" / "out.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    write_whole("new", link)
    assert link.is_symlink() and target.read_text() == "new" and target.stat().st_mode & 0o777 == 0o600
