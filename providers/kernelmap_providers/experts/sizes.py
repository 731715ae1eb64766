"""Sizes of the bucketed schedule's work and scratch; the same formulas stand in the kernel maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.legs import act_of

SEGMENT_TOKENS: Final = 96
"""Most pairs in one call of a leg: 240 KiB of q8_k rows of 2048 values, which stay in a second-level cache."""
PART_COLUMNS: Final = 256
"""Columns of the intermediate in one item: whole activation blocks of every format, and whole vectors."""
PART_BYTES: Final = 4 * PART_COLUMNS
DOWN_COLUMNS: Final = 64
"""Least columns of a down item."""
FEW_PAIRS_BYTES: Final = 32768
"""Down rows that a worker has room for beyond ``DOWN_COLUMNS`` columns of every pair: with few pairs items get wider,
so that weights come in longer runs."""
SEGMENT_BYTES: Final = 16
"""int32 expert, first sorted place, pairs, and nothing."""


def align64(size: int) -> int:
    """``size`` rounded up to a multiple of 64."""
    return -(-size // 64) * 64


def common_sizes(tokens: int, slots: int, experts: int, outer: int, inner: int) -> tuple[int, ...]:
    """Bytes of (hidden acts, inner acts, places, order, ends, segments, factors); acts of ``outer`` and ``inner`` bytes
    a row.
    """
    pairs = tokens * slots
    segments = experts + pairs // SEGMENT_TOKENS
    sizes = (tokens * outer, pairs * inner, 4 * pairs, 4 * pairs, 8 * (experts + 1), SEGMENT_BYTES * segments,
             4 * tokens)  # fmt: skip
    return tuple(align64(size) for size in sizes)


def worker_bytes(pairs: int) -> int:
    """A worker's own scratch: leg words, identity index, gate and up parts of a segment, down rows of a few columns."""
    return at.LEG_BYTES + 4 * SEGMENT_TOKENS + 2 * SEGMENT_TOKENS * PART_BYTES + FEW_PAIRS_BYTES + align64(
        4 * DOWN_COLUMNS * pairs
    )  # fmt: skip


def scratch_bytes(gate: str, down: str, dims: Mapping[str, int], threads: int) -> int:
    """The whole workspace for storage formats ``gate`` and ``down``; dims R, H, I and, for routed experts, E and K."""
    (outer_values, outer_bytes), (inner_values, inner_bytes) = act_of(gate), act_of(down)
    tokens, slots, experts = dims["R"], dims.get("K", 1), dims.get("E", 1)
    outer, inner = dims["H"] // outer_values * outer_bytes, dims["I"] // inner_values * inner_bytes
    common = sum(common_sizes(tokens, slots, experts, outer, inner))
    return at.CALL_BYTES + common + threads * worker_bytes(tokens * slots)
