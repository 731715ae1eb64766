"""How quantized activation rows lie in scratch memory. The numbers are those of the ggml blocks, the places are ours.

q8_k (256 values, 320 bytes)                 q8_0, q8_1 (32 values, 48 bytes)
    0  int8[256]  codes                          0  int8[32]  codes
  256  int16[16]  sums of 16                    32  fp32      d (rounded to fp16, widened again)
  288  int16[8]   sums of 32                    36  fp32      s (q8_1: rounded to fp16, widened again; q8_0: 0)
  304  fp32       d                             40  int32     -128 * sum of the codes
  308  unused                                   44  unused
"""

from __future__ import annotations

from kernelmap_providers.simd.block import ActLayout

Q8_K_SUMS16 = 256
Q8_K_SUMS32 = 288

Q8_K = ActLayout("q8_k", 256, 320, -1, (304,))
Q8_0 = ActLayout("q8_0", 32, 48, 40, (32,))
Q8_1 = ActLayout("q8_1", 32, 48, 40, (32, 36))

ACT_LAYOUTS: dict[str, ActLayout] = {layout.name: layout for layout in (Q8_K, Q8_0, Q8_1)}
"""Layouts by the activation format's name."""


def act_row_bytes(layout: ActLayout, values: int) -> int:
    """Bytes of a row of ``values`` values, a multiple of the block."""
    return values // layout.values * layout.bytes
