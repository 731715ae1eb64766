"""The bytes of a model's tensors, memory-mapped and read-only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from kernelmap.errors import Diagnostic, KernelmapError, Place
from kernelmap.inventory.files import map_file
from kernelmap.inventory.problems import shown
from kernelmap.models.inventory import FileStamp, Inventory, TensorInfo
from kernelmap.vocabulary import DTYPES

if TYPE_CHECKING:
    import mmap

    import numpy as np

_NUMPY = {
    "fp64": "<f8", "fp32": "<f4", "fp16": "<f2", "bf16": "<u2", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8",
    "u8": "u1", "u32": "<u4", "bool": "?",
}  # fmt: skip

_mapped: WeakValueDictionary[tuple[str, FileStamp], mmap.mmap] = WeakValueDictionary()
"""One map a file, alive while an array views it. Not ``np.memmap``: each of 1000 tensors would hold a descriptor."""


def open_tensor(inventory: Inventory, name: str) -> np.ndarray[Any, Any]:
    """A read-only view of a tensor's bytes in its file.

    A number type gives its numpy dtype in the tensor's row-major shape (``bf16`` as uint16 bit patterns; a copy if the
    file holds it at an address that its dtype cannot have). A block format, also one outside the vocabulary, gives
    uint8 of shape ``[..., row_bytes]``.

    Raises KernelmapError: KM601 the file cannot be read, KM615 the tensor lies outside it, KM620 no such tensor, KM621
    the file changed since the inventory was read, KM622 a profile has no bytes.
    """
    import numpy as np

    info = inventory.tensor(name)
    data = _bytes(inventory, info)
    if info.format in DTYPES:
        dtype, shape = np.dtype(_NUMPY[info.format]), info.shape
    else:
        dtype, shape = np.dtype(np.uint8), _block_shape(info)
    if info.nbytes == 0:
        array = np.empty(shape, dtype)
        array.flags.writeable = False
        return array
    flat = np.frombuffer(data, dtype, count=info.nbytes // dtype.itemsize, offset=info.offset or 0)
    if not flat.flags.aligned:
        flat = flat.copy()
        flat.flags.writeable = False
    return flat.reshape(shape)


def _block_shape(info: TensorInfo) -> tuple[int, ...]:
    rows = math.prod(info.shape[:-1])
    return (*info.shape[:-1], info.nbytes // rows if rows else 0)


def _bytes(inventory: Inventory, info: TensorInfo) -> mmap.mmap:
    """The map of the tensor's file, which must be the file that was read."""
    if info.offset is None or not info.file < min(len(inventory.files), len(inventory.stamps)):
        message = f"tensor {shown(info.name)} has no bytes: the inventory is a profile"
        raise KernelmapError(Diagnostic("KM622", message, help="give the model file"))
    path, stamp = inventory.files[info.file], inventory.stamps[info.file]
    if info.offset + info.nbytes > stamp.size:
        message = f"tensor {shown(info.name)} lies outside the file"
        raise KernelmapError(Diagnostic("KM615", message, place=Place(path), found=f"{stamp.size} bytes in the file"))
    key = (path, stamp)
    data = _mapped.get(key)
    if data is not None:
        _check_stamp(path, stamp, _stamp_of(path))
        return data
    file = map_file(Path(path))
    _check_stamp(path, stamp, file.stamp)
    _mapped[key] = file.data
    return file.data


def _stamp_of(path: str) -> FileStamp | None:
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return FileStamp(size=facts.st_size, mtime_ns=facts.st_mtime_ns)


def _check_stamp(path: str, expected: FileStamp, found: FileStamp | None) -> None:
    if found != expected:
        raise KernelmapError(
            Diagnostic(
                "KM621",
                f"{path} changed since its header was read",
                place=Place(path),
                expected=_told(expected),
                found=_told(found) if found else "no such file",
                help="read the inventory again",
            )
        )


def _told(stamp: FileStamp) -> str:
    return f"{stamp.size} bytes, changed at {stamp.mtime_ns} ns"
