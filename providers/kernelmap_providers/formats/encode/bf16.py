"""bf16 values: rounded to nearest, ties to even; a NaN or an infinity is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bf16 import widen
from kernelmap_providers.formats.bits import Bytes, Flags, Floats, as_bytes

QUIET = np.uint32(0x0040)


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 2]``, refused ``[n]``) of fp32 values ``[n, 1]``; refused: finite, but rounded to infinity.

    A NaN is truncated and made quiet: added to, its low bits could carry into an infinity.
    """
    bits = blocks.view(np.uint32)
    upper = bits >> np.uint32(16)
    patterns = ((bits.astype(np.uint64) + 0x7FFF + (upper & 1)) >> 16).astype(np.uint16)
    patterns = np.where(np.isnan(blocks), upper | QUIET, patterns).astype(np.uint16)
    refused: Any = (np.isinf(widen(patterns)) & np.isfinite(blocks))[:, 0]
    return as_bytes(patterns, "u2"), refused
