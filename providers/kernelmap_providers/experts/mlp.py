"""The stretch that all token-by-token expert blocks share, from a quantized row to the SwiGLU intermediate."""

from __future__ import annotations

from typing import Any

from kernelmap_providers.elementary import silu32
from kernelmap_providers.experts.dots import dot_row
from kernelmap_providers.jit.compile import jit


@jit
def gate_up_swiglu(formats: Any, gate: Any, up: Any, expert: int, act: Any, h: Any, unpacked: Any) -> None:
    """``h[i] = silu(gate_i . x) * (up_i . x)`` of one expert for the quantized row ``act``.

    ``formats`` holds the statics of gate, up and down; ``gate`` and ``up`` are as in `stored`.
    """
    for i in range(len(h)):
        gated = dot_row(formats[0], gate[0], expert * gate[1] + i * gate[2], act, unpacked)
        lifted = dot_row(formats[1], up[0], expert * up[1] + i * up[2], act, unpacked)
        h[i] = silu32(gated) * lifted
