"""q4_k blocks by the search of ``affine``, codes 0 to 15."""

from __future__ import annotations

from kernelmap_providers.formats.bits import Bytes, Flags, Floats, join
from kernelmap_providers.formats.encode import affine, k_pack


def encode_blocks(blocks: Floats) -> tuple[Bytes, Flags]:
    """(bytes ``[n, 144]``, refused ``[n]``) of finite fp32 blocks ``[n, 256]``; refused: a scale beyond fp16."""
    fit, refused = affine.search(blocks, 15)
    return join(k_pack.head(fit), k_pack.nibbles(fit.codes)), refused
