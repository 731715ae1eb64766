"""Routed experts, token by token from the stored bytes; threads own ranges of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap.vocabulary import FORMATS
from kernelmap_providers.arguments import (
    FLOATS_2,
    FLOATS_2_OUT,
    INTS_2,
    RANGE,
    SCRATCH,
    Array,
    given,
    rows_of_workers,
    tuple_of,
)
from kernelmap_providers.elementary import ZERO, all_finite
from kernelmap_providers.experts.activations import act_bytes, act_views, quantize_row
from kernelmap_providers.experts.dots import dot_row
from kernelmap_providers.experts.mlp import gate_up_swiglu
from kernelmap_providers.experts.stored import STORED, stored
from kernelmap_providers.experts.workspace import align64, floats_at, shorts_at
from kernelmap_providers.jit.compile import compiled, entry, jit
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.threads import run_ranges


@jit
def indices_in_range(indices: Any, experts: int) -> bool:
    """Whether every index is in [0, experts)."""
    fine = True
    for slot in range(len(indices)):
        fine &= 0 <= indices[slot] < experts
    return fine


@entry
def tokens_range(
    begin: int, end: int, worker: int, formats: Any, output: Any, hidden: Any, indices: Any, routing_weights: Any,
    gate: Any, up: Any, down: Any, experts: int, width: int, scratch: Any,
) -> int:  # fmt: skip
    """Tokens ``begin`` to ``end - 1``, slots in order. Returns 0, or 1 + the first token that is refused."""
    size = hidden.shape[1]
    mine = scratch[worker]
    inner_at = act_bytes(formats[0], size)
    h_at = inner_at + act_bytes(formats[2], width)
    outer, inner = act_views(formats[0], mine, 0, size), act_views(formats[2], mine, inner_at, width)
    h = floats_at(mine, h_at, width)
    unpacked = shorts_at(mine, h_at + align64(4 * width), 256)
    for token in range(begin, end):
        fine = quantize_row(formats[0], hidden[token], outer) and all_finite(routing_weights[token])
        if not (fine and indices_in_range(indices[token], experts)):
            return token + 1
        output[token, :] = ZERO
        for slot in range(indices.shape[1]):
            expert = int(indices[token, slot])
            gate_up_swiglu(formats, gate, up, expert, outer, h, unpacked)
            if not quantize_row(formats[2], h, inner):
                return token + 1
            for i in range(size):
                y = dot_row(formats[2], down[0], expert * down[1] + i * down[2], inner, unpacked)
                output[token, i] = output[token, i] + routing_weights[token, slot] * y
    return 0


def moe_swiglu_expert_forward_q4k_q5k(spec: BuildSpec) -> Callable[..., int]:
    """Builds the block for the spec's formats; threads own ranges of tokens (variant ``serial``: one thread).

    On a nonzero status the output is all NaN.
    """
    names = spec.dtypes["expert_gate"], spec.dtypes["expert_up"], spec.dtypes["expert_down"]
    if FORMATS[names[0]].act != FORMATS[names[1]].act:
        raise ValueError(f"gate {names[0]} and up {names[1]} take different activation formats")
    formats = tuple(Static(name) for name in names)
    experts, width = spec.dims["E"], spec.dims["I"]
    statics = tuple_of(*(StaticType((name,)) for name in names))
    ports = FLOATS_2_OUT, FLOATS_2, INTS_2, FLOATS_2
    compiled(tokens_range, *RANGE, statics, *ports, STORED, STORED, STORED, types.int64, types.int64, SCRATCH)
    serial = spec.variant == "serial"

    def run(
        hidden: Array, indices: Array, routing_weights: Array, expert_gate: Array, expert_up: Array,
        expert_down: Array, output: Array, workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        inputs = given(hidden), given(indices), given(routing_weights)
        weights = stored(expert_gate), stored(expert_up), stored(expert_down)
        scratch = rows_of_workers(workspace, threads)
        args = formats, output, *inputs, *weights, experts, width, scratch
        status = run_ranges(tokens_range, len(hidden), 1 if serial else threads, *args)
        if status:
            output.fill(np.nan)
        return status

    return run
