"""fp16 values: IEEE rounding to nearest, ties to even; a NaN or an infinity is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, as_bytes, numbers


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 2]``, refused ``[n]``) of fp32 values ``[n, 1]``; refused: finite, but beyond fp16."""
    made = as_bytes(blocks, "f2")
    refused: Any = np.isinf(numbers(made, 0, 2, "f2")[:, 0]) & np.isfinite(blocks[:, 0])
    return made, refused
