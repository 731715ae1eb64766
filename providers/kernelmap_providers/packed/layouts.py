"""The packed layouts by id, and packing a matrix into one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from kernelmap_providers.jit.compile import compiled, entry
from kernelmap_providers.jit.generic import generic
from kernelmap_providers.packed import mxfp4, q4_k, q5_1, q5_k, q6_k, q8_0
from kernelmap_providers.packed.base import PackedFormat
from kernelmap_providers.simd.block import GROUP_ROWS
from kernelmap_providers.simd.static import Static, StaticType

_LAYOUTS: dict[str, tuple[PackedFormat, Any, Any]] = {
    layout.name: (layout, module.pack_block, module.unpack_block)
    for layout, module in (
        (q4_k.Q4_K_X8, q4_k),
        (q5_k.Q5_K_X8, q5_k),
        (q6_k.Q6_K_X8, q6_k),
        (q8_0.Q8_0_X8, q8_0),
        (q5_1.Q5_1_X8, q5_1),
        (mxfp4.MXFP4_X8, mxfp4),
    )
}
PACKED_FORMATS: dict[str, PackedFormat] = {name: layout for name, (layout, _, _) in _LAYOUTS.items()}
"""Every packed layout, by id."""
PACKED_OF: dict[str, PackedFormat] = {layout.source: layout for layout in PACKED_FORMATS.values()}
"""Every packed layout, by the storage format that it packs."""

_STORED = types.Array(types.uint8, 2, "A", readonly=True, aligned=False)
_GROUPS = types.Array(types.uint8, 2, "C", readonly=True)
_STORED_OUT, _GROUPS_OUT = types.Array(types.uint8, 2, "C"), types.Array(types.uint8, 2, "C")


def pack_groups(layout: Any, source: int, stride: int, rows: int, blocks: int, out: int, group_stride: int) -> None:
    """``rows`` stored rows, ``stride`` bytes apart, to packed groups at ``out``. ``layout`` is ``Static(id)``.

    Lanes of a last, partial group that have no row are left as they are. Jitted code only.
    """
    raise NotImplementedError("called from jitted code only")


def unpack_groups(layout: Any, source: int, group_stride: int, rows: int, blocks: int, out: int, stride: int) -> None:
    """As `pack_groups`, back, into zeroed ``out``. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


def group_stride(layout: Any, blocks: int) -> int:
    """Bytes of a packed group of rows of so many blocks. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(group_stride)
def _group_stride(layout: Any, blocks: Any) -> Any:
    fmt = _LAYOUTS[str(layout.parts[0])][0]
    planar, head, body = fmt.planar, fmt.head_bytes, fmt.body_bytes

    def stride(layout: Any, blocks: int) -> int:
        heads = blocks * head
        return ((heads + 63) // 64 * 64 if planar else heads) + blocks * body

    return stride


@generic(pack_groups)
def _pack_groups(layout: Any, source: Any, stride: Any, rows: Any, blocks: Any, out: Any, group_stride: Any) -> Any:
    fmt, pack_block, _ = _LAYOUTS[str(layout.parts[0])]
    source_bytes, step, body_step, planar = fmt.source_bytes, *_steps(fmt), fmt.planar
    head_bytes = fmt.head_bytes

    def pack(layout: Any, source: int, stride: int, rows: int, blocks: int, out: int, group_stride: int) -> None:
        bodies = (blocks * head_bytes + 63) // 64 * 64 if planar else head_bytes
        for first in range(0, rows, GROUP_ROWS):
            here = min(GROUP_ROWS, rows - first)
            group = out + first // GROUP_ROWS * group_stride
            for block in range(blocks):
                head, body = group + block * step, group + bodies + block * body_step
                for lane in range(here):
                    pack_block(source + (first + lane) * stride + block * source_bytes, head, body, lane)

    return pack


@generic(unpack_groups)
def _unpack_groups(layout: Any, source: Any, group_stride: Any, rows: Any, blocks: Any, out: Any, stride: Any) -> Any:
    fmt, _, unpack_block = _LAYOUTS[str(layout.parts[0])]
    source_bytes, step, body_step, planar = fmt.source_bytes, *_steps(fmt), fmt.planar
    head_bytes = fmt.head_bytes

    def unpack(layout: Any, source: int, group_stride: int, rows: int, blocks: int, out: int, stride: int) -> None:
        bodies = (blocks * head_bytes + 63) // 64 * 64 if planar else head_bytes
        for row in range(rows):
            group = source + row // GROUP_ROWS * group_stride
            for block in range(blocks):
                head, body = group + block * step, group + bodies + block * body_step
                unpack_block(head, body, row % GROUP_ROWS, out + row * stride + block * source_bytes)

    return unpack


def _steps(fmt: PackedFormat) -> tuple[int, int]:
    """Bytes from one head to the next, and from one body to the next."""
    whole = fmt.head_bytes + fmt.body_bytes
    return (fmt.head_bytes, fmt.body_bytes) if fmt.planar else (whole, whole)


@entry
def _pack_entry(layout: Any, source: Any, blocks: int, out: Any) -> int:
    pack_groups(layout, source.ctypes.data, source.strides[0], len(source), blocks, out.ctypes.data, out.strides[0])
    return 0


@entry
def _unpack_entry(layout: Any, source: Any, blocks: int, out: Any) -> int:
    unpack_groups(layout, source.ctypes.data, source.strides[0], len(out), blocks, out.ctypes.data, out.strides[0])
    return 0


def pack_rows(layout: PackedFormat, source: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Pack ``source`` ``[rows, row_bytes]`` into the zeroed ``out`` ``[ceil(rows / 8), group_bytes]``.

    Rows of a last, partial group stay zero and so do their dots.
    """
    if source.strides[1] != 1:
        source = np.ascontiguousarray(source)
    blocks = source.shape[1] // layout.source_bytes
    call = compiled(_pack_entry, StaticType((layout.name,)), _STORED, types.int64, _GROUPS_OUT)
    call(Static(layout.name), source, blocks, out)


def unpack_rows(layout: PackedFormat, source: npt.NDArray[np.uint8], rows: int) -> npt.NDArray[np.uint8]:
    """The stored rows uint8 ``[rows, row_bytes]`` that were packed as ``source`` ``[groups, group_bytes]``.

    For tests and debugging. Raises ValueError if ``source`` holds fewer rows or no whole number of blocks.
    """
    source = np.ascontiguousarray(source)
    blocks = _blocks_of(layout, source.shape[1])
    if not 0 <= rows <= GROUP_ROWS * len(source):
        raise ValueError(f"{len(source)} groups hold up to {GROUP_ROWS * len(source)} rows, not {rows}")
    out = np.zeros((rows, blocks * layout.source_bytes), np.uint8)
    call = compiled(_unpack_entry, StaticType((layout.name,)), _GROUPS, types.int64, _STORED_OUT)
    source = source.view()
    source.flags.writeable = False
    call(Static(layout.name), source, blocks, out)
    return out


def _blocks_of(layout: PackedFormat, group_bytes: int) -> int:
    """How many blocks a row has whose packed group has this size."""
    blocks = group_bytes // (layout.head_bytes + layout.body_bytes)
    if layout.group_bytes(blocks * layout.values) != group_bytes:
        raise ValueError(f"no {layout.name} group has {group_bytes} bytes")
    return blocks
