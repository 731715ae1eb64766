"""Quantizing ranges of activation blocks inside jitted code, whatever the format."""

from __future__ import annotations

from typing import Any

from kernelmap_providers.jit.generic import generic
from kernelmap_providers.quantize import q8_0, q8_k
from kernelmap_providers.quantize.layouts import ACT_LAYOUTS
from kernelmap_providers.simd.static import StaticType

_BLOCKS = {"q8_k": q8_k.quantize_block, "q8_0": q8_0.quantize_q8_0_block, "q8_1": q8_0.quantize_q8_1_block}


def quantize_blocks(act: Any, x: Any, x_stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
    """Quantize blocks ``first..last`` of a matrix, counted row by row; ``act`` is ``Static(activation format)``.

    ``x`` and ``out`` are addresses, ``x_stride`` bytes between rows of ``blocks`` blocks. Returns the least row with a
    NaN, an infinity or a scale that does not fit, or the largest int64. Jitted code only.
    """
    raise NotImplementedError("called from jitted code only")


NO_ROW = 2**63 - 1


@generic(quantize_blocks)
def _quantize_blocks(act: Any, x: Any, x_stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
    if not isinstance(act, StaticType):
        return None
    layout = ACT_LAYOUTS[str(act.parts[0])]
    values_bytes, out_bytes = 4 * layout.values, layout.bytes
    quantize_block = _BLOCKS[layout.name]

    def run(act: Any, x: Any, x_stride: Any, blocks: Any, out: Any, first: Any, last: Any) -> Any:
        bad = NO_ROW
        for index in range(first, last):
            row = index // blocks
            place = x + row * x_stride + (index - row * blocks) * values_bytes
            if not quantize_block(place, out + index * out_bytes) and row < bad:
                bad = row
        return bad

    return run
