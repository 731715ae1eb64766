"""Weights as stored, seen by jitted code: one flat run of bytes and its strides, whatever slice of a tensor it is."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.lib.stride_tricks import as_strided

from kernelmap_providers.arguments import BYTES_1, Array, given, tuple_of

STORED = tuple_of(BYTES_1, types.int64, types.int64)
"""(bytes, bytes from expert to expert, bytes from row to row)."""
Stored = tuple[Array, int, int]


def stored(weight: Array) -> Stored:
    """Bytes and strides of ``uint8 [rows, row_bytes]`` or ``[experts, rows, row_bytes]``; no copy of a proper view."""
    if weight.strides[-1] != 1 or min(weight.strides) < 0 or weight.size == 0:
        weight = np.ascontiguousarray(weight)
    span = sum((size - 1) * stride for size, stride in zip(weight.shape, weight.strides, strict=True)) + 1
    flat = as_strided(weight, (max(span, 0) if weight.size else 0,), (1,), writeable=False)
    expert = weight.strides[0] if weight.ndim == 3 else 0
    return given(flat), int(expert), int(weight.strides[-2])
