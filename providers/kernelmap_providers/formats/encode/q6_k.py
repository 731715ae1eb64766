"""q6_k blocks by the search of ``symmetric``."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, as_bytes, join
from kernelmap_providers.formats.encode import symmetric


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 210]``, refused ``[n]``) of finite fp32 blocks ``[n, 256]``; refused: a scale beyond fp16."""
    fit, refused = symmetric.search(blocks)
    # [n, half, quarter, 32]: see the byte diagram of formats/q6_k.py.
    codes: Any = (fit.codes.astype(np.int16) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (codes[:, :, :2] & 15) | ((codes[:, :, 2:] & 15) << 4)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce((codes >> 4) << shifts, axis=2)
    scales, d = as_bytes(fit.scales, "i1"), as_bytes(fit.d[:, None], "f2")
    return join(low.reshape(-1, 128), high.reshape(-1, 64), scales, d), refused
