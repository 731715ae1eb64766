"""Weight quantizers: fp32 rows to the bytes of a storage format. Plain numpy; imports no kernel.

One module a format, each with ``encode_blocks``: blocks ``fp32 [n, values]`` to
``(uint8 [n, block_bytes], refused [n])``.
``q8_0`` and ``q5_1`` are the gguf package's; the K-quants are our own searches (``affine``, ``symmetric``).
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.formats.bits import Bytes, Flags, Floats

FORMATS_ENCODED = ("bf16", "fp16", "mxfp4", "q4_k", "q5_1", "q5_k", "q6_k", "q8_0")
"""The formats that ``encode`` makes."""

NUMBERS = frozenset({"bf16", "fp16"})
"""Formats that hold a NaN or an infinity, and so keep it."""

CHUNK_VALUES = 1 << 17
"""Values searched at a time. The K-quant searches make several temporaries of this size. Measured on q4_k: 2**14 values
at a time ran at half the speed, 2**21 at four fifths (and takes memory by the tensor's size)."""


def encode(name: str, values: Floats) -> Bytes:
    """Rows ``uint8 [..., row_bytes]`` of format ``name`` that hold ``values`` fp32 ``[..., K]`` with small rms error.

    Raises ValueError for a format without an encoder, values that are not fp32, a K that is no multiple of the block,
    or, naming the first such row, values that the format cannot hold: a NaN or an infinity (but ``fp16`` and ``bf16``
    keep those), or values so large that a scale or number would become infinite.
    """
    if name not in FORMATS_ENCODED:
        raise ValueError(f"format {name!r} has no encoder; there are: {', '.join(FORMATS_ENCODED)}")
    if values.dtype != np.float32 or values.ndim == 0:
        raise ValueError(f"values to encode are fp32 [..., K], not {values.dtype} {values.shape}")
    row_bytes = FORMATS[name].row_bytes(values.shape[-1])
    if name not in NUMBERS:
        _refuse(name, ~np.isfinite(values).all(axis=-1), "a NaN or an infinity")
    blocks = values.reshape(-1, FORMATS[name].block_values)
    made, refused = _encode_chunks(name, blocks)
    per_row = row_bytes // FORMATS[name].block_bytes
    _refuse(name, refused.reshape(*values.shape[:-1], per_row).any(axis=-1), "values too large for the format")
    return made.reshape(*values.shape[:-1], row_bytes)


def _encode_chunks(name: str, blocks: Floats) -> tuple[Bytes, Flags]:
    """Bytes and refusals of blocks ``[n, values]``, a chunk at a time."""
    module = importlib.import_module(f"kernelmap_providers.formats.encode.{name}")
    made = np.empty((len(blocks), FORMATS[name].block_bytes), np.uint8)
    refused: Any = np.zeros(len(blocks), np.bool_)
    step = CHUNK_VALUES // FORMATS[name].block_values
    for first in range(0, len(blocks), step):
        part = slice(first, first + step)
        made[part], refused[part] = module.encode_blocks(np.ascontiguousarray(blocks[part]))
    return made, refused


def _refuse(name: str, bad: Any, what: str) -> None:
    """Raise ValueError naming the first row of ``bad`` ``[...]`` that is set."""
    if np.any(bad):
        first = np.unravel_index(int(np.argmax(bad)), np.shape(bad))
        raise ValueError(f"cannot encode {name}: row {tuple(int(axis) for axis in first)} has {what}")


__all__ = ["FORMATS_ENCODED", "encode"]
