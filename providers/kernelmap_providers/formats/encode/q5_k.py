"""q5_k blocks by the search of ``affine``, codes 0 to 31."""

from __future__ import annotations

import numpy as np

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, join
from kernelmap_providers.formats.encode import affine, k_pack


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 176]``, refused ``[n]``) of finite fp32 blocks ``[n, 256]``; refused: a scale beyond fp16."""
    fit, refused = affine.search(blocks, 31)
    # Bit s of byte l is bit 4 of value 32 s + l: packed along the sub-blocks.
    fifth = np.packbits(fit.codes >> 4, axis=1, bitorder="little").reshape(-1, 32)
    return join(k_pack.head(fit), fifth, k_pack.nibbles(fit.codes)), refused
