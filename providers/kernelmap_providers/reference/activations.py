"""Rows of activations in the format that a weight format's dot product takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.formats import module_of
from kernelmap_providers.reference.elementary import Floats
from kernelmap_providers.reference.refusal import RefusedRow, demand_finite

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def quantized(weight_format: str, x: Floats, row: int, name: str) -> Bytes:
    """Bytes of one activation row ``[K]`` as the partner of ``weight_format`` (fp32 stays as it is).

    Raises RefusedRow for a NaN, an infinity, or a block whose scale leaves the format; ``row`` and ``name`` say where.
    """
    demand_finite(row, x, name)
    act = FORMATS[weight_format].act
    if act == "fp32":
        return np.ascontiguousarray(x).view(np.uint8)
    made, refused = module_of(str(act)).quantize_rows(x[None])
    if refused[0]:
        raise RefusedRow(row, f"{name} is too large for {act}")
    codes: Bytes = made[0]
    return codes
