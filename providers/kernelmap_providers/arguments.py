"""Arguments of plain kernels: the Numba types that builders compile with, and arrays brought into that form.

Numba compiles again for every new combination of writability and layout; so inputs always arrive as contiguous,
read-only views, and nothing is compiled after bind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

Array = np.ndarray[Any, Any]

RANGE = (types.int64, types.int64, types.int64)
"""begin, end, worker: the first arguments of a range kernel."""


def tuple_of(*parts: Any) -> Any:
    """Numba's type of a tuple of these types."""
    return types.Tuple(parts)  # type: ignore[no-untyped-call]


FLOATS_1 = types.Array(types.float32, 1, "C", readonly=True)
FLOATS_2 = types.Array(types.float32, 2, "C", readonly=True)
BYTES_1 = types.Array(types.uint8, 1, "C", readonly=True)
FLOATS_2_OUT = types.Array(types.float32, 2, "C")
INTS_2_OUT = types.Array(types.int32, 2, "C")
SCRATCH = types.Array(types.uint8, 2, "C")
"""A row of bytes for each worker."""


def given(array: Array) -> Array:
    """``array`` as a contiguous read-only view; a copy only if it is not contiguous or not aligned."""
    view = np.require(array, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view


def rows_of_workers(scratch: Array, threads: int) -> Array:
    """Scratch bytes ``[size]`` as ``[threads, size // threads]``."""
    return scratch[: scratch.size // threads * threads].reshape(threads, -1)
