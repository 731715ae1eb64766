"""Recordings and saved results: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelmap.errors import KernelmapError
from kernelmap.recorded import Recording, compare, save_arrays
from kernelmap.vocabulary import Phase


def test_saved_arrays_read_back(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    save_arrays(path, {"prefill/y/0": np.arange(6, dtype=np.float32).reshape(2, 3)})
    with np.load(path) as saved:
        assert saved["prefill/y/0"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [found.name for found in tmp_path.iterdir()] == ["out.npz"]


def test_nothing_is_left_when_saving_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"what was there before")

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(KernelmapError) as caught:
        save_arrays(path, {"y": np.zeros(3)})
    assert caught.value.diagnostics[0].code == "KM542"
    assert "No space left" in caught.value.diagnostics[0].message
    assert path.read_bytes() == b"what was there before" and [found.name for found in tmp_path.iterdir()] == ["out.npz"]


def test_interrupt_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"old")

    def interrupted(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_arrays(path, {"y": np.zeros(3)})
    assert path.read_bytes() == b"old" and [found.name for found in tmp_path.iterdir()] == ["out.npz"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KernelmapError) as caught:
        save_arrays(tmp_path / "no" / "out.npz", {"y": np.zeros(3)})
    assert caught.value.diagnostics[0].code == "KM542"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"not an archive at all"])
def test_a_file_that_is_no_recording(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "acts.npz"
    path.write_bytes(content)
    with pytest.raises(KernelmapError) as caught:
        Recording(path)
    assert caught.value.diagnostics[0].code == "KM540"


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "acts.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(KernelmapError) as caught:
        Recording(path)
    assert caught.value.diagnostics[0].code == "KM540"


def test_decode1_is_read_as_decode(tmp_path: Path) -> None:
    path = tmp_path / "acts.npz"
    np.savez(path, **{"decode1/x-0": np.ones(3)})
    recording = Recording(path)
    assert recording.has_phase(Phase.DECODE) and not recording.has_phase(Phase.PREFILL)
    assert recording.find(Phase.DECODE, "x-0") is not None and recording.find(Phase.PREFILL, "x-0") is None


def test_comparison_is_relative_rms_and_its_median_row() -> None:
    reference = np.array([[3.0, 4.0], [6.0, 8.0], [0.0, 0.0]], np.float32)
    ours = reference + np.array([[0.0, 0.5], [0.0, 0.0], [0.0, 0.0]], np.float32)
    found = compare("y", 1, ours, reference)
    assert found.relative_rms == pytest.approx(0.5 / np.sqrt(125))
    assert found.median_row == 0 and found.rows == 3
    assert compare("y", None, reference + 1, reference * 0).relative_rms == np.inf


@pytest.mark.parametrize(
    ("offset", "value"), [(6, 1), (6, 64), (8, 99), (8, 12), (8, 14)], ids=["encrypted", "strong", "?", "bzip2", "lzma"]
)
def test_a_damaged_archive_is_a_placed_error(tmp_path: Path, offset: int, value: int) -> None:
    """Flags and compression of the archive's first member, in its own header and in the directory."""
    path = tmp_path / "in.npz"
    np.savez(path, **{"prefill/x": np.ones((3, 4), np.float32)})
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[offset] = data[directory + offset + 2] = value
    path.write_bytes(data)
    with pytest.raises(KernelmapError) as caught:
        Recording(path)
    assert caught.value.diagnostics[0].code == "KM540"
