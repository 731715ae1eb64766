"""Prepared weights: right bytes, in memory or from the cache; whatever happens to the cache, never wrong ones."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.formats import random_rows
from kernelmap_providers.packed.layouts import PACKED_FORMATS
from kernelmap_providers.preparation import store as stores
from kernelmap_providers.preparation.hooks import prepare_x8
from kernelmap_providers.preparation.store import PreparedCacheWarning, Store

SHAPE = (3, 16, 512)


def weight(storage: str = "q4_k", shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray[Any, Any]:
    return random_rows(storage, np.random.default_rng(seed), shape)


def prepare(rows: np.ndarray[Any, Any], storage: str = "q4_k", shape: tuple[int, ...] = SHAPE, **more: Any) -> Any:
    return prepare_x8(rows, source_format=storage, prepared_format=f"{storage}_x8", shape=shape, **more)


@pytest.mark.parametrize("layout", sorted(PACKED_FORMATS))
@pytest.mark.parametrize("shape", [(16, 512), (3, 16, 512), (2, 11, 256)])
def test_cache_and_memory_give_the_same_bytes(tmp_path: Path, layout: str, shape: tuple[int, ...]) -> None:
    storage = PACKED_FORMATS[layout].source
    rows = weight(storage, shape)
    plain = prepare(rows, storage, shape)
    made = prepare(rows, storage, shape, store=Store(tmp_path))
    loaded = prepare(rows, storage, shape, store=Store(tmp_path))
    assert isinstance(loaded.data.base, np.memmap) or isinstance(loaded.data, np.memmap)
    for other in (made, loaded):
        assert other.data.tobytes() == plain.data.tobytes()
        assert (other.layout, other.version, other.source, other.dims) == (layout, plain.version, plain.source, shape)
    assert plain.nbytes == PACKED_FORMATS[layout].packed_bytes(*shape[-2:]) * int(np.prod(shape[:-2]))
    assert plain.data.ctypes.data % 64 == 0 and loaded.data.ctypes.data % 64 == 0
    assert not loaded.data.flags.writeable and not plain.data.flags.writeable


def test_the_second_time_nothing_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = weight()
    prepare(rows, store=Store(tmp_path))

    def never(*_args: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr("kernelmap_providers.preparation.hooks.pack_rows", never)
    prepare(rows, store=Store(tmp_path))


def test_other_bytes_are_another_entry(tmp_path: Path) -> None:
    first, second = weight(seed=1), weight(seed=1)
    second[1, 3, 100] ^= 1
    a, b = prepare(first, store=Store(tmp_path)), prepare(second, store=Store(tmp_path))
    assert a.source != b.source and a.data.tobytes() != b.data.tobytes()
    assert len(list(tmp_path.iterdir())) == 2


def _entry_file(folder: Path) -> Path:
    (path,) = folder.glob("*.kmprep")
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: b"KMPREP01" + data[8:],
        lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:],
        lambda data: data[:12] + b"not json at all " + data[28:],
        lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
        lambda data: data[:5000] + bytes([data[5000] ^ 0x80]) + data[5001:],
    ],
)
def test_damaged_entries_are_made_anew(tmp_path: Path, damage: Any) -> None:
    rows = weight()
    good = prepare(rows, store=Store(tmp_path)).data.tobytes()
    path = _entry_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert prepare(rows, store=Store(tmp_path)).data.tobytes() == good
    assert prepare(rows, store=Store(tmp_path)).data.tobytes() == good
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_means_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(stores.os, "posix_fallocate", refuse)
    rows = weight()
    with pytest.warns(PreparedCacheWarning, match=os.strerror(code)):
        made = prepare(rows, store=Store(tmp_path))
    assert made.data.tobytes() == prepare(rows).data.tobytes()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_means_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(PreparedCacheWarning):
        prepare(weight(), store=Store(tmp_path / "file" / "folder"))


def test_an_interrupt_leaves_no_half_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelmap_providers.preparation.hooks.pack_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(weight(), store=Store(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_environment_chooses_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stores.ENVIRONMENT, raising=False)
    assert stores.configured_store() is None
    monkeypatch.setenv(stores.ENVIRONMENT, "off")
    assert stores.configured_store() is None
    monkeypatch.setenv(stores.ENVIRONMENT, str(tmp_path))
    assert stores.configured_store() == Store(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(weight())
    assert _entry_file(tmp_path).name.startswith("q4_k_x8-v1-")
    monkeypatch.setenv(stores.ENVIRONMENT, "on")
    store = stores.configured_store()
    assert store is not None and store.folder.name == "prepared"


def test_strided_rows_are_packed_as_their_copy(tmp_path: Path) -> None:
    """A row view of a fused tensor."""
    fused = weight(shape=(3, 32, 512))
    view = fused[:, 8:24, :]
    assert prepare(view).data.tobytes() == prepare(view.copy()).data.tobytes()


def test_what_does_not_fit_is_refused() -> None:
    rows = weight()
    with pytest.raises(ValueError, match="cannot be prepared"):
        prepare_x8(rows, source_format="q5_k", prepared_format="q4_k_x8", shape=SHAPE)
    with pytest.raises(ValueError, match="no q4_k tensor"):
        prepare(rows, shape=(3, 16, 256))
    rows[2, 5, 0:2] = np.frombuffer(b"\x00\x7c", np.uint8)
    with pytest.raises(ValueError, match="row 2, 5"):
        prepare(rows)


def test_no_more_memory_than_the_result(tmp_path: Path) -> None:
    """Peak of traced memory stays within the result and one matrix."""
    import tracemalloc

    shape = (8, 256, 1024)
    rows = weight(shape=shape)
    prepare(weight())  # compiled before
    tracemalloc.start()
    made = prepare(rows, shape=shape)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    matrix = 256 * FORMATS["q4_k"].row_bytes(1024)
    assert peak <= made.nbytes + 3 * matrix + 2**20, (peak, made.nbytes)
