"""Checks of stored weights: blocks whose factors are not finite are refused, with tensor and row."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap.errors import Diagnostic
from kernelmap.vocabulary import FORMATS

Array = np.ndarray[Any, Any]
_CHUNK_ROWS = 65536


def weight_problems(name: str, storage: str, array: Array) -> list[Diagnostic]:
    """A problem with the first bad row of a tensor, if it has one.

    ``array`` is as `open_tensor` gives it: uint8 rows of blocks, or numbers. Formats without factors always pass.
    """
    row = first_bad_row(storage, array)
    if row is None:
        return []
    message = f"tensor {name} ({storage}): row {row} holds a factor or value that is not finite"
    return [
        Diagnostic("KM511", message, help="the file is damaged, or was quantized from weights with NaN or infinity")
    ]


def first_bad_row(storage: str, array: Array) -> int | None:
    """Index of the first row (over all leading axes) with a NaN or infinite factor; None if all are finite."""
    if array.ndim == 0 or array.size == 0:
        return None
    rows = array.reshape(-1, array.shape[-1])
    for start in range(0, len(rows), _CHUNK_ROWS):
        bad = _bad_rows(storage, rows[start : start + _CHUNK_ROWS])
        if bad is not None and bad.any():
            return start + int(np.argmax(bad))
    return None


def _bad_rows(storage: str, rows: Array) -> Array | None:
    if storage in ("fp64", "fp32", "fp16"):
        return np.asarray(~np.isfinite(rows).all(axis=-1))
    if storage == "bf16":
        return np.asarray(((rows & 0x7F80) == 0x7F80).any(axis=-1))
    known = FORMATS.get(storage)
    if known is None or not (known.halves or known.exponent is not None):
        return None
    blocks = rows.reshape(len(rows), -1, known.block_bytes)
    bad = np.zeros(len(rows), np.bool_)
    for offset in known.halves:
        bad |= ((blocks[..., offset + 1] & 0x7C) == 0x7C).any(axis=-1)  # fp16: all five exponent bits set
    if known.exponent is not None:
        bad |= (blocks[..., known.exponent] == 255).any(axis=-1)
    return bad
