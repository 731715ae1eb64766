"""GGUF's tensor section: ``count`` times name, dims (fastest first), type, offset into the data section."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kernelmap.inventory.formats import ggml_format
from kernelmap.inventory.gguf_cursor import Cursor
from kernelmap.inventory.problems import shown
from kernelmap.models.inventory import TensorInfo

MAX_TENSORS = 2**17
LEAST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
MAX_DIMS = 4
_SANE_DIMS = 64
"""Up to here a wrong number of dims is stepped over, so that the tensors after it are checked too."""


def read_tensors(cursor: Cursor, count: int, file: int) -> Iterator[TensorInfo]:
    """The tensors that are well described; ``offset`` is still relative to the data section.

    What is wrong with the others is reported: KM611 dims, KM612 type, KM613 a name that is there twice.
    Raises BrokenFileError where reading cannot go on.
    """
    seen: set[str] = set()
    for index in range(count):
        start = cursor.at
        name = cursor.name(f"the name of tensor {index}")
        if name in seen:
            message = f"tensor {shown(name)} at byte {start} is there twice"
            cursor.problems.add("KM613", cursor.file.name, message)
        dims = _dims(cursor, name)
        type_at = cursor.at
        number = cursor.u32(f"the type of tensor {shown(name)}")
        offset = cursor.u64(f"the offset of tensor {shown(name)}")
        found = ggml_format(number)
        if found is None:
            message = f"tensor {shown(name)} has an unknown ggml type at byte {type_at}"
            help_text = "the file is damaged, or newer than the gguf package that is installed"
            cursor.problems.add("KM612", cursor.file.name, message, found=str(number), help=help_text)
        if found is None or not dims or name in seen:
            continue
        seen.add(name)
        columns = dims[0]
        if columns % found.block_values:
            message = f"tensor {shown(name)} at byte {start} has rows of no whole {found.name} blocks"
            expected = f"a multiple of {found.block_values} columns"
            cursor.problems.add("KM611", cursor.file.name, message, expected=expected, found=str(columns))
            continue
        nbytes = math.prod(dims) // found.block_values * found.block_bytes
        if nbytes + offset >= 2**63:
            message = f"tensor {shown(name)} at byte {start} ends beyond 2**63 bytes"
            cursor.problems.add("KM615", cursor.file.name, message, found=f"{nbytes} bytes at offset {offset}")
            continue
        yield TensorInfo(
            name=name, format=found.name, shape=tuple(reversed(dims)), nbytes=nbytes, file=file, offset=offset
        )


def _dims(cursor: Cursor, name: str) -> tuple[int, ...]:
    """GGUF's dims, fastest first; empty, with the problem reported, if they are wrong."""
    start = cursor.at
    count = cursor.u32(f"the number of dims of tensor {shown(name)}")
    if not 1 <= count <= MAX_DIMS:
        message = f"tensor {shown(name)} has a wrong number of dims at byte {start}"
        problem = cursor.problems.add("KM611", cursor.file.name, message, expected=f"1 to {MAX_DIMS}", found=str(count))
        if count > _SANE_DIMS:
            raise problem
    dims = tuple(cursor.u64(f"the dims of tensor {shown(name)}") for _ in range(count))
    if not 1 <= count <= MAX_DIMS:
        return ()
    if 0 in dims or math.prod(dims) >= 2**63:
        message = f"tensor {shown(name)} has impossible dims at byte {start + 4}"
        expected = "dims of at least 1, with a product under 2**63"
        cursor.problems.add("KM611", cursor.file.name, message, expected=expected, found=str(list(dims)))
        return ()
    return dims
