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
from kernelmap_providers.simd.static import Static, StaticType

_PACKERS: dict[str, tuple[PackedFormat, Any]] = {
    layout.name: (layout, pack)
    for layout, pack in (
        (q4_k.Q4_K_X8, q4_k.pack),
        (q5_k.Q5_K_X8, q5_k.pack),
        (q6_k.Q6_K_X8, q6_k.pack),
        (q8_0.Q8_0_X8, q8_0.pack),
        (q5_1.Q5_1_X8, q5_1.pack),
        (mxfp4.MXFP4_X8, mxfp4.pack),
    )
}
PACKED_FORMATS: dict[str, PackedFormat] = {name: layout for name, (layout, _) in _PACKERS.items()}
"""Every packed layout, by id."""
PACKED_OF: dict[str, PackedFormat] = {layout.source: layout for layout in PACKED_FORMATS.values()}
"""Every packed layout, by the storage format that it packs."""

_ROWS = types.Array(types.uint8, 2, "A", readonly=True, aligned=False)
_GROUPS = types.Array(types.uint8, 2, "C")


def _pack(layout: Any, source: Any, out: Any) -> None:
    """``source`` rows into zeroed ``out`` groups. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(_pack)
def _choose_pack(layout: Any, source: Any, out: Any) -> Any:
    pack = _PACKERS[str(layout.parts[0])][1]
    return lambda layout, source, out: pack(source, out)


@entry
def _pack_entry(layout: Any, source: Any, out: Any) -> int:
    _pack(layout, source, out)
    return 0


def pack_rows(layout: PackedFormat, source: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Pack ``source`` ``[rows, row_bytes]`` into the zeroed ``out`` ``[ceil(rows / 8), group_bytes]``.

    Rows of a last, partial group stay zero and so do their dots.
    """
    compiled(_pack_entry, StaticType((layout.name,)), _ROWS, _GROUPS)(Static(layout.name), source, out)
