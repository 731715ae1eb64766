"""Routed experts, bucketed: every hidden row is quantized once; slot by slot, sorted tokens meet packed weights.

Between passes all threads meet, so that slots add up in order whatever the schedule. Merging all slots at the end
instead would need K rows of fp32 a token: 268 MB at 4096 tokens, 8 slots and 2048 values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from kernelmap.spec import BuildSpec
from kernelmap_providers.arguments import (
    BYTES_1,
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
from kernelmap_providers.elementary import all_finite, silu32
from kernelmap_providers.experts.activations import quantize_row
from kernelmap_providers.experts.prepare import demand_layout
from kernelmap_providers.experts.routed import indices_in_range
from kernelmap_providers.experts.segments import SEGMENT_TOKENS, dot_group
from kernelmap_providers.experts.workspace import codes_at, floats_at, shorts_at
from kernelmap_providers.jit.compile import compiled, entry, jit
from kernelmap_providers.packed.weight import PackedWeight
from kernelmap_providers.simd.static import Static, StaticType
from kernelmap_providers.threads import run_ranges

ACTS = tuple_of(*(types.Array(kind, 2, "C") for kind in (types.int8, types.float32, types.int16)))
PACKED = tuple_of(BYTES_1, types.int64)
"""(bytes, bytes of a group of eight rows)."""
ORDER = types.Array(types.int32, 1, "C")
COUNTS = types.Array(types.int64, 1, "C")


@entry
def quantize_range(
    begin: int, end: int, _worker: int, formats: Any, hidden: Any, indices: Any, routing_weights: Any, experts: int,
    acts: Any,
) -> int:  # fmt: skip
    """Quantize and check tokens ``begin`` to ``end - 1``. Returns 0, or 1 + the first token that is refused."""
    codes, d, sums = acts
    for token in range(begin, end):
        fine = quantize_row(formats[0], hidden[token], (codes[token], d[token], sums[token]))
        fine = fine and all_finite(routing_weights[token]) and indices_in_range(indices[token], experts)
        if not fine:
            return token + 1
    return 0


@entry
def count_sort(indices: Any, slot: int, rows: int, counts: Any, order: Any) -> None:
    """``order`` = tokens below ``rows`` sorted by their expert in ``slot``, equal ones ascending."""
    counts[:] = 0
    for token in range(rows):
        counts[indices[token, slot] + 1] += 1
    for expert in range(1, len(counts)):
        counts[expert] += counts[expert - 1]
    for token in range(rows):
        expert = indices[token, slot]
        order[counts[expert]] = token
        counts[expert] += 1


@jit
def gate_up_segment(
    formats: Any, gate: Any, up: Any, expert: int, acts: Any, rows: Any, count: int, h: Any, unpacked: Any, acc: Any
) -> None:
    """``h[t, i] = silu(gate_i . x_t) * (up_i . x_t)`` of one expert for the tokens ``rows``."""
    groups = h.shape[1] // 8
    for group in range(groups):
        dot_group(formats[0], gate[0], (expert * groups + group) * gate[1], acts, rows, count, unpacked, acc)
        for i in range(8 * count):
            h[i // 8, 8 * group + i % 8] = silu32(acc[i])
        dot_group(formats[1], up[0], (expert * groups + group) * up[1], acts, rows, count, unpacked, acc)
        for i in range(8 * count):
            h[i // 8, 8 * group + i % 8] = h[i // 8, 8 * group + i % 8] * acc[i]


@jit
def down_segment(
    formats: Any, down: Any, expert: int, slot: int, inner: Any, rows: Any, count: int, places: Any,
    routing_weights: Any, output: Any, unpacked: Any, acc: Any,
) -> None:  # fmt: skip
    """Add ``routing_weights[t, slot] * down_i . inner_t`` to the output of the tokens ``rows``."""
    groups = output.shape[1] // 8
    for group in range(groups):
        dot_group(formats[2], down[0], (expert * groups + group) * down[1], inner, places, count, unpacked, acc)
        for i in range(8 * count):
            token, column = rows[i // 8], 8 * group + i % 8
            output[token, column] = output[token, column] + routing_weights[token, slot] * acc[i]


@jit
def worker_views(mine: Any, width: int) -> Any:
    """(inner codes, d and sums; h; unpacked codes; accumulators) in a worker's scratch (sizes as in the map)."""
    tokens = SEGMENT_TOKENS
    d_at = tokens * width
    sums_at = d_at + tokens * (width // 64)
    h_at = sums_at + tokens * (width // 8)
    unpacked_at = h_at + 4 * tokens * width
    inner = (
        codes_at(mine, 0, tokens * width).reshape(tokens, width),
        floats_at(mine, d_at, tokens * (width // 256)).reshape(tokens, width // 256),
        shorts_at(mine, sums_at, tokens * (width // 16)).reshape(tokens, width // 16),
    )
    h = floats_at(mine, h_at, tokens * width).reshape(tokens, width)
    return inner, h, shorts_at(mine, unpacked_at, 2048), floats_at(mine, unpacked_at + 4096, 8 * tokens)


@jit
def segment_length(order: Any, at: int, end: int, indices: Any, slot: int) -> int:
    """How many tokens from ``at`` on have the same expert, at most SEGMENT_TOKENS."""
    length = 1
    expert = indices[order[at], slot]
    while length < SEGMENT_TOKENS and at + length < end and indices[order[at + length], slot] == expert:
        length += 1
    return length


@entry
def slot_range(
    begin: int, end: int, worker: int, formats: Any, output: Any, indices: Any, routing_weights: Any, gate: Any,
    up: Any, down: Any, slot: int, acts: Any, order: Any, width: int, scratch: Any,
) -> int:  # fmt: skip
    """Sorted places ``begin`` to ``end - 1`` of one slot. Returns 0, or 1 + the least token that is refused."""
    inner, h, unpacked, acc = worker_views(scratch[worker], width)
    places = np.arange(SEGMENT_TOKENS).astype(np.int32)
    refused = 0
    at = begin
    while at < end:
        count = segment_length(order, at, end, indices, slot)
        rows = order[at : at + count]
        expert = int(indices[rows[0], slot])
        gate_up_segment(formats, gate, up, expert, acts, rows, count, h, unpacked, acc)
        for t in range(count):
            fine = quantize_row(formats[2], h[t], (inner[0][t], inner[1][t], inner[2][t]))
            if not fine and (refused == 0 or rows[t] + 1 < refused):
                refused = rows[t] + 1
        down_segment(formats, down, expert, slot, inner, rows, count, places, routing_weights, output, unpacked, acc)
        at += count
    return refused


def _views(workspace: Array, shape: tuple[int, ...], experts: int, threads: int) -> list[Array]:
    """Codes, d and sums of all hidden rows, order, counts, and a row of scratch a worker (sizes as in the map)."""
    tokens, size = shape
    parts: list[tuple[tuple[int, ...], Any]] = [
        ((tokens, size), np.int8),
        ((tokens, size // 256), np.float32),
        ((tokens, size // 16), np.int16),
        ((tokens,), np.int32),
        ((experts + 1,), np.int64),
    ]
    views: list[Array] = []
    at = 0
    for part, dtype in parts:
        nbytes = int(np.prod(part)) * np.dtype(dtype).itemsize
        views.append(workspace[at : at + nbytes].view(dtype).reshape(part))
        at += -(-nbytes // 64) * 64
    rest = workspace[at:]
    return [*views, rows_of_workers(rest, threads)]


def forward(
    formats: Any, output: Array, inputs: tuple[Array, Array, Array], weights: tuple[Any, Any, Any], workspace: Array,
    width: int, experts: int, threads: int,
) -> int:  # fmt: skip
    """All passes of one call; returns 0, or 1 + the least token that is refused.

    After a refusal only the tokens below it go on, so that the least one is found whatever pass meets it.
    """
    hidden, indices, routing_weights = inputs
    codes, d, sums, order, counts, scratch = _views(workspace, hidden.shape, experts, threads)
    acts = codes, d, sums
    status = run_ranges(quantize_range, len(hidden), threads, formats, *inputs, experts, acts)
    rows = status - 1 if status else len(hidden)
    output[:rows] = 0
    for slot in range(indices.shape[1]):
        count_sort(indices, slot, rows, counts, order)
        args = formats, output, indices, routing_weights, *weights, slot, acts, order, width, scratch
        refused = run_ranges(slot_range, rows, threads, *args)
        if refused:
            status, rows = refused, refused - 1
    return status


def _compile(names: tuple[str, str, str]) -> None:
    statics = tuple_of(*(StaticType((name,)) for name in names))
    integer = types.int64
    compiled(quantize_range, *RANGE, statics, FLOATS_2, INTS_2, FLOATS_2, integer, ACTS)
    compiled(count_sort, INTS_2, integer, integer, COUNTS, ORDER)
    weights = (PACKED, PACKED, PACKED)
    compiled(
        slot_range, *RANGE, statics, FLOATS_2_OUT, INTS_2, FLOATS_2, *weights, integer, ACTS, ORDER, integer, SCRATCH
    )  # fmt: skip


def moe_swiglu_expert_forward_q4k_q5k_bucketed(spec: BuildSpec) -> Callable[..., int]:
    """Builds the block for prepared weights; threads own ranges of sorted tokens (variant ``serial``: one thread).

    On a nonzero status the output is all NaN. ``run`` raises TypeError for a weight in another layout.
    """
    ports = "expert_gate", "expert_up", "expert_down"
    names = spec.dtypes["expert_gate"], spec.dtypes["expert_up"], spec.dtypes["expert_down"]
    formats = tuple(Static(name) for name in names)
    size, width, experts = spec.dims["H"], spec.dims["I"], spec.dims["E"]
    shapes = (experts, width, size), (experts, width, size), (experts, size, width)
    layouts = [spec.prepared[port] for port in ports]
    serial = spec.variant == "serial"
    _compile(names)

    def run(
        hidden: Array, indices: Array, routing_weights: Array, expert_gate: PackedWeight, expert_up: PackedWeight,
        expert_down: PackedWeight, output: Array, workspace: Array, threads: int,
    ) -> int:  # fmt: skip
        prepared = zip((expert_gate, expert_up, expert_down), layouts, shapes, strict=True)
        data = [demand_layout(*item) for item in prepared]
        gate, up, down = ((given(array.reshape(-1)), array.shape[-1]) for array in data)
        inputs = given(hidden), given(indices), given(routing_weights)
        workers = 1 if serial else threads
        status = forward(formats, output, inputs, (gate, up, down), workspace, width, experts, workers)
        if status:
            output.fill(np.nan)
        return status

    return run
