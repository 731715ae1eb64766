"""What a micro-kernel must know of a packed format: where a block keeps what, and how its codes unpack.

Eight weight rows lie side by side in a packed block. A vector of a form with 16 lanes joins two such groups, so
``Rows`` hands out vectors that span all lanes whatever the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir

from kernelmap_providers.simd.emit import F16, I8, Emitter, Value, vector

GROUP_ROWS = 8
STAGE_VALUES = 32
"""Values of a row that one turn of a kernel's inner loop consumes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Pointers to the same place in the packed groups that share one vector."""

    pointers: tuple[Value, ...]

    def at(self, e: Emitter, offset: int | ir.Value) -> Rows:
        """All pointers moved by ``offset`` bytes."""
        return Rows(tuple(e.at(pointer, offset) for pointer in self.pointers))

    def load(self, e: Emitter, offset: int, element: ir.Type, per_row: int) -> Value:
        """``per_row`` elements of every row, row by row, at ``offset`` of each group."""
        kind = vector(element, GROUP_ROWS * per_row)
        return e.concat([e.load(pointer, offset, kind) for pointer in self.pointers])

    def codes(self, e: Emitter, offset: int) -> Value:
        """Four code bytes of every row."""
        return self.load(e, offset, I8, 4)

    def halves(self, e: Emitter, offset: int) -> Value:
        """One fp16 number of every row, widened to fp32."""
        return e.widen_half(self.load(e, offset, F16, 1))


@dataclass(frozen=True, slots=True)
class Code:
    """Four codes of every row: ``step`` counts groups of four values from the stage's start."""

    step: int
    vector: Value


@dataclass(frozen=True, slots=True)
class ActLayout:
    """How a quantized activation row lies in memory, block by block."""

    name: str
    values: int
    bytes: int
    bias: int
    """Offset of the int32 ``-128 * sum of codes`` that corrects biased weights (-1: none)."""
    floats: tuple[int, ...]
    """Offsets of the fp32 scales."""


class BlockFormat(Protocol):
    """A packed x8 format as the tile generator sees it. Offsets are in bytes of one group of 8 rows."""

    name: str
    """Layout id, e.g. ``q4_k_x8``."""
    act: ActLayout
    """The activations that its dots read."""
    values: int
    """Values of a row in one block."""
    head_bytes: int
    """Scales and the like of one block."""
    body_bytes: int
    """Codes of one block."""
    planar: bool
    """True where all heads of a row group lie before all bodies, which lets codes start at cache lines; False where
    each head is followed by its body (q4_k from memory, K 2048: 26 GB/s, planar 20)."""
    code_max: int
    """Largest magnitude of a code."""
    signed: bool
    """Whether codes are signed numbers."""
    chunks: int
    """How many loads of codes make a stage."""
    stage_bytes: int
    """Bytes of codes in a stage."""
    parts: int
    """Scales that a stage of 32 values has; 0 where the block has no integer scales."""
    min_pairs: int
    """int16 pairs per block that multiply the activation sums; 0 if none."""

    sums_at: int
    """Offset in the activation block of the int16 sums that ``min_pair`` multiplies."""

    def codes(self, e: Emitter, body: Rows, chunk: int) -> Sequence[Code]:
        """Codes of one chunk; ``body`` points to the stage."""

    def scales(self, e: Emitter, head: Rows, stage: Value) -> Sequence[Value]:
        """The stage's integer scales as int32 lanes, one vector a part."""

    def min_pair(self, e: Emitter, head: Rows, pair: int) -> Value:
        """int16 factors of the activation sums ``2 * pair`` and ``2 * pair + 1``."""

    def floats(self, e: Emitter, head: Rows) -> Sequence[Value]:
        """The block's fp32 scales, a vector each."""

    def float_step(self, e: Emitter, acc: Value, sums: tuple[Value, Value | None], weight: Sequence[Value],
                   act: Sequence[Value]) -> Value:  # fmt: skip
        """The contract's fp32 step: ``acc`` after this block."""
