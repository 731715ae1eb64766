"""Arguments of plain kernels: the Numba types that builders compile with, and arrays brought into that form.

Numba compiles again for every new combination of writability and layout; so inputs always arrive as contiguous,
read-only views, and nothing is compiled after bind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

Array = np.ndarray[Any, Any]


def tuple_of(*parts: Any) -> Any:
    """Numba's type of a tuple of these types."""
    return types.Tuple(parts)  # type: ignore[no-untyped-call]


BYTES_1 = types.Array(types.uint8, 1, "C", readonly=True)


def given(array: Array) -> Array:
    """``array`` as a contiguous read-only view; a copy only if it is not contiguous or not aligned."""
    view = np.require(array, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view
