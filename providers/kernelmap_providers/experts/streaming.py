"""Dots of a few tokens with one packed row group: weights from memory decide, so they come as one ascending run.

One core of a Zen 5 reads a single ascending run at 36 to 45 GB/s but the eight streams of a four-vector tile at 29. A
tile of one row group with a prefetch 8 KB ahead reads q4_k at 32 to 37 GB/s for one to three tokens, against 27 (K
2048) and 21 (K 512) for four vectors of 16 lanes and one token, 24 and 17 for three.
"""

from __future__ import annotations

from typing import Any

from kernelmap_providers.jit.generic import generic
from kernelmap_providers.packed.layouts import PACKED_FORMATS
from kernelmap_providers.simd import kernel
from kernelmap_providers.simd.target import FORMS
from kernelmap_providers.simd.tile import TileShape

STREAM_FORMS = {"avx512vnni": "avxvnni"}
"""Form of the streaming tiles where it is not the host's own: a vector of one row group, whatever the lanes."""
STREAM_AHEAD = 8192
STREAM_TOKENS = 6
"""Most tokens that take streaming tiles. Beyond them the form with more lanes wins although it waits for memory."""


def stream(leg: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, act_index: Any, act_stride: Any, out: Any,
           out_index: Any, out_stride: Any, tokens: Any) -> None:  # fmt: skip
    """Dots of a few indexed tokens with one row group; ``leg`` is ``Static(layout, form, "i")``. Jitted code only."""
    raise NotImplementedError("called from jitted code only")


@generic(stream)
def _stream(leg: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, act_index: Any, act_stride: Any,
            out: Any, out_index: Any, out_stride: Any, tokens: Any) -> Any:  # fmt: skip
    fmt, host = PACKED_FORMATS[str(leg.parts[0])], str(leg.parts[1])
    form, lines = FORMS[STREAM_FORMS.get(host, host)], -(-(fmt.head_bytes + fmt.body_bytes) // 64)
    one, two, three = (kernel.tile(fmt, form, TileShape(size, 1, indexed=True, lines=lines)) for size in (1, 2, 3))

    def run(leg: Any, weights: Any, group_stride: Any, blocks: Any, acts: Any, act_index: Any, act_stride: Any,
            out: Any, out_index: Any, out_stride: Any, tokens: Any) -> None:  # fmt: skip
        done, later = 0, weights + STREAM_AHEAD
        while done < tokens:
            left = tokens - done
            ai, oi = act_index + 4 * done, out_index + 4 * done
            if left == 1:
                one(weights, group_stride, blocks, acts, ai, act_stride, out, oi, out_stride, later)
                done += 1
            elif left == 2 or left == 4:
                two(weights, group_stride, blocks, acts, ai, act_stride, out, oi, out_stride, later)
                done += 2
            else:
                three(weights, group_stride, blocks, acts, ai, act_stride, out, oi, out_stride, later)
                done += 3

    return run
