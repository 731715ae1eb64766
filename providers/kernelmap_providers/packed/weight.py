"""The self-describing result of weight preparation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernelmap_providers.packed.base import PackedFormat


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight tensor in a packed x8 layout."""

    layout: str
    """Layout id, e.g. ``q4_k_x8``."""
    version: int
    """Version of the layout's bytes."""
    source: str
    """SHA-256 of the storage bytes that were packed, with their format and shape."""
    dims: tuple[int, ...]
    """Shape in values, ``(..., rows, values)``; leading dims are experts and the like."""
    data: npt.NDArray[np.uint8]
    """``[prod(leading), groups of 8 rows, group_bytes]``, C-contiguous, 64-byte aligned; may be read-only."""

    @property
    def nbytes(self) -> int:
        """Resident bytes."""
        return int(self.data.nbytes)

    def checked(self, fmt: PackedFormat, rows: int, values: int) -> npt.NDArray[np.uint8]:
        """The data, if it is packed for ``fmt`` with this last shape. Raises TypeError otherwise."""
        if self.layout != fmt.name or self.version != fmt.version or self.dims[-2:] != (rows, values):
            raise TypeError(
                f"packed weight is {self.layout} v{self.version} {self.dims}, the kernel takes"
                f" {fmt.name} v{fmt.version} [..., {rows}, {values}]"
            )
        return self.data


def aligned_bytes(count: int) -> npt.NDArray[np.uint8]:
    """``count`` zero bytes whose address is a multiple of 64."""
    raw = np.zeros(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count]
