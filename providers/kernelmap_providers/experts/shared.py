"""The shared expert with a scalar sigmoid gate a token, token by token; threads own ranges of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import (
    FLOATS_1,
    FLOATS_2,
    FLOATS_2_OUT,
    RANGE,
    SCRATCH,
    Array,
    given,
    rows_of_workers,
    tuple_of,
)
from kernelmap_providers.elementary import all_finite, dot_lanes, sigmoid32
from kernelmap_providers.experts.activations import act_bytes, act_views, quantize_row
from kernelmap_providers.experts.dots import dot_row
from kernelmap_providers.experts.mlp import gate_up_swiglu
from kernelmap_providers.experts.stored import STORED, stored
from kernelmap_providers.experts.workspace import align64, floats_at, shorts_at
from kernelmap_providers.jit.compile import compiled, entry
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.threads import run_ranges


@entry
def tokens_range(
    begin: int, end: int, worker: int, formats: Any, output: Any, hidden: Any, routed: Any, gate: Any, up: Any,
    down: Any, gate_input: Any, width: int, scratch: Any,
) -> int:  # fmt: skip
    """Tokens ``begin`` to ``end - 1``. Returns 0, or 1 + the first token that is refused."""
    size = hidden.shape[1]
    mine = scratch[worker]
    inner_at = act_bytes(formats[0], size)
    h_at = inner_at + act_bytes(formats[2], width)
    outer, inner = act_views(formats[0], mine, 0, size), act_views(formats[2], mine, inner_at, width)
    h = floats_at(mine, h_at, width)
    unpacked = shorts_at(mine, h_at + align64(4 * width), 256)
    for token in range(begin, end):
        if not (quantize_row(formats[0], hidden[token], outer) and all_finite(routed[token])):
            return token + 1
        gate_up_swiglu(formats, gate, up, 0, outer, h, unpacked)
        if not quantize_row(formats[2], h, inner):
            return token + 1
        factor = sigmoid32(dot_lanes(gate_input, hidden[token]))
        for i in range(size):
            gated = factor * dot_row(formats[2], down[0], i * down[2], inner, unpacked)
            output[token, i] = gated + routed[token, i]
    return 0


def moe_swiglu_shared_forward_q8_0_gated(spec: BuildSpec) -> Callable[..., int]:
    """Builds the block; threads own ranges of tokens (variant ``serial``: one thread).

    On a nonzero status the output is all NaN.
    """
    names = spec.dtypes["shared_gate"], spec.dtypes["shared_up"], spec.dtypes["shared_down"]
    formats = tuple(Static(name) for name in names)
    width = spec.dims["I"]
    statics = tuple_of(*(StaticType((name,)) for name in names))
    ports = FLOATS_2_OUT, FLOATS_2, FLOATS_2, STORED, STORED, STORED, FLOATS_1
    compiled(tokens_range, *RANGE, statics, *ports, types.int64, SCRATCH)
    serial = spec.variant == "serial"

    def run(
        hidden: Array, routed: Array, shared_gate: Array, shared_up: Array, shared_down: Array, gate_input: Array,
        output: Array, workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        weights = stored(shared_gate), stored(shared_up), stored(shared_down)
        scratch = rows_of_workers(workspace, threads)
        args = formats, output, given(hidden), given(routed), *weights, given(gate_input), width, scratch
        status = run_ranges(tokens_range, len(hidden), 1 if serial else threads, *args)
        if status:
            output.fill(np.nan)
        return status

    return run
