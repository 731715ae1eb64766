"""Panels: one or more vectors of packed weight rows times any number of tokens, cut into tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelmap_providers.jit.generic import generic
from kernelmap_providers.packed.base import PackedFormat
from kernelmap_providers.packed.layouts import PACKED_FORMATS
from kernelmap_providers.simd.block import GROUP_ROWS
from kernelmap_providers.simd.kernel import tile
from kernelmap_providers.simd.static import StaticType
from kernelmap_providers.simd.target import FORMS, Form
from kernelmap_providers.simd.tile import TileShape


@dataclass(frozen=True, slots=True)
class PanelShape:
    """Tile sizes for one kind of machine."""

    vectors: int
    """Vectors of weight rows in a many-token tile."""
    tokens: tuple[int, int, int, int]
    """Token counts of its tiles, largest first; a tile of one token comes on top."""
    streams: int
    """Vectors in the tile for a single token: as many separate streams from memory."""


WIDE = PanelShape(vectors=2, tokens=(6, 4, 3, 2), streams=4)
"""32 registers: 6 x 2 dots and their 12 scaled sums fit; the fp32 sums wait in memory, touched once a block.

One token of q4_k, K 2048, from memory on Zen 5: 4 vectors, which are 8 streams, reach 25 GB/s; 1, 2 and 8 vectors 18
to 22. `stream_shapes` has what helps where that is not enough; prefetching a few blocks ahead never did."""
NARROW = PanelShape(vectors=2, tokens=(3, 3, 3, 2), streams=4)
"""16 registers: 3 x 2. A 4 x 2 tile spills and is slower (156 against 170 GMAC/s on Zen 5 with the avx2 form)."""


SHORT_VALUES = 1024
"""Rows up to this long begin anew too often for the hardware's prefetching."""


def stream_shapes(fmt: PackedFormat, form: Form) -> tuple[TileShape, TileShape]:
    """Tiles for a single token: for rows of up to `SHORT_VALUES` values, and for longer ones.

    Those with ``lines`` prefetch the following tile's groups as they go. One Zen 5 thread, GB/s, 4 vectors without
    hints and the tile chosen here. From memory, K 512: q4_k 21 and 30, q5_k 21 and 29, q6_k 19 and 23, q8_0 27 and 38,
    q5_1 22 and 30, mxfp4 18 and 36; K 1024: q4_k 24 and 28, q5_k 20 and 28, q6_k 23 and 23. From cache hints cost: up
    to 9 % at K 512; at 1024 5 to 11 %, q8_0 23 %. One vector with hints at K 2048 gains 13 % at most from memory (q6_k
    loses 8 %) and costs 11 to 32 % from cache, so long rows go without. Narrow forms: not measured, so no hints.
    """
    streams = TileShape(1, panel_shape(form).streams)
    if panel_shape(form) is not WIDE:
        return streams, streams
    if fmt.source in ("q5_1", "mxfp4"):
        hinted = TileShape(1, streams.vectors, lines=_lines(fmt, form, streams.vectors))
        return hinted, hinted
    return TileShape(1, 1, lines=_lines(fmt, form, 1)), streams


def _lines(fmt: PackedFormat, form: Form, vectors: int) -> int:
    """Cache lines of a tile's groups that a block adds, heads among them."""
    return -(-(fmt.head_bytes + fmt.body_bytes) * form.lanes // GROUP_ROWS * vectors // 64)


def panel_shape(form: Form) -> PanelShape:
    """The tile sizes of a form."""
    return WIDE if form.registers >= 32 and form.lanes > GROUP_ROWS else NARROW


def panel(leg: Any, vectors: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, act_index: Any, act_stride:
          Any, out: Any, out_index: Any, out_stride: Any, factors: Any, tokens: Any) -> Any:  # fmt: skip
    """Dots of ``tokens`` token rows with ``vectors`` (a Static) vectors of weight rows; see ``simd.tile.ARGUMENTS``.

    ``leg`` is ``Static(layout, form, flags)``; flags may hold ``i`` (rows come through int32 indices) and ``a``
    (``out += factor * dot``). Jitted code only.
    """
    raise NotImplementedError("called from jitted code only")


@generic(panel)
def _panel(leg: Any, vectors: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, act_index: Any,
           act_stride: Any, out: Any, out_index: Any, out_stride: Any, factors: Any, tokens: Any) -> Any:  # fmt: skip
    if not isinstance(leg, StaticType):
        return None
    s0, s1, s2, s3 = panel_shape(FORMS[str(leg.parts[1])]).tokens
    k0, k1, k2, k3, k_last = (_tile(leg, size, int(vectors.parts[0])) for size in (s0, s1, s2, s3, 1))

    def many(leg: Any, vectors: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, act_index: Any,
             act_stride: Any, out: Any, out_index: Any, out_stride: Any, factors: Any, tokens: Any
) -> Any:  # fmt: skip
        done = 0
        while done < tokens:
            left = tokens - done
            a, o = acts, out
            ai, oi, f = act_index + 4 * done, out_index + 4 * done, factors + 4 * done
            if act_index == 0:
                a, o = acts + done * act_stride, out + done * out_stride
            # A single token left over costs as much as three: leave two rather than one.
            if left >= s0 and left != s0 + 1:
                k0(weights, group_stride, blocks, a, ai, act_stride, o, oi, out_stride, f)
                done += s0
            elif left >= s1 and left != s1 + 1:
                k1(weights, group_stride, blocks, a, ai, act_stride, o, oi, out_stride, f)
                done += s1
            elif left >= s2 and left != s2 + 1:
                k2(weights, group_stride, blocks, a, ai, act_stride, o, oi, out_stride, f)
                done += s2
            elif left >= s3:
                k3(weights, group_stride, blocks, a, ai, act_stride, o, oi, out_stride, f)
                done += s3
            else:
                k_last(weights, group_stride, blocks, a, ai, act_stride, o, oi, out_stride, f)
                done += 1

    return many


def single(leg: Any, shape: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, out: Any, following: Any
) -> Any:  # fmt: skip
    """One token's dots by the tile ``shape``, ``Static(vectors, lines)``; ``following`` is the address of the weights
    that come next, for its prefetching. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(single)
def _single(leg: Any, shape: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, out: Any, following: Any
) -> Any:  # fmt: skip
    if not isinstance(leg, StaticType):
        return None
    layout, form = str(leg.parts[0]), FORMS[str(leg.parts[1])]
    vectors, lines = (int(part) for part in shape.parts)
    kernel = tile(PACKED_FORMATS[layout], form, TileShape(1, vectors, lines=lines))

    def one(leg: Any, shape: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, out: Any, following: Any
) -> Any:  # fmt: skip
        kernel(weights, group_stride, blocks, acts, 0, 0, out, 0, 0, following)

    return one


def _tile(leg: StaticType, tokens: int, vectors: int) -> Any:
    layout, form, flags = (str(part) for part in leg.parts)
    shape = TileShape(tokens, vectors, "i" in flags, "a" in flags)
    return tile(PACKED_FORMATS[layout], FORMS[form], shape)
